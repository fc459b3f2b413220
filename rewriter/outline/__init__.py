"""A function that breaks, cut into parts that are captured and statements that run as they are."""
