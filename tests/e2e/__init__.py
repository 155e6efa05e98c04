"""End-to-end tests: guests on one or two hosts."""
