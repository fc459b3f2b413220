"""Rules DYN5xx: shapes that depend on data."""
