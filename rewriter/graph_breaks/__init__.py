"""Functions that break the graph: split into compiled parts and statements that run in Python."""
