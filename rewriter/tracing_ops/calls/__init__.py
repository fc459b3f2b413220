"""Calls while recording, by who is called."""
