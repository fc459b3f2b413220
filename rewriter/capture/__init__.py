"""Recording of one real call: graph, guards, effects, breaks."""
