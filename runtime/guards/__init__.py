"""Guards: what must hold for a cache entry to serve a call, checked in native code."""
