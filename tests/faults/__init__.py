"""VMs join, leave, stop, crash and migrate under load: `make test-faults`."""
