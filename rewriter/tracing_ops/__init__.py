"""The tracing operators: what a rewritten construct does while a call is recorded, and else."""
