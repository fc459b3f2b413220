"""Kernel source to call: build, cache, guards, programs. Knows no compiler."""
