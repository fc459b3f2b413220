"""What a function does with the tensors behind some names: who else holds them, who writes into
them, who shows or compares them.

Names that may stand for one tensor, a view of it or a container with it are taken together, without
regard to order; what happens to them is an Event, at its place in the text."""

import ast
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ...lowering.opinfo import having
from . import torch_facts as tables
from .call_effects import LOGGERS
from .kinds import DICT, LIST, LOGGER, MODULE, NONE, PYTHON_NUMBERS, STR, TENSORS, TUPLE, Kind
from .name_scopes import captured_names
from .oracle import TextOracle
from .tree_walk import Located, below, span

WRITE, TEXT, LOOK, ESCAPE, UNKNOWN = "write", "text", "look", "escape", "unknown"
_DEEPEST = 3
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_HOLDERS = (ast.Tuple, ast.List, ast.Starred, ast.NamedExpr, ast.keyword)
_VIEW_ATTRIBUTES = frozenset("T mT H mH real imag data".split())
_PLAIN_ATTRIBUTES = frozenset(
    """
    shape dtype device ndim layout requires_grad is_cuda is_cpu is_sparse is_floating_point
    is_complex itemsize nbytes is_meta is_mps is_xpu is_quantized is_nested
    """.split()
)
_LOOKS = having("shows_object")
_READS = frozenset("len float int bool isinstance issubclass type range complex callable".split())
_TEXTS = frozenset("print str repr format ascii".split())
_HANDS_ON = frozenset("zip enumerate list tuple reversed iter next dict sorted set".split())
_NUMBERLIKE = frozenset("sum max min abs round divmod pow all any".split())
_KEEPERS = frozenset("append extend insert add update setdefault appendleft".split())


Uses = list[tuple[str, Located]]


@dataclass(frozen=True)
class Event:
    what: str
    node: Located
    name: str


class ValueUses:
    """The uses in one function; `tree` is the whole file's."""

    def __init__(self, context: TextOracle, function: ast.AST, depth: int = 0) -> None:
        self.context, self.function, self.depth = context, function, depth
        self.parents = context.whole_parents()
        self.inside = below(function)
        self.scopes: dict[ast.AST, ast.AST | None] = {}

    # Which names stand for one tensor

    def together(self, seeds: Iterable[str]) -> set[str]:
        """All names that may stand for, or hold, what one of `seeds` stands for: those that it may
        have come from, and all to which these go."""
        links = list(self._links())
        sources = _closed(seeds, ((targets, values) for values, targets in links))
        return _closed(sources, links)

    def _links(self) -> Iterator[tuple[set[str], set[str]]]:
        """(names whose tensor goes somewhere, the names that it goes to)."""
        for node in self.inside:
            yield from self._links_of(node)

    def _links_of(self, node: ast.AST) -> Iterator[tuple[set[str], set[str]]]:
        for targets, value in _bindings(node):
            names = {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            plain = {t.id for t in targets if isinstance(t, ast.Name)}
            stored = [t for t in targets if not isinstance(t, ast.Name)]
            held = self.carried(value)
            kept = plain | {n for t in stored for n in self._container(t)} if held else set()
            kept |= names if held and all(isinstance(t, _HOLDERS) for t in stored) else set()
            if kept and held:
                yield held, kept
        if isinstance(node, ast.Call) and _method(node) in _KEEPERS:
            held = set().union(*(self.carried(a) for a in node.args), set())
            owner = getattr(node.func, "value", None)
            if held and isinstance(owner, ast.Name) and self._local(owner.id):
                yield held, {owner.id}

    def goes_to(self, name: str, nodes: Iterable[ast.AST]) -> bool:
        """Whether some nodes bind to another name, or put in a container, what a name stands
        for."""
        return any(name in held for node in nodes for held, _ in self._links_of(node))

    def _container(self, target: ast.expr) -> set[str]:
        """The local name of a container into which `target` stores."""
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            tensor = self.context.kind(target.value).is_tensor
            return {target.value.id} if not tensor and self._local(target.value.id) else set()
        return set()

    def _local(self, name: str) -> bool:
        stores = (n for n in self.inside if isinstance(n, ast.Name) and n.id == name)
        return any(isinstance(n.ctx, ast.Store) for n in stores)

    def carried(self, node: ast.AST) -> set[str]:
        """Names whose tensor the value of an expression may be, share memory with, or hold."""
        kind = self.context.kind(node)
        if kind.what in PYTHON_NUMBERS or kind.what in (STR, NONE) or self.new(node):
            return set()
        if isinstance(node, ast.Name):
            return set() if self._imported(node) else {node.id}
        if isinstance(node, (ast.Constant, ast.JoinedStr, ast.Compare)):
            return set()
        if isinstance(node, ast.BinOp) and kind.is_tensor:
            return set()
        if isinstance(node, ast.IfExp):
            return self.carried(node.body) | self.carried(node.orelse)
        if isinstance(node, ast.Call):
            parts = [*node.args, *(k.value for k in node.keywords)]
            parts += [node.func.value] if isinstance(node.func, ast.Attribute) else []
            return set().union(*map(self.carried, parts), set())
        return set().union(*(self.carried(c) for c in _expressions(node)), set())

    def _imported(self, node: ast.Name) -> bool:
        return node.id in self.context.names.aliases and self.context.resolve(node) is not None

    def new(self, node: ast.AST) -> bool:
        """Whether an expression surely gives a tensor that nothing else holds."""
        made = self.context.kind(node).made is not None
        if isinstance(node, ast.Call):
            name = _method(node) or getattr(node.func, "id", "")
            return made and not name.endswith("_")
        return made and isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare))

    # What happens to them

    def events(self, names: set[str], but: Container[ast.AST] = ()) -> list[Event]:
        """The Events of all that stands for, or holds, what `names` stand for; the nodes `but` are
        left out."""
        found = []
        for node in self.inside:
            if node in but:
                continue
            if isinstance(node, ast.Name) and node.id in names:
                found += [Event(what, at, node.id) for what, at in self._of(node)]
            elif isinstance(node, (ast.Global, ast.Nonlocal)) and names & set(node.names):
                found.append(Event(UNKNOWN, node, node.names[0]))
        return found

    def flow(self, node: Located, name: str = "") -> list[Event]:
        """The Events of an expression's own value."""
        return [Event(what, at, name) for what, at in self._climb(node)]

    def _of(self, name: ast.Name) -> Uses:
        scope = self._scope(name)
        if scope is not self.function:
            return self._climb(name) if self._runs_here(scope) else [(UNKNOWN, name)]
        if isinstance(name.ctx, ast.Load):
            return self._climb(name)
        parent = self.parents.get(name)
        if isinstance(parent, ast.AugAssign) and parent.target is name:
            number = self.context.kind(name).is_number
            return [] if number else [(WRITE, name)]
        return []

    def _scope(self, node: ast.AST | None) -> ast.AST | None:
        """The function or class around a node; each node on the way is asked once, for a sum of
        many terms is as deep as it is long."""
        way, known = [], self.scopes
        while node is not None and node is not self.function and node not in known:
            way.append(node)
            node = self.parents.get(node)
            if isinstance(node, (*_SCOPES, ast.ClassDef)):
                break
        found = None if node is None else known.get(node, node)
        known.update(dict.fromkeys(way, found))
        return found

    def _runs_here(self, scope: ast.AST | None) -> bool:
        """Whether it is a side of `torch.cond`, which nothing else calls."""
        if not isinstance(scope, ast.Lambda):
            return False
        call = self.parents.get(scope)
        chosen = isinstance(call, ast.Call) and self.context.resolve(call.func) == "torch.cond"
        return chosen and self._scope(call) is self.function

    def _climb(self, node: Located) -> Uses:
        """What becomes of a value, from the expression that has it to where it goes."""
        parent = self.parents.get(node)
        handler: Callable[..., Uses] | None = getattr(self, f"_in_{type(parent).__name__}", None)
        if handler is not None:
            return handler(parent, node)
        if isinstance(parent, (*_HOLDERS, *_COMPREHENSIONS)):
            return self._climb(parent)
        if isinstance(parent, (ast.Expr, ast.If, ast.While, ast.Slice, ast.Delete, ast.For)):
            return []
        if isinstance(parent, (ast.comprehension, ast.AsyncFor)):
            return []
        return [(UNKNOWN, node)]

    def _in_Attribute(self, parent: ast.Attribute, node: ast.AST) -> Uses:
        call = self.parents.get(parent)
        if isinstance(call, ast.Call) and call.func is parent:
            return self._received(call, parent.attr, node)
        if not isinstance(parent.ctx, ast.Load):
            return self._set(parent, node)
        if parent.attr in _PLAIN_ATTRIBUTES:
            return []
        kind = self.context.kind(node)
        if parent.attr in _VIEW_ATTRIBUTES or not (kind.is_tensor or kind.what == "unknown"):
            return self._climb(parent)
        return [(LOOK, parent)]

    def _set(self, target: ast.Attribute, node: ast.AST) -> Uses:
        """An attribute is set: of a module, that binds a name of it."""
        if self.context.kind(node).what not in ("self", MODULE):
            return [(WRITE if target.attr == "data" else LOOK, target)]
        if not isinstance(self.parents.get(target), ast.AugAssign):
            return []
        same = (n for n in self.inside if isinstance(n, ast.Attribute) and n.attr == target.attr)
        kinds = [self.context.kind(n) for n in same]
        if any(k.is_number for k in kinds):
            return []
        return [(WRITE if any(k.is_tensor for k in kinds) else LOOK, target)]

    def _received(self, call: ast.Call, name: str, receiver: ast.AST) -> Uses:
        """A method of the value is called."""
        kind = self.context.kind(receiver)
        if name in _LOOKS:
            return [(LOOK, call)]
        if name.endswith("_") and not name.endswith("__"):
            return [(WRITE, call), *self._climb(call)]
        if kind.what in (LIST, DICT, TUPLE, TENSORS):
            return [] if name in _KEEPERS else self._climb(call)
        if self.context.kind(call).is_number or self.new(call):
            return []
        if name in ("__str__", "__repr__", "__format__"):
            return [(TEXT, call)]
        if name in tables.METHOD:
            plain = name in ("item", "tolist", "dim", "size", "numel", "is_contiguous", "stride")
            return [] if plain else self._climb(call)
        return [(UNKNOWN, call)]

    def _in_Subscript(self, parent: ast.Subscript, node: ast.AST) -> Uses:
        if parent.slice is node:
            return []
        if isinstance(parent.ctx, ast.Load):
            return [] if self.context.kind(parent).is_number else self._climb(parent)
        container = self.context.kind(node).what in (LIST, DICT, TUPLE, TENSORS)
        grows = isinstance(self.parents.get(parent), ast.AugAssign)
        return [] if container and not grows else [(WRITE, parent)]

    def _in_AugAssign(self, parent: ast.AugAssign, node: ast.AST) -> Uses:
        return [(WRITE, parent)] if parent.target is node else []

    def _in_Assign(self, parent: ast.Assign, node: ast.AST) -> Uses:
        stored = [t for t in parent.targets if not isinstance(t, (ast.Name, ast.Tuple, ast.List))]
        escapes = [t for t in stored if not self._container(t) and not self._copied(t)]
        return [(ESCAPE, parent)] if escapes else []

    def _copied(self, target: ast.expr) -> bool:
        """`t[i] = value` of a tensor copies the value."""
        return isinstance(target, ast.Subscript) and self.context.kind(target.value).is_tensor

    def _in_AnnAssign(self, parent: ast.AnnAssign, node: ast.AST) -> Uses:
        return [] if isinstance(parent.target, ast.Name) else [(ESCAPE, parent)]

    def _in_Return(self, parent: ast.Return, node: ast.AST) -> Uses:
        return [(ESCAPE, parent)]

    _in_Yield = _in_YieldFrom = _in_Return

    def _in_Compare(self, parent: ast.Compare, node: ast.AST) -> Uses:
        parts = [parent.left, *parent.comparators]
        other = all(isinstance(p, ast.Constant) for p in parts if p is not node)
        same = any(isinstance(o, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for o in parent.ops)
        return [(LOOK, parent)] if same and not other else []

    def _in_BinOp(self, parent: ast.BinOp, node: ast.AST) -> Uses:
        left = self.context.kind(parent.left)
        if isinstance(parent.op, ast.Mod) and (
            left.what == STR or isinstance(parent.left, (ast.Constant, ast.JoinedStr))
        ):
            return [(TEXT, parent)]
        return [] if self.context.kind(parent).is_tensor else self._climb(parent)

    def _in_BoolOp(self, parent: ast.BoolOp, node: ast.AST) -> Uses:
        return self._climb(parent)

    def _in_UnaryOp(self, parent: ast.UnaryOp, node: ast.AST) -> Uses:
        return self._climb(parent) if isinstance(parent.op, ast.UAdd) else []

    def _in_IfExp(self, parent: ast.IfExp, node: ast.AST) -> Uses:
        return [] if parent.test is node else self._climb(parent)

    def _in_FormattedValue(self, parent: ast.FormattedValue, node: ast.AST) -> Uses:
        number = self.context.kind(node).rank == 0 and parent.conversion == -1
        return [] if number else [(TEXT, parent)]

    def _in_Assert(self, parent: ast.Assert, node: ast.AST) -> Uses:
        return [] if parent.test is node else [(TEXT, parent)]

    def _in_Lambda(self, parent: ast.Lambda, node: Located) -> Uses:
        call = self.parents.get(parent)
        if isinstance(call, ast.Call) and self._runs_here(parent):
            return self._climb(call)
        return [(UNKNOWN, node)]

    def _in_Set(self, parent: ast.Set, node: ast.AST) -> Uses:
        return [(LOOK, parent)]

    def _in_Dict(self, parent: ast.Dict, node: ast.AST) -> Uses:
        return [(LOOK, parent)] if node in parent.keys else self._climb(parent)

    def _in_DictComp(self, parent: ast.DictComp, node: ast.AST) -> Uses:
        return [(LOOK, parent)] if node is parent.key else self._climb(parent)

    def _in_keyword(self, parent: ast.keyword, node: ast.AST) -> Uses:
        if parent.arg == "out":
            return [(WRITE, parent), *self._climb(parent)]
        return self._climb(parent)

    # Calls

    def _in_Call(self, call: ast.Call, node: ast.AST) -> Uses:
        name = _method(call) or getattr(call.func, "id", "")
        if _in_place(call, name):
            return [(WRITE, call), *self._climb(call)]
        full = self.context.resolve(call.func) or ""
        if full.startswith("torch."):
            return self._torch(call, full, name)
        if isinstance(call.func, ast.Name) and full == name:
            return self._builtin(call, node, name)
        return self._other_call(call, node, name, full)

    def _torch(self, call: ast.Call, full: str, name: str) -> Uses:
        if self.context.kind(call).is_number or self.new(call):
            return []
        known = name in tables.FUNCTION or name in tables.FUNCTIONAL_
        return self._climb(call) if known and "autograd" not in full else [(UNKNOWN, call)]

    def _builtin(self, call: ast.Call, node: ast.AST, name: str) -> Uses:
        if name in _READS:
            return []
        if name in _TEXTS:
            number = name == "format" and self.context.kind(node).rank == 0
            return [] if number else [(TEXT, call)]
        if name in ("id", "hash"):
            return [(LOOK, call)]
        return self._climb(call) if name in _HANDS_ON | _NUMBERLIKE else [(UNKNOWN, call)]

    def _other_call(self, call: ast.Call, node: ast.AST, name: str, full: str) -> Uses:
        owner = getattr(call.func, "value", None)
        if owner is not None and self.context.kind(owner).is_tensor and name in tables.METHOD:
            return [(UNKNOWN, call)] if name in tables.SCRAMBLES else self._given(call)
        if full.startswith((*LOGGERS, "warnings.")) or (
            owner is not None and self.context.kind(owner).what == LOGGER
        ):
            return [(TEXT, call)]
        if name in _KEEPERS and owner is not None:
            kept = isinstance(owner, ast.Name) and self._local(owner.id)
            return [] if kept else [(ESCAPE, call)]
        module = self.context.kind(call.func)
        if module.what == MODULE:
            return self._layer(call, module, node)
        return self._followed(call, node)

    def _given(self, call: ast.Call) -> Uses:
        return [] if self.new(call) else self._climb(call)

    def _layer(self, call: ast.Call, module: Kind, node: ast.AST) -> Uses:
        last = (module.cls or "").rpartition(".")[2]
        known = (module.cls or "").startswith("torch.nn.") and tables.layer(last)
        if not known or known[0] == "container" or last == "Sequential":
            return self._followed(call, node)
        if module.const is True:
            return [(WRITE, call), *self._climb(call)]
        return self._given(call)

    def _followed(self, call: ast.Call, node: ast.AST) -> Uses:
        """A function of the same file: what it does with its parameter."""
        found = self.context.called(call)
        name = found and _parameter(found, call, node)
        if not name or self.depth >= _DEEPEST:
            return [(UNKNOWN, call)]
        uses = ValueUses(self.context, found.node, self.depth + 1)
        inner = uses.events(uses.together({name}))
        back = any(e.what == ESCAPE and isinstance(e.node, ast.Return) for e in inner)
        kept = [(e.what, call) for e in inner if not isinstance(e.node, ast.Return)]
        return [*kept, *(self._climb(call) if back else [])]

    # When

    def loops(self, node: ast.AST) -> set[ast.AST]:
        """The loops around `node` within the function."""
        found: set[ast.AST] = set()
        around: ast.AST | None = node
        while around is not None and around is not self.function:
            around = self.parents.get(around)
            if isinstance(around, _LOOPS):
                found.add(around)
        return found

    def after(self, event: Event, branch: Located) -> bool:
        """Whether an event may come after a branch: what stands in a function within this one may
        at any time."""
        if self._scope(event.node) is not self.function:
            return True
        (place, end), (start, last) = span(event.node), span(branch)
        later = place >= last or (place <= start and end >= last)  # it holds the branch
        return later or bool(self.loops(branch) & self.loops(event.node))


def _closed(seeds: Iterable[str], links: Iterable[tuple[set[str], set[str]]]) -> set[str]:
    """Names with all to which links lead from them."""
    found, todo = set(seeds), list(links)
    before: set[str] = set()
    while found != before:
        before = set(found)
        for start, end in todo:
            if start & found:
                found |= end
    return found


def _bindings(node: ast.AST) -> Iterator[tuple[list[ast.expr], ast.expr]]:
    """The (targets, value) of a statement or expression that binds."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield [target], node.value
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value:
        yield [node.target], node.value
    elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield [node.target], node.iter
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield [node.optional_vars], node.context_expr
    elif isinstance(node, ast.Match):
        names = {name for case in node.cases for name in captured_names(case.pattern)}
        yield [ast.Name(n, ast.Store()) for n in names], node.subject


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
        elif isinstance(child, (ast.comprehension, ast.keyword, ast.arguments)):
            yield from _expressions(child)


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _in_place(call: ast.Call, name: str) -> bool:
    """Whether a call by its name, or by `inplace=`, writes into what it is given."""
    kept = [k for k in call.keywords if k.arg in ("inplace", None)]
    true = any(not (isinstance(k.value, ast.Constant) and k.value.value is False) for k in kept)
    return true or (name.endswith("_") and not name.endswith("__"))


def _parameter(function: Any, call: ast.Call, node: ast.AST) -> str | None:
    """The name of the parameter that an argument goes to; None where that is not plain."""
    if any(isinstance(a, ast.Starred) for a in call.args):
        return None
    args = function.node.args
    names = [a.arg for a in [*args.posonlyargs, *args.args]]
    names = names[1:] if function.self_name else names
    if node in call.args:
        at = call.args.index(node)
        return names[at] if at < len(names) else None
    return None
