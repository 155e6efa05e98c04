"""VMs join, leave, stop, crash and move under load: `make migration`."""
