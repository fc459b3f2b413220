"""FX passes, before and around AOTAutograd."""
