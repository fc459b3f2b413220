"""Background work at the end of the process."""

import subprocess
import sys
import textwrap

from dynfix.runtime import background_budget
from simulated import Simulated


def test_work_ends_before_what_was_there_first_is_taken_down():
    """torch takes its operators down at the end of the process: nothing may be built then."""
    script = """
        import time, weakref
        from dynfix.rewriter.frontend.background import Background

        background = Background(lambda stored: None)
        background.start()
        class Library:
            pass
        library, begun = Library(), []
        def work():
            begun.append(True)
            while True:
                background.worker.checkpoint()
                time.sleep(0.001)
        def thread_lives():
            print(background.worker._thread.is_alive())
        weakref.finalize(library, thread_lives)
        background.worker.submit(work)
        while not begun:
            time.sleep(0.01)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_compiler_waits_where_its_time_would_be_the_scripts(monkeypatch):
    monkeypatch.setattr(background_budget, "_kept", [])
    assert background_budget.is_affordable(1e9)  # nobody counts
    machine = Simulated(crowded=True)
    account = background_budget.Account(started=machine.now(), machine=machine)
    account.torch_seconds = 0.5
    account.settled = True
    machine.sleep(100.0)
    background_budget.keep(account)
    assert background_budget.is_affordable(7) and not background_budget.is_affordable(9)
    machine.crowded = False
    assert background_budget.is_affordable(9)
