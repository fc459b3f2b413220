"""Whether anyone can see that a choice made a new tensor where eager keeps the one it had.

`if c: y = y * 2` leaves `y` the same object where `c` does not hold; `torch.where` makes another.
That shows when either is written later, when both leave the call, when the kept one is an input
that is returned, and when Python asks which is which.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
import torch.fx

from ....lowering.autograd.differentiation import differentiates
from ....lowering.fake_tensor_mode import PacedFakeMode
from ....lowering.graph.tensor_numbers import write_out_numbers
from ..recording import Recording
from ..segments import RESHAPES, Segment


@dataclasses.dataclass
class _Run:
    """A segment on fake tensors: the storage of each node's tensors, the nodes that wrote each."""

    storages: dict[torch.fx.Node, set[int]]
    writes: list[tuple[int, int]]
    order: dict[torch.fx.Node, int]
    keep: list[Any]


def seen(recording: Recording, places: tuple[str, ...], identity_asked: bool) -> str:
    """Why the choices made at `places` ("file:line:" each) can be told from eager's, or ""."""
    for number, each in enumerate(recording.segments):
        segment = dataclasses.replace(each, module=write_out_numbers(each.module))
        chosen = [n for n in segment.module.graph.nodes if _is_choice(n, places)]
        if not chosen:
            continue
        run = _run(segment)
        for node in chosen:
            why = _of(node, segment, run, number + 1 < len(recording.segments), identity_asked)
            if why:
                return why
    return ""


def _is_choice(node: torch.fx.Node, places: tuple[str, ...]) -> bool:
    return (
        bool(places)
        and node.target is torch.where
        and str(node.meta.get("origin", "")).startswith(places)
    )


def _of(node: Any, segment: Segment, run: _Run, later: bool, identity_asked: bool) -> str:
    kept = set()
    for side in node.args[1:3]:
        if isinstance(side, torch.fx.Node):
            kept |= {s for s in run.storages[side] if _used_elsewhere(s, node, run)}
    if not kept:
        return ""
    mine, at = run.storages[node], run.order[node]
    inputs = _of_kind(run, "placeholder")
    leaving = set().union(*(run.storages[n] for n in _outputs(segment)), set())
    if any(when > at and storage in mine | kept for when, storage in run.writes):
        return "the tensor that is kept, or the chosen one, is written later"
    if mine & leaving and kept & (inputs | leaving):
        return "the chosen tensor leaves the call, and so does the one that eager would keep"
    if identity_asked:
        return "the code compares the identity of tensors"
    if later and mine & leaving and kept & inputs:
        return "a later graph may write what is kept"
    return ""


def _used_elsewhere(storage: int, choice: Any, run: _Run) -> bool:
    """Whether a storage has any use but being chosen from."""
    for node, mine in run.storages.items():
        if storage not in mine:
            continue
        if node.op == "placeholder":
            return True
        if any(u is not choice and storage not in run.storages.get(u, ()) for u in node.users):
            return True
    return False


def _of_kind(run: _Run, op: str) -> set[int]:
    found = (storages for node, storages in run.storages.items() if node.op == op)
    return set().union(*found, set())


def _outputs(segment: Segment) -> list[torch.fx.Node]:
    output = next(node for node in segment.module.graph.nodes if node.op == "output")
    return list(output.all_input_nodes)


def _run(segment: Segment) -> _Run:
    run = _Run({}, [], {}, [])
    with PacedFakeMode(allow_non_fake_inputs=True), torch.inference_mode(False):
        inputs = [meta.fake() for meta in segment.metas]
        with torch.set_grad_enabled(differentiates(segment.module)):
            _Storages(segment.module, run).run(*inputs)
    return run


class _Storages(torch.fx.Interpreter):
    def __init__(self, module: torch.fx.GraphModule, run: _Run) -> None:
        super().__init__(module, garbage_collect_values=False)
        self._notes = run

    def run_node(self, n: torch.fx.Node) -> Any:
        run = self._notes
        given = [self.env[node] for node in n.all_input_nodes]
        before = [(t, t._version) for value in given for t in _tensors(value)]
        result = super().run_node(n)
        run.order[n] = len(run.order)
        run.keep.append(result)
        run.storages[n] = {_storage(tensor) for tensor in _tensors(result)}
        reshapes = RESHAPES in n.meta
        written = (_storage(t) for t, version in before if reshapes or t._version > version)
        run.writes += [(run.order[n], storage) for storage in written]
        return result


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # type: ignore[no-any-return]
