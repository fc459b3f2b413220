"""A machine whose clocks stand still until a test moves them."""

import threading
import time

from dynfix.runtime.environment.machine import Machine


class Simulated(Machine):
    """Sleeping moves its clock, working processor time too. `busy`: the processor time that the
    rest of the process takes in each second in which a thread sleeps. `slept`: each sleep."""

    def __init__(self, crowded=False, cores=2):
        self.cores, self.crowded, self.busy = cores, crowded, 0.0
        self.clock, self.process, self.slept = 1000.0, 0.0, []
        self._threads = {}

    def now(self):
        return self.clock

    def process_seconds(self):
        return self.process

    def thread_seconds(self):
        return self._threads.get(threading.get_ident(), 0.0)

    def is_crowded(self):
        return self.crowded

    def sleep(self, seconds):
        self.clock += seconds
        self.process += self.busy * seconds
        self.slept.append(seconds)
        time.sleep(0)  # other threads go on

    def work(self, seconds, of_others=0.0):
        """The calling thread works for so long, and other threads of the process meanwhile."""
        self.clock += seconds
        self._threads[threading.get_ident()] = self.thread_seconds() + seconds
        self.process += seconds + of_others
