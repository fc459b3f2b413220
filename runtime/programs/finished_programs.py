"""Whether a program has run to its end in this thread since a call began: it writes inputs last, so
that what fails before can be done again in eager, and what fails behind it cannot."""

import threading


class _Here(threading.local):
    done = False


_here = _Here()


def begin() -> None:
    """A call begins."""
    _here.done = False


def note() -> None:
    """A program has run."""
    _here.done = True


def is_done() -> bool:
    return _here.done
