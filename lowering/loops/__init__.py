"""The loop IR, its sizes, and the passes over it up to the schedule and the storage plan."""
