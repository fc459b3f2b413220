"""A thread that draws random numbers beside what is tested."""

import threading

import torch


class Drawing:
    """A context manager: inside, another thread draws from torch's generator, all the time."""

    def __enter__(self):
        torch.manual_seed(0)
        self._drawn, self._ends = [], threading.Event()
        self._thread = threading.Thread(target=self._draw)
        self._thread.start()
        return self

    def _draw(self):
        while not self._ends.is_set():
            self._drawn.append(torch.rand(64))

    def __exit__(self, *error):
        self._ends.set()
        self._thread.join()

    def drew_each_once(self):
        """Whether the thread got what a thread alone gets, to be asked at the end."""
        torch.manual_seed(0)
        return all(torch.equal(each, torch.rand(64)) for each in self._drawn)
