"""The parts of the command `dynrun`."""
