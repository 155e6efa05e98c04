"""Other people's programs between two VMs, on rings and while the carrier keeps switching."""
