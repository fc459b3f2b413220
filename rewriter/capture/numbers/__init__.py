"""Numbers, sizes and small constants while recording."""
