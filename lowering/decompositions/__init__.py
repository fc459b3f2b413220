"""Operators in terms of others, before a graph is made."""
