"""Walks over syntax trees find what `ast`'s own do, but for contexts and operators."""

import ast
from pathlib import Path

import pytest
from dynfix.rewriter.graph_breaks.tree_walks import SCOPES, all_nodes, children, own_nodes

LEFT_OUT = ast.expr_context | ast.operator | ast.unaryop | ast.boolop | ast.cmpop
FILES = sorted(Path(__file__).parent.glob("test_*.py"))[:12]
TEXT = """
async def f(a, /, b: int = 1, *c, d=None, **e) -> str:
    global g
    for x in a:
        if x is not b < 3 and not c:
            break
        else:
            continue
    match b:
        case {"k": v, **rest} | [v, *rest]:
            pass
        case None:
            return f"{v!r:>{d}}"
    class C(object, metaclass=type):
        x: int
    return lambda y=1, *z: [y := u async for u in z if u]
"""


@pytest.mark.parametrize("text", [TEXT, *(file.read_text() for file in FILES)])
def test_the_same_nodes_in_the_order_of_the_text(text):
    tree = ast.parse(text)
    for node in ast.walk(tree):
        wanted = [each for each in ast.iter_child_nodes(node) if not isinstance(each, LEFT_OUT)]
        assert [*map(id, children(node))] == [*map(id, wanted)]
    assert [*map(id, all_nodes(tree))] == [*map(id, _below(tree, ()))]
    assert [*map(id, own_nodes(tree))] == [*map(id, _below(tree, SCOPES))]


def _below(node, left):
    yield node
    for child in () if isinstance(node, left) else children(node):
        yield from _below(child, left)
