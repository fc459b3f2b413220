"""What patterns make of a function while it is recorded."""
