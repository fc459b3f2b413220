"""What a recording knows of each tensor: the value it stands for, and whether anything touched it
unseen."""

import dataclasses
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from ...lowering.autograd.result_views import is_writable
from ...runtime.programs.steps import CALL_INPUT
from ...runtime.programs.undo import version_of


@dataclasses.dataclass(eq=False)
class TracedTensor:
    """A tensor of the recorded program. `home`: the segment that makes it, or CALL_INPUT; `node`:
    its fx node there; `index`: which call input it is. `meta` is noted when the tensor is first
    met, before any later write. `fresh`: an operator made it, and its memory; `base`: the value
    whose memory it has, if that is another one and known; `beside`: one whose memory it has
    and is no view of (`detach()`, another type), or a view of what an operator keeps to itself
    (`tensordot` reshapes) as this one; `is_view`, `is_writable`: how autograd takes it; `counted`:
    its version tells of a write."""

    home: int
    node: Any
    index: int
    meta: "Meta | Number"
    fresh: bool = False
    base: "TracedTensor | None" = None
    beside: "TracedTensor | None" = None
    is_view: bool = False
    is_writable: bool = True
    counted: bool = False


@dataclasses.dataclass(frozen=True)
class Meta:
    """Sizes and strides in elements, dtype, device and requires_grad of a tensor at one moment;
    whether its memory holds the negatives of its numbers, or nothing, for zeros."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    is_lazy: bool = False

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Meta":
        if is_opaque(tensor):
            facts = tensor.dtype, tensor.device, tensor.requires_grad
            return OpaqueMeta((), (), *facts)
        return cls(
            tuple(tensor.shape),
            tuple(tensor.stride()),
            tensor.dtype,
            tensor.device,
            tensor.requires_grad,
            tensor.is_neg() or tensor._is_zerotensor(),
        )

    @property
    def on_gpu(self) -> bool:
        """Whether it lies elsewhere than on the host."""
        return self.device.type != "cpu"

    def fake(self) -> torch.Tensor:
        """An uninitialised tensor of this description; under a FakeTensorMode, a fake one."""
        tensor = torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)
        return tensor.requires_grad_(self.requires_grad)


class OpaqueMeta(Meta):
    """Of a tensor that only torch's own operators can take: sizes and strides say nothing."""


FLOAT = Meta((), (), torch.float64, torch.device("cpu"), False)


@dataclasses.dataclass(frozen=True)
class Number:
    """An integer of the call that a graph takes as an input. `seen`: its value in the recorded
    call."""

    seen: int
    requires_grad: bool = False
    on_gpu = False

    def fake(self) -> int:
        return self.seen


@dataclasses.dataclass(eq=False)
class Tracked:
    """A live tensor's value and the last state in which the recorder saw it. `moved_away`: it has
    another one's memory by now, that of the value `content`."""

    value: TracedTensor
    version: int
    grad: tuple[bool, str]
    storage: int
    readonly: bool = False
    moved_away: bool = False
    content: TracedTensor | None = None


def grad_of(tensor: torch.Tensor) -> tuple[bool, str]:
    return tensor.requires_grad, history_of(tensor)


def history_of(tensor: torch.Tensor) -> str:
    """The name of its gradient function, whatever attributes the user's code gave that."""
    try:
        fn: Any = tensor.grad_fn
    except RuntimeError:  # a view, made without gradients, of what requires grad and was written
        return _REFUSED
    return "" if fn is None else type(fn).name(fn)


def has_history(tensor: torch.Tensor) -> bool:
    """Whether a backward may come through the tensor."""
    return history_of(tensor) not in ("", _REFUSED)


def takes_history(tensor: torch.Tensor, written: torch.Tensor) -> bool:
    """Whether a differentiated write of `written` leaves `tensor`, which has the same memory, as no
    program leaves an input: with a history, or without the one that `written` alone has, where
    autograd does not know what they share (`x.view(x.dtype)` is no view)."""
    return tensor.requires_grad or _whole(tensor) is not _whole(written)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


_REFUSED = "none that may be used"


def storage_of(tensor: torch.Tensor) -> int:
    if is_opaque(tensor):  # its memory is that of others, or several
        return -id(tensor)
    return unwrapped(tensor).untyped_storage()._cdata  # type: ignore[no-any-return]


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that vmap and torch.func's gradients work on, below their levels."""
    while _is_wrapped(tensor):
        tensor = _content_of(tensor)
    return tensor


_is_wrapped: Any = torch._C._functorch.is_functorch_wrapped_tensor
_content_of: Any = torch._C._functorch.get_unwrapped


def writes_of(tensor: torch.Tensor) -> int:
    """How often the tensor was written, at any level."""
    count = version_of(tensor)
    while _is_wrapped(tensor):
        tensor = _content_of(tensor)
        count += version_of(tensor)
    return count


def is_opaque(tensor: torch.Tensor) -> bool:
    """Whether no kernel can take the tensor: a sparse or nested one, or one whose class answers
    each operator."""
    if tensor.layout is not torch.strided:
        return True
    return type(tensor) not in _PLAIN and _answers_operators(tensor)


def _answers_operators(tensor: torch.Tensor) -> bool:
    kind: Any = type(tensor)
    return kind.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a recording can describe the tensor: strided, of no subclass but Parameter, and those
    of Parameter that only add to it."""
    kind = type(tensor)
    return (kind in _PLAIN or _only_adds(kind)) and tensor.layout == torch.strided


_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_OF_EVERY_CLASS = frozenset(
    "__module__ __doc__ __dict__ __weakref__ __qualname__ __annotations__ __firstlineno__"
    " __static_attributes__ __new__ __init__ __init_subclass__ __deepcopy__ __reduce_ex__".split()
)


def _only_adds(kind: type) -> bool:
    """Whether torch's functions take tensors of this class as they take Parameters."""
    if not issubclass(kind, torch.nn.Parameter):
        return False
    own = kind.__mro__[: kind.__mro__.index(torch.nn.Parameter)]
    names = {name for base in own for name in base.__dict__} - _OF_EVERY_CLASS
    return "__getattr__" not in names and not any(hasattr(torch.Tensor, name) for name in names)


class Entries:
    """What is known of live tensors, by identity. A tensor's death takes its entry away, before
    another object can have its identity. (`torch.utils.weak` asks in Python whether keys are
    equal, which is felt: every operator asks some eight times.)"""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[torch.Tensor], Tracked]] = {}

    def get(self, tensor: torch.Tensor) -> Tracked | None:
        entry = self._entries.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def __getitem__(self, tensor: torch.Tensor) -> Tracked:
        return self._entries[id(tensor)][1]

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return self.get(tensor) is not None

    def __setitem__(self, tensor: torch.Tensor, tracked: Tracked) -> None:
        entries, key = self._entries, id(tensor)

        def forget(dead: weakref.ref[torch.Tensor]) -> None:
            if key in entries and entries[key][0] is dead:
                del entries[key]

        entries[key] = weakref.ref(tensor, forget), tracked

    def __delitem__(self, tensor: torch.Tensor) -> None:
        del self._entries[id(tensor)]

    def items(self) -> Iterator[tuple[torch.Tensor, Tracked]]:
        for ref, tracked in list(self._entries.values()):
            tensor = ref()
            if tensor is not None:
                fix: Any = tensor
                fix._fix_weakref()  # Python may have let go of it while C++ kept it
                yield tensor, tracked

    def clear(self) -> None:
        self._entries.clear()


class Tracker:
    """Live tensors of one recording, held weakly, so that the recording keeps no memory that eager
    would free."""

    def __init__(self) -> None:
        self._tracked = Entries()
        self._by_storage: dict[int, list[weakref.ref[Any]]] = {}
        # what backwards still need, as last asked: (of which tensors, leaves, storages)
        self.needed: tuple[Any, set[int], set[int]] | None = None

    def get(self, tensor: torch.Tensor) -> Tracked | None:
        return self._tracked.get(tensor)

    def tensor(self, value: TracedTensor) -> torch.Tensor | None:
        """The live tensor that the value stands for, if there is one."""
        pairs = self._tracked.items()
        return next((tensor for tensor, tracked in pairs if tracked.value is value), None)

    def add(self, tensor: torch.Tensor, value: TracedTensor, readonly: bool = False) -> Tracked:
        tracked = Tracked(value, writes_of(tensor), grad_of(tensor), storage_of(tensor), readonly)
        self._tracked[tensor] = tracked
        self._by_storage.setdefault(tracked.storage, []).append(weakref.ref(tensor))
        return tracked

    def move_away(self, tensor: torch.Tensor, content: TracedTensor) -> None:
        """The tensor has got another one's memory. What is written where it was does not concern it
        any more."""
        tracked = self._tracked[tensor]
        tracked.moved_away, tracked.content = True, content
        there = self._by_storage.get(tracked.storage, [])
        there[:] = [ref for ref in there if ref() is not tensor]

    def drop(self, home: int) -> None:
        """Forget the tensors that were made at `home`."""
        for tensor in [t for t, entry in self._tracked.items() if entry.value.home == home]:
            del self._tracked[tensor]

    def sharing(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The live tracked tensors on the storage of `tensor`, itself included."""
        live = [ref() for ref in self._by_storage.get(storage_of(tensor), ())]
        return [other for other in live if other is not None and other in self._tracked]

    def made(self, tensor: torch.Tensor, home: int, node: Any) -> TracedTensor:
        """Track what an operator gave."""
        base, value = tensor._base, TracedTensor(home, node, -1, Meta.of(tensor))
        if base is not None:
            whole = self._tracked.get(base)
            value.base = None if whole is None else whole.value
            value.is_view, value.is_writable = True, is_writable(tensor)
        others = self.sharing(tensor)
        value.fresh = not others  # what an operator made a view of counts for nothing
        if value.base is None and others:
            value.beside = self._tracked[others[0]].value
        self.add(tensor, value)
        return value

    def moved(self, tensor: torch.Tensor) -> bool:
        """Whether something unseen wrote to the tensor or gave it another gradient history."""
        tracked = self._tracked[tensor]
        return tracked.version != writes_of(tensor) or tracked.grad != grad_of(tensor)

    def restamp(self, tensor: torch.Tensor) -> bool:
        """Accept what a recorded operator did to the tensor and to those that share its storage;
        True if it was written."""
        tracked = self._tracked[tensor]
        written = tracked.version != writes_of(tensor)
        for other in self.sharing(tensor) if written else (tensor,):
            entry, version = self._tracked[other], writes_of(other)
            entry.value.counted |= entry.version != version
            entry.version, entry.grad = version, grad_of(other)
        return written

    def forget(self) -> None:
        """The recording is over: no weak reference of its stays on the user's tensors
        (`torch.utils.swap_tensors` refuses tensors that have any)."""
        self._tracked.clear()
        self._by_storage.clear()

    def live_inputs(self) -> list[tuple[torch.Tensor, TracedTensor]]:
        """The call inputs among the live tensors."""
        pairs = [(tensor, tracked.value) for tensor, tracked in self._tracked.items()]
        return [(tensor, value) for tensor, value in pairs if value.home == CALL_INPUT]

    def is_input(self, tensor: torch.Tensor) -> bool:
        tracked = self.get(tensor)
        return tracked is not None and tracked.value.home == CALL_INPUT

    def live(self) -> list[torch.Tensor]:
        return [tensor for tensor, _ in self._tracked.items()]

    def unseen_writes(self) -> list[torch.Tensor]:
        """Tensors that something unseen wrote to, or gave another history."""
        return [tensor for tensor in self.live() if self.moved(tensor)]
