"""Kernels on GPUs: sources, binaries, the choice among them, launches."""
