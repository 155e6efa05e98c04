"""Tests of the module alone: both ends of each connection in one guest."""
