"""The function that computes ahead what another reads on the host, as text."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..analysis.definitions import VALUES

if TYPE_CHECKING:
    from .companion import Companion
    from .project import File


HELPER = "read_ahead"
_WIDTH = 120  # columns
HELPER_TEXT = f"""
try:
    from dynfix import {HELPER}
except ImportError:  # without dynfix, all is read where it stands

    def {HELPER}(read):
        return lambda forward: forward
"""


def text_of(companion: Companion, indent: str, unit: str) -> str:
    """Its source, indented by `indent`."""
    writer = _BodyWriter(companion, unit)
    body = [f'"""What `{companion.function.name}` reads on the host."""', f"{VALUES} = {{}}"]
    kwargs = companion.kwarg
    if companion.is_root and companion.bare and kwargs:
        body.insert(1, f"if {kwargs}:")
        body.insert(2, f"{unit}return {{}}")
    if companion.takes_self and not companion.is_root:
        me, owner = (
            companion.file.self_name(companion.function),
            companion.file.cls(companion.function).name,
        )
        body.insert(
            1, f"if type({me}).{companion.function.name} is not {owner}.{companion.function.name}:"
        )
        body.insert(2, f"{unit}return {{}}  # of another class")
    body[1:1] = _same_methods(companion, unit)
    body[-1:] = [*_plain_lookups(companion, unit), body[-1]]
    checked = kwargs in companion.slice.needed if kwargs else False
    body += [f"given = dict({kwargs})"] if checked else []
    of = ", ".join(f'"{name}": {name}' for name in companion.of)
    body += [f'{VALUES}["of"] = {{{of}}}'] if of else []
    body += writer.block(companion.function.body, "")
    body.append(
        f"return {VALUES} if {kwargs} == given else {{}}" if checked else f"return {VALUES}"
    )
    head = _head(companion, len(indent), unit)
    return (
        "\n".join(f"{indent}{line}" for line in [*head, *(unit + line for line in body)]) + "\n\n"
    )


def _same_methods(companion: Companion, unit: str) -> list[Any]:
    """Nothing is computed where a method that would be called is another than the run saw."""
    me = companion.file.self_name(companion.function)
    tests = [
        f'type({me}).{n}.__qualname__ != "{full}"'
        for n, full in sorted(companion.slice.methods.items())
    ]
    return [f"if {' or '.join(tests)}:", f"{unit}return {{}}  # of another class"] if tests else []


def _plain_lookups(companion: Companion, unit: str) -> Iterator[str]:
    """Nothing is computed where an embedding that is called does more than to look rows up."""
    me, names = companion.file.self_name(companion.function), companion.file.names
    for name in sorted(companion.slice.lookups):
        module = f"{me}.{name}"
        yield "if ("
        yield f"{unit}type({module}) is not {names.torch()}.nn.Embedding"
        yield f"{unit}or {module}.max_norm is not None"
        yield f"{unit}or {module}._forward_hooks"
        yield f"{unit}or {module}._forward_pre_hooks"
        yield f'{unit}or "forward" in vars({module})'
        yield "):"
        yield f"{unit}return {{}}  # it does more than to look rows up"


def _head(companion: Companion, indent: int, unit: str) -> list[str]:
    parts = _signature(companion)
    head = f"def {companion.name}({', '.join(parts)}):"
    if indent + len(head) <= _WIDTH:
        return [head]
    return [f"def {companion.name}(", *(f"{unit}{part}," for part in parts), "):"]


def _signature(companion: Companion) -> list[str]:
    """All of a root's parameters; of others those that the slice needs, one text each."""
    args, needed = companion.function.args, companion.slice.needed
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + args.defaults
    me = companion.file.self_name(companion.function)
    pairs = [(a.arg, d) for a, d in zip(positional, defaults, strict=False)]
    if companion.is_root:
        keywords = [(a.arg, d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=False)]
        star = [f"*{args.vararg.arg}"] if args.vararg else (["*"] if keywords else [])
        parts = [*map(_parameter, pairs), *star, *map(_parameter, keywords)]
    else:
        pairs += zip((a.arg for a in args.kwonlyargs), args.kw_defaults, strict=False)
        wanted = [(n, d) for n, d in pairs if n in needed and n != me]
        parts = [me] if companion.takes_self else []
        wanted = [(n, None) for n in sorted(companion.from_kwargs)] + wanted
        parts += (["*"] if wanted else []) + [_parameter(p) for p in wanted]
    kwarg = companion.kwarg
    return [*parts, f"**{kwarg}"] if kwarg and (companion.is_root or kwarg in needed) else parts


def call_text(companion: Any, call: Any) -> str:
    """The call of this companion where its function is called by `call`."""
    of = (
        (lambda node: one_of(node, call.part))
        if call.part
        else (lambda node: flat(call.caller.file, node))
    )
    given = [f"{name}={of(node)}" for name, node in companion.arguments(call)]
    given += [f"{name}={name}" for name in sorted(call.passed)]
    prefix = f"{ast.unparse(call.receiver)}." if companion.takes_self else ""
    return f"{prefix}{companion.name}({', '.join(given)})"


class _BodyWriter:
    """Prints the kept statements of a companion's function."""

    def __init__(self, companion: Companion, unit: str) -> None:
        self.companion, self.slice, self.unit = companion, companion.slice, unit

    def block(self, body: list[ast.stmt], indent: str) -> list[str]:
        lines = []
        for statement in body:
            for key, anchor in self.companion.anchors.items():
                if anchor is statement:
                    lines += [indent + line for line in self._placed(key)]
            lines += self._statement(statement, indent)
            for key, unit in self.companion.units.items():
                if unit.node is statement:
                    names = ", ".join(unit.names) + ("," if len(unit.names) == 1 else "")
                    lines.append(f'{indent}{VALUES}["{key}"] = {names}')
        return lines

    def _placed(self, key: str) -> list[str]:
        companion = self.companion
        if key in companion.units:
            unit = companion.units[key]
            return [] if unit.names or self._of_kept(key) else [f'{VALUES}["{key}"] = {unit.text}']
        call = companion.calls[key]
        text = call_text(call.callee, call)
        line = (
            f'{VALUES}["{key}"] = {each_of(text, companion.file, call.part) if call.part else text}'
        )
        if not (call.of_module and call.callee.takes_self):
            return [line]
        module = ast.unparse(call.receiver)
        return [
            f'if hasattr({module}, "{call.callee.name}") and not {module}._forward_pre_hooks:',
            self.unit + line,
        ]

    def _of_kept(self, key: str) -> bool:
        """Whether the unit is the value of an assignment that is kept: it is computed there."""
        statement = self.companion.anchors[key]
        unit = self.companion.units[key]
        whole = (
            isinstance(statement, ast.Assign) and statement.value is unit.node and not unit.index
        )
        return whole and not unit.is_number and statement in self.slice.kept

    def _statement(self, statement: ast.stmt, indent: str) -> list[str]:
        if isinstance(statement, ast.If) and statement in self.slice.flat:
            return self.block([*statement.body, *statement.orelse], indent)
        if statement not in self.slice.kept:
            return []
        if isinstance(statement, ast.If):
            return self._if(statement, indent)
        if statement in self.slice.whole:
            return [indent + line for line in ast.unparse(statement).split("\n")]
        if isinstance(statement, ast.For):
            head = (
                f"{indent}for {ast.unparse(statement.target)} in"
                f" {flat(self.companion.file, statement.iter)}:"
            )
            return [
                head,
                *(self.block(statement.body, indent + self.unit) or [f"{indent}{self.unit}pass"]),
            ]
        if isinstance(statement, (ast.Return, ast.Raise)):
            return [f"{indent}return {VALUES}"]
        keys = [
            k
            for k in self.companion.units
            if self.companion.anchors[k] is statement and self._of_kept(k)
        ]
        also = "".join(f'{VALUES}["{key}"] = ' for key in keys)
        return [indent + line for line in (also + ast.unparse(statement)).split("\n")]

    def _if(self, statement: ast.If, indent: str) -> list[str]:
        inner = self.block(statement.body, indent + self.unit)
        other = self.block(statement.orelse, indent + self.unit)
        binds = any(isinstance(n, ast.NamedExpr) for n in ast.walk(statement.test))
        if not inner and not other and not binds:
            return []
        test = flat(self.companion.file, statement.test)
        lines = [f"{indent}if {test}:", *(inner or [f"{indent}{self.unit}pass"])]
        return lines + ([f"{indent}else:", *other] if other else [])


def _parameter(pair: Any) -> str:
    name, default = pair
    return name if default is None else f"{name}={ast.unparse(default)}"


ELEMENT = "element"


def one_of(node: Any, part: Any) -> Any:
    """The text of an expression with the element `part` under a name of its own."""
    return ast.unparse(_Named(ast.unparse(part)).visit(copy.deepcopy(node)))


class _Named(ast.NodeTransformer):
    def __init__(self, text: str) -> None:
        self.text = text

    def visit_Subscript(self, node: Any) -> Any:
        same = ast.unparse(node) == self.text
        return ast.Name(ELEMENT, ast.Load()) if same else self.generic_visit(node)


def each_of(text: str, file: Any, part: Any) -> str:
    """The text of the list of `text` for every element."""
    return f"[{text} for {ELEMENT} in {flat(file, part.value)}]"


def flat(file: File, node: Any) -> str:
    """The text of an expression, on one line."""
    text = file.source.segment(node)
    return ast.unparse(node) if "\n" in text else text
