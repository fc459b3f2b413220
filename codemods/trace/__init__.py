"""What a traced run showed of the expressions of a file."""
