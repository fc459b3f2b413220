"""Rewrites a function so that it asks a tracing operator for every construct that matters."""
