"""`make demo`: unmodified programs between two VMs, TCP beside Hallway."""
