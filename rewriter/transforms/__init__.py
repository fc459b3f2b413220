"""Graph-break patterns and the traceable code that replaces them."""
