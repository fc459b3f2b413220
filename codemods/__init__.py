"""The same patterns, for people: the `dynfix` command, its rules and formats."""
