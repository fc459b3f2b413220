"""Run-time operators that the rewritten source calls."""
