"""Source text to graph: parsing, rewriting, recording the first real call."""
