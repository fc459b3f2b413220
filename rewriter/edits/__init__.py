"""Files of Python source, and edits of their text that change nothing else."""
