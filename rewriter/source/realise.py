"""Intents become splices by LibCST: what stands around an edit is parsed, changed and printed, and
what differs is cut out of it, so that nothing else can change by a byte.

What is parsed is no more than the edit needs: the outermost expression around an expression, the
lines of a statement (with the head of its block, where that stands on the same line)."""

import ast
from collections.abc import Callable, Sequence
from itertools import pairwise

import libcst as cst

from .parentheses import asked, binding, stands_alone
from .realise_statements import cut, deleted, put_before, replaced, wrapped
from .source_file import SourceFile
from .spans import Edit, Intent
from .tree_paths import path_to_expression, spans, unix

_BRACKETS = (ast.List, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def realised(source: SourceFile, edits: Sequence[Edit]) -> list[Edit]:
    """The edits as splices of the source's text. Raises ValueError where one cannot be made."""
    try:
        return [_HOW[e.intent](source, e) for e in edits]
    except (cst.ParserSyntaxError, SyntaxError) as error:
        raise ValueError(f"what would be written is no Python: {error}") from None


def _splice(source: SourceFile, edit: Edit) -> Edit:
    return edit


def _expression(source: SourceFile, edit: Edit) -> Edit:
    path = path_to_expression(source, edit.start, edit.end)
    as_it_is = Edit(edit.start, edit.end, edit.text)
    if path is None:  # inside an f-string, where `ast` does not tell the place
        return as_it_is
    root = next(n for n in path if isinstance(n, ast.expr))
    start, end = source.span(root)
    text = f"({unix(source, source.text[start:end])})\n"
    module = cst.parse_module(text)
    old, own = _found(module, text, edit.start - start + 1, edit.end - start + 1)
    if old is None:
        return as_it_is
    kept = slice(0, len(old.lpar) - own), slice(own, len(old.rpar))
    new = _parsed(unix(source, edit.text))
    around = len(old.lpar) - own > (path[-1] is root) or _is_grouped(source, root, path)
    if not new.lpar and not around and _is_split(edit.text, path):
        new = new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    lpar, rpar = [*old.lpar[kept[0]], *new.lpar], [*new.rpar, *old.rpar[kept[1]]]
    changed = module.deep_replace(old, new.with_changes(lpar=lpar, rpar=rpar))
    assert isinstance(changed, cst.Module)
    return cut(source, edit, start, end, changed.code[1:-2])


def _found(
    module: cst.Module, text: str, start: int, end: int
) -> tuple[cst.BaseExpression | None, bool]:
    """(the expression text[start:end], whether its own parentheses are part of that, as `ast`
    counts them of tuples and generators)."""
    known = [(n, a, b) for n, a, b in spans(module, text) if isinstance(n, cst.BaseExpression)]
    for node, first, last in known:
        if (first, last) == (start, end):
            return node, False
    inner = [(a - b, n) for n, a, b in known if start < a and b < end and n.lpar]
    widest = min(inner, key=lambda pair: pair[0], default=(0, None))[1]
    counted = isinstance(widest, (cst.Tuple, cst.GeneratorExp)) and text[start] == "("
    return (widest, True) if counted else (None, False)


def _is_grouped(source: SourceFile, root: ast.expr, path: list[ast.AST]) -> bool:
    """Whether parentheses stand around the outermost expression, which is the one replaced."""
    start, end = source.span(root)
    before, after = source.text[:start].rstrip()[-1:], source.text[end : end + 200].lstrip()[:1]
    return path[-1] is root and before == "(" and after == ")"


def _is_split(text: str, path: list[ast.AST]) -> bool:
    """Whether `text`, without parentheses, would not be one expression at its place."""
    tree = ast.parse(f"({text}\n)", mode="eval").body
    if binding(tree) < asked(path[-2], path[-1]):
        return True
    return not stands_alone(text) and not _in_brackets(path)


def _in_brackets(path: list[ast.AST]) -> bool:
    """Whether brackets, which hold several lines together, stand around the last of a path."""
    for outer, inner in pairwise(path):
        if isinstance(outer, ast.Call) and inner is not outer.func:
            return True
        if isinstance(outer, ast.Subscript) and inner is not outer.value:
            return True
        if isinstance(outer, _BRACKETS):
            return True
    return False


def _parsed(text: str) -> cst.BaseExpression:
    """An expression, of which only its own parentheses are kept."""
    node = cst.parse_expression(f"({text}\n)" if "#" in text else f"({text})")
    return node.with_changes(lpar=node.lpar[1:], rpar=node.rpar[:-1])


_HOW: dict[Intent, Callable[[SourceFile, Edit], Edit]] = {
    Intent.SPLICE: _splice,
    Intent.EXPRESSION: _expression,
    Intent.STATEMENTS: replaced,
    Intent.DELETE: deleted,
    Intent.WRAP: wrapped,
    Intent.BEFORE: put_before,
}
