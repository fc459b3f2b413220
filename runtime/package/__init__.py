"""Compiled models in one file: the container, and what a call needs besides its programs, as data."""
