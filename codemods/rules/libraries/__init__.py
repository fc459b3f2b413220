"""Rules DYN6xx: other libraries."""
