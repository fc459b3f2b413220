"""Rules DYN4xx: what Python decides at run time."""
