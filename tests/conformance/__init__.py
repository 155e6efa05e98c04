"""Other people's test suites over rings: no test may end otherwise than over TCP."""
