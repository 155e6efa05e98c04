"""Tests without a guest."""
