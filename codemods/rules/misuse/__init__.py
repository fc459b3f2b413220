"""Rules DYN9xx: torch.compile used in a way that cannot work."""
