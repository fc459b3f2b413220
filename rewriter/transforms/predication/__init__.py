"""A function that decides by tensors as one path: what runs where is told by predicates."""
