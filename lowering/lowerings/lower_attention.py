"""torch's operator of FlexAttention as kernels: the user's functions, which stand in graphs of
single numbers, are lowered to values of one place of the scores."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...runtime.diagnostics import log
from ...runtime.errors import BuildError
from ...runtime.gpu.attention_kernels import load_attention
from ...runtime.gpu.triton_kernels import TritonGroup, interpreted
from ..loops import sizes
from ..loops.ir import (
    Buffer,
    Cast,
    Const,
    Group,
    IndexValue,
    Indirect,
    Load,
    Nest,
    Op,
    Select,
    Store,
    Value,
    ValueRewriter,
    group_variables,
)
from ..loops.kernel_graph import ExternCall, Layout, Ref, is_dense
from ..loops.polynomials import Var, is_known, variable
from ..loops.sizes import Index
from ..targets.triton.triton_attention import (
    CHANGED,
    GIVEN,
    MOST_HEAD,
    AttentionSpec,
    backward,
    forward,
)
from ..targets.triton.triton_target import HEADER
from ..targets.triton.triton_tile import INT32
from .lowering_context import LoweringContext
from .registry import Unsupported
from .value_builders import cast

FORWARD: Any = torch.ops.higher_order.flex_attention
BACKWARD: Any = torch.ops.higher_order.flex_attention_backward
_KINDS = ("kv_num", "kv_indices", "full_kv_num", "full_kv_indices")
_BACKWARD_KINDS = ("q_num", "q_indices", "full_q_num", "full_q_indices")
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
Inner = Callable[[GraphModule, Sequence[Any]], tuple[list[Any], list[Any]]]


def attention(ctx: LoweringContext, node: Node, args: Sequence[Any], inner: Inner) -> Any:
    """The call as kernels; None for any other call, and for what they do not compute, which
    torch's formula does. `inner`: lowers a graph, given its inputs, to (outputs, items)."""
    if ctx.ordered or node.target not in (FORWARD, BACKWARD):
        return None
    try:
        form = _forward if node.target is FORWARD else _backward
        return form(ctx, node, args, inner)
    except (Unsupported, BuildError) as reason:
        log.warning("flex_attention() holds its scores in memory: %s (%s)", reason, ctx.origin)
        return None


def _forward(ctx: LoweringContext, node: Node, args: Sequence[Any], inner: Inner) -> Any:
    q, k, v, score, block_mask, scale, _, of_score, of_mask = args
    values = node.meta["val"]
    used = {user.args[1] for user in node.users}
    names = [
        name for place, name in enumerate(("out", "lse", "most")) if place in used or not place
    ]
    results = [values[("out", "lse", "most").index(name)] for name in names]
    places = _Places(q, k, inner)
    made = {name: _result(ctx, value) for name, value in zip(names, results, strict=True)}
    tensors = {"q": q, "k": k, "v": v, **_blocks(block_mask, 2, _KINDS), **made}
    what = AttentionSpec(
        tensors,
        places.axes,
        (block_mask[-3], block_mask[-2]),
        _scale(scale),
        _precision(),
        places.score(score, of_score),
        places.mask(block_mask[-1], of_mask),
        None,
        tuple(made),
    )
    _call(ctx, what, forward, len(made))
    return tuple(made.get(name) for name in ("out", "lse", "most"))


def _backward(ctx: LoweringContext, node: Node, args: Sequence[Any], inner: Inner) -> Any:
    q, k, v, out, lse, dout, dlse, score, joint, block_mask, scale, _, of_score, of_mask = args
    values = node.meta["val"]
    if any(each is not None for each in joint.graph.output_node().args[0][5:]):
        raise Unsupported("gradients of tensors that score_mod captures")
    if dout is None or block_mask[6] is None:
        raise Unsupported("a backward without blocks by columns")
    places = _Places(q, k, inner)
    made = {f"d{name}": _result(ctx, each) for name, each in zip("qkv", values[:3], strict=True)}
    delta = ctx.temporary(q.shape[:3], torch.float32, ctx.device_of(q))
    given = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "dout": dout}
    given |= {"dlse": dlse} if dlse is not None else {}
    blocks = _blocks(block_mask, 2, _KINDS) | _blocks(block_mask, 6, _BACKWARD_KINDS)
    changed = places.score(score, of_score)
    what = AttentionSpec(
        {**given, **blocks, **made, "delta": delta},
        places.axes,
        (block_mask[-3], block_mask[-2]),
        _scale(scale),
        _precision(),
        changed,
        places.mask(block_mask[-1], of_mask),
        places.gradient(joint, of_score) if changed is not None else None,
        (*made, "delta"),
    )
    _call(ctx, what, backward, len(made))
    return (*made.values(), tuple(None for _ in values[3]))


def _blocks(block_mask: Sequence[Any], first: int, names: Sequence[str]) -> dict[str, Ref]:
    found = dict(zip(names, block_mask[first : first + 4], strict=True))
    return {name: ref for name, ref in found.items() if ref is not None}


def _result(ctx: LoweringContext, value: torch.Tensor) -> Ref:
    shape, strides = ctx.symbols.shape(value), ctx.symbols.strides(value)
    if not is_dense(shape, strides):
        raise Unsupported("a result with gaps")
    return Ref(
        ctx.buffer("flex", value.dtype, Layout(shape, strides, value.device)), shape, strides
    )


def _scale(scale: Any) -> float:
    if not isinstance(scale, int | float) or scale <= 0:
        raise Unsupported("a scale that is no positive number")
    return float(scale)


def _precision() -> str:
    if torch.version.hip is not None:
        return "ieee"
    return "tf32x3" if torch.get_float32_matmul_precision() == "highest" else "tf32"


def _check(ctx: LoweringContext, what: AttentionSpec) -> None:
    """Raises Unsupported for what the kernels do not take."""
    q, k, v = (what.tensors[name] for name in "qkv")
    device = ctx.device_of(q)
    if device.type != "cuda" and not interpreted():
        raise Unsupported("a tensor that is not on a GPU")
    if any(ctx.layouts[buffer].device != device for buffer in what.buffers()):
        raise Unsupported("tensors of several devices")
    if q.dtype not in _DTYPES or {k.dtype, v.dtype} != {q.dtype}:
        raise Unsupported(f"attention of {q.dtype}, {k.dtype} and {v.dtype}")
    fixed = (*q.shape[1:2], *k.shape[1:2], q.shape[3], v.shape[3], *what.block)
    if not all(map(is_known, fixed)) or max(q.shape[3], v.shape[3]) > MOST_HEAD:
        raise Unsupported("heads of an unknown number, or of more than 256 elements")
    if any(size & 15 for size in what.block) or 0 in (*q.shape, *v.shape):
        raise Unsupported("blocks of a number of places that 16 does not divide")


def _call(ctx: LoweringContext, what: AttentionSpec, printed: Any, returned: int) -> None:
    """One call of the library, which launches the kernels. The first `returned` of what they make
    are results."""
    _check(ctx, what)
    made = [what.tensors[name] for name in what.made]
    variables = _variables(what)
    group = TritonGroup("attention", printed(what, variables), (), HEADER)
    call = load_attention(group, ctx.device_of(what.tensors["q"]), returned)
    tensors = [Ref(b, ctx.layouts[b].shape, ctx.layouts[b].strides) for b in what.given()]
    layouts = [(ref.shape, ref.strides, ref.dtype) for ref in made]
    args = (tensors, layouts, [variable(var) for var in variables])
    ctx.items.append(ExternCall(call, args, {}, tuple(made[:returned]), ctx.origin))


def _variables(what: AttentionSpec) -> tuple[Var, ...]:
    """The sizes that only a call knows."""
    space = tuple(axis.size for axis in what.axes)
    steps = [n for r in what.tensors.values() for n in (*r.shape, *r.strides, r.offset)]
    stores = tuple(Store(GIVEN, sizes.const(0), value) for value in what.values())
    nest = Nest((*space, *steps), (), stores)
    return group_variables(Group("attention", nest.space, (nest,)))


class _Places:
    """The user's functions as values of a place, whose axes are batch, head, row and column."""

    def __init__(self, q: Ref, k: Ref, inner: Inner) -> None:
        self.axes = sizes.make_axes((*q.shape[:3], k.shape[2]))
        self._inner = inner

    def score(self, graph: GraphModule, captured: Sequence[Any]) -> Value | None:
        """The changed score; None if it stays as it is."""
        (value,) = self._values(graph, [GIVEN], [], captured)
        value = cast(value, torch.float32)
        return None if value is _GIVEN else value

    def mask(self, graph: GraphModule, captured: Sequence[Any]) -> Value | None:
        """Whether the place is seen; None if all are."""
        (value,) = self._values(graph, [], [], captured)
        return None if isinstance(value, Const) and value.value else cast(value, torch.bool)

    def gradient(self, graph: GraphModule, captured: Sequence[Any]) -> Value:
        value, *_ = self._values(graph, [GIVEN], [CHANGED], captured)
        return cast(value, torch.float32)

    def _values(
        self,
        graph: GraphModule,
        before: Sequence[Buffer],
        after: Sequence[Buffer],
        captured: Sequence[Any],
    ) -> list[Any]:
        """What the graph gives, of the scores, the place and what it captures."""
        nodes = [node for node in graph.graph.nodes if node.op == "placeholder"]
        known: dict[Buffer, Value] = {}
        given = list[Any]()
        places = [IndexValue(sizes.atom_index(axis)) for axis in self.axes]
        scores = [[Load(each, sizes.const(0)) for each in one] for one in (before, after)]
        for node, value in zip(nodes, (*scores[0], *places, *scores[1]), strict=False):
            buffer = Buffer(node.name, node.meta["val"].dtype, 1, "local")
            known[buffer] = cast(value, buffer.dtype)
            given.append(Ref(buffer, (), ()))
        outputs, items = self._inner(graph, [*given, *captured])
        return _composed(outputs, items, known, bool(after))


def _composed(
    outputs: Sequence[Any], items: Sequence[Any], known: dict[Buffer, Value], rounds: bool
) -> list[Any]:
    """The outputs as values of what is known. Raises Unsupported where that takes more than one
    place."""
    rewriter = _Composer(known, rounds)
    for item in items:
        if not isinstance(item, Nest) or item.space or item.inner or item.scatters:
            raise Unsupported("a function that computes more than numbers of one place")
        for store in item.stores:
            known[store.buffer] = rewriter(store.value)
    return [rewriter(each.load(())) if isinstance(each, Ref) else each for each in outputs]


_GIVEN = Load(GIVEN, sizes.const(0))


class _Composer(ValueRewriter):
    """Puts values in the places of buffers of one number. Positions that are known to be inside of
    a tensor are computed as such. `exact`: nothing in between is rounded to 16 bits."""

    def __init__(self, known: dict[Buffer, Value], exact: bool) -> None:
        super().__init__()
        self._known, self._exact = known, exact

    def index(self, index: Index) -> Index:
        terms = [sizes.scale(self._atom(atom), factor) for atom, factor in index.terms]
        return sizes.add(sizes.const(index.offset), *terms)

    def _atom(self, atom: sizes.Atom) -> Index:
        if not isinstance(atom, Indirect):
            return sizes.atom_index(atom)
        value = self(atom.value)
        place = _position(value)
        if place is not None and sizes.within(place, atom.bound):
            return place
        return sizes.atom_index(Indirect(_wrapped(value), atom.bound, atom.certain))

    def leave(self, value: Value) -> Value:
        if isinstance(value, Load) and value.buffer in self._known:
            return self._known[value.buffer]
        if isinstance(value, Cast) and isinstance(value.value, Cast):
            first = value.value.value
            if value.dtype == first.dtype == torch.float32 and (self._exact or first is _GIVEN):
                return first
        if isinstance(value, Op) and value.name == "lt" and _is_zero(value.args[1]):
            place = _position(value.args[0])
            if place is not None and sizes.nonnegative(place):
                return Const(False, torch.bool)
        if isinstance(value, Select) and isinstance(value.condition, Const):
            return value.then if value.condition.value else value.orelse
        return value


def _position(value: Value) -> Index | None:
    """The index that the integer is, if it is one."""
    if isinstance(value, Cast) and not value.dtype.is_floating_point:
        return _position(value.value)
    if isinstance(value, IndexValue):
        return value.index
    if isinstance(value, Const) and type(value.value) is int:
        return sizes.const(value.value)
    if not isinstance(value, Op) or value.name not in ("add", "sub"):
        return None
    one, other = map(_position, value.args)
    if one is None or other is None or value.dtype.is_floating_point:
        return None
    return sizes.add(one, sizes.scale(other, 1 if value.name == "add" else -1))


def _wrapped(value: Value) -> Value:
    """A position that counts from the end where it is negative, in 32 bits if it has as many."""
    if not isinstance(value, Select) or not isinstance(value.orelse, Cast):
        return value
    place, then = value.orelse.value, value.then
    if place.dtype != torch.int32 or not isinstance(then, Op) or then.name != "add":
        return value
    bound = next((arg for arg in then.args if isinstance(arg, Const)), None)
    if bound is None or value.orelse not in then.args or bound.value > INT32:
        return value
    if value.condition is not Op("lt", (value.orelse, Const(0, torch.int64)), torch.bool):
        return value
    below = Op("lt", (place, Const(0, torch.int32)), torch.bool)
    moved = Op("add", (place, Const(bound.value, torch.int32)), torch.int32)
    return Select(below, moved, place)


def _is_zero(value: Value) -> bool:
    return isinstance(value, Const) and value.value == 0
