"""`make bench`: how fast Hallway is beside TCP, by figures that repeat."""
