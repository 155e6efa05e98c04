"""Domains of Xen: stock Xen and dom0 in one emulated machine."""
