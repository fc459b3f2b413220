"""Annotations put into the head of a function."""

import ast
import io
import re
import tokenize

from .source_file import SourceFile
from .spans import Edit, Refusal

_EQUALS = re.compile(r"\s*=\s*")
_HEAD = re.compile(r"(async\s+)?def\s+\w+\s*")


def annotate_parameter(
    source: SourceFile, arg: ast.arg, has_default: bool, text: str
) -> Edit | Refusal:
    """`arg: text`, with the blanks around `=` that belong to it then."""
    end = source.span(arg)[1]
    if not has_default:
        return Edit(end, end, f": {text}")
    equals = _EQUALS.match(source.text, end)
    if equals is None:
        return Refusal("a comment stands among its parameters")
    return Edit(end, equals.end(), f": {text} = ")


def annotate_result(source: SourceFile, function: ast.FunctionDef, text: str) -> Edit | Refusal:
    """`-> text` behind the parameters."""
    end = _closing(source, function)
    if end is None:
        return Refusal("its parameters are not found")
    return Edit(end, end, f" -> {text}")


def _closing(source: SourceFile, function: ast.FunctionDef) -> int | None:
    """The offset behind the `)` that ends the parameters."""
    start = source.span(function)[0]
    head = _HEAD.match(source.text, start)
    if head is None:
        return None
    text = source.text[head.end() : source.span(function.body[0])[0]]
    lines = [0, *(m.end() for m in re.finditer(r"\r\n|\r|\n", text))]
    depth = 0
    for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
            if depth == 0:
                return head.end() + lines[token.end[0] - 1] + token.end[1]
    return None
