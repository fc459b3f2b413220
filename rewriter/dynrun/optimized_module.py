"""What `torch.compile` gives a script for a module: as torch's, a module around it. Keys of its
`state_dict()` begin with `_orig_mod.`, names of its parameters and modules, too, and everything
else is the module's own."""

import functools
import sys
from collections.abc import Callable, Iterable, Sized
from typing import Any

import torch

_TORCHS = "torch._dynamo.eval_frame"
_OWN = ("_orig_mod", "_call", "_again", "_is_made")


class OptimizedModule(torch.nn.Module):
    """Around `module`, whose calls go to `call`. `again` is what `torch.compile` was given besides:
    a copy, and what is read from a file, is compiled by whatever `torch.compile` is there."""

    __module__ = _TORCHS  # as it is shown, and where capture looks for what such modules keep
    _compiled_call_impl = None  # its own calls are no outermost ones: `call` decides

    _orig_mod: torch.nn.Module

    def __init__(
        self, module: torch.nn.Module, call: Callable[..., Any], again: dict[str, Any]
    ) -> None:
        set_own = functools.partial(object.__setattr__, self)
        set_own("_orig_mod", module)
        set_own("_is_made", False)
        super().__init__()
        set_own("_is_made", True)
        del self.__dict__["_orig_mod"]
        self._modules["_orig_mod"] = module
        set_own("_call", call)
        set_own("_again", again)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """torch's own, where it is loaded: scripts ask whether a module is one of these."""
        return getattr(sys.modules.get(_TORCHS), "OptimizedModule", type(self))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The compiled call."""
        return self._call(*args, **kwargs)

    @property
    def training(self) -> bool:
        """The module's."""
        return self._orig_mod.training

    @training.setter
    def training(self, value: bool) -> None:
        if self._is_made:
            self._orig_mod.training = value

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self.__dict__["_modules"]["_orig_mod"]
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name) or name in _OWN:
            super().__setattr__(name, value)
        else:
            setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if hasattr(type(self), name) or name in _OWN:
            super().__delattr__(name)
        else:
            delattr(self._orig_mod, name)

    def __len__(self) -> int:
        if isinstance(self._orig_mod, Sized):
            return len(self._orig_mod)
        raise TypeError(f"{type(self._orig_mod).__name__} does not support len()")

    def __dir__(self) -> Iterable[str]:
        of_module = dir(self._orig_mod)
        own: Iterable[str] = super().__dir__()  # type: ignore[no-untyped-call]
        return of_module + [name for name in own if name not in of_module]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return functools.partial(torch.compile, **self._again), (self._orig_mod,)
