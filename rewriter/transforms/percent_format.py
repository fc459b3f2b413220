"""`"loss %.3f" % x` as a call of `format`."""

import ast
import re

from ..analysis.kinds import TENSOR

_CONVERSION = re.compile(r"%(?P<width>[1-9]\d*)?(?P<precision>\.\d+)?(?P<letter>[feEgGdsr%])|%")
_NUMBERS = ("int", "size", "float", "bool")


def as_format(node, context):
    """The source of `'...'.format(...)` that gives the same text as the `%` operation; a string
    that begins with "!" says why there is none. A tensor of no axis is a number to both, under `f`,
    `e`, `g` and, of ints, `d`."""
    template = node.left
    if not isinstance(template, ast.Constant) or not isinstance(template.value, str):
        return "!the text before `%` is no literal"
    values = node.right.elts if isinstance(node.right, ast.Tuple) else [node.right]
    if isinstance(node.right, ast.Dict) or any(isinstance(v, ast.Starred) for v in values):
        return "!its values are not one by one"
    shown, rest = [], list(values)
    text, at = template.value, 0
    for match in _CONVERSION.finditer(text):
        shown.append(_literal(text[at : match.start()]))
        at = match.end()
        if match["letter"] == "%":
            shown.append("%")
            continue
        value = rest.pop(0) if rest else None
        part = value is not None and _part(match, context.kind(value), context)
        if not part:
            return f"!`{match[0]}` of such a value has no equal in `format`"
        shown.append(part)
    if rest:
        return "!there are more values than places"
    shown.append(_literal(text[at:]))
    given = ", ".join(context.segment(v) for v in values)
    return f"{_quoted(''.join(shown), context.segment(template))}.format({given})"


def _literal(text):
    return text.replace("{", "{{").replace("}", "}}")


def _quoted(text, source):
    quote = "'" if source.startswith("'") else '"'
    shown = repr(text)
    if shown[0] == quote or quote in text or "\\" in shown:
        return shown
    return f"{quote}{text}{quote}"


def _part(match, kind, context):
    """The replacement field for one conversion; "" where the text might differ."""
    letter, width, precision = match["letter"], match["width"] or "", match["precision"] or ""
    if letter is None:
        return ""
    if kind.what == TENSOR:
        category = (
            None
            if kind.optional or kind.rank != 0
            else context.inference.tokens.category(kind.dtype)
        )
        fits = category is not None and (
            letter in "feEgG" or (letter == "d" and category == "int" and not precision)
        )
    elif letter == "s":
        return (
            "{}"
            if kind.what in (*_NUMBERS, "str")
            and not width
            and not precision
            and kind.cls != "shape"
            else ""
        )
    else:
        whole = kind.what in ("int", "size") and kind.cls != "shape"
        fits = (letter == "d" and whole and not precision) or (
            letter in "feEgG" and (whole or kind.what == "float")
        )
    return f"{{:{width}{precision}{letter}}}" if fits else ""
