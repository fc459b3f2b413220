"""The quick walks over a tree give what `ast`'s own give, contexts and operators left out."""

import ast

import pytest
from dynfix.rewriter.analysis import tree_walk

TEXT = '''
@deco
async def f(a, /, b: int = 1, *c, d=None, **e):
    """Text."""
    global g
    x, *y = [i async for i in a if i] if b else {**e, "k": -1.5}
    match x:
        case {"a": [1, *_], **rest} | None: pass
        case Point(x=0) as p: del p[1:2, ...]
    try: assert not x < y <= b"", f"{x!r:>{b}}"
    except (E, F) as err: raise err from None
    return lambda q=2j: (yield q)
class C(Base, meta=M):
    y: int
    y //= True and 3
'''
MARKS = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
TREE = ast.parse(TEXT)


def plain(nodes):
    return [n for n in nodes if not isinstance(n, MARKS)]


@pytest.mark.parametrize("node", TREE.body, ids=lambda n: n.name)
def test_the_nodes_and_their_order_are_those_of_ast_walk(node):
    assert list(tree_walk.below(node)) == plain(ast.walk(node))
    assert tree_walk.below(node) is tree_walk.below(node)  # a scope is gone through once


def test_children_and_parents():
    for node in plain(ast.walk(TREE)):
        assert tree_walk.children(node) == plain(ast.iter_child_nodes(node))
    assert tree_walk.parents(TREE) == {
        c: n for n in ast.walk(TREE) for c in plain(ast.iter_child_nodes(n))
    }
