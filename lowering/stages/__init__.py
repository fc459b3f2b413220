"""The stages between lowering and printing."""
