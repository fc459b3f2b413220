"""Statements whose results hang on sizes and Python numbers alone: a tensor's data decides nothing
in them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ...rewriter.analysis.call_effects import (
    CONSTANT_BUILTINS,
    MAY_WRITE,
    allows,
    of_function,
    of_method,
)
from ...rewriter.analysis.tree_walk import below

if TYPE_CHECKING:
    from .definitions import Class, Function
    from .file_context import FileContext


_MODULES = (
    "torch.nn.functional.",
    "torch.linalg.",
    "torch.fft.",
    "torch.special.",
    "numpy.",
    "math.",
)
_READ_ATTRIBUTES = frozenset("int float bool str none number size list tuple ndarray".split())
_ARRAYS = frozenset(["nonzero", "argwhere", "unique", "unique_consecutive", "masked_select"])
_BOUND_BY = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)


class Constancy:
    """Takes statements one after another, as long as they fit (`takes`). `inputs`: {source of an
    expression from outside: "shape" or "int"}; `uses`: (node, source) of each of them;
    `attributes`: those of `self` that are read; `bound`: the names that the statements bind;
    `doubts`: names that are not proved to be tensors; `numpy`, `dynamic`: how often NumPy is
    called, and a result's shape depends on what a tensor holds."""

    def __init__(
        self, context: FileContext, function: Function, helper: Callable[..., Any]
    ) -> None:
        self.context, self.function, self.helper = context, function, helper
        self.locals = context.local_names(function.node)
        self.inputs, self.uses, self.attributes, self.bound, self.doubts = (
            {},
            [],
            set(),
            set(),
            set(),
        )
        self.numpy = self.dynamic = 0
        self.inner = set()

    # Statements

    def takes(self, statement: ast.stmt) -> bool:
        handler = getattr(self, f"_take_{type(statement).__name__}", None)
        return handler is not None and handler(statement)

    def _all(self, body: list[ast.stmt]) -> bool:
        return all(self.takes(s) for s in body)

    def _take_Assign(self, node: ast.Assign) -> bool:
        return self.constant(node.value) and all(self._binds(t) for t in node.targets)

    def _take_AugAssign(self, node: ast.AugAssign) -> bool:
        return self.constant(node.value) and self._own(node.target) and self._binds(node.target)

    def _take_For(self, node: ast.For) -> bool:
        return (
            self.constant(node.iter)
            and self._binds(node.target)
            and self._all(node.body)
            and self._all(node.orelse)
        )

    def _take_If(self, node: ast.If) -> bool:
        return self.constant(node.test) and self._all(node.body) and self._all(node.orelse)

    def _take_Expr(self, node: ast.Expr) -> bool:
        call = node.value
        method = (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and self._own(call.func.value)
        )
        return method and self.constant(call)

    def _take_Return(self, node: ast.Return) -> bool:
        return node.value is not None and self.constant(node.value)

    def _take_Pass(self, node: ast.Pass) -> bool:
        return True

    def _binds(self, target: ast.expr) -> bool:
        """Whether all that an assignment changes was made by these statements."""
        if isinstance(target, ast.Name):
            self.bound.add(target.id)
            return True
        if isinstance(target, (ast.Tuple, ast.List)):
            return all(self._binds(t) for t in target.elts)
        return (
            isinstance(target, ast.Subscript) and self._own(target) and self.constant(target.slice)
        )

    def _own(self, node: ast.expr) -> bool:
        while isinstance(node, ast.Subscript):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self.bound

    # Expressions

    def constant(self, node: ast.AST) -> bool:
        """Whether an expression hangs on sizes, numbers and names of these statements alone."""
        if isinstance(node, _BOUND_BY):
            return False
        size = self._size(node)
        if size is not None:
            return size
        handler = getattr(self, f"_{type(node).__name__}", None)
        if handler is not None:
            return handler(node)
        return all(
            self.constant(c)
            for c in ast.iter_child_nodes(node)
            if not isinstance(c, (ast.expr_context,))
        )

    def _size(self, node: ast.AST) -> bool | None:
        """Whether what `x.shape`, `x.size(0)` or `len(x)` stands for may be handed over; None for
        anything else."""
        base = sized(node, self.context)
        if base is None or base.id in self.bound | self.inner:
            return None
        kind = self.context.kind(base)
        if base.id not in self.locals or not (kind.is_tensor or kind.what == "unknown"):
            return False
        if not kind.is_tensor:
            self.doubts.add(base.id)
        return self._input(node, "shape" if several(node) else "int")

    def _input(self, node: Any, what: str) -> bool:
        text = self.context.segment(node)
        self.inputs.setdefault(text, what)
        self.uses.append((node, text))
        return True

    def settled(self) -> tuple[dict[str, str], list[tuple[ast.expr, str]]]:
        """(`inputs`, `uses`) without parts of a shape that is handed over as a whole as well."""
        uses = []
        for node, text in self.uses:
            whole = self.context.segment(node.value) if isinstance(node, ast.Subscript) else ""
            uses.append((node.value, whole) if whole in self.inputs else (node, text))
        return {text: self.inputs[text] for _, text in uses}, uses

    def _Name(self, node: ast.Name) -> bool:
        name = node.id
        if name in self.bound | self.inner:
            return True
        if name in self.locals:
            kind = self.context.kind(node)
            if kind.host or kind.what not in ("int", "size"):
                return False
            return self._input(node, "shape" if kind.cls == "shape" else "int")
        return self._outside(node)

    def _outside(self, node: ast.Name) -> bool:
        full = self.context.names.aliases.get(node.id, "")
        if full.split(".")[0] in ("numpy", "math", "torch"):
            return True
        if node.id in self.context.program.top:
            return self.helper(self.context.program.top[node.id])
        return node.id in CONSTANT_BUILTINS and node.id not in self.context.names.bound

    def _Attribute(self, node: ast.Attribute) -> bool:
        own = isinstance(node.value, ast.Name) and node.value.id == self.function.self_name
        if not own:
            return self.constant(node.value)
        kind = self.context.kind(node)
        known = kind.what in _READ_ATTRIBUTES or number_by_default(node, self.context)
        fixed = known and not kind.host and node.attr not in _stored_later(self.function.cls)
        if fixed and kind.what in ("list", "tuple"):
            fixed = kind.item is None or kind.item.what in _READ_ATTRIBUTES | {"unknown"}
        if fixed:
            self.attributes.add(node.attr)
        return fixed

    def _Call(self, node: ast.Call) -> bool:
        parts = [*node.args, *(k.value for k in node.keywords)]
        if not all(self.constant(p) for p in parts):
            return False
        full = self.context.resolve(node.func)
        if full is None or not full.startswith(("torch.", "numpy.", "math.")):
            return self._method(node)
        last = full.rpartition(".")[2]
        plain = (
            full.startswith(_MODULES) or full.count(".") == 1 or full == "torch.cuda.is_available"
        )
        if not plain or not allows(MAY_WRITE, of_function(node, full)):
            return False
        self.numpy += full.startswith("numpy.")
        self.dynamic += full.startswith("torch.") and self._data_shaped(last, node.args)
        return True

    def _method(self, node: ast.Call) -> bool:
        if isinstance(node.func, ast.Name):
            return self._outside(node.func) and node.func.id not in self.bound | self.locals
        name = getattr(node.func, "attr", "")
        if not isinstance(node.func, ast.Attribute) or not allows(MAY_WRITE, of_method(name)):
            return False
        tensor = self.context.kind(node.func.value).is_tensor
        self.dynamic += tensor and self._data_shaped(name, [None, *node.args])
        return not self._of_self(node.func.value) and self.constant(node.func.value)

    def _of_self(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id == self.function.self_name

    def _data_shaped(self, name: str, args: Any) -> bool:
        return name in _ARRAYS or (name == "where" and len(args) == 1)

    def _Subscript(self, node: ast.Subscript) -> bool:
        if not self.constant(node.value) or not self.constant(node.slice):
            return False
        kind, index = self.context.kind(node.value), self.context.kind(node.slice)
        chosen = index.is_tensor and index.dtype == self.context.inference.tokens.bool
        self.dynamic += kind.is_tensor and chosen
        return True

    def _display(self, node: ast.ListComp) -> bool:
        names = {
            n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)
        }
        return self._within(names, ast.iter_child_nodes(node))

    _ListComp = _SetComp = _GeneratorExp = _DictComp = _display

    def _Lambda(self, node: ast.Lambda) -> bool:
        return self._within(
            {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}, [node.body]
        )

    def _within(self, names: set[str], parts: Iterator[Any] | list[ast.expr]) -> bool:
        saved, self.inner = self.inner, self.inner | names
        fits = all(self.constant(p) for p in parts)
        self.inner = saved
        return fits

    def _comprehension(self, node: ast.comprehension) -> bool:
        return all(self.constant(n) for n in (node.iter, *node.ifs))

    def _keyword(self, node: Any) -> Any:
        return self.constant(node.value)


def sized(node: ast.AST, context: FileContext) -> ast.Name | None:
    """The name whose size `node` asks for: `x.shape`, `x.shape[2:]`, `x.ndim`, `x.size()`,
    `x.size(0)`, `len(x)`."""
    base = None
    if isinstance(node, ast.Subscript):
        literal = all(
            isinstance(n, (ast.Slice, ast.Constant, ast.UnaryOp, ast.USub))
            for n in ast.walk(node.slice)
        )
        return sized(node.value, context) if literal and several(node.value) else None
    if isinstance(node, ast.Attribute) and node.attr in ("shape", "ndim"):
        base = node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.keywords:
        literal = all(isinstance(getattr(a, "operand", a), ast.Constant) for a in node.args)
        fits = node.func.attr == "size" or (
            node.func.attr in ("dim", "numel", "ndimension") and not node.args
        )
        base = node.func.value if literal and fits else None
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and context.resolve(node.func) == "len"
    ):
        tensor = len(node.args) == 1 and context.kind(node.args[0]).is_tensor
        base = node.args[0] if tensor else None
    return base if isinstance(base, ast.Name) else None


def several(node: Any) -> bool:
    """Whether the size asked for is a shape, and not one number."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Slice)
    if isinstance(node, ast.Attribute):
        return node.attr == "shape"
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "size" and not node.args


@functools.lru_cache(maxsize=256)
def _stored_later(cls: Class) -> set[str]:
    """Attributes that methods other than `__init__` store."""
    return {
        n.attr
        for name, method in cls.methods.items()
        if name != "__init__"
        for n in below(method.node)
        if isinstance(n, ast.Attribute) and isinstance(n.ctx, (ast.Store, ast.Del))
    }


def number_by_default(node: ast.expr, context: FileContext) -> bool:
    """Whether `self.name` is stored once, from a parameter of `__init__` that is a number by
    default."""
    function = context.function(node)
    own = (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and function is not None
    )
    init = context.program.method(function.cls, "__init__") if own and function.cls else None
    if (
        init is None
        or node.value.id != function.self_name
        or node.attr in _stored_later(function.cls)
    ):
        return False
    stores = [
        s
        for s in context.program.nodes(init.node)
        if isinstance(s, ast.Assign) and _names(s, node.attr)
    ]
    value = stores[0].value if len(stores) == 1 else None
    default = defaults(init.node).get(value.id) if isinstance(value, ast.Name) else None
    return isinstance(default, ast.Constant) and isinstance(default.value, (int, float))


def _names(statement: ast.Assign, attribute: str) -> bool:
    return any(isinstance(t, ast.Attribute) and t.attr == attribute for t in statement.targets)


def defaults(function: Any) -> dict[str, ast.Constant]:
    """{parameter: its default}."""
    args = function.args
    placed = [*args.posonlyargs, *args.args]
    pairs = zip(placed[len(placed) - len(args.defaults) :], args.defaults, strict=True)
    return {a.arg: d for a, d in [*pairs, *zip(args.kwonlyargs, args.kw_defaults, strict=True)]}
