"""What a rule sees of the file that it looks at."""

from __future__ import annotations

import ast
import copy
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...rewriter.analysis.file_view import FUNCTIONS, FileView
from ...rewriter.analysis.import_names import ImportedNames, by_type
from ...rewriter.analysis.kinds import ANY, MODULE
from ...rewriter.analysis.proofs import Proofs
from ...rewriter.analysis.tree_walk import parents
from ...rewriter.analysis.value_uses import ValueUses
from ...rewriter.source.spans import Refusal, Safety
from .definitions import FileProgram, last_name
from .file_summary import summary
from .findings import ERROR, Finding
from .inference import Inference
from .project_graph import ProjectGraph

# What runs a function once and keeps the side that it took, or refuses to take one.
_TRACERS = (
    "torch.jit.trace",
    "torch.jit.trace_module",
    "torch.onnx.export",
    "torch.fx.symbolic_trace",
    "torch.vmap",
    "torch.func.vmap",
    "functorch.vmap",
)
_READS_SOURCE = frozenset(
    "getsource getsourcelines findsource f_lineno co_firstlineno tb_lineno".split()
)
_READS_NAMES = frozenset("globals locals vars dir".split())

if TYPE_CHECKING:
    from ...rewriter.analysis.kinds import Kind
    from ...rewriter.source.source_file import SourceFile
    from ...rewriter.source.spans import Edit, Fix
    from ..cli.settings import Settings
    from .definitions import Function
    from .file_links import FileLinks


class FileContext(FileView):
    """One file: its source, names, program and inference; parents of the nodes of captured
    functions."""

    def __init__(self, source: SourceFile, settings: Settings) -> None:
        self.settings, self.index = settings, by_type(source.tree)
        super().__init__(source, ImportedNames(source.tree, self.index))
        self.facts = settings.facts_of(source.path)
        self.program = FileProgram(source.tree, self.names, self.index)
        self.program.link(settings.links_of(source.path) or self._alone())
        self.inference = Inference(self.program, self.names, self.facts, settings.project)
        self._known: Inference | None = None
        self.alive: list[ast.AST] = []  # what the last walk found to run when compiled
        self.eager_only: set[ast.stmt] = set()  # what fixes that were found leave to eager code
        self._answers: dict[tuple[Any, ast.AST], bool] = {}
        self._whole = None
        self._callers: dict[Any, list[tuple[Any, Any]]] = {}

    def _alone(self) -> FileLinks:
        """The links of a file of which the project is not known."""
        path = os.path.realpath(self.source.path)
        seen = {path: self.facts.captured} if self.facts else {}
        files = {path: summary(self.program, path)}
        scope, entries = self.settings.scope, self.settings.entry
        return ProjectGraph(files, scope, entries, seen, self.settings.root).links(path)

    def supposing(self, affected: set[Function], any_path: bool = False) -> FileContext:
        """The same file, with the inputs of `affected` functions taken to be tensors where their
        use suggests it; `any_path`: and what is a tensor on some path as well."""
        other = copy.copy(self)
        other.inference, other._known = self.inference.supposing(affected, any_path), self.inference
        other._answers = {}
        return other

    def once(self, question: Callable[..., bool], node: ast.AST) -> bool:
        """`question(node, self)`, kept: many ask the same of one long expression."""
        place = question, node
        if place not in self._answers:
            self._answers[place] = question(node, self)
        return self._answers[place]

    # What a node is

    def kind(self, node: ast.AST) -> Kind:
        return self.inference.kinds.get(node, ANY)

    def seen(self, node: ast.expr) -> bool:
        """Whether a traced run evaluated an expression here."""
        function = self.function(node) if self.facts else None
        return function is not None and self.facts.of(function.qualified, node) is not None

    def ran(self, nodes: list[ast.AST]) -> bool:
        """Whether a traced run evaluated every expression in some nodes of one function."""
        function = self.function(nodes[0]) if self.facts and nodes else None
        return function is not None and self.facts.ran(function.qualified, nodes)

    def fix(
        self,
        title: str,
        *edits: Edit | Refusal,
        safety: Safety = Safety.SAFE,
        why: str = "",
        imports: Iterable[str] = (),
        silent: int = 0,
    ) -> Fix | Refusal:
        """As for any file; not safe where the file looks at its own text, or at its own names."""
        built = super().fix(title, *edits, safety=safety, why=why, imports=imports, silent=silent)
        told = self._own_text or (imports and self._own_names)
        if any("is_compiling()" in getattr(each, "text", "") for each in edits):
            told = told or self._scripts
        if not told or safety is not Safety.SAFE or isinstance(built, Refusal):
            return built
        return replace(built, safety=Safety.UNSAFE, why=f"`{told}` would find something else")

    @cached_property
    def _own_text(self) -> str:
        """By what the file looks at its source or its lines, or ""."""
        named = (*self.index.get(ast.Attribute, ()), *self.index.get(ast.Name, ()))
        names = (getattr(n, "attr", "") or getattr(n, "id", "") for n in named)
        return next((n for n in names if n in _READS_SOURCE), "")

    @cached_property
    def _scripts(self) -> str:
        """What compiles source of the file as TorchScript, with all that it calls, or ""."""
        called = (self.names.resolve(c.func) for c in self.index.get(ast.Call, ()))
        return next((name for name in called if name == "torch.jit.script"), "")

    @cached_property
    def _own_names(self) -> str:
        """By what the file looks at the names of the module, or ""."""
        calls = (c for c in self.index.get(ast.Call, ()) if not c.args and not c.keywords)
        names = (getattr(c.func, "id", "") for c in calls)
        return next((n for n in names if n in _READS_NAMES), "")

    @property
    def supposes(self) -> bool:
        """Whether inputs are supposed to be tensors: of fixes, those alone are proved that ask."""
        return self._known is not None

    def acts(self, node: ast.AST) -> bool:
        """Whether an expression reads what is known to do more, such as a property that counts."""
        parts = (n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute))
        return not self.program.acting.isdisjoint(parts)

    def assumed_tensor(self, node: ast.AST, at: ast.AST) -> bool:
        """Whether what is said of an expression holds if inputs are tensors alone; a name may stand
        nowhere, and be bound before `at`."""
        if self._known is None:
            return False
        name = getattr(node, "id", "")
        before = self._known.at_branch.get(at, {}).get(name, ANY)
        return not self._known.kinds.get(node, before).is_tensor

    # What only a run shows it

    def proved(self, first: Any, second: Any) -> None:
        """The text proves a side by its form alone (see where_safety)."""
        return None

    def sheltered(self, first: Any, second: Any) -> None:
        """Nor can it try one out."""
        return None

    def total(self, *nodes: Any) -> bool:
        return False

    def overwritten(self, into: Any, text: str) -> str:
        return "only a run shows it"

    def runs(self, name: str, value: Any) -> None:
        """Inference knows the name by its statement."""

    def new(self, node: Any) -> bool:
        """Whether an expression surely gives a tensor that nothing else holds."""
        return ValueUses(self, self.function(node).node).new(node)

    def doubt(self, at: Any, sides: Any, nodes: Any, targets: Any) -> Any:
        """Why a choice at `at` may be felt, as the text shows it."""
        found = (Proofs(self, at).doubt(sides, nodes, targets), self._traced)
        return "; ".join(filter(None, found))

    def lost_write(self, at: Any, nodes: Any, targets: Any, own: bool = False) -> str:
        """Why a write after a choice at `at` would miss the tensor that eager writes."""
        return Proofs(self, at).lost_write(nodes, set(targets), own)

    @cached_property
    def _traced(self) -> str:
        named = (*self.index.get(ast.Attribute, ()), *self.index.get(ast.Name, ()))
        found = (name for node in named if (name := self.names.resolve(node)) in _TRACERS)
        name = next(found, None)
        return f"`{name}` takes a choice in another way than a branch" if name else ""

    # What a proof asks

    def whole_parents(self) -> Any:
        """The parents of all nodes of the file."""
        if self._whole is None:
            self._whole = parents(self.source.tree)
        return self._whole

    def grad_mode(self, node: Any) -> Any:
        """A number for the grad mode at a branch, the same as that of tensors made under it; None:
        several are possible."""
        return self.inference.grad_modes.get(node)

    def called(self, call: Any) -> Any:
        """The Function of this file that a call surely runs, with its kinds inferred; or None."""
        program, callee = self.program, call.func
        found = None
        if isinstance(callee, ast.Name) and callee.id not in self.local_names(call):
            known = callee.id not in program.rebound and callee.id not in self.names.aliases
            found = program.top.get(callee.id) if known else None
        elif isinstance(callee, ast.Attribute) and self.kind(callee.value).what == "self":
            cls = program.classes.get(self.kind(callee.value).cls)
            known = cls is not None and not program.stores.overridden(cls, callee.attr)
            found = program.method(cls, callee.attr) if known else None
        found = found or self._module_called(callee)
        if found is not None:
            self.inference.function(found)
        return found

    def _module_called(self, callee: ast.expr) -> Any:
        """The forward of a module of this file that is called, where no hook stands around it."""
        kind, program = self.kind(callee), self.program
        cls = program.classes.get(kind.cls) if kind.what == MODULE else None
        if cls is None or program.hooked or program.stores.overridden(cls, "forward"):
            return None
        own = program.method(cls, "__call__") is None
        return program.method(cls, "forward") if own else None

    def callers(self, function: Any) -> list[tuple[Any, Any]]:
        """(function or module around it, call) of the calls of this file that may run it."""
        if function not in self._callers:
            self._callers[function] = list(self._found_callers(function))
        return self._callers[function]

    def _found_callers(self, function: Any) -> Iterator[tuple[Any, Any]]:
        known = self.program.by_node
        parents = self.whole_parents()
        for call in self._calls_to(called_names(known[function], self.program)):
            around = call
            while around in parents and not isinstance(around, FUNCTIONS[:2]):
                around = parents[around]
            if around in known:
                self.inference.function(known[around])
            yield around, call

    def _calls_to(self, names: set[str]) -> list[ast.Call]:
        """The calls of this file of something with one of the names, in order; of what a call gives
        (`f()()`), where a name stands in that."""
        places = {place for name in names for place in self._places_of_calls.get(name, ())}
        return [self.program.calls[place] for place in sorted(places)]

    @cached_property
    def _places_of_calls(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for place, call in enumerate(self.program.calls):
            inner = ast.walk(call.func) if isinstance(call.func, ast.Call) else ()
            names = {n.id for n in inner if isinstance(n, ast.Name)}
            for name in {last_name(call.func), *names}:
                found.setdefault(name, []).append(place)
        return found

    # Making findings

    def finding(
        self,
        rule: Any,
        node: ast.AST,
        message: str | None = None,
        fix: Fix | Refusal | None = None,
        help: str = "",
        kept: str = "",
        level: str = ERROR,
    ) -> Finding:
        """`fix`: a Fix, the Refusal that stands in its place, or None."""
        source = self.source
        fix, kept = (None, fix.why) if isinstance(fix, Refusal) else (fix, kept)
        around = self.function(node)
        inside = around is not None and node.lineno >= around.node.lineno  # no decorator of it
        if fix is not None and inside and self.program.scripted(around):
            fix, kept = None, "TorchScript compiles the function"
        return Finding(
            rule.code,
            message or rule.message,
            source.path,
            node.lineno,
            source.column(node.lineno, node.col_offset),
            node.end_lineno,
            source.column(node.end_lineno, node.end_col_offset),
            fix,
            help or rule.help,
            kept,
            level,
            reached=self._way(node),
        )

    def _way(self, node: ast.AST) -> tuple[str, ...]:
        """The calls that lead to the function around a node, where they come from other files."""
        function = self.function(node)
        way = self.program.links.reached.get(function.qualified, ()) if function else ()
        own = os.path.basename(self.source.path)
        return way if any(os.path.basename(w.rpartition(":")[0]) != own for w in way) else ()


def called_names(function: Any, program: Any) -> Any:
    """Names by which a file may call a function: its own, and those of what is made from it; of a
    `forward`, those of instances of its class."""
    made = {function.name}
    if function.cls is not None and function.name in ("forward", "__call__"):
        made |= {c.name for c in program.classes.values() if _below(c, function.cls, program)}
    found, before = set(made), set()
    while found != before:
        before = set(found)
        for names, mentioned, called in program.bindings:
            if not found.isdisjoint(mentioned) and (called is None or called not in found - made):
                found |= names
    return found - {"self"}


def _below(cls: Any, base: Any, program: Any) -> bool:
    return cls is base or any(
        _below(program.classes[b], base, program)
        for b in cls.bases
        if b in program.classes and program.classes[b] is not cls
    )
