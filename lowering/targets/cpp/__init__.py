"""C++ kernels."""
