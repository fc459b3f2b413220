"""Compiled models in one file: the container, and what a call needs but its programs, as data."""
