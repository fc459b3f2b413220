"""A later call of a recording: values made again by recipe."""
