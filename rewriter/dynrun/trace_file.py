"""`dynrun --profile FILE.json`: the run's operators and kernels on a line of time."""

import atexit
import os
import tempfile

import torch

from . import summary


class ProfiledRun:
    """torch's profiler from now to the end of this process, then a file for Perfetto or
    chrome://tracing, in which kernels have the names of the lines that they come from."""

    def __init__(self, file: str) -> None:
        self.file, self._process = file, os.getpid()
        self._profile = torch.profiler.profile()
        self._profile.start()
        atexit.register(self.write)

    def write(self) -> None:
        """Stop, and write the file: as a whole or not at all. What fails is a line on stderr."""
        if os.getpid() != self._process:
            return
        try:
            self._profile.stop()
            with tempfile.TemporaryDirectory(dir=os.path.dirname(self.file)) as folder:
                made = os.path.join(folder, "trace.json")
                self._profile.export_chrome_trace(made)
                os.replace(made, self.file)
            summary.say_line(f"--profile: {self.file}")
        except (OSError, RuntimeError) as error:
            summary.say_line(f"--profile: not written: {error}")
