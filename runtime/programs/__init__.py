"""Compiled programs: their steps, the replay of side effects, the way from a call to its entry."""
