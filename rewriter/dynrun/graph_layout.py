"""Where the nodes of a graph are drawn: in layers, each below what it takes (Sugiyama, Tagawa and
Toda, "Methods for Visual Understanding of Hierarchical System Structures", 1981)."""

from collections.abc import Sequence
from typing import Any

MAX_DRAWN_NODES = 1500  # nodes that are drawn
SWEEPS = 4
Drawn = tuple[str, str, str, list[str]]  # name, what it does, its line, what it takes


def placed(nodes: Sequence[Drawn]) -> dict[str, Any]:
    """Nodes with coordinates (in steps of one node) and edges, by position in the list."""
    shown = nodes[:MAX_DRAWN_NODES]
    number = {name: at for at, (name, _, _, _) in enumerate(shown)}
    edges = [
        (number[taken], number[name])
        for name, _, _, takes in shown
        for taken in takes
        if taken in number
    ]
    layers = _layers(len(shown), edges)
    across = _across(layers, edges)
    return {
        "nodes": [
            {"name": name, "what": what, "line": line, "x": across[at], "y": layers[at]}
            for at, (name, what, line, _) in enumerate(shown)
        ],
        "edges": edges,
        "left_out": len(nodes) - len(shown),
    }


def _layers(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """One below the lowest of what it takes; inputs right above the first that takes them."""
    layers, takers = [0] * count, [count] * count
    for source, target in edges:  # nodes stand in the order of a run
        layers[target] = max(layers[target], layers[source] + 1)
    takes = {target for _, target in edges}
    for source, target in edges:
        if source not in takes:
            takers[source] = min(takers[source], layers[target] - 1)
    return [
        takers[at] if at not in takes and takers[at] < count else layers[at] for at in range(count)
    ]


def _across(layers: Sequence[int], edges: Sequence[tuple[int, int]]) -> list[float]:
    """By the mean of the neighbours, a few times over; one node apart in a layer."""
    rows: dict[int, list[int]] = {}
    for at, layer in enumerate(layers):
        rows.setdefault(layer, []).append(at)
    near: list[list[int]] = [[] for _ in layers]
    for source, target in edges:
        near[source].append(target)
        near[target].append(source)
    across = [0.0] * len(layers)
    for row in rows.values():
        _spread(row, across)
    for _ in range(SWEEPS):
        for layer in sorted(rows):
            row = rows[layer]
            for at in row:
                if near[at]:
                    across[at] = sum(across[n] for n in near[at]) / len(near[at])
            row.sort(key=across.__getitem__)
            _spread(row, across)
    return across


def _spread(row: Sequence[int], across: list[float]) -> None:
    middle = (len(row) - 1) / 2
    center = sum(across[at] for at in row) / len(row)
    for place, at in enumerate(row):
        across[at] = round(center + place - middle, 2)
