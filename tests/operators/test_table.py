"""docs/operators.md is what the tables say, and the targets' tables agree."""

import torch
from dynfix.lowering.loops.ops import OPS
from dynfix.lowering.targets.cpp import cpp_ops
from dynfix.lowering.targets.triton import triton_ops

from . import table


def test_the_document_is_up_to_date():
    assert table.FILE.read_text() == table.text(), "run python -m tests.operators.table"


def test_most_of_the_core_is_lowered():
    states = [table.state(overload)[0] for overload in table.core()]
    assert states.count("lowered") >= 150


def test_reasons_are_given_for_library_calls_alone():
    library = {table.short(o) for o in table.core() if table.state(o)[0] == "library"}
    assert set(table.LIBRARY) <= library
    assert set(table.PARTLY) <= {table.short(o) for o in table.core()} - library


def test_both_targets_print_every_function_of_the_loop_ir():
    for name, signature in OPS.items():
        for dtype in signature.operands:
            arguments = ["a", "b", "c"][: signature.arity]
            assert cpp_ops.operation(name, dtype, arguments), (name, dtype)
            assert triton_ops.template(name, dtype, False), (name, dtype)


def test_names_that_differ_by_nothing_are_not_listed_twice():
    overloads = table.core()
    assert len(set(overloads)) == len(overloads)
    assert all(torch.Tag.core in overload.tags for overload in overloads)
