"""`dynfix.install()`: plain `torch.compile` is ours."""

from typing import Any

from .intercept import Hooks
from .session import Session


class Installed:
    """What `install` gave: a context manager that takes it back at its end."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks: Hooks | None = hooks
        hooks.__enter__()

    def remove(self) -> None:
        """`torch.compile` is torch's again. What was compiled stays."""
        if self._hooks is not None:
            self._hooks.__exit__()
            self._hooks = None

    def __enter__(self) -> "Installed":
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def install(**arguments: Any) -> Installed:
    """From now on `torch.compile(...)` is `dynfix.compile(...)`, in code that was written for it:
    its default backend, Inductor, means ours; modes and options of Inductor's that we do not have
    are left out; a backend that only torch knows goes to torch. `arguments`: of `dynfix.compile`,
    for every call that does not say otherwise. `with install(): ...`, or `install().remove()`, take
    it back. Raises OptionError for unknown arguments."""
    session = Session(**arguments)
    session.kinds = "decorated"
    return Installed(Hooks(session, 0))
