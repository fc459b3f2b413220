"""Rules DYN3xx: what captured code does to the outside."""
