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
