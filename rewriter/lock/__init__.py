"""A lock: what a run compiled, as a text file that is reviewed and compared."""
