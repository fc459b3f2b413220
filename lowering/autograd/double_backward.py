"""Gradients of gradients of a compiled segment.

AOTAutograd's backward cannot be differentiated. Here a backward under `create_graph=True` runs the
segment's own graph again, in eager, on the inputs of its call, and differentiates that; so does one
for which something was kept that has been written since. Every other backward is AOTAutograd's.
"""

import functools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...runtime.cache import entries
from ...runtime.errors import BuildError, LoweringError, UnexpectedResult
from ...runtime.signals import is_of_a_handler
from ...runtime.torch_headers import torch_parts
from ..graph import graph_key, graph_transfer
from . import eager_rerun, missing_gradients, tangent_layout, unbuilt, unversioned_mutation
from .call_modes import autocasts, cuda_state
from .direct_calls import program_in
from .eager_history import EagerHistory, absent, savers, targets_of, with_zeros
from .native_nodes import with_node
from .result_views import ResultOrigin, ResultViews

_NONE = frozenset[int]()
KEPT_NUMEL = 1 << 16  # elements of a written input that are copied, in case it is needed again


class RecordedGraph:
    """The torch-level graph of a segment and its inputs, which a later derivative runs again.
    `random`: whether it draws random numbers; `uncounted`: inputs whose versions stay as they
    are."""

    def __init__(
        self,
        module: torch.fx.GraphModule,
        metas: Sequence[Any],
        random: bool,
        uncounted: Sequence[int] = (),
    ) -> None:
        self.module, self.metas, self.random, self.inputs = module, metas, random, len(metas)
        self.uncounted = tuple({*unversioned_mutation.uncounted(module), *uncounted})
        self.with_gradients = [i for i, meta in enumerate(metas) if meta.requires_grad]

    def to_bytes(self) -> bytes:
        """For another process of this installation. Raises what pickling raises, and Unnamed."""
        return graph_transfer.to_bytes(self.module, tuple(self.metas))


class StoredGraphModule:
    """The same of another process, whose graph is made where it is needed. `data`: its bytes; None
    where nothing has a gradient."""

    def __init__(
        self,
        data: bytes | None,
        inputs: int,
        with_gradients: Sequence[int],
        uncounted: Sequence[int],
        random: bool,
    ) -> None:
        self._data, self.inputs, self.random = data, inputs, random
        self.with_gradients, self.uncounted = list(with_gradients), tuple(uncounted)

    @functools.cached_property
    def _made(self) -> tuple[torch.fx.GraphModule, Any]:
        if self._data is None:
            raise LoweringError("the graph has no gradients")
        return graph_transfer.from_bytes(self._data)

    @property
    def module(self) -> torch.fx.GraphModule:
        return self._made[0]

    @property
    def metas(self) -> Any:
        return self._made[1]

    def to_bytes(self) -> bytes:
        return self._data or b""


class Differentiable:
    """A compiled segment with a second derivative. `graph`: what it was recorded as; `kept_under`:
    the key under which its program is kept, if it is; `made`: how eager made its results; `stored`:
    the place of its program. `when_seen` is called once a gradient is asked to be differentiable.
    `writes`, the positions of the inputs that it writes, is known after the first call."""

    when_seen: Callable[[], None] | None = None

    def __init__(
        self,
        program: Callable[..., Any],
        graph: RecordedGraph | StoredGraphModule,
        kept_under: str | None = None,
        made: Sequence[ResultOrigin] = (),
        stored: Any = None,
    ) -> None:
        self.program, self.graph, self.made, self.stored = program, graph, made, stored
        self.random, self._uncounted = graph.random, graph.uncounted
        self.kept_under, self._views = kept_under, ResultViews(made)
        self.writes: tuple[int, ...] | None = None
        idle: frozenset[int] = getattr(program, "idle", frozenset())
        self.read = frozenset(range(graph.inputs)) - idle
        self.copied: frozenset[int] = _NONE
        self.drawing: tuple[str, ...] = getattr(program, "drawing", ()) if self.random else ()
        self._way: tuple[int, ...] | None = None
        self._no_history = False  # of the results: nobody can ask for a gradient
        self._with_gradients = graph.with_gradients
        self._order: tuple[int, ...] | None = None
        self._node_facts: dict[str, Any] | None = getattr(program, "node_facts", None)
        self._native: Callable[..., Any] | None = None
        self._when_native: list[Callable[[Callable[..., Any]], None]] = []

    def __call__(self, *tensors: Any) -> Any:
        return (self._native or self.in_python)(*tensors)

    def when_native(self, told: Callable[[Callable[..., Any]], None]) -> None:
        """Have `told(function)` called once a native function does what this object does."""
        self._when_native.append(told)

    def in_python(self, *tensors: Any) -> Any:
        if self._no_history or not torch.is_grad_enabled():
            return self._called(tensors)
        call = DifferentiableCall(self, tensors)
        for index in self._with_gradients:
            tensor = tensors[index]
            if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
                tensors = tuple(self._in_order(tensors))
                break
        behind = [] if self._way is not None else self._behind(tensors)
        result = self._called(tensors)
        if self.writes is None:
            self.writes = call.written(tensors, self._uncounted)
            self.copied = self.read.intersection(self.writes)
        node = self._node(result, behind)
        if node is None:
            self._no_history = not _requires_grad(result)
            return result
        if self.writes:
            call.settle()
        node.dynfix_call = call
        node.materialize_grads = False
        if self._node_facts is not None:
            self._make_native(node._forward_cls, tensors)
        return result

    def _called(self, tensors: Sequence[Any]) -> Any:
        if self._uncounted:
            results = unversioned_mutation.called(self.program, tensors, self._uncounted)
        else:
            results = self.program(*tensors)
        asked = self._views.asked and torch.is_grad_enabled()
        return self._views.seen(results) if asked else results

    def _make_native(self, cls: Any, tensors: Sequence[Any]) -> None:
        """Have later calls made natively, if that part is there."""
        native = torch_parts()
        if native is None or self._node_facts is None or self._native is not None:
            return
        facts = {
            **self._node_facts,
            "written": tuple(k for k in self._node_facts["written"] if k not in self._uncounted),
            "python": self.in_python,
            "mended": self._views.as_in_eager,
            "shares": self._views.shares,
            "prepare": lambda tensors: DifferentiableCall(self, tensors),
            "hooked": tuple(self._with_gradients),
            "inputs": len(tensors),
            "keeps_call": bool(self.random or self.writes),
            "writes": bool(self.writes),
        }
        self._native = with_node(
            native, facts, cls, _backward, functools.partial(DifferentiableCall.of, self)
        )
        for told in self._when_native:
            told(self._native)
        self._when_native.clear()

    def _history(self) -> EagerHistory:
        return EagerHistory(self.graph, autocasts(), self.kept_under)

    def _in_order(self, tensors: tuple[Any, ...]) -> list[Any]:
        """The inputs; leaves with a node each, which autograd comes to in the order in which eager
        gives them their gradients: the node made last is the first."""
        if self._order is None:
            self._order = self._history().order()
        given = list(tensors)
        for index in reversed(self._order):
            if given[index].is_leaf:
                given[index] = _view(given[index])
        return given

    def _behind(self, tensors: Sequence[Any]) -> list[Any]:
        """The nodes of the inputs; of others than those with gradients asking may be an error."""
        nodes = (tensors[index].grad_fn for index in self._with_gradients)
        return [node for node in nodes if node is not None]

    def _node(self, result: Any, behind: list[Any]) -> Any:
        """AOTAutograd's node behind the results, found by the way that led to it the first time;
        `behind`: the nodes of the inputs, which may be another program's."""
        if self._way is not None:
            node = _follow(result, self._way)
            if node is not None:
                return node
        self._way = _way(result, behind)
        node = None if self._way is None else _follow(result, self._way)
        if node is not None:
            self._patch(node._forward_cls)
        return node

    def _patch(self, cls: Any) -> None:
        """Give AOTAutograd's function of one segment a backward that can be differentiated."""
        if "dynfix_plain_backward" in vars(cls):
            return

        def targets(fed: Sequence[Any], results: Any) -> list[Any]:
            return targets_of(cls.metadata, fed, _outputs(results))

        cls.dynfix_plain_backward = cls.__dict__["backward"]
        cls.dynfix_built = cls.dynfix_unbuilt = cls.dynfix_several_sizes = False
        cls.dynfix_taken = getattr(cls, "taken", None)
        history = self._history()
        cls.dynfix_leads = staticmethod(functools.cache(lambda: history.leads(targets)))
        cls.dynfix_made_of = staticmethod(functools.cache(lambda: history.made_of(targets)))
        cls.dynfix_strides = staticmethod(
            functools.cache(lambda given: history.gradient_strides(targets, given))
        )
        cls.backward = staticmethod(_backward)


class DifferentiableCall:
    """What one call needs to be made again. `released`: the nodes of eager's history that earlier
    backwards went through, and that had saved tensors; None before the first."""

    __slots__ = ("autocast", "cuda", "owner", "released", "rng", "tensors", "versions")

    def __init__(self, owner: Differentiable, tensors: tuple[Any, ...]) -> None:
        self.owner = owner
        self.released: frozenset[int] | None = None
        self.versions = _versions(tensors)
        self.tensors = tensors
        copied = owner.read if owner.writes is None else owner.copied
        if copied:
            self.tensors = tuple(_copy(t) if i in copied else t for i, t in enumerate(tensors))
        self.rng = torch.random.get_rng_state() if owner.random else None
        self.cuda = cuda_state(tensors) if owner.random else None
        self.autocast = autocasts() if torch._C._is_any_autocast_enabled() else ()

    @classmethod
    def of(
        cls, owner: Differentiable, tensors: tuple[Any, ...], versions: list[int]
    ) -> "DifferentiableCall":
        """One that wrote and drew nothing, without autocast."""
        made = object.__new__(cls)
        made.owner, made.tensors, made.versions = owner, tensors, versions
        made.released = made.rng = made.cuda = None
        made.autocast = ()
        return made

    def written(self, tensors: tuple[Any, ...], uncounted: Sequence[int]) -> tuple[int, ...]:
        """Positions of the inputs that the call wrote, which had been copied all; `uncounted`: of
        those whose versions do not tell. Forgets the other copies."""
        changed = [
            i in uncounted or _changed(tensor, self.versions[i]) for i, tensor in enumerate(tensors)
        ]
        self.tensors = tuple(
            self.tensors[i] if changed[i] else tensor for i, tensor in enumerate(tensors)
        )
        return tuple(i for i, each in enumerate(changed) if each)

    def settle(self) -> None:
        """The call is over: its own writes count no longer."""
        self.versions = _versions(self.tensors)

    def serves(self, given: Sequence[Any], cls: Any) -> bool:
        """Whether a backward of `cls` with these gradients has to run the graph again, and can: one
        that is to be differentiated, one of a batch of gradients (`is_grads_batched=True`), which
        programs cannot take, or one after another that did not come by here."""
        needed = frozenset[int]() if self.released is None else savers(given, cls.dynfix_leads())
        if self.released is not None and needed & self.released:
            return False
        if torch.is_grad_enabled():
            _seen(self.owner)
            return not self.unfit()
        if _is_batched(_VMAP):
            return not self.unfit()
        return self.released is not None and self.fit_for(given, cls)

    def unfit(self) -> bool:
        """Whether an input that counts is no longer what it was."""
        return bool(self._changed())

    def fit_for(self, given: Sequence[Any], cls: Any) -> bool:
        """Whether a second run has these gradients right: an optimizer may have written the
        parameters of other results, and where eager saves nothing, values do not matter."""
        changed = self._changed()
        if not changed:
            return True
        leads = cls.dynfix_leads()
        if leads and not savers(given, leads):
            return True
        made_of = None if self.owner.writes else self._made_of(given, cls)
        return made_of is not None and not changed & made_of

    def unread_for(self, given: Sequence[Any], cls: Any) -> frozenset[int]:
        """The inputs that have been written since, and that a second run can do without."""
        changed = self._changed()
        if not changed or self.owner.writes or self.owner.random:
            return _NONE
        made_of = self._made_of(given, cls)
        return _NONE if made_of is None else changed - made_of

    def _changed(self) -> frozenset[int]:
        tensors, versions = self.tensors, self.versions
        return frozenset(k for k in self.owner.read if _changed(tensors[k], versions[k]))

    def _made_of(self, given: Sequence[Any], cls: Any) -> frozenset[int] | None:
        """The inputs that the differentiated results are computed from, if that is known."""
        pairs = list(zip(given, cls.dynfix_made_of(), strict=False))
        return _NONE.union(*(made for grad, made in pairs if grad is not None)) if pairs else None


def _requires_grad(results: Any) -> bool:
    if isinstance(results, list | tuple):
        return any(map(_requires_grad, results))
    return isinstance(results, torch.Tensor) and results.requires_grad


def _view(tensor: Any) -> Any:
    return tensor.view_as(tensor) if isinstance(tensor, torch.Tensor) else tensor


def _copy(tensor: Any) -> Any:
    """A copy of what will be written, with its history of now; None for what is too large."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    return None if tensor.numel() > KEPT_NUMEL else tensor.clone()


def _versions(tensors: Sequence[Any]) -> list[int]:
    try:
        return list(map(_version_of, tensors))
    except (AttributeError, RuntimeError):  # numbers, and tensors of inference mode
        return [_version(tensor) for tensor in tensors]


def _version(tensor: Any) -> int:
    known = isinstance(tensor, torch.Tensor) and not tensor.is_inference()
    return tensor._version if known else -1


def _changed(tensor: Any, version: int) -> bool:
    return tensor is None or _version(tensor) != version


def _way(result: Any, behind: list[Any]) -> tuple[int, ...] | None:
    """Which output, then how many steps back, the first node of AOTAutograd is before those
    `behind`."""
    for index, out in enumerate(_outputs(result)):
        node, steps = getattr(out, "grad_fn", None), 0
        while node is not None and steps < 4 and not any(node is each for each in behind):
            if _is_compiled(node):
                return (index, steps)
            node = node.next_functions[0][0] if node.next_functions else None
            steps += 1
    return None


def _follow(result: Any, way: tuple[int, ...]) -> Any:
    index, steps = way
    out = result[index] if isinstance(result, tuple | list) else result
    node = getattr(out, "grad_fn", None)
    for _ in range(steps):
        if node is None or not node.next_functions:
            return None
        node = node.next_functions[0][0]
    return node if _is_compiled(node) else None


def _outputs(result: Any) -> Sequence[Any]:
    return result if isinstance(result, tuple | list) else (result,)


def _is_compiled(node: Any) -> bool:
    return hasattr(getattr(node, "_forward_cls", None), "compiled_fw")


def _backward(ctx: Any, *grads: Any) -> Any:
    cls, call = ctx._forward_cls, getattr(ctx, "dynfix_call", None)
    given = grads[0] if len(grads) == 1 and isinstance(grads[0], list) else list(grads)
    taken = range(len(given)) if cls.dynfix_taken is None else cls.dynfix_taken
    missing = [k for k in taken if given[k] is None]
    again = torch.is_grad_enabled() or _is_batched(_VMAP)
    tangent_layout.resolve(given)
    turned = None if again else tangent_layout.layouts(cls, given)
    if missing or again or (call is not None and call.released is not None):
        found = _unusual(ctx, call, given, missing, grads)
    else:
        if call is not None and not _keeps_graph():
            ctx.dynfix_call = None
        found = _usual(ctx, call, given, grads, given)
    return found if turned is None else tangent_layout.as_in_eager(cls, found, turned)


def _unusual(ctx: Any, call: Any, given: list[Any], missing: list[int], grads: Any) -> Any:
    """A backward without some of the gradients, to be differentiated, or one of several."""
    if all(grad is None for grad in given):
        return (None,) * len(ctx.needs_input_grad)
    leads = ctx._forward_cls.dynfix_leads
    again = call is not None and call.serves(given, ctx._forward_cls)
    none = absent(given, leads()) if missing else frozenset[int]()
    if call is not None and not _keeps_graph():
        if missing or again:
            call.released = (call.released or frozenset()) | savers(given, leads())
        else:
            ctx.dynfix_call = None
    if again:
        return eager_rerun.gradients(ctx, call, given)
    kept, absent_here = list(given), _NONE
    if missing:
        absent_here = _places(ctx._forward_cls, missing)
        with_zeros(ctx, given, missing, _unread(ctx._forward_cls, missing))
    found = _usual(ctx, call, given, grads, kept, absent_here)
    return tuple(None if i in none else grad for i, grad in enumerate(found)) if none else found


def _places(cls: Any, missing: list[int]) -> frozenset[int]:
    """Which of the gradients that the backward program takes are missing."""
    taken = cls.dynfix_taken
    return frozenset() if taken is None else frozenset(map(taken.index, missing))


def _unread(cls: Any, missing: list[int]) -> frozenset[int]:
    """Those that it need not be given."""
    program = program_in(cls.compiled_bw)
    if cls.dynfix_taken is None or not isinstance(program, missing_gradients.Backward):
        return frozenset()
    return frozenset(k for k in missing if cls.dynfix_taken.index(k) in program.apart)


def _usual(
    ctx: Any,
    call: Any,
    given: list[Any],
    grads: Any,
    kept: list[Any],
    absent_here: frozenset[int] = _NONE,
) -> Any:
    """AOTAutograd's backward, which empties a list that it is given once it has what was saved.
    `kept`: the gradients as autograd gave them; `absent_here`: what the program takes of them that
    was not given."""
    cls, place = ctx._forward_cls, None
    ready = cls.dynfix_built and missing_gradients.is_built(cls.compiled_bw, absent_here)
    if call is not None and (cls.dynfix_unbuilt or not ready):
        fit = call.fit_for(kept, cls)
        if fit and cls.dynfix_unbuilt:
            return eager_rerun.gradients(ctx, call, kept)
        place = None if fit else _place(call)
    if not ready:
        kept = list(kept)  # what comes to light now is that the program cannot serve
    count, arguments = len(given), ((given,) if grads[0] is given else given)
    try:
        if missing_gradients.missing() == absent_here and place is None:
            found = cls.dynfix_plain_backward(ctx, *arguments)
        else:
            with missing_gradients.without(absent_here), unbuilt.without_second_run(place):
                found = cls.dynfix_plain_backward(ctx, *arguments)
    except Exception as error:
        if call is None or len(kept) < count or is_of_a_handler(error):
            raise
        written = _in_eager(error, cls, call, kept)
        return eager_rerun.gradients(ctx, call, kept, written)
    if not cls.dynfix_built:
        cls.dynfix_built = True
    return found


def _place(call: DifferentiableCall) -> str:
    """The user's line."""
    return next(filter(None, graph_key.origins_of(call.owner.graph.module)), "")


def _in_eager(error: Exception, cls: Any, call: DifferentiableCall, kept: list[Any]) -> int | None:
    """That a backward failed with `error`, which is raised again where eager would fail as well:
    not where no program could be made, or none fits. The result that was written since, if that is
    known."""
    if isinstance(error, missing_gradients.NotStored):
        if call.owner.kept_under is not None:
            entries.forget(call.owner.kept_under)  # a later process has it compiled anew
        return None
    if _WRITTEN in str(error):
        if not call.fit_for(kept, cls):
            raise error
        return _written_place(str(error))
    unfit = isinstance(error, (LoweringError, BuildError, UnexpectedResult))
    if program_in(cls.compiled_bw) is not None and not unfit:
        raise error
    cls.dynfix_unbuilt = True
    unbuilt.tell(error, _place(call))
    return None


_WRITTEN = "has been modified by an inplace operation"
_version_of: Callable[[Any], int] = operator.attrgetter("_version")
_is_batched: Any = torch._C._dispatch_tls_is_dispatch_key_included
_VMAP: Any = torch._C._parse_dispatch_key("VmapMode")  # a name costs 2 us at each call
_keeps_graph: Any = torch._C._autograd._get_current_graph_task_keep_graph
_PLACE = re.compile(r"which is output (\d+) of CompiledFunction")


def _written_place(message: str) -> int | None:
    """Which result of AOTAutograd's function autograd found written."""
    found = _PLACE.search(message)
    return int(found[1]) if found else None


def _seen(owner: Differentiable) -> None:
    if owner.when_seen is not None:
        owner.when_seen()
