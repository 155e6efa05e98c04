"""What the module tests and the end-to-end tests share."""
