"""What is computed ahead of a captured call: the companion of a function, its values, and the calls
that hand them down."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..analysis.definitions import VALUES
from .slices import Slice

if TYPE_CHECKING:
    from .project import File
    from .purity import Purity


@dataclass(eq=False)
class CalleeMatch:
    """Where the function of `callee` is called: `matched` {parameter: argument}, `extra` {keyword:
    argument} beyond them; `receiver`: what stands for its first parameter, `of_module`: a module
    that is called."""

    caller: Companion
    callee: Companion
    node: ast.Call
    receiver: ast.expr | None = None
    of_module: bool = False
    spread: bool = False
    matched: dict = field(default_factory=dict)
    extra: dict = field(default_factory=dict)
    part: ast.Subscript | None = None  # the element by which the arguments change in a loop

    @property
    def passed(self) -> Any:
        """Parameters without a default that the call can only give by the caller's own
        `**kwargs`."""
        callee, args = self.callee, self.callee.function.args
        positional = [*args.posonlyargs, *args.args]
        optional = {a.arg for a in positional[len(positional) - len(args.defaults) :]}
        optional |= {
            a.arg for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=False) if d is not None
        }
        own = {callee.file.self_name(callee.function), callee.kwarg}
        return (callee.slice.needed - set(self.matched) - own - optional) | (
            callee.from_kwargs - set(self.extra)
        )

    @property
    def guard(self) -> Any:
        """Whether what is called is the function of the companion: `` where it surely is."""
        owner = self.callee.file.cls(self.callee.function)
        if owner is None or self.receiver is None or isinstance(self.receiver, ast.Call):
            return ""
        name, receiver = self.callee.function.name, ast.unparse(self.receiver)
        same = f"type({receiver}).{name} is {owner.name}.{name}"
        return f"{same} and not {receiver}._forward_pre_hooks" if self.of_module else same

    @property
    def in_loop(self) -> Any:
        """Whether what is computed once is handed down at every turn of a loop."""
        return self.part is None and in_loop(self.caller.file, self.caller.function, self.node)


@dataclass(eq=False)
class AheadValue:
    """What is computed ahead for `node`: `text`; or, of a loop, its `names`. `index`: what `node`
    takes of it. `is_number`: it is used as an int, or as several, alone."""

    node: ast.AST
    text: str = ""
    index: str = ""
    names: tuple = ()
    is_number: bool = False


class Companion:
    """`units` {key: AheadValue} are computed here, `calls` {key: Call} by others of its kind."""

    def __init__(
        self, file: File, function: ast.FunctionDef, purity: Purity, absent: tuple[Any, ...]
    ) -> None:
        self.file, self.function = file, function
        self.slice = Slice(file, function, purity, absent)
        self.units, self.calls, self.anchors, self.callers = {}, {}, {}, []
        self.is_root = self.bare = self.is_method = self.is_checked = False
        self.from_kwargs = set()  # what it takes of its function's `**kwargs`

    @property
    def kwarg(self) -> Any:
        """The name of `**kwargs`."""
        return self.function.args.kwarg and self.function.args.kwarg.arg

    @property
    def takes_self(self) -> bool:
        return (
            self.is_root
            or self.is_method
            or self.file.self_name(self.function) in self.slice.needed
        )

    @property
    def name(self) -> str:
        owner = self.file.cls(self.function)
        prefix = "" if owner is None or self.takes_self else f"{owner.name.lower()}_"
        return f"_{prefix}{self.function.name.lstrip('_')}_{VALUES}"

    @property
    def of(self) -> list[Any]:
        """The tensors that the values are computed of, where a decorator may hand on others."""
        own = {self.file.self_name(self.function), self.kwarg}
        names = sorted(self.slice.needed - own) if self.is_checked else ()
        facts = {n: self.file.fact(self.function, ast.Name(n, ast.Load())) for n in names}
        return [n for n in names if facts[n] is not None and facts[n].what == "tensor"]

    def key(self, node: ast.AST, wish: str) -> str:
        """A new key for what is computed for `node`; the old one where there is one."""
        for key, known in [*self.units.items(), *self.calls.items()]:
            if known.node is node:
                return key
        numbered = (f"{wish}_{i}" for i in range(2, 1000))
        return next(k for k in [wish, *numbered] if k not in self.units and k not in self.calls)

    def arguments(self, call: Any) -> Any:
        """[(parameter, expression)] of what the slice needs and the call gives."""
        wanted = [(n, e) for n, e in call.matched.items() if n in self.slice.needed]
        whole = self.kwarg in self.slice.needed
        return wanted + [(n, e) for n, e in call.extra.items() if whole or n in self.from_kwargs]


def in_loop(file: File, function: ast.FunctionDef, node: ast.Call) -> bool:
    """Whether `node` runs at every turn of a loop or comprehension of the function, and not in the
    head of one."""
    child, node = node, file.parents[node]
    while child is not function:
        if isinstance(node, (ast.For, ast.While)) and child is not getattr(node, "iter", None):
            return True
        if (
            isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp))
            and child is not node.generators[0]
        ):
            return True
        child, node = node, file.parents.get(node)
    return False
