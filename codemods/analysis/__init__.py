"""What the text of a file shows: names, definitions, and the kind of every expression."""
