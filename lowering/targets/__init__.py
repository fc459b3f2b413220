"""Printers of the loop IR: C++, Triton, and calls into torch's own library."""
