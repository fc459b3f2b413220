"""`dynfix.compile`: options, cache entries, recompiles, when to compile."""
