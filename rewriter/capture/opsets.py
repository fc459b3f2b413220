"""What the recorder knows of torch's functions by name: which only describe a tensor, which read
its data, which cannot be recorded."""

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...lowering.graph.result_strides import is_dense, overlaps
from ...lowering.opinfo import having
from .nested import tensors_in

METADATA = having("metadata")


def only_asks(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a call only asks for what describes a tensor; `t.type()` converts where it is given
    a type."""
    return name in METADATA or (name == "type" and len(args) == 1 and not kwargs)


def takes_numbers_alone(name: str, args: Any, kwargs: Any) -> bool:
    """Whether a call is Python's arithmetic on plain numbers (`torch.sym_max(3, 4)`)."""
    given = (*args, *kwargs.values())
    return name.startswith("sym_") and all(type(each) in (bool, int, float) for each in given)


# Those among them whose answers follow from sizes and strides.
SIZED = frozenset(
    """
    get:shape size numel nelement __len__ stride get:nbytes is_contiguous is_same_size dim_order
    """.split()
)

# Calls whose Python result is the tensor's data.
SCALAR_READS = frozenset({"item"})
BOOL_READS = frozenset({"__bool__", "is_nonzero", "equal", "allclose", "__contains__"})
NUMBER_READS = frozenset({"__int__", "__float__", "__index__", "__complex__"})
LIST_READS = frozenset({"tolist"})
HOST_READS = SCALAR_READS | BOOL_READS | NUMBER_READS | LIST_READS

DATA_SHAPES = having("data_shape")

READING = having("reads_data")

UNRECORDABLE = having("unrecordable")

# They count from the start of the storage.
FROM_START = frozenset("as_strided as_strided_ as_strided_scatter fill_diagonal_".split())

# Their kernels for the host give new memory, where torch's other form may give a view.
GIVES_COPIES = frozenset(("channel_shuffle", "native_channel_shuffle"))

_OPERATORS: dict[str, Callable[..., Any]] = {
    "__getitem__": operator.getitem,
    "__setitem__": operator.setitem,
}


def name_of(func: Any) -> str:
    """`get:T` for a property's getter, `set:T` for its setter, else the function's own name."""
    if isinstance(func, torch._ops.OpOverload):
        return str(func.overloadpacket.__name__)
    name = getattr(func, "__name__", type(func).__name__)
    if name in ("__get__", "__set__"):
        owner = getattr(func, "__self__", None)
        return f"{name.strip('_')}:{getattr(owner, '__name__', '')}"
    return name


def target_of(func: Any, name: str, args: tuple[Any, ...]) -> tuple[str, Any, tuple[Any, ...]]:
    """(fx opcode, target, arguments) that say the same as `func(*args)` in a torch-level graph."""
    if name.startswith("get:"):
        return "call_function", getattr, (args[0], name[4:])
    if name == "__getitem__" and isinstance(args[1], int) and type(args[1]) is not bool:
        return (
            "call_function",
            torch.select,
            (args[0], 0, args[1]),
        )  # indexing would take a traced size for a constant
    if name in _OPERATORS:
        return "call_function", _OPERATORS[name], args
    if (
        args
        and isinstance(args[0], torch.Tensor)
        and getattr(torch.Tensor, name, None) is not None
        and _is_method(func)
    ):
        return "call_method", name, args
    return "call_function", func, args


def _is_method(func: Any) -> bool:
    """Whether `func` is found on torch.Tensor, and not a function of the torch namespace."""
    if type(func).__name__ in ("method_descriptor", "wrapper_descriptor"):
        return True
    return getattr(func, "__module__", None) == "torch._tensor" or getattr(
        func, "__qualname__", ""
    ).startswith("Tensor.")


def has_data_shape(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether the call's output shape depends on tensor data, or it asks what the data is."""
    if name in DATA_SHAPES or name in READING:
        return True
    if name in ("linalg_pinv", "pinverse"):  # loses a conjugation where AOTAutograd calls it
        return bool(args) and args[0].is_complex()
    if name == "ormqr":  # torch makes its first gradient in another order while it is traced
        return bool(args) and args[0].requires_grad and torch.is_grad_enabled()
    if name == "where":
        return len(args) + len(kwargs) == 1
    if name == "one_hot":
        return bool(kwargs.get("num_classes", args[1] if len(args) > 1 else -1) == -1)
    if name == "tensor_split":
        return any(isinstance(part, torch.Tensor) for part in (*args[1:], *kwargs.values()))
    if name == "repeat_interleave":
        return _tensor_repeats(args, kwargs) and kwargs.get("output_size") is None
    if name in ("__getitem__", "index"):
        return any(
            is_mask(part) for part in (args[1] if isinstance(args[1], tuple | list) else (args[1],))
        )
    return False


# Where the sizes stand in the arguments of operators that take a tensor for a number there.
SIZES_AT = {
    **dict.fromkeys(having("int_arguments"), slice(None)),
    **dict.fromkeys(having("int_arguments_after_tensor"), slice(1, None)),
    "full": slice(0, 1),
    "pad": slice(1, 2),
    "new_full": slice(1, 2),
}
_SIZE_NAMES = frozenset(
    "start end step n m row col size shape pad length split_size chunks".split()
)


def with_numbers(
    name: str, args: Any, kwargs: Any, number: Callable[[torch.Tensor], Any]
) -> tuple[Any, Any]:
    """The arguments with `number(t)` for each tensor `t` that stands for a size."""
    if name in _OPERATORS:
        return (args[0], _with_numbers_in_slices(args[1], number), *args[2:]), kwargs
    where = SIZES_AT.get(name)
    if where is None:
        return args, kwargs
    changed = list(args)
    changed[where] = [_numbered(part, number) for part in args[where]]
    named = {
        key: _numbered(part, number) if key in _SIZE_NAMES else part for key, part in kwargs.items()
    }
    return tuple(changed), named


def _with_numbers_in_slices(index: Any, number: Callable[[torch.Tensor], Any]) -> Any:
    if type(index) is tuple:
        return _if_other(index, tuple(_with_numbers_in_slices(part, number) for part in index))
    if type(index) is slice:
        ends = (index.start, index.stop, index.step)
        made = tuple(_numbered(end, number) for end in ends)
        return index if _if_other(ends, made) is ends else slice(*made)
    return index


def _if_other(given: Any, made: Any) -> Any:
    """`made` where a part of it changed; else the object that was given, by which it is known."""
    return given if all(a is b for a, b in zip(given, made, strict=True)) else made


def _numbered(part: Any, number: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(part, torch.Tensor):
        return number(part)
    if type(part) in (list, tuple) and any(isinstance(each, torch.Tensor) for each in part):
        return _if_other(part, type(part)(_numbered(each, number) for each in part))
    return part


def _tensor_repeats(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    repeats = kwargs.get("repeats", args[1] if len(args) > 1 else args[0] if args else None)
    return isinstance(repeats, torch.Tensor)


_UNCOUNTED = ("_foreach_", "_fused_", "_amp_")


def written_unversioned(name: str, target: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Arguments that an operator writes though no version counter may say so: an optimizer's fused
    step, what a gradient scaler works on, some operators on lists on a GPU, and a library's own."""
    operator: Any = None
    if isinstance(target, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        operator = target
    elif name.startswith(_UNCOUNTED) and name.endswith("_"):
        operator = getattr(torch.ops.aten, name, None)
    if operator is None:
        return []
    overloads = [operator]
    if isinstance(operator, torch._ops.OpOverloadPacket):  # whichever it is
        overloads = [getattr(operator, each) for each in operator.overloads()]  # type: ignore[no-untyped-call]
    unscaled = str(operator).startswith("aten._fused_") and kwargs.get("grad_scale") is None
    found: dict[int, torch.Tensor] = {}
    for overload in overloads:
        arguments = overload._schema.arguments
        named = dict(zip((each.name for each in arguments), args, strict=False)) | kwargs
        for each in arguments:
            written = each.alias_info is not None and each.alias_info.is_write
            if written and not (unscaled and each.name == "grads"):
                given = tensors_in((named.get(each.name),))
                found.update((id(tensor), tensor) for tensor in given)
    return [*found.values()]


def statistics(name: str, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The arguments of a norm that may be its running statistics: it writes them in training, and
    no version counter says so."""
    if not name.endswith(("batch_norm", "instance_norm")):
        return []
    given = tensors_in((args, kwargs))
    return [tensor for tensor in given if tensor.dim() == 1 and not tensor.requires_grad]


def is_mask(part: Any) -> bool:
    return isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8)


_DRAWING = (
    "rand",
    "drop",
    "bernoulli",
    "multinomial",
    "normal",
    "uniform",
    "poisson",
    "exponential",
    "gumbel",
    "cauchy",
    "geometric",
    "rrelu",
    "scaled_dot",
    "lstm",
    "gru",
    "rnn",
    "multi_head",
    "shuffle",
    "binomial",
    "dirichlet",
    "gamma",
)


RESHAPING = having("turns_in_place")


def leaves_no_value(name: str, args: Any, is_input: Callable[[Any], bool]) -> bool:
    """Whether the call does to its tensor what a functional graph does not hold: writes where
    elements share memory (it would add them up), or gives an input another shape, or takes its
    history; or does to a list, one tensor after the other, what depends on those before."""
    if name.startswith("_foreach_") and name.endswith("_"):
        return reads_what_it_wrote(args)
    if not args or not isinstance(args[0], torch.Tensor) or not name.endswith("_"):
        return False
    return writes_shared(name, args) or (
        (name in RESHAPING or name == "detach_") and is_input(args[0])
    )


def writes_shared(name: str, args: Any) -> bool:
    """Whether the call writes a tensor whose elements share memory."""
    if not isinstance(args[0], torch.Tensor):
        return False
    writes = name == "__setitem__" or not name.endswith("__")
    return writes and args[0].layout == torch.strided and shares_elements(args[0])


def reads_what_it_wrote(lists: tuple[Any, ...]) -> bool:
    """Whether an operator on lists comes to memory of which it wrote a part before: the first list
    is written, one tensor after the other."""
    parts: dict[int, list[tuple[int, int, int, bool]]] = {}
    for number, tensors in enumerate(each for each in lists if isinstance(each, list | tuple)):
        for place, tensor in enumerate(tensors):
            if isinstance(tensor, torch.Tensor) and tensor.numel():
                start, end = _extent(tensor)
                known = parts.setdefault(tensor.untyped_storage()._cdata, [])
                known.append((place, start, end, number == 0))
    return any(
        one[0] < other[0] and one[1] < other[2] and other[1] < one[2]
        for known in parts.values()
        for one in known
        if one[3]
        for other in known
    )


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes of its storage that the tensor reaches over."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach = 1 + sum((size - 1) * step for size, step in steps)
    start = int(tensor.storage_offset()) * tensor.itemsize
    return start, start + reach * tensor.itemsize


def overlaps_itself(tensor: torch.Tensor | None) -> bool:
    """Whether elements of the tensor share memory: a graph would write each by itself."""
    if tensor is None or tensor.layout != torch.strided:
        return False
    return overlaps(tensor.shape, tensor.stride())


def shares_elements(tensor: torch.Tensor) -> bool:
    """Whether a dim repeats one element; asked of the strides, which a transform's tensors have."""
    return any(
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def draws_by_layout(name: str, args: Any) -> str:
    """Why the call runs between graphs if it draws other numbers into a tensor with gaps than into
    the dense one that a graph has for it; empty if it need not."""
    if name != "normal_" or not args or not isinstance(args[0], torch.Tensor):
        return ""
    return "normal_ of a tensor with gaps" if has_gaps(args[0]) else ""


def takes_of_itself(name: str, args: Any, kwargs: Any) -> bool:
    """Whether the call is `as_strided`, from the first element on, of elements that a dense tensor
    has: where it starts in its storage is all one."""
    if name != "as_strided" or len(args) != 3 or kwargs or has_gaps(args[0]):
        return False
    last = _reach(args[0].shape, args[0].stride())
    return 0 not in (*args[1], *args[0].shape) and _reach(args[1], args[2]) <= last


def _reach(shape: Iterable[int], strides: Iterable[int]) -> int:
    return sum((size - 1) * step for size, step in zip(shape, strides, strict=True))


def has_gaps(tensor: torch.Tensor) -> bool:
    axes = [axis for axis in zip(tensor.stride(), tensor.shape, strict=True) if axis[0]]
    return not is_dense([size for _, size in axes], [step for step, _ in axes])


def draws(name: str) -> bool:
    """Whether the call may advance a random generator; errs on the side of yes."""
    return any(part in name for part in _DRAWING)


def drops_nothing(name: str, args: Any, kwargs: Any) -> bool:
    """Whether the call, as the graph has it, is attention or a recurrent layer that drops nothing
    at any later call."""
    if name in ("lstm", "gru", "rnn_tanh", "rnn_relu") and len(args) == 9:
        dropout, train = args[6:8] if isinstance(args[3], list | tuple) else args[5:7]
        return train is False or (type(dropout) in (int, float) and dropout == 0)
    if name != "scaled_dot_product_attention":
        return False
    dropped = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
    return type(dropped) in (int, float) and dropped == 0
