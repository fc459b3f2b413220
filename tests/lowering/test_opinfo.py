"""The table of operators: one row a name, each property explained and used, each name torch's."""

import operator
from pathlib import Path

import numpy
import pytest
import torch
from dynfix.lowering import opinfo

ROWS = [
    line.partition("  #")[0].split()
    for line in Path(opinfo.__file__).with_name("operators.txt").read_text("utf-8").splitlines()
    if line and line[0] not in "#@"
]
PLACES = (torch, torch.Tensor, torch.nn.functional, torch.ops.aten, torch.linalg, numpy, operator)
# Of other versions of torch (named tensors among them), and of modules and helpers beside tensors.
OTHERS = frozenset(
    """
    align_to get:is_hpu get:is_ort has_names is_nonzero_static is_same_object names refine_names
    rename rename_ set:names share_memory swap_tensors type_is
    get items keys pop setdefault dropout_
    """.split()
)


def test_rows_are_unique_and_have_a_property():
    names = [name for name, *_ in ROWS]
    assert len(names) == len(set(names))
    assert all(properties for _, *properties in ROWS)


def test_each_property_is_explained_and_used():
    explained, names = opinfo.table()
    used = {each for _, *properties in ROWS for each in properties}
    assert used == set(explained) == {each for each in names if names[each]}
    package = Path(opinfo.__file__).parents[2]
    text = "".join(path.read_text("utf-8") for path in package.rglob("*.py"))
    assert [each for each in sorted(explained) if f'"{each}"' not in text] == []
    with pytest.raises(KeyError):
        opinfo.having("no property")


def test_each_name_is_one_of_torch():
    def known(name):
        name = name.partition(":")[2] or name
        return any(hasattr(place, name) for place in PLACES) or hasattr(torch.random, name)

    unknown = {name for name, *_ in ROWS if not known(name)}
    assert unknown - OTHERS == set()
