"""What a graph does by other operators. `copy.deepcopy` of a tensor is a clone, where the tensor is
all of its storage, and so all that eager copies. An input that is given another shape in place
(`x.t_()`) is a view there; the input itself gets it at the end of the call. What writes lists of
tensors (`torch._foreach_add_`) becomes an operator that makes lists, and copies, where gradients
are recorded: torch does not count those writes under AOTAutograd's modes, and views of what was
written would keep the history that they had."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ...lowering.graph.result_strides import is_dense
from ...runtime.programs.recipes import Apply, Input
from ...runtime.programs.steps import CALL_INPUT
from .. import catalogue
from . import opsets
from .effects import SideEffect
from .nested import plain_in, tensors_in
from .segments import RESHAPES
from .stops import RecordingStopped
from .values import Meta, TracedTensor, storage_of

_STORAGES = "the storages that this package has copied"  # a key among identities in a memo


def deep_copied(rec: Any, tensor: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor | None:
    """`tensor.__deepcopy__(memo)`, recorded. None, and nothing done, where that is no clone."""
    if id(tensor) in memo:
        return memo[id(tensor)]  # type: ignore[no-any-return]
    if not is_whole(tensor):
        return None
    storages = memo.setdefault(_STORAGES, set())
    storage = tensor.untyped_storage()._cdata
    if storage in storages:
        return None  # the copies share memory
    storages.add(storage)
    value = rec.value(tensor)
    if value.home == CALL_INPUT:
        rec.outcomes.append((0, Apply(is_whole, (Input(value.index),)), True))
    node = _clone(rec, tensor)
    made: torch.Tensor = torch.Tensor.__deepcopy__(tensor, memo)  # type: ignore[no-untyped-call]
    if tensor.requires_grad:
        rec.segment.call("call_method", "requires_grad_", (node,), {}, rec.origin_text())
        rec.differentiates = True
    rec.tracker.made(made, rec.segment.index, node)
    return made


def copied_parameter(rec: Any, parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    """The copy that `copy.deepcopy` makes of a Parameter, recorded: without its gradient, and with
    memory of its own, whatever it shared. Like each Parameter that a call makes, it is a leaf."""
    node = _clone(rec, parameter)
    made: torch.nn.Parameter = parameter.__deepcopy__({})  # type: ignore[no-untyped-call]
    value = rec.tracker.made(made, rec.segment.index, node)
    if made.requires_grad:
        rec.made_parameters.append(value)
    return made


def _clone(rec: Any, tensor: torch.Tensor) -> Any:
    """The node of a copy without history."""
    node, origin = rec.node(tensor), rec.origin_text()
    if tensor.requires_grad:
        node = rec.segment.call("call_method", "detach", (node,), {}, origin)
    how = {"memory_format": torch.preserve_format}
    return rec.segment.call("call_method", "clone", (node,), how, origin)


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether a copy has the same values, layout and storage, and nothing else is copied."""
    if type(tensor) is not torch.Tensor or tensor.layout != torch.strided or tensor.is_quantized:
        return False
    if not tensor.is_leaf or tensor.is_inference() or tensor.is_conj() or tensor.is_neg():
        return False
    if tensor.device.type not in ("cpu", "cuda") or not tensor.numel():
        return False
    if tensor.grad is not None or tensor.__dict__ or tensor._backward_hooks:
        return False
    size = tensor.numel() * tensor.element_size()
    dense = is_dense(list(tensor.shape), list(tensor.stride()))
    return dense and tensor.untyped_storage().nbytes() == size


def reshapes(rec: Any, name: str, tensor: torch.Tensor) -> bool:
    """Whether the call gives an input another shape in place, or what the graph has made, and that
    is a view, or has some (AOTAutograd would make those of the new shape, and give the gradient of
    what is written through this one the old shape), and a graph may have a view for it."""
    if name not in opsets.RESHAPING or rec.bodies or type(tensor) is not torch.Tensor:
        return False
    value = rec.value(tensor)
    given = rec.reshaped.get(value, value)
    if value.home == rec.segment.index and given is value:
        return value.base is not None or len(list(rec.tracker.sharing(tensor))) > 1
    here = given is value or value.home == rec.segment.index
    plain = not tensor.requires_grad and not opsets.shares_elements(tensor)
    return here and given.home == CALL_INPUT and plain


def reshape(rec: Any, func: Callable[..., Any], name: str, args: Any, kwargs: Any) -> torch.Tensor:
    """Run `func`, which gives the tensor another shape."""
    tensor, *how = args
    value, node, origin = rec.value(tensor), rec.node(tensor), rec.origin_text()
    rec.before_change(tensor)
    rec.performed(func, name, args, kwargs)
    if rec.rewritings is not None:
        rec.rewritings.choices.wrote(tensor)
    view = rec.segment.call("call_method", name[:-1], (node, *how), kwargs, origin)
    view.meta[RESHAPES] = True
    base = value if value.base is None else value.base
    made = TracedTensor(rec.segment.index, view, -1, Meta.of(tensor), base=base, is_view=True)
    made.is_writable = value.is_writable
    if value.home == CALL_INPUT or value in rec.reshaped:
        rec.reshaped[made] = rec.reshaped.get(value, value)
        rec.effects.append(SideEffect(func, (tensor, *how), kwargs))
    else:
        _count_version(rec, tensor)
    tracked = rec.tracker.get(tensor)
    tracked.value = made
    rec.tracker.restamp(tensor)
    start_from_whole(rec, tensor)
    return tensor  # type: ignore[no-any-return]


def count_reshaped_view(rec: Any, name: str, tensor: Any) -> None:
    """A view of an input got another shape in place: nothing is written, and versions are raised,
    as at every later call, where the graph does not run as it is. Not where a backward may need
    the input: it would find a version that is not the one that the graph kept."""
    if name not in opsets.RESHAPING or rec.bodies or rec.options.backend == "eager":
        return
    if isinstance(tensor, torch.Tensor):
        _count_version(rec, tensor)


def is_uncounted(name: str, args: Any, kwargs: Any) -> bool:
    """Whether the call writes a list of tensors of which some may have a history."""
    writes = name.startswith("_foreach_") and name.endswith("_") and name != "_foreach_copy_"
    if not writes or not torch.is_grad_enabled():  # that one has no derivative
        return False
    if not any(tensor.requires_grad for tensor in tensors_in((args, kwargs))):
        return False
    first, named = _by_place(args, kwargs)
    apart = not opsets.reads_what_it_wrote((*first, *named.values()))
    return apart and not any(map(opsets.shares_elements, first[0]))


def _by_place(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments with what is written in front."""
    others = {name: each for name, each in kwargs.items() if name != "self"}
    return (args, kwargs) if args else ((kwargs["self"],), others)


def write_by_copies(
    rec: Any, name: str, args: Any, kwargs: Any, given: Mapping[int | str, torch.fx.Node] | None
) -> Any:
    """Run and record such a call. given: nodes that stand for some arguments. Raises Stopped inside
    of a checkpoint, which runs the call itself again, and has to save what it saved."""
    if rec.marks:
        rec.stop_here(catalogue.UNSUPPORTED, f"{name} inside of a checkpoint")
    args, kwargs = _by_place(args, kwargs)
    written, write, others = args[0], "zero_", [tuple[Any, ...]()] * len(args[0])
    if name != "_foreach_zero_":  # of clones, which a backward may need as they were
        memories = set(map(storage_of, written))
        given_in = {id(t): t for t in tensors_in((args, kwargs)) if storage_of(t) in memories}
        clones = {
            k: rec.operate(torch.Tensor.clone, "clone", (t,), {}) for k, t in given_in.items()
        }
        lists, named = tree_map(lambda each: clones.get(id(each), each), (args, kwargs))
        made = rec.operate(getattr(torch, name[:-1]), name[:-1], lists, named, given)
        write, others = "copy_", []
        for place, each in enumerate(made):
            all_of = (*args, *kwargs.values())
            of = [arg[place] if isinstance(arg, list | tuple) else arg for arg in all_of]
            if not any(one.requires_grad for one in tensors_in(of)):  # though one of the list does
                each = rec.operate(torch.Tensor.detach, "detach", (each,), {})
            others.append((each,))
    calls = iter([(each, *other) for each, other in zip(written, others, strict=True)])
    try:
        for call in calls:
            last = call
            rec.operate(getattr(torch.Tensor, write), write, call, {})
    except RecordingStopped:  # before that one was written
        for call in (last, *calls):
            getattr(torch.Tensor, write)(*plain_in(call))
    return plain_in(written)


def start_from_whole(rec: Any, written: torch.Tensor) -> None:
    """Have what `as_strided` made of a part of a tensor, which was written since, start from the
    whole, as it does in the history that eager makes of it then: gradients reach elements that the
    part does not hold."""
    if not written.requires_grad or not torch.is_grad_enabled() or rec.bodies:
        return
    known: dict[torch.fx.Node, torch.fx.Node | None] = {}
    for other in rec.tracker.sharing(written):
        tracked, base = rec.tracker.get(other), other._base
        here = tracked.value.home == rec.segment.index
        whole = None if base is None else rec.tracker.get(base)
        if other is written or whole is None or not here or not _is_strided(tracked.value.node):
            continue
        view = _from_whole(rec, tracked.value.node, rec.node(base), known)
        if view is not None:
            value = TracedTensor(rec.segment.index, view, -1, Meta.of(other), False, whole.value)
            value.is_view, value.is_writable = True, tracked.value.is_writable
            value.counted = tracked.value.counted
            tracked.value = rec.segment.made[view] = value


def _is_strided(node: Any) -> bool:
    """Whether an `as_strided` is on the way to what the node gives."""
    while isinstance(node, torch.fx.Node) and node.meta.get("called") != "as_strided":
        node = node.args[0] if node.args else None
    return isinstance(node, torch.fx.Node)


def _from_whole(rec: Any, node: Any, whole: Any, known: dict[Any, Any]) -> Any:
    """A node with the same view, from `whole` on, if this one comes from an `as_strided` of a part
    of it; else None. known: those of other views."""
    if not isinstance(node, torch.fx.Node):
        return None
    if node not in known:
        known[node] = _made_again(rec, node, whole, known)
    return known[node]


def _made_again(rec: Any, node: Any, whole: Any, known: dict[Any, Any]) -> Any:
    if not node.args or node.args[0] is whole:
        return None
    origin, named = rec.origin_text(), node.kwargs
    if node.meta.get("called") != "as_strided":
        made = rec.segment.made.get(node)
        source = _from_whole(rec, node.args[0], whole, known) if made and made.is_view else None
        more = (source, *node.args[1:])
        return source and rec.segment.call(node.op, node.target, more, named, origin)
    part, given = node.args[0], {**dict(zip(_GEOMETRY, node.args[1:], strict=False)), **named}
    if given.get("storage_offset") is None:
        start = rec.segment.call("call_method", "storage_offset", (part,), {}, origin)
        given["storage_offset"] = start
    return rec.segment.call("call_function", torch.as_strided, (whole,), given, origin)


_GEOMETRY = "size", "stride", "storage_offset"


def _count_version(rec: Any, tensor: torch.Tensor) -> None:
    shared = (each for each in rec.tracker.sharing(tensor) if rec.tracker.is_input(each))
    given = next((each for each in shared if not each.is_inference()), None)
    if given is not None:
        rec.raised.append(SideEffect(torch.autograd.graph.increment_version, (given,)))
        rec.effects.append(rec.raised[-1])
