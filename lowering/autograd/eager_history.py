"""What eager's gradient history of a segment would be, found by running its graph on fake tensors.

AOTAutograd's one node gives a gradient to every input at once: zeros where nothing that the input
leads to was differentiated, where eager gives none and leaves `.grad` None; in an order of its own,
which gradient hooks can see; and once, where eager goes twice through nodes that saved nothing, and
later through those that the first backward did not reach.
"""

import contextlib
import functools
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...runtime.cache.entries import forget, read, write
from ...runtime.diagnostics import log
from ...runtime.programs import result_memory
from ..fake_tensor_mode import PacedFakeMode
from ..graph.graph_modules import forward_of
from ..graph.result_strides import in_order_of
from ..graph.rnn import keep_rnns

_PART = ".leads"


class EagerHistory:
    """Of one segment. `graph`: its torch-level `module` and the `metas` of its inputs; `contexts`:
    makers of the autocast contexts that were in force; `kept_under`: the key of what other
    processes found out of this graph."""

    def __init__(
        self,
        graph: Any,
        contexts: Sequence[Callable[[], Any]],
        kept_under: str | None = None,
    ) -> None:
        self._graph, self.contexts, self.kept_under = graph, contexts, kept_under

    @functools.cached_property
    def module(self) -> torch.fx.GraphModule:
        return keep_rnns(self._graph.module)

    @contextlib.contextmanager
    def _run(
        self, watched: Callable[[list[Any]], contextlib.AbstractContextManager[Any]] | None = None
    ) -> Iterator[tuple[list[Any], Any]]:
        """The graph run on fakes, in the context `watched(inputs)`: its inputs and results."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            for make in self.contexts:
                stack.enter_context(make())
            stack.enter_context(PacedFakeMode(allow_non_fake_inputs=True))
            inputs = [meta.fake() for meta in self._graph.metas]
            with contextlib.nullcontext() if watched is None else watched(inputs):
                results = forward_of(self.module)(*inputs)
            yield inputs, results

    def leads(
        self, targets: Callable[[Sequence[Any], Any], Sequence[Any]]
    ) -> tuple["HistoryPath", ...]:
        """For each tensor that `targets(inputs, results)` gives: where its gradient leads. Empty
        where the graph does not run on fakes."""
        key = self.kept_under
        if key is None:
            return self._leads(targets)
        found = _from_data(read(key, _PART))
        if found is None:
            found = self._leads(targets)
            rows = [[sorted(lead.inputs), sorted(lead.savers)] for lead in found]
            with contextlib.suppress(OSError):
                forget(key, _PART)
                write(key, {"leads": rows}, _PART)
        return found

    def _leads(
        self, targets: Callable[[Sequence[Any], Any], Sequence[Any]]
    ) -> tuple["HistoryPath", ...]:
        try:
            with self._run() as (inputs, results):
                places = {id(each): index for index, each in enumerate(inputs)}
                return tuple(_lead(target, places) for target in targets(inputs, results))
        except Exception as error:
            log.info("which gradients are None in eager is not known: %s", error)
            return ()

    def made_of(
        self, targets: Callable[[Sequence[Any], Any], Sequence[Any]]
    ) -> tuple[frozenset[int], ...]:
        """For each tensor that `targets(inputs, results)` gives: the inputs that it is computed
        from. Empty where that is not known."""
        try:
            sources: list[Sources] = []

            def watched(inputs: list[Any]) -> Sources:
                sources.append(Sources(inputs))
                return sources[0]

            with self._run(watched) as (inputs, results):
                return tuple(map(sources[0].of, targets(inputs, results)))
        except Exception as error:
            log.info("what the results are computed from is not known: %s", error)
            return ()

    def gradient_strides(
        self,
        targets: Callable[[Sequence[Any], Any], Sequence[Any]],
        given: Sequence[tuple[Any, Any] | None],
    ) -> tuple[tuple[Any, Any] | None, ...]:
        """(sizes, strides) of the gradient of each input, None where it has none, for gradients of
        the `targets` of sizes and strides as given; of other sizes in the order of these strides,
        as the recorded call's. Empty where that is not known."""
        try:
            with self._run() as (inputs, results):
                return _gradient_strides(inputs, targets(inputs, results), given)
        except Exception as error:
            log.info("the layout of eager's gradients is not known: %s", error)
            return ()

    def order(self) -> tuple[int, ...]:
        """The inputs in the order in which their gradients arrive, as far as it is known."""
        found: list[int] = []
        try:
            self._watch(found)
        except Exception as error:
            log.info("the order of eager's gradients is not known: %s", error)
        return tuple(found)

    def _watch(self, found: list[int]) -> None:
        with self._run() as (inputs, results):
            for index, each in enumerate(inputs):
                if isinstance(each, torch.Tensor) and each.requires_grad:
                    each.register_hook(lambda _, index=index: found.append(index))  # type: ignore[no-untyped-call]
            outs = [out for out in results if isinstance(out, torch.Tensor) and out.requires_grad]
            torch.autograd.backward(outs, [torch.ones_like(out) for out in outs])


def _gradient_strides(
    inputs: Sequence[Any], targets: Sequence[Any], given: Sequence[tuple[Any, Any] | None]
) -> tuple[tuple[Any, Any] | None, ...]:
    outs, seeds = [], []
    for target, layout in zip(targets, given, strict=False):
        if layout is not None and target.requires_grad:
            shape, strides = layout
            if tuple(target.shape) != shape:
                shape, strides = target.shape, in_order_of(strides, target.shape)
            outs.append(target)
            seeds.append(target.new_empty_strided(shape, strides))
    wanted = [each for each in inputs if isinstance(each, torch.Tensor) and each.requires_grad]
    found = iter(torch.autograd.grad(outs, wanted, seeds, allow_unused=True))
    grads = [next(found) if any(each is w for w in wanted) else None for each in inputs]
    return tuple(None if grad is None else (tuple(grad.shape), grad.stride()) for grad in grads)


class Sources(TorchFunctionMode):
    """From which of the inputs the contents of each memory come."""

    def __init__(self, inputs: Sequence[Any]) -> None:
        super().__init__()
        self._of: dict[int, frozenset[int]] = {}
        self._memories: list[Any] = []  # none of which another one may take the place of
        for index, each in enumerate(inputs):
            if isinstance(each, torch.Tensor):
                self._add(each, frozenset((index,)))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = _tensors((args, kwargs))
        versions = [each._version for each in given]
        result = func(*args, **(kwargs or {}))
        came = frozenset[int]().union(*map(self.of, given))
        written = (e for e, v in zip(given, versions, strict=True) if e._version != v)
        for each in (*_tensors(result), *written):
            self._add(each, came)
        return result

    def of(self, tensor: Any) -> frozenset[int]:
        if not isinstance(tensor, torch.Tensor):
            return frozenset()
        return self._of.get(_memory(tensor), frozenset())

    def _add(self, tensor: torch.Tensor, came: frozenset[int]) -> None:
        self._memories.append(tensor.untyped_storage())
        self._of[_memory(tensor)] = self.of(tensor) | came


def _tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # type: ignore[no-any-return]


class HistoryPath(NamedTuple):
    """To which inputs, and through which nodes that saved tensors: these lead there once."""

    inputs: frozenset[int]
    savers: frozenset[int]


def _from_data(data: Any) -> tuple[HistoryPath, ...] | None:
    """What an earlier process found, if it is well formed."""
    rows = data.get("leads") if data is not None else None
    if not isinstance(rows, list):
        return None
    parts = [part for row in rows if isinstance(row, list) and len(row) == 2 for part in row]
    if len(parts) != 2 * len(rows) or not all(map(_is_ints, parts)):
        return None
    return tuple(HistoryPath(frozenset(inputs), frozenset(savers)) for inputs, savers in rows)


def _is_ints(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int for one in value)


def _lead(tensor: Any, places: dict[int, int]) -> HistoryPath:
    nodes = _nodes(tensor)
    leaves = (id(getattr(node, "variable", None)) for node in nodes)
    return HistoryPath(
        frozenset(places[leaf] for leaf in leaves if leaf in places),
        frozenset(node._sequence_nr() for node in nodes if _saves(node)),
    )


def _nodes(tensor: Any) -> set[Any]:
    waiting = [(getattr(tensor, "grad_fn", None), getattr(tensor, "output_nr", 0))]
    seen = set[Any]()
    while waiting:
        node, result = waiting.pop()
        if node is not None and (node, result) not in seen:
            seen.add((node, result))
            waiting += _edges(node, result)
    return {node for node, _ in seen}


def _edges(node: Any, result: int) -> Sequence[tuple[Any, int]]:
    """Where the gradient of one of the node's results leads: of an operator on lists, which leaves
    out what has none, to the elements in its place."""
    edges: Sequence[tuple[Any, int]] = node.next_functions
    if not node.name().startswith("Foreach"):
        return edges
    count = len(node._input_metadata)
    return edges if len(edges) % count else edges[result::count]


def _saves(node: Any) -> bool:
    kept = [getattr(node, name) for name in dir(node) if name.startswith("_saved_")]
    return bool(getattr(node, "saved_tensors", ())) or any(map(_is_saved, kept))


def _is_saved(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or (
        isinstance(value, tuple) and any(map(_is_saved, value))
    )


def absent(given: Sequence[Any], leads: Sequence[HistoryPath]) -> frozenset[int]:
    """The inputs that only gradients of None lead to, if any does."""
    pairs = list(zip(given, leads, strict=False))
    reached = {index for grad, lead in pairs if grad is not None for index in lead.inputs}
    return frozenset(index for _, lead in pairs for index in lead.inputs) - reached


def savers(given: Sequence[Any], leads: Sequence[HistoryPath]) -> frozenset[int]:
    """The nodes that saved tensors, which a backward with these gradients goes through."""
    pairs = zip(given, leads, strict=False)
    return frozenset(node for grad, lead in pairs if grad is not None for node in lead.savers)


def with_zeros(
    node: Any, given: list[Any], missing: Sequence[int], unread: Container[int] = ()
) -> None:
    """Gradients of None as zeros, in place, as autograd itself makes them; one zero for all where
    nothing reads them."""
    metas = node._input_metadata
    for k in missing:
        shape, dtype, device = tuple(metas[k].shape), metas[k].dtype, metas[k].device
        if k in unread:
            given[k] = torch.zeros((), dtype=dtype, device=device).expand(shape)
        else:
            given[k] = result_memory.zeros(shape, dtype, device)


def targets_of(metadata: Any, fed: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """What AOTAutograd's function gives, in its order: written inputs, results, and the tensors
    that several results are views of. Behind the results stands what is drawn for nobody."""
    bases: dict[int, Any] = {}
    for info, result in zip(metadata.output_info, results, strict=False):
        if info.base_idx is not None and "intermediate" in info.output_type.name:
            bases.setdefault(info.base_idx, getattr(result, "_base", None))
    written = [fed[index] for index in metadata.mutated_inp_runtime_indices]
    drawn = [None] * (len(metadata.output_info) - len(results))
    return [
        *(*written, *results, *drawn),
        *(bases.get(k) for k in range(metadata.num_intermediate_bases)),
    ]
