"""The dispatch mode that this package's own modes are."""

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode whose every operator does not first go through Dynamo's `disable`, which costs more
    than most operators and keeps the frames that an exception leaves."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
