"""Host reads of a traced run: where captured code read tensors on the host or made shapes of their
values, how it was reached from the outermost module, and whether what was read depends on that
module's inputs alone. Needs torch."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import Any

from ...lowering.opinfo import having
from ...rewriter.analysis.call_effects import DRAWS
from ...rewriter.analysis.torch_facts import SIZED, SIZED_FACTORIES

_READS = frozenset("item tolist numpy __bool__ __int__ __float__ __index__ __complex__".split())
_SHAPES = having("shape_may_be_data")
_MAX_STACKS = 20_000  # looks at stacks, after which a loop has shown its own


class HostReadRecorder:
    """Records reads while a module is called; `mode()` gives the function mode that sees every
    tensor operation."""

    def __init__(self, paths: Any, torch: Any) -> None:
        self.paths, self.torch = paths, torch
        self.root, self.found, self.looks = None, {}, 0
        self.real, self.derived, self.constants, self.inputs, self.consumed = (
            {},
            None,
            None,
            None,
            False,
        )

    def enter(self, called: Any) -> None:
        """The call of the outermost module, or of a compiled function, begins."""
        self.root = called
        self.derived, self.constants = {}, self.torch.utils.weak.WeakIdKeyDictionary()
        for buffer in called.buffers() if isinstance(called, self.torch.nn.Module) else ():
            self._derive(buffer)

    def leave(self) -> None:
        self.root = self.derived = self.constants = self.inputs = None

    def mode(self) -> Any:
        reads = self

        class Watch(self.torch.overrides.TorchFunctionMode):
            def __torch_function__(
                self, function: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                if reads.root is not None and reads.inputs is None:
                    reads.inputs = reads._inputs()
                result = function(*args, **(kwargs or {}))
                if reads.root is not None:
                    reads.see(
                        function, getattr(function, "__name__", ""), args, kwargs or {}, result
                    )
                return result

        return Watch()

    def see(self, function: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        self.consumed |= (
            name == "__get__" and function is self.torch.Tensor.data.__get__
        )  # writes to it move no version
        tensors = list(_leaves((args, kwargs), self.torch.Tensor))
        derived = name in DRAWS or any(self.is_derived(t) for t in tensors)
        if derived:
            for tensor in _leaves((result, args[:1] if _writes(name) else ()), self.torch.Tensor):
                self._derive(tensor)
        self._constant(result, name, tensors)
        meant = _leaves(_meant_as_numbers(name, args), self.torch.Tensor)
        numbers = [t for t in meant if not self._is_constant(t)]
        if tensors and (numbers or self.reads(name, args, kwargs, result)):
            index = (
                list(_leaves(args[1], self.torch.Tensor))
                if name == "__getitem__"
                else numbers or tensors
            )
            derived = (name in DRAWS and not numbers) or any(
                self.is_derived(t) for t in index
            )  # of what is read
            self.note(
                not derived
                and all(t._version == version for t, version in self.inputs)
                and not self.consumed
            )

    def _constant(self, result: Any, name: str, tensors: Any) -> None:
        """Note a number that is made of Python numbers alone: compilers know its value."""
        is_number = (
            isinstance(result, self.torch.Tensor)
            and result.dim() == 0
            and not result.is_inference()
        )
        if is_number and name not in DRAWS and all(self._is_constant(t) for t in tensors):
            self.constants[result] = result._version

    def _is_constant(self, tensor: Any) -> bool:
        return tensor in self.constants and self.constants[tensor] == tensor._version

    def _derive(self, tensor: Any) -> None:
        """Whatever shares its memory is derived with it."""
        with contextlib.suppress(RuntimeError):  # of some layouts there is none
            ref = self.torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage())
            self.derived[ref.cdata] = ref

    def is_derived(self, tensor: Any) -> bool:
        """Of parameters, or drawn at random: not of the inputs alone."""
        if isinstance(tensor, self.torch.nn.Parameter):
            return True
        try:
            return tensor.untyped_storage()._cdata in self.derived
        except RuntimeError:
            return True

    def reads(self, name: str, args: Any, kwargs: Any, result: Any) -> bool:
        """Whether the call read data on the host, or made a shape of it."""
        if name in _READS:
            return True
        if name == "repeat_interleave":
            many = [
                a for a in [*args[1:], kwargs.get("repeats")] if isinstance(a, self.torch.Tensor)
            ]
            return (bool(many) or len(args) + len(kwargs) == 1) and kwargs.get(
                "output_size"
            ) is None
        if name == "__getitem__":
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            return any(
                isinstance(i, self.torch.Tensor) and i.dtype in (self.torch.bool, self.torch.uint8)
                for i in index
            )
        return name in _SHAPES

    def note(self, clean: Any) -> None:
        """Keep the way from the outermost module to the read, innermost last."""
        self.looks += 1
        if self.looks > _MAX_STACKS or sys.version_info < (3, 11):
            return  # older ones do not tell which expression a frame is at
        frames, frame = [], sys._getframe(3)
        while frame is not None and not self._is_root(frame):
            code = frame.f_code
            path = self._path(code.co_filename)
            if path in self.paths:
                frames.append((path, code.co_qualname, _place(code, frame.f_lasti)))
            frame = frame.f_back
        key = tuple(reversed(frames))
        if frame is not None and key:
            self.found[key] = self.found.get(key, True) and clean

    def _inputs(self) -> Any:
        """The tensors that the outermost module was given, with their versions: writes to them, by
        any name, show. What is given as an iterator can be read once only."""
        frame = sys._getframe(1)
        while frame is not None and not self._is_root(frame):
            frame = frame.f_back
        given = [frame.f_locals.get(n) for n in ("args", "kwargs")] if frame is not None else []
        given += list(self._objects(given))
        tensors = list(_leaves(given, self.torch.Tensor))
        self.consumed = any(True for _ in _leaves(given, Iterator)) or any(
            t.is_inference() for t in tensors
        )
        return [(t, t._version) for t in tensors if not t.is_inference()]

    def _objects(self, value: Any) -> Iterator[Any]:
        """What the objects that were given hold in attributes."""
        if isinstance(value, (list, tuple, dict)):
            for part in value.values() if isinstance(value, dict) else value:
                yield from self._objects(part)
        elif hasattr(value, "__dict__") and not isinstance(
            value, (self.torch.Tensor, self.torch.nn.Module, type)
        ):
            yield dict(vars(value))

    def _is_root(self, frame: Any) -> bool:
        name = {"_call_impl": "self", "watched": "model"}.get(frame.f_code.co_name, "")
        return bool(name) and frame.f_locals.get(name) is self.root

    def _path(self, filename: Any) -> Any:
        path = self.real.get(filename)
        if path is None:
            path = self.real[filename] = os.path.realpath(filename)
        return path

    def data(self) -> Any:
        """[[[[path, function, [line, column, end line, end column]], …], whether of the inputs
        alone]]."""
        return [[[list(frame) for frame in key], clean] for key, clean in self.found.items()]


def _place(code: Any, instruction: Any) -> Any:
    positions = code.co_positions()
    for _ in range(instruction // 2):
        next(positions)
    line, end_line, column, end_column = next(positions)
    return line, column, end_line, end_column


def _writes(name: str) -> Any:
    """Whether a function of that name writes into its first argument."""
    if name.startswith("__"):
        return name == "__setitem__" or (
            name[2:3] == "i" and name not in ("__invert__", "__index__", "__int__")
        )
    return name.endswith("_")


def _meant_as_numbers(name: str, args: Any) -> Any:
    """The arguments of which a function makes Python ints: bounds of slices, and sizes."""
    if name == "__getitem__":
        return [
            i for i in (args[1] if isinstance(args[1], tuple) else args[1:]) if isinstance(i, slice)
        ]
    return args[1:] if name in SIZED else args if name in SIZED_FACTORIES else ()


def _leaves(value: Any, kind: Any) -> Iterator[Any]:
    if isinstance(value, kind):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _leaves(part, kind)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _leaves(part, kind)
    elif isinstance(value, slice):
        yield from _leaves([value.start, value.stop, value.step], kind)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for part in list(vars(value).values()) if hasattr(value, "__dict__") else ():
            yield from _leaves(part, kind)
