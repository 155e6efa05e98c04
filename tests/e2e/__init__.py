"""End-to-end tests: two VMs on a bridge, the daemon, streams between them."""
