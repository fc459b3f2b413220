"""Fake tensors for compiling: a mode whose every operator is a place where background work may
rest."""

import contextlib
import warnings
from typing import Any

from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensorMode

from ...runtime.pacing import checkpoint, in_background


class PacedFakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """torch's, with a checkpoint before each operator."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        checkpoint()
        if isinstance(func, HigherOrderOperator):  # their rules are found by a mode's exact class
            rule = func.python_key_table.get(FakeTensorMode)
            return NotImplemented if rule is None else rule(self, *args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


def without_warnings() -> contextlib.AbstractContextManager[Any]:
    """No warnings of the work inside. Filters belong to the whole process, so a background thread
    leaves them alone (its worker keeps what it says to itself)."""
    if in_background():
        return contextlib.nullcontext()
    return warnings.catch_warnings(action="ignore")  # type: ignore[call-overload,no-any-return,unused-ignore]
