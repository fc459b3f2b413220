"""Source text: where a function's text is found, its scopes, edits that keep every other byte."""
