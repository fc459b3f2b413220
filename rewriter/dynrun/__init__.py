"""The command `dynrun`."""
