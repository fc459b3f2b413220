"""Lowerings of core ATen operators to loop nests."""
