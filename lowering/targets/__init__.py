"""Kernels from scheduled loops: C++ for the CPU, Triton for GPUs, calls of the library."""
