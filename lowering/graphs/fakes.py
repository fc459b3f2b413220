"""The dispatch modes of this package, and the one that makes its fake tensors, whose every operator
is a place where background work may rest."""

import contextlib
import warnings
from typing import Any

from torch._higher_order_ops import utils as higher_order
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ...runtime.pacing import checkpoint, in_background

# Operators on functions whose rule the mode itself calls.
_OF_THE_MODE: Any = getattr(higher_order, "registered_hop_fake_fns", {})


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode whose every operator does not first go through Dynamo's `disable`, which costs more
    than most operators and keeps the frames that an exception leaves."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


class PacedFakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """torch's, with a checkpoint before each operator."""

    supports_higher_order_operators = True  # by the rules that are registered for torch's mode

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        checkpoint()
        rule = _higher_order_rule(func)
        if rule is not None:
            return rule(self, *args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


def _higher_order_rule(operator: Any) -> Any:
    """What is registered for torch's mode by its type, if that is no way back to the mode."""
    if not isinstance(operator, HigherOrderOperator) or operator in _OF_THE_MODE:
        return None
    return operator.python_key_table.get(FakeTensorMode)


def without_warnings() -> contextlib.AbstractContextManager[Any]:
    """No warnings of the work inside. Filters belong to the whole process, so a background thread
    leaves them alone (its worker keeps what it says to itself)."""
    if in_background():
        return contextlib.nullcontext()
    return warnings.catch_warnings(action="ignore")  # type: ignore[call-overload,no-any-return,unused-ignore]
