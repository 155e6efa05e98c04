"""Tests of the lab itself: what it promises to leave behind, which is nothing."""
