"""Values that follow from the integers and masks of a call alone: counts, lengths, grids of images;
and whether numbers are finite.

They are the same at most calls, so that the graph is not cut where Python, or the shape of a
result, depends on one: the value is assumed, and compared when the graph has run, which did nothing
to the outside yet. Where it differs, the next entry serves the call, or a recording.
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.fx

from ....runtime.programs.recipes import Apply, Output, Recipe
from ....runtime.programs.steps import CALL_INPUT
from .. import opsets
from ..node_arguments import as_nodes
from ..values import Meta, Number, TracedTensor

# What takes of a tensor its sizes, dtype or device alone: of the later arguments, or of all.
_AS_ANOTHER = frozenset(("expand_as", "view_as", "reshape_as", "type_as", "to"))
_OF_FINITE = frozenset(("isnan", "isinf", "isfinite"))
_MAKERS = ("_like", "new_")
_VIEWS = frozenset(("view", "reshape", "to", "flatten", "unsqueeze", "squeeze", "contiguous"))
LONGEST = 2_000  # nodes looked at
MAX_ASSUMPTIONS_AT_SITE = 32  # assumptions at one place of a call


def holds(rec: Any, recipe: Recipe, value: Any) -> bool:
    """Whether the value of a host read is taken as it is in the recorded call."""
    return (
        _allowed(rec)
        and all(_from_integers(rec, _output(rec, part)) for part in _outputs(recipe))
        and _stable(rec, value)
    )


def _allowed(rec: Any) -> bool:
    """Never on a GPU: an operator that gets indices of another call may leave it unusable."""
    return not torch.cuda.is_initialized() and not rec.open_contexts  # type: ignore[no-untyped-call]


def _stable(rec: Any, value: Any) -> bool:
    place = rec.origin()
    turn = rec.assumed[place] = rec.assumed.get(place, 0) + 1
    return turn <= MAX_ASSUMPTIONS_AT_SITE and bool(rec.moving.may_assume((place, turn), value))


def _outputs(recipe: Recipe) -> Iterator[Output]:
    if isinstance(recipe, Output):
        yield recipe
    for part in getattr(recipe, "arguments", ()):
        yield from _outputs(part)


def _output(rec: Any, recipe: Output) -> TracedTensor:
    return rec.segments[recipe.segment].outputs[recipe.index]  # type: ignore[no-any-return]


def _from_integers(rec: Any, value: TracedTensor) -> bool:
    """Whether no floating-point number went into the value, and nothing random."""
    todo, met = [value], set[Any]()
    while todo and len(met) < LONGEST:
        one = todo.pop()
        if one in met:
            continue
        met.add(one)
        if one.home == CALL_INPUT:
            if not isinstance(one.meta, Number) and not _is_integral(one.meta.dtype):
                return False
        elif one.home < 0:
            return False
        else:
            sources = _sources(rec.segments[one.home], one.node)
            if sources is None:
                return False
            todo += sources
    return not todo


def _sources(segment: Any, node: torch.fx.Node) -> list[TracedTensor] | None:
    """The values of other segments, and of the call, that a node's value is made of."""
    found, todo, met = list[TracedTensor](), [node], set[torch.fx.Node]()
    imported = {made: value for value, made in segment.imports()}
    while todo:
        step = todo.pop()
        if step in met:
            continue
        met.add(step)
        if step in imported:
            found.append(imported[step])
            continue
        name = step.target if isinstance(step.target, str) else step.target.__name__
        if len(met) > LONGEST or opsets.draws(name):
            return None
        rare = name in _OF_FINITE or _tells_padding(name, step, imported)
        todo += [] if rare else _data(name, step)
    return found


def _tells_padding(name: str, node: torch.fx.Node, imported: dict[Any, TracedTensor]) -> bool:
    """Whether a tensor that the call was given is compared with a constant."""
    if name not in ("eq", "ne", "__eq__", "__ne__") or len(node.all_input_nodes) > 1:
        return False
    given = node.all_input_nodes[0]
    while given.target in _VIEWS and given not in imported:
        given = given.all_input_nodes[0]
    return given in imported and imported[given].home == CALL_INPUT


def _data(name: str, node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments whose numbers go into the result."""
    if any(part in name for part in _MAKERS):
        return []
    if name in _AS_ANOTHER:
        return [arg for arg in node.args[:1] if isinstance(arg, torch.fx.Node)]
    return node.all_input_nodes


def _is_integral(dtype: torch.dtype) -> bool:
    return not dtype.is_floating_point and not dtype.is_complex


# -- operators whose result's shape depends on such values


def sized(rec: Any, func: Any, name: str, args: tuple[Any, ...], kwargs: Any) -> Any:
    """The result of an operator whose shape depends on data, recorded for the shape that it has; or
    None, if it is not one that can be."""
    form = _FORMS.get(name)
    if form is None or kwargs or not _allowed(rec):
        return None
    deciding = _deciding(name, args)
    if not deciding or not all(_follows(rec, tensor) for tensor in deciding):
        return None
    counts = [int(tensor.sum()) for tensor in deciding]
    if not _stable(rec, counts):
        return None
    result = func(*args)
    build = _Builder(rec)
    for tensor, count in zip(deciding, counts, strict=True):
        build.check(tensor, count)
    rec._bind(result, form(build, args, iter(counts)))
    return result


def _follows(rec: Any, tensor: torch.Tensor) -> bool:
    return _is_integral(tensor.dtype) and _from_integers(rec, rec.value(tensor))


def _deciding(name: str, args: tuple[Any, ...]) -> list[torch.Tensor]:
    """The masks, or numbers of repeats, that decide the shape."""
    if name in ("__getitem__", "index"):
        masks = [part for part in _parts(args[1]) if isinstance(part, torch.Tensor)]
        masks = [part for part in masks if part.dtype in (torch.bool, torch.uint8)]
        return masks if all(mask.dtype is torch.bool and mask.dim() for mask in masks) else []
    if name == "masked_select":
        same = isinstance(args[1], torch.Tensor) and args[0].shape == args[1].shape
        return [args[1]] if same and args[1].dtype is torch.bool and args[1].dim() else []
    if name == "repeat_interleave":
        repeats = args[min(len(args), 2) - 1]
        return [repeats] if repeats.shape == _repeatable(args) else []
    return [args[0]] if args[0].dtype is torch.bool and args[0].dim() else []


def _repeatable(args: tuple[Any, ...]) -> tuple[int, ...]:
    """The shape of repeats that are as many as there is to repeat."""
    if len(args) == 1:
        return (args[0].numel(),)
    return (args[0].shape[args[2]] if len(args) > 2 and args[2] is not None else args[0].numel(),)


def _parts(index: Any) -> tuple[Any, ...]:
    return tuple(index) if isinstance(index, tuple | list) else (index,)


class _Builder:
    """Nodes for one operator."""

    def __init__(self, rec: Any) -> None:
        self.rec, self.origin = rec, rec.origin_text()

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        kind = "call_method" if isinstance(target, str) else "call_function"
        node: torch.fx.Node = self.rec.segment.call(kind, target, args, kwargs, self.origin)
        node.meta.update(self.rec.marks)
        return node

    def check(self, tensor: torch.Tensor, count: int) -> None:
        """A later call compares the sum of `tensor` when the segment has run, and whether there
        are negative numbers in it, which eager refuses as repeats."""
        node = self.rec.node(tensor)
        self._compare(self("sum", node), tensor.sum(), count)
        if tensor.dtype is not torch.bool:
            self._compare(self("sum", self("lt", node, 0)), (tensor < 0).sum(), 0)

    def _compare(self, node: torch.fx.Node, found: torch.Tensor, expected: int) -> None:
        value = TracedTensor(self.rec.segment.index, node, -1, Meta.of(found))
        recipe = Apply(torch.Tensor.item, (self.rec.value_recipe(value),))
        self.rec.outcomes.append((recipe.after, recipe, expected))

    def places(self, mask: torch.Tensor, count: int) -> torch.fx.Node:
        """`mask.nonzero()`. What is missing in a call that turns out to be another one's is 0, an
        index that there is."""
        given = self.rec.node(mask)
        return self(torch.nonzero_static, given, size=count, fill_value=0)


def _index(build: _Builder, args: tuple[Any, ...], counts: Iterable[int]) -> torch.fx.Node:
    counts, parts = iter(counts), list[Any]()
    for part in _parts(args[1]):
        if isinstance(part, torch.Tensor) and part.dtype is torch.bool:
            columns = build("unbind", build.places(part, next(counts)), 1)
            parts += [build(operator.getitem, columns, i) for i in range(part.dim())]
        else:
            parts.append(as_nodes(build.rec, (part,))[0])
    return build(operator.getitem, build.rec.node(args[0]), tuple(parts))


def _select(build: _Builder, args: tuple[Any, ...], counts: Iterable[int]) -> torch.fx.Node:
    return _index(build, (args[0], args[1]), counts)


def _nonzero(build: _Builder, args: tuple[Any, ...], counts: Iterable[int]) -> torch.fx.Node:
    return build.places(args[0], next(iter(counts)))


def _where(build: _Builder, args: tuple[Any, ...], counts: Iterable[int]) -> torch.fx.Node:
    """Each axis has its places side by side."""
    axes = build("contiguous", build("t", _nonzero(build, args, counts)))
    return build("unbind", axes)


def _repeat(build: _Builder, args: tuple[Any, ...], counts: Iterable[int]) -> torch.fx.Node:
    """Which element each place repeats: the first whose repeats, summed up, go beyond it."""
    repeats = args[min(len(args), 2) - 1]
    ends = build("cumsum", build.rec.node(repeats), 0)
    every = build(torch.arange, next(iter(counts)), device=repeats.device)
    taken = build(torch.searchsorted, ends, every, right=True)
    taken = build("clamp", taken, max=len(repeats) - 1)
    if len(args) == 1:
        return taken
    tensor, dim = build.rec.node(args[0]), args[2] if len(args) > 2 else None
    if dim is None:
        tensor, dim = build("reshape", tensor, (math.prod(args[0].shape),)), 0
    return build(torch.index_select, tensor, dim, taken)


_FORMS: dict[str, Callable[[_Builder, tuple[Any, ...], Iterable[int]], torch.fx.Node]] = {
    "__getitem__": _index,
    "index": _index,
    "masked_select": _select,
    "nonzero": _nonzero,
    "argwhere": _nonzero,
    "where": _where,
    "repeat_interleave": _repeat,
}
