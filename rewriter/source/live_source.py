"""The source text of a live function, and the proof that this text is what the function runs.

A file edited after its import, a function made by ``exec``, and several lambdas on one line all
make "the source of f" doubtful. So whatever text is found is compiled and compared with the live
code object; only equal code is handed on.
"""

import __future__

import ast
import dataclasses
import dis
import functools
import inspect
import itertools
import linecache
import os
import re
import sys
import weakref
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from ...runtime.warning_filters import suppress_warnings
from . import compiled_texts

FUTURES = functools.reduce(
    int.__or__, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
_ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
_BLANK = re.compile(r"\s*(#.*)?$")
_FACTORY = "__dynfix_factory"


def runs_torchs_compiler(fn: Any) -> bool:
    """Whether `fn` is a function of torch's own that gives one it makes to torch's compiler
    (flex_attention), or what that compiler made: it traces code as it was written, not as it was
    rewritten."""
    if not isinstance(fn, FunctionType):
        return False
    if fn.__code__.co_filename.endswith(TORCHS_COMPILER):
        return True
    names, consts = fn.__code__.co_names, fn.__code__.co_consts
    inside = str(fn.__globals__.get("__name__")).startswith("torch.")
    makes = any(isinstance(each, CodeType) and each.co_name[0] != "<" for each in consts)
    return inside and makes and "compile" in names and "torch" in names


def is_made_by_torch(fn: Any) -> bool:
    """Whether a function of torch's own made `fn` in a call (for its own compiler, where it gives
    it to `torch.compile`)."""
    made = isinstance(fn, FunctionType) and "<locals>" in fn.__qualname__
    return made and str(fn.__globals__.get("__name__")).startswith("torch.")


TORCHS_COMPILER = os.path.join("torch", "_dynamo", "eval_frame.py")


class NotRewritable(Exception):
    """The function has to run as it is. `reason` says why, `file` and `line` where it is
    defined."""

    def __init__(self, reason: str, file: str, line: int) -> None:
        super().__init__(reason, file, line)
        self.reason, self.file, self.line = reason, file, line

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class Source:
    """`text` starts at line `first_line` of `file`; it is one statement, or one lambda when
    `is_lambda`.

    `text` keeps its indentation: dedenting would change strings that span lines. `free` are the
    live code's free variables, `containers` the functions and classes around it, `flags` the `from
    __future__` flags to compile with, `imported` see `_imported`. `lines`: of a text that was
    changed, the line in the file of each of its own.
    """

    text: str
    file: str
    first_line: int
    name: str
    is_lambda: bool
    free: tuple[str, ...]
    containers: tuple[tuple[str, bool], ...]
    flags: int
    imported: tuple[str, ...] = ()
    lines: tuple[int, ...] = ()

    def changed(self, text: str, lines: tuple[int, ...]) -> "Source":
        """The same function with another text, each line of which stands for one of the file."""
        return dataclasses.replace(self, text=text, lines=lines)

    @functools.cached_property
    def owner(self) -> str | None:
        """The class whose name mangles private names."""
        return next((name for name, is_class in reversed(self.containers) if is_class), None)

    @property
    def is_indented(self) -> bool:
        return not self.is_lambda and self.text[:1] in " \t\f"

    def error(self, reason: str) -> NotRewritable:
        return NotRewritable(reason, self.file, self.first_line)


_made: "weakref.WeakValueDictionary[int, CodeType]" = weakref.WeakValueDictionary()
_texts: dict[int, Source] = {}


def remember(code: CodeType, source: Source) -> None:
    """`code` was compiled from `source`, a text that stands in no file."""
    _made[id(code)], _texts[id(code)] = code, source
    weakref.finalize(code, _texts.pop, id(code), None)


def find(fn: FunctionType) -> Source:
    """The source of `fn`. Raises `NotRewritable` when there is none, or when it is not the source
    of the live code."""
    code = fn.__code__
    if _made.get(id(code)) is code:
        return _texts[id(code)]
    if code.co_flags & _ASYNC:
        raise NotRewritable(
            "asynchronous functions are not rewritten", code.co_filename, code.co_firstlineno
        )
    file = _file_of(fn)
    linecache.lazycache(file, fn.__globals__)
    seen_any = False
    for lines in _versions(file, code.co_name):
        for source in _candidates(fn, lines):
            seen_any = True
            if _is_source_of(source, code):
                return source
    reason = (
        "the source differs from the running code (edited after import?)"
        if seen_any
        else "no source is available"
    )
    raise NotRewritable(reason, code.co_filename, code.co_firstlineno)


def _file_of(fn: FunctionType) -> str:
    """The file that holds the text of `fn`: the code of what Python freezes names none."""
    file = fn.__code__.co_filename
    return str(fn.__globals__.get("__file__", file)) if file.startswith("<frozen ") else file


def _versions(file: str, name: str) -> Iterator[list[str]]:
    """The lines as first cached (most likely those that were imported), then as they are on disk
    now; of what stands in no file, the texts in which the name stands."""
    for text in compiled_texts.of(file, name):
        yield text.splitlines(keepends=True)
    cached = linecache.getlines(file)
    yield cached
    linecache.checkcache(file)
    if (now := linecache.getlines(file)) != cached:
        yield now


def _candidates(fn: FunctionType, lines: list[str]) -> Iterator[Source]:
    code = fn.__code__
    if not 0 < code.co_firstlineno <= len(lines):
        return
    is_lambda = code.co_name == "<lambda>"
    texts = (
        _lambdas(tuple(lines)).get(code.co_firstlineno, ())
        if is_lambda
        else _blocks(lines, code.co_firstlineno - 1)
    )
    containers = _containers(fn, lines)
    for text in texts:
        yield Source(
            text=text,
            file=code.co_filename,
            first_line=code.co_firstlineno,
            name=code.co_name,
            is_lambda=is_lambda,
            free=code.co_freevars,
            containers=containers,
            flags=code.co_flags & FUTURES,
            imported=_imported(code),
        )


# their code is a function's, and what stands in them has no `<locals>` in its qualified name
_COMPREHENSIONS = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})


def _containers(fn: FunctionType, lines: list[str]) -> tuple[tuple[str, bool], ...]:
    """(name, is a class) of what the function is nested in, from outside in.

    It decides private names and the qualified names of all that is nested in the function.
    """
    parts = getattr(fn.__code__, "co_qualname", fn.__qualname__).split(".")
    if parts[-1] != fn.__code__.co_name:  # `functools.wraps` copied it, on 3.10
        return _enclosing(tuple(lines), fn.__code__.co_firstlineno)
    followers = parts[1:]
    return tuple(
        (part, after != "<locals>" and part not in _COMPREHENSIONS)
        for part, after in zip(parts, followers, strict=False)
        if part != "<locals>"
    )


def _enclosing(lines: tuple[str, ...], line: int) -> tuple[tuple[str, bool], ...]:
    found = []
    level: list[ast.AST] = [_file_tree(lines)]
    while level:
        node = level.pop()
        first = min(
            (each.lineno for each in getattr(node, "decorator_list", ())),
            default=getattr(node, "lineno", 0),
        )
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            if not first < line <= (node.end_lineno or 0):
                continue
            found.append((node.name, isinstance(node, ast.ClassDef)))
        level.extend(ast.iter_child_nodes(node))
    return tuple(found)


def _blocks(lines: list[str], start: int) -> Iterator[str]:
    """The shortest run of lines from `start` that is a whole statement.

    A block ends before a line indented no deeper than its first one; inside brackets or strings
    such a line does not end it, and then what stands before it does not parse.
    """
    indent = _width(lines[start])
    ends = (
        i
        for i in range(start + 1, len(lines))
        if not _BLANK.match(lines[i]) and _width(lines[i]) <= indent
    )
    for end in itertools.chain(itertools.islice(ends, 64), (len(lines),)):
        text = "".join(lines[start:end])
        if (stripped := text.lstrip()).startswith(("def ", "@", "def\t", "def\\")) and _parses(
            text, indent > 0
        ):
            yield text
            return
        if not stripped.startswith(("def", "@")):
            return


def _width(line: str) -> int:
    return len(line) - len(line.lstrip(" \t\f"))


def _parses(text: str, indented: bool) -> bool:
    try:
        body = ast.parse("if 1:\n" + text if indented else text).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    inner = body[0].body if indented else body  # type: ignore[attr-defined]
    return isinstance(inner[0], ast.FunctionDef)


@functools.lru_cache(maxsize=8)
def _file_tree(lines: tuple[str, ...]) -> ast.Module:
    try:
        return ast.parse("".join(lines))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return ast.Module(body=[], type_ignores=[])


@functools.lru_cache(maxsize=8)
def _lambdas(lines: tuple[str, ...]) -> dict[int, list[str]]:
    """Line -> texts of the lambdas that start there, for a whole file: a lambda may sit in the
    middle of any statement.
    """
    found: dict[int, list[str]] = {}
    for node in ast.walk(_file_tree(lines)):
        if isinstance(node, ast.Lambda):
            found.setdefault(node.lineno, []).append(_segment(lines, node))
    return found


def _segment(lines: tuple[str, ...], node: ast.Lambda) -> str:
    assert node.end_lineno is not None and node.end_col_offset is not None
    picked = [line.encode() for line in lines[node.lineno - 1 : node.end_lineno]]
    picked[-1] = picked[-1][: node.end_col_offset]
    picked[0] = picked[0][node.col_offset :]
    return b"".join(picked).decode()


def _is_source_of(source: Source, code: CodeType) -> bool:
    try:
        compiled = compile_inner(source, ast.parse(padded(source, source.text)))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return compiled is not None and same_code(compiled, code)


def padded(source: Source, text: str) -> str:
    """`text` (as `source.text`, or rewritten) as a module in which each line has its own number in
    the user's file."""
    if source.is_lambda:
        return "\n" * (source.first_line - 1) + f"({text})"
    if source.is_indented:
        return "\n" * (source.first_line - 2) + "if 1:\n" + text
    return "\n" * (source.first_line - 1) + text


def compile_inner(
    source: Source, tree: ast.Module, extra_free: tuple[str, ...] = ()
) -> CodeType | None:
    """Compile the tree of a text made by `padded` and return the code object of the function in it.

    In the tree, the function is put into the classes and functions that it stands in in the user's
    file, bare as they are: they settle private and qualified names. The innermost function around
    it has the free variables as parameters. Nothing is ever run: only the inner code object is
    taken out, so decorators and defaults may stay in the text.
    """
    body: list[ast.stmt] = tree.body
    free = ", ".join((*source.free, *extra_free))
    outermost = (source.containers or ((source.name, False),))[0][0]
    for name, is_class in reversed(source.containers):
        body = [_around(name, "class _: pass" if is_class else f"def _({free}): pass", body)]
        free = free if is_class else ""
    if all(is_class for _, is_class in source.containers):
        # Free variables need a function around; what it binds itself must stay a global name.
        outside: list[ast.stmt] = (
            ast.parse(f"global {outermost}").body if outermost.isidentifier() else []
        )
        body = [_around(_FACTORY, f"def _({free}): pass", [*outside, *body])]
    imports = ast.parse(f"import {', '.join(source.imported)}").body if source.imported else []
    module = ast.Module(body=[*imports, *body], type_ignores=[])
    with suppress_warnings():  # the user saw the compiler's warnings when the file was imported
        code = compile(module, source.file, "exec", flags=source.flags, dont_inherit=True)
    return _inner(code, source.name, source.first_line)


def _around(name: str, template: str, body: list[ast.stmt]) -> ast.stmt:
    """The def or class of `template`, with that name (it may be `<lambda>`) and that body."""
    node = ast.parse(template).body[0]
    node.name, node.body = name, body  # type: ignore[attr-defined]
    return node


def _imported(code: CodeType) -> tuple[str, ...]:
    """Names that the compiler took for modules, as far as it shows.

    CPython 3.11+ compiles `n.f()` to another instruction when the file imports a name `n` at its
    top (even if this `n` is a local one); the text of one function cannot tell. A name on which no
    method is loaded was imported, or it makes no difference.
    """
    names: set[str] = set()
    methods: set[str] = set()
    _name_uses(code, names, methods)
    # 3.12+ compiles zero-argument `super()` apart, unless the file imports that name.
    return tuple(
        sorted(name for name in names - methods - {"super", "__class__"} if name.isidentifier())
    )


def _name_uses(code: CodeType, names: set[str], methods: set[str]) -> None:
    loaded = None
    for now in dis.get_instructions(code):
        if "LOAD" in now.opname and any(
            kind in now.opname for kind in ("FAST", "GLOBAL", "NAME", "DEREF")
        ):
            # 3.13 loads two at once
            loaded = now.argval[-1] if isinstance(now.argval, tuple) else now.argval
            names.add(loaded)
        elif now.opname != "EXTENDED_ARG":
            if loaded is not None and _loads_method(now):
                methods.add(loaded)
            loaded = None
    for const in code.co_consts:
        if isinstance(const, CodeType):
            _name_uses(const, names, methods)


def _loads_method(instruction: dis.Instruction) -> bool:
    flagged = sys.version_info >= (3, 12) and instruction.opname == "LOAD_ATTR"
    return instruction.opname == "LOAD_METHOD" or (flagged and bool((instruction.arg or 0) & 1))


def _inner(code: CodeType, name: str, line: int) -> CodeType | None:
    """The outermost code object with that name and line, below the wrapping."""
    level = [code]
    while level:
        level = [
            const for outer in level for const in outer.co_consts if isinstance(const, CodeType)
        ]
        for inner in level:
            if inner.co_name == name and inner.co_firstlineno == line:
                return inner
    return None


_FACTS = (
    *("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_code", "co_name"),
    *("co_names", "co_varnames", "co_freevars", "co_cellvars", "co_firstlineno"),
)


def same_code(one: CodeType, other: CodeType) -> bool:
    """Whether two code objects do the same: bytecode, names, variables, and constants
    (recursively). Positions but the first line are free.
    """
    # The factory makes every function a nested one: that flag is bookkeeping of the compiler,
    # nothing reads it at run time.
    if (one.co_flags ^ other.co_flags) & ~inspect.CO_NESTED or any(
        getattr(one, fact) != getattr(other, fact) for fact in _FACTS
    ):
        return False
    return len(one.co_consts) == len(other.co_consts) and all(
        map(_same_const, one.co_consts, other.co_consts)
    )


def _same_const(one: object, other: object) -> bool:
    if isinstance(one, CodeType) and isinstance(other, CodeType):
        return same_code(one, other)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same_const, one, other))
    # repr tells 0.0 from -0.0 and 1 from True; a set's repr follows its hash order, so sets compare
    # by value.
    return type(one) is type(other) and (
        one == other if isinstance(one, frozenset) else repr(one) == repr(other)
    )
