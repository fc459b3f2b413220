"""The `dynfix` command: files, settings, output."""
