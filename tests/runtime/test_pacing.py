"""Background work at the end of the process."""

import subprocess
import sys
import textwrap


def test_work_ends_before_what_was_there_first_is_taken_down():
    """torch takes its operators down at the end of the process: nothing may be built then."""
    script = """
        import time, weakref
        from dynfix.rewriter.background import Background

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
