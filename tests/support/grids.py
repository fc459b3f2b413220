"""Grids of parameters of which `tox -e tests` runs some cells, and `tox -e slow` the rest."""

import itertools
import operator

import pytest


def grid(runs, *axes):
    """Every cell of the product of `axes`; slow where `runs(*cell)` does not hold."""
    return [
        pytest.param(
            *cell,
            id="-".join(map(str, cell)),
            marks=() if runs(*cell) else pytest.mark.slow,
        )
        for cell in itertools.product(*axes)
    ]


def is_covered(item):
    """Whether other cells of a test with several `parametrize`s stand for this one. As many cells
    as the longest has values are enough for each value of each, with others of those before."""
    axes = [_axis(item, *mark.args[:2]) for mark in item.iter_markers("parametrize")]
    chosen = (
        tuple(
            places[(cell + cell // len(places) * number) % len(places)]
            for number, (_, places) in enumerate(axes)
        )
        for cell in range(max(len(places) for _, places in axes))
    )
    return tuple(place for place, _ in axes) not in chosen


def _axis(item, names, values):
    """The place of the item's value among those of a `parametrize`, and those that are not slow."""
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    given = [item.callspec.params[name] for name in names]
    cells = [
        value
        if hasattr(value, "marks")  # a `pytest.param`
        else pytest.param(*(value if len(names) > 1 else [value]))
        for value in values
    ]
    place, *_ = [k for k, cell in enumerate(cells) if all(map(operator.is_, cell.values, given))]
    return place, [k for k, cell in enumerate(cells) if "slow" not in {m.name for m in cell.marks}]
