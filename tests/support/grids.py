"""Grids of parameters of which `tox -e tests` runs some cells, and `tox -e slow` the rest."""

import itertools

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
    axes = {}
    for mark in item.iter_markers("parametrize"):
        names, values, *_ = mark.args
        name = names.split(",")[0].strip() if isinstance(names, str) else names[0]
        axes[name] = [place for place, value in enumerate(values) if not _is_slow(value)]
    chosen = (
        tuple(
            axis[(cell + cell // len(axis) * place) % len(axis)]
            for place, axis in enumerate(axes.values())
        )
        for cell in range(max(map(len, axes.values())))
    )
    return tuple(item.callspec.indices[name] for name in axes) not in chosen


def _is_slow(value):
    return any(mark.name == "slow" for mark in getattr(value, "marks", ()))
