"""What `make check` checks: our own rules, and tools with their settings."""
