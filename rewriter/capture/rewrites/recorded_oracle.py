"""The recording as an oracle of patterns: what expressions are, known by the real values that stood
at the place (see `patterns.oracle`)."""

import ast
import contextlib
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...analysis.file_view import FileView
from ...analysis.import_names import ImportedNames
from ...analysis.kinds import (
    ANY,
    FUNCTION,
    MODULE,
    NDARRAY,
    NONE,
    SIMPLE,
    SIZE,
    TENSORS,
    Kind,
    Side,
    Sides,
)
from ...analysis.kinds import Tokens as KindTokens
from ...analysis.torch_facts import DTYPES, MAKES
from ...analysis.tree_walk import FunctionNode
from ...source.source_file import SourceFile
from ...source.spans import Edit, Intent
from . import sheltered_sides
from .fake_values import FakeValues, Host, UnknownValue

_SCOPES = (
    *(ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
)


@dataclass
class _Function:
    """The function that the recording stands in."""

    node: ast.AST
    self_name: str | None
    outer: "_Function | None" = None


@dataclass
class _Kinds:
    """Kinds of the expressions at one place, worked out when they are asked for."""

    tokens: KindTokens
    kinds: dict[ast.AST, Kind] = field(default_factory=dict)
    at_branch: dict[ast.AST, dict[str, Kind]] = field(default_factory=dict)

    def binary(self, op: ast.operator, left: Kind, right: Kind) -> Kind:
        """An exact oracle is asked for the kind of the expression itself."""
        return ANY


class RecordedOracle(FileView):
    """Answers about the function `function` of a file, in which the top level has `names`, at the
    moment when `values` stood in it. The branches `places` ask there; what stands elsewhere is not
    known."""

    exact = True

    def __init__(
        self,
        source: SourceFile,
        function: FunctionNode,
        values: FakeValues,
        places: list[ast.AST],
        names: ImportedNames,
    ) -> None:
        super().__init__(source, names)
        self.values = values
        args = function.args
        first = next(iter([*args.posonlyargs, *args.args]), None)
        self.self_name = first.arg if first is not None else None
        self.functions = {function: _Function(function, self.self_name)}
        self.parents = {
            child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)
        }
        self.inference = _Kinds(KindTokens())
        before = {name: self._of(value) for name, value in values.local.items()}
        self.inference.at_branch = dict.fromkeys(places, before)

    def kind(self, node: ast.AST) -> Kind:
        """The kind of what `node` gives at the place."""
        kinds = self.inference.kinds
        if node not in kinds and isinstance(node, ast.expr):
            kinds[node] = self._seen(node)
        return kinds.get(node, ANY)

    def _seen(self, node: ast.expr) -> Kind:
        own = self.self_name
        if not self._here(node):
            return ANY
        if isinstance(node, ast.Name) and node.id == own and _is_module(self.values.local, own):
            return Kind("self", cls=type(self.values.local[own]).__name__)
        try:
            return self._kind_of(self.values.see(node).value)
        except Host:
            return Kind("number", host=True)
        except UnknownValue:
            return ANY

    def _here(self, node: ast.AST) -> bool:
        """Whether names mean at a node what they mean in the function."""
        around = self.parents.get(node)
        while around is not None and not isinstance(around, _SCOPES):
            around = self.parents.get(around)
        return around is None or around in self.functions

    def _of(self, value: Any) -> Kind:
        try:
            return self._kind_of(self.values.given(value))
        except UnknownValue:
            return ANY

    def _kind_of(self, value: Any) -> Kind:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, torch.Size):
            return Kind(SIZE, cls="shape")
        simple = {bool: "bool", int: "int", float: "float", str: "str", type(None): NONE}
        if type(value) in simple:
            return SIMPLE[simple[type(value)]]
        if isinstance(value, torch.nn.Module):
            return Kind(MODULE, cls=_class_of(value))
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType):
            return SIMPLE[FUNCTION]
        if type(value) in (list, tuple) and value:
            tensors = all(isinstance(part, torch.Tensor) for part in value)
            return Kind(TENSORS, cls=type(value).__name__) if tensors else ANY
        return SIMPLE[NDARRAY] if type(value).__module__ == "numpy" else ANY

    def _tensor(self, value: torch.Tensor) -> Kind:
        tokens, name = self.inference.tokens, str(value.dtype).removeprefix("torch.")
        category = DTYPES.get(name)
        dtype = tokens.known(name, category) if category else tokens.fresh()
        rank = value.dim()
        device = "default" if value.device.type == "cpu" else str(value.device)
        return Kind(
            "tensor", dtype, self._shape(value), tokens.of("device", device), rank, low=rank
        )

    def _shape(self, value: torch.Tensor) -> int:
        """One token for tensors of the same sizes and strides; none that another has for those that
        an operator would lay out anew."""
        tokens = self.inference.tokens
        sizes = tuple(ast.dump(ast.Constant(size)) for size in value.shape)
        if value.numel() == 1:
            return tokens.of("shape", sizes)
        if not _is_dense(value):
            return tokens.fresh()
        return tokens.of("shape", sizes, tuple(value.stride()))

    def replacement(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        """The edit that puts `text` in the place of a node; what is recorded needs no comments."""
        intent = Intent.STATEMENTS if isinstance(node, ast.stmt) else Intent.EXPRESSION
        start, end = self.source.span(node)
        return Edit(start, end, text, intent)

    # -- proofs

    def proved(self, first: ast.expr, second: ast.expr) -> Sides | None:
        """Both sides, as they come out on fake tensors; None where one may raise, write, draw or
        turn a zero gradient into NaN, or where `torch.where` lays its result out otherwise."""
        try:
            seen = self.values.see(first), self.values.see(second)
        except UnknownValue:
            return None
        rough = any(s.rough for s in seen if getattr(s.value, "requires_grad", False))
        return None if rough else self._sides(first, second)

    def sheltered(
        self, first: ast.expr, second: ast.expr
    ) -> tuple[Sides, tuple[list[ast.expr], list[ast.expr]]] | None:
        """Both sides, and for each the tensors that it must not have where it is not taken."""
        sides = self._sides(first, second) if self.values.static else None
        if sides is None:
            return None
        try:
            return sides, (self._shelter(first), self._shelter(second))
        except UnknownValue:
            return None

    def _shelter(self, node: ast.expr) -> list[ast.expr]:
        seen = self.values.see(node)
        if not seen.value.requires_grad or not seen.rough:
            return []
        given = sheltered_sides.tensors(node, lambda n: self.kind(n).is_tensor)
        if not sheltered_sides.are_exact(node, given, self.values):
            raise UnknownValue("its gradient may differ at the values that replace masked ones")
        return given

    def _sides(self, first: ast.expr, second: ast.expr) -> Sides | None:
        """Both sides; None where one may raise, write or draw, or `torch.where` lays its result out
        otherwise."""
        try:
            seen = self.values.see(first), self.values.see(second)
        except UnknownValue:
            return None
        one, other = (side.value for side in seen)
        tensors = all(isinstance(side.value, torch.Tensor) for side in seen)
        if not tensors or any(side.partial for side in seen):
            return None
        if one.requires_grad != other.requires_grad:
            return None
        chosen = self.values.select(one, other)
        if not all(_alike(chosen, side) for side in (one, other)):
            return None
        sides = [self._side(n, s.value) for n, s in zip((first, second), seen, strict=True)]
        return sides[0], sides[1]

    def _side(self, node: ast.expr, value: torch.Tensor) -> Side:
        leaves = self.values.leaves(value) if value.requires_grad else frozenset()
        bare = isinstance(node, (ast.Name, ast.Attribute))
        return Side(self.kind(node), leaves, bare=bare)

    def doubt(self, at: ast.AST, sides: Sides, nodes: Sequence[ast.expr], targets: set[str]) -> str:
        """Why the values chosen may differ from eager's. Whether anyone can tell a new tensor from
        the one that eager keeps is asked of the recordings (`choices`, `kept_objects`)."""
        self.values.sides += nodes
        first, second = (side.kind for side in sides)
        if first.dtype != second.dtype or first.shape != second.shape:
            return "the branches give different dtypes or shapes"
        exact = self.inference.tokens.category(first.dtype) in ("int", "bool")
        if not exact and sides[0].leaves != sides[1].leaves:
            return "a tensor of the branch not taken would get a zero gradient in place of None"
        return next((side.doubt for side in sides if side.doubt), "")

    def lost_write(
        self, at: ast.AST, nodes: Sequence[ast.expr], targets: set[str], own: bool = False
    ) -> str:
        """The recordings are asked (see `doubt`)."""
        return ""

    def total(self, *nodes: ast.expr) -> bool:
        """Whether evaluating all of `nodes` is certain to change nothing."""
        try:
            return not any(self.values.see(node).partial for node in nodes)
        except UnknownValue:
            return False

    def overwritten(self, into: ast.expr, text: str) -> str:
        """Why writing `text` over all of `into` may be felt; "" where it is proved not to be."""
        try:
            old, new = self.values.see(into), self.values.see(ast.parse(text, mode="eval").body)
        except UnknownValue as error:
            return f"`{text}` is not known: {error}"
        if new.partial:
            return min(new.partial)
        if new.value.requires_grad and new.rough:
            return min(new.rough)
        same = _alike(new.value, old.value) and _is_dense(old.value)
        return "" if same else "the tensors differ in shape, layout or dtype"

    def new(self, node: ast.expr) -> bool:
        """Whether an operator that always makes a new tensor gives what `node` is."""
        if not self.kind(node).is_tensor:
            return False
        if isinstance(node, ast.Call):
            return getattr(node.func, "attr", "") in MAKES and not node.keywords
        return isinstance(node, ast.BinOp | ast.Compare)

    def acts(self, node: ast.AST) -> bool:
        """What the recording saw is looked at apart."""
        return False

    def assumed_tensor(self, node: ast.AST, at: ast.AST) -> bool:
        """Nothing is supposed of values that stand there."""
        return False

    def whole_parents(self) -> dict[ast.AST, ast.AST]:
        """The parents of all nodes of the function."""
        return self.parents

    def runs(self, name: str, value: ast.expr) -> None:
        """From here on the place sees `name`."""
        with contextlib.suppress(UnknownValue):
            self.values.bind(name, value)


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.shape == other.shape
        and one.stride() == other.stride()
        and one.dtype == other.dtype
        and one.device == other.device
    )


def _is_dense(value: torch.Tensor) -> bool:
    """Whether the elements lie side by side: then an elementwise operator keeps the order."""
    expected = 1
    axes = sorted((s, n) for s, n in zip(value.stride(), value.shape, strict=True) if n != 1)
    for stride, size in axes:
        if stride != expected:
            return False
        expected *= size
    return True


def _is_module(local: dict[str, Any], name: str | None) -> bool:
    return isinstance(local.get(name or ""), torch.nn.Module)


def _class_of(module: torch.nn.Module) -> str:
    cls = type(module)
    known = cls.__module__.startswith("torch.nn.modules")
    return f"torch.nn.{cls.__name__}" if known else cls.__name__
