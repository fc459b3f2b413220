"""What a pattern asks of whoever knows the code that it stands in.

Three answer: the text (`codemods.analysis.file_context`, by data flow), the text with what a traced
run saw, and the recording (`rewriter.capture.rewritings.recorded_oracle`), which knows the real
values at the place. A pattern knows none of them."""

import ast
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ..source.source_file import SourceFile
from ..source.spans import Edit, Fix, Refusal, Safety
from .import_names import ImportedNames
from .kinds import Kind, Sides, Tokens


class Kinds(Protocol):
    """Kinds of a file's expressions. `at_branch`: for a branching statement, what each name was
    before it."""

    tokens: Tokens
    kinds: dict[ast.AST, Kind]
    at_branch: dict[ast.AST, dict[str, Kind]]

    def binary(self, op: ast.operator, left: Kind, right: Kind) -> Kind:
        """The kind of `left op right`."""
        ...


class Oracle(Protocol):
    """Answers about the nodes of one file's tree; `source` is its text (`edits.source_file`).
    `exact`: kinds are those of values seen, so that equal tokens mean equal facts and different
    ones different facts."""

    exact: bool
    source: SourceFile
    names: ImportedNames

    @property
    def inference(self) -> Kinds: ...

    def kind(self, node: ast.AST) -> Kind:
        """Tensor, number, module, …, with dtype, shape, device and rank as tokens."""
        ...

    def proved(self, first: ast.expr, second: ast.expr) -> Sides | None:
        """Both sides of a choice as `where_safety.Side`s, where each may be computed without being
        asked for: it is total, writes and draws nothing, and feeds a zero gradient exactly where
        eager does. None: not known."""
        ...

    def sheltered(
        self, first: ast.expr, second: ast.expr
    ) -> tuple[Sides, tuple[list[ast.expr], list[ast.expr]]] | None:
        """Both sides as for `proved`, but that the backward of one that is not taken may make NaN
        of zeros; and for each side the tensors in it which, where ones stand for them there, keep
        it from that. None: not known."""
        ...

    def doubt(self, at: ast.AST, sides: Sides, nodes: Sequence[ast.expr], targets: set[str]) -> str:
        """Why a choice at `at` between two `where_safety.Side`s, of the expressions `nodes`, bound
        to the names `targets`, may be felt; "" where it is proved not to be."""
        ...

    def lost_write(
        self, at: ast.AST, nodes: Sequence[ast.expr], targets: set[str], own: bool = False
    ) -> str:
        """Why a write after a choice at `at` would miss the tensor that eager writes; "" where
        there is no such write. `own`: nothing else holds what the names were before."""
        ...

    def total(self, *nodes: ast.expr) -> bool:
        """Whether evaluating expressions that eager might skip is certain to change nothing."""
        ...

    def overwritten(self, into: ast.expr, text: str) -> str:
        """Why writing what the expression `text` gives over all of a tensor may be felt where eager
        writes some of its elements; "" where it is proved not to be. Asked of exact oracles."""
        ...

    def new(self, node: ast.expr) -> bool:
        """Whether an expression surely gives a tensor that nothing else holds."""
        ...

    def acts(self, node: ast.AST) -> bool:
        """Whether evaluating an expression once more may be felt, by what its attributes do."""
        ...

    def assumed_tensor(self, node: ast.AST, at: ast.AST) -> bool:
        """Whether what is said of an expression, of a name that may have been bound before `at`,
        holds if inputs are tensors alone."""
        ...

    def whole_parents(self) -> dict[ast.AST, ast.AST]:
        """The parents of all nodes that matter."""
        ...

    def runs(self, name: str, value: ast.expr) -> None:
        """A pattern will bind `name` to `value` before the place, where it was bound under a
        condition."""
        ...

    def ran(self, nodes: list[ast.AST]) -> bool:
        """Whether a run evaluated every expression in some nodes of one function."""
        ...

    def resolve(self, node: ast.AST) -> str | None:
        """The dotted name that a name or attribute stands for; None where a local name hides
        it."""
        ...

    def torch(self, node: ast.AST) -> tuple[str, tuple[str, ...]] | None:
        """(how torch is spelt at `node`, imports that must be added), or None."""
        ...

    def function(self, node: ast.AST) -> Any:
        """The function that a node stands in, with its `node`; None outside of all."""
        ...

    def parent(self, node: ast.AST) -> ast.AST | None: ...

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement that `node` stands in."""
        ...

    def block(self, statement: ast.stmt) -> tuple[list[ast.stmt], int]:
        """(the statements among which one stands, its index)."""
        ...

    def local_names(self, node: ast.AST) -> set[str]:
        """What the function around `node` binds."""
        ...

    def fresh_name(self, node: ast.AST, *wishes: str) -> str:
        """A name that clashes with none around `node`."""
        ...

    def segment(self, node: ast.AST) -> str:
        """The source of a node."""
        ...

    def lost_comments(
        self, start: int, end: int, kept: Sequence[tuple[int, int]] = ()
    ) -> list[str]:
        """Comments of a span that stand outside the spans `kept`."""
        ...

    def replacement(self, node: ast.expr | ast.stmt, text: str) -> Edit | Refusal:
        """The edit that puts `text` in the place of a node, or why there is none."""
        ...

    def fix(
        self,
        title: str,
        *edits: Edit | Refusal,
        safety: Safety = Safety.SAFE,
        why: str = "",
        imports: Iterable[str] = (),
        silent: int = 0,
    ) -> Fix | Refusal:
        """A Fix made of edits, or the Refusal that one of them is."""
        ...


class TextOracle(Oracle, Protocol):
    """What the text of a whole file answers beside that."""

    def grad_mode(self, node: ast.AST) -> int | None:
        """A number for the grad mode at a branch; None: several are possible."""
        ...

    def called(self, call: ast.Call) -> Any:
        """The function of this file that a call surely runs, with its `node`; or None."""
        ...

    def callers(self, function: ast.AST) -> list[tuple[ast.AST, ast.Call]]:
        """(function or module around it, call) of the calls of this file that may run it."""
        ...
