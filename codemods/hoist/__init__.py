"""Host reads that depend on a module's inputs alone, computed ahead of its captured call."""
