"""Graph to kernel source: joint graph, loop IR, fusion, targets."""
