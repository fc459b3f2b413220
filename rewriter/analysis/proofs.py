"""Whether a branch on a tensor's value may become `torch.where`: every condition, in one place.

Eager computes one side and binds it; `torch.where` computes both and gives a new tensor. Nobody can
tell the difference where:

- sides: both may run. Neither raises, writes or draws, and the backward of the one not taken is an
  exact zero (`where_safety`);
- dtype, shape, device: they agree;
- layout: none is sparse, which `torch.where` refuses, and none has gaps, which it closes: a tensor
  that an operator of this function made is dense; their axes lie in one order in memory;
- gradients: both feed the same tensors. A side that is a tensor made before the branch has the
  gradient history of then: it was made under the grad mode of now;
- identity: such a side *is* that tensor in eager and a copy of it afterwards. Nothing else holds
  it, or nobody writes into it, compares it, or looks at what is told of the tensor and not of its
  values, from then on;
- text: nobody shows the result, which would name its `grad_fn`.

What is not looked at: hooks and patches from outside, subclasses of Tensor (nested tensors among
them), callers in other files that show or write into what is returned."""

import ast
from collections.abc import Sequence

from .kinds import MODULE, Kind, Side, Sides
from .oracle import Oracle, TextOracle
from .tree_walk import FunctionNode, below
from .value_uses import ESCAPE, LOOK, TEXT, UNKNOWN, WRITE, Event, ValueUses

_DOUBTS = {
    WRITE: "`{name}` is written in place, and would no longer be the same tensor",
    LOOK: "`{text}` looks at which tensor `{name}` is, and it would be another",
    UNKNOWN: "`{text}` may write into `{name}` or keep it, which would be another tensor",
}
_ORDERED = frozenset("stride is_contiguous as_strided".split())
_SHOWN = "`{text}` shows a tensor, whose text would name another grad_fn"


class Proofs:
    """The conditions at one place: `at` is the `if` or the conditional expression."""

    def __init__(self, context: TextOracle, at: ast.stmt | ast.IfExp) -> None:
        self.context, self.at = context, at
        self.tokens = context.inference.tokens
        self.function = context.function(at).node
        self.uses = ValueUses(context, self.function)

    def doubt(self, sides: Sides, nodes: Sequence[ast.expr], targets: set[str]) -> str:
        """Why a choice between two sides may be felt; "" where that is proved not to be so. `nodes`
        are their expressions, `targets` the names that the statement binds to it."""
        rebound = self.context.names.torch_rebound(self.function)
        found = [
            rebound and f"`{rebound}` is bound to something else as well",
            *(s.doubt for s in sides),
            self._dtypes(sides),
            self._shapes(sides),
            self._gradients(sides),
            self._history(sides, nodes),
            self._layout(sides, nodes),
            self._observable_change(sides, nodes, targets),
        ]
        return "; ".join(dict.fromkeys(filter(None, found)))

    def _exact(self, kind: Kind) -> bool:
        return self.tokens.category(kind.dtype) in ("int", "bool")

    def _dtypes(self, sides: Sides) -> str:
        differ = sides[0].kind.dtype != sides[1].kind.dtype
        return "the branches may differ in dtype: the result has the wider one" if differ else ""

    def _shapes(self, sides: Sides) -> str:
        differ = sides[0].kind.shape != sides[1].kind.shape
        return "the branches may differ in shape: the result has the larger one" if differ else ""

    def _gradients(self, sides: Sides) -> str:
        if self._exact(sides[0].kind) or sides[0].leaves == sides[1].leaves:
            return ""
        return "a tensor of the branch not taken would get a zero gradient in place of None"

    def _layout(self, sides: Sides, nodes: Sequence[ast.expr]) -> str:
        for side, node in zip(sides, nodes, strict=True):
            if not side.kind.strided:
                return f"`{self._text(node)}` may be sparse, which torch.where refuses"
        one, other = (s.kind for s in sides)
        same = _one_order(one, other)
        return "" if same else "the branches may differ in strides"

    def _history(self, sides: Sides, nodes: Sequence[ast.expr]) -> str:
        """A tensor made before, here, under this very grad mode."""
        mode = self.context.grad_mode(self.at)
        for side, node in zip(sides, nodes, strict=True):
            made = side.kind.made
            if not side.bare:
                continue
            if made is None:
                return (
                    f"`{self._text(node)}` is a tensor from elsewhere: it would be a copy,"
                    " without its gradient under no_grad"
                )
            if not self._exact(side.kind) and (mode is None or made != mode):
                return f"`{self._text(node)}` was made under another grad mode"
        return ""

    # Who could tell

    def _observable_change(self, sides: Sides, nodes: Sequence[ast.expr], targets: set[str]) -> str:
        found, bare = self._uses(sides, nodes, targets), any(s.bare for s in sides)
        shown = "" if self._exact(sides[0].kind) else self._shows(found)
        if bare:
            return shown or self._identity(found) or self._outside(found, (WRITE, LOOK), sides)
        return shown or self._written(sides, found) or self._outside(found, (), sides)

    def _written(self, sides: Sides, found: list[Event]) -> str:
        """A write into what autograd saved."""
        saved = any(s.saved for s in sides)
        return self._first([e for e in found if e.what == WRITE and saved and self._after(e)])

    def _uses(self, sides: Sides, nodes: Sequence[ast.expr], targets: set[str]) -> list[Event]:
        bare = {n.id for s, n in zip(sides, nodes, strict=True) if s.bare for n in _names(n)}
        names = self.uses.together(bare | set(targets))
        own = isinstance(self.at, ast.IfExp)  # what its sides give is its own value
        but = set(ast.walk(self.at)) if own else ()
        found = [e for e in self.uses.events(names, but) if not self._within(e)]
        if own:
            found += self.uses.flow(self.at, self._text(self.at))
        return found

    # Where compiled code alone makes the choice, and eager stays as it is

    def why_compiled_differs(
        self, sides: Sides, nodes: Sequence[ast.expr], targets: set[str]
    ) -> str:
        """Why the values or gradients of compiled code may be others: something writes into the
        tensor that eager keeps, or looks at its memory. (What a print shows is eager's.)"""
        found = self._uses(sides, nodes, targets)
        ordered = self._ordered(sides, targets)
        if ordered or not any(s.bare for s in sides):
            return ordered or self._written(sides, found)
        looks = self._first([e for e in found if e.what == LOOK])
        if looks or self._has_one_name(sides, nodes, targets):
            return looks
        later = [e for e in found if e.what in (WRITE, UNKNOWN) and self._after(e)]
        why = self._first(later) or self._spoilt(found, self._given(targets))
        return why or self._outside(found, (WRITE, LOOK), ())

    def _has_one_name(self, sides: Sides, nodes: Sequence[ast.expr], targets: set[str]) -> bool:
        """Whether the choice takes the only name from each tensor that eager would keep: a write
        into a copy of it is seen by nobody else."""
        kept = [(s.kind, n) for s, n in zip(sides, nodes, strict=True) if s.bare]
        return all(
            isinstance(n, ast.Name) and n.id in targets and kind.made is not None and self._own(n)
            for kind, n in kept
        )

    def _own(self, name: ast.Name) -> bool:
        """Whether what a name stands for was made by the last statement that binds it, in a block
        around, and given to nobody since."""
        made, since = self.since_bound(name.id)
        if made is None or not self.uses.new(made):
            return False
        between = {n for part in since for n in below(part)}
        given = {e.node for e in self.uses.events({name.id}) if e.what in (ESCAPE, UNKNOWN)}
        return given.isdisjoint(between) and not self.uses.goes_to(name.id, between)

    def since_bound(self, name: str) -> tuple[ast.expr | None, list[ast.AST]]:
        """(what a name was last bound to, what is evaluated from there to the choice); None where
        no single assignment in a block around does that."""
        child: ast.AST = self.at
        since: list[ast.AST] = [getattr(self.at, "test", self.at)]
        while isinstance(parent := self.uses.parents.get(child), (ast.If, ast.With, FunctionNode)):
            blocks = [getattr(parent, "body", ()), getattr(parent, "orelse", ())]
            block = next((b for b in blocks if isinstance(b, list) and child in b), [])
            for statement in reversed(block[: block.index(child)] if block else []):
                if _binds(statement, name):
                    plain = isinstance(statement, ast.Assign) and _is_name(statement.targets, name)
                    return statement.value if plain else None, since
                since.append(statement)
            since += [parent.test] if isinstance(parent, ast.If) else getattr(parent, "items", [])
            child = parent
        return None, since

    def still(self, names: set[str], since: list[ast.AST]) -> bool:
        """Whether names stand for what they did, unwritten, after what was evaluated since."""
        between = {n for part in since for n in below(part)}
        stores = (n for n in between if isinstance(n, ast.Name) and n.id in names)
        events = self.uses.events(self.uses.together(names))
        touched = {e.node for e in events if e.what in (WRITE, UNKNOWN)}
        return touched.isdisjoint(between) and all(isinstance(n.ctx, ast.Load) for n in stores)

    def lost_write(self, nodes: Sequence[ast.expr], targets: set[str], own: bool) -> str:
        """The write, later on, into a tensor that something else holds and that a choice between
        `nodes` would copy: eager changes it there, the choice would not. "" where there is none.
        `own`: nothing else holds what the names were before."""
        carried = set[str]().union(*map(self.uses.carried, nodes))
        if not carried:
            return ""
        names = self.uses.together(carried | targets)
        events = self.uses.events(names)
        kept = [e for e in events if e.what in (ESCAPE, UNKNOWN) and not self._after(e)]
        made = own or all(self.context.kind(n).made is not None for n in nodes)
        if made and not kept and names <= targets:
            return ""
        own_value = set(ast.walk(self.at)) if isinstance(self.at, ast.IfExp) else ()
        events = [e for e in events if e.node not in own_value]
        if own_value:
            events += self.uses.flow(self.at, self._text(self.at))
        return self._first([e for e in events if e.what == WRITE and self._after(e)])

    def _ordered(self, sides: Sides, targets: set[str]) -> str:
        """Something asks in which order the axes lie, which is another one on each side."""
        if all(_one_order(sides[0].kind, s.kind) for s in sides[1:]):
            return ""
        names = self.uses.together(targets)
        for node in self.uses.inside:
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr in _ORDERED and self.uses.carried(node.func.value) & names:
                return f"`{self._text(node)}` needs the order in memory, which differs by side"
        return ""

    def _given(self, targets: set[str]) -> list[Event]:
        """What a function that is not known gave, as Events: it may have kept that."""
        calls = [
            (n, n.value)
            for n in self.uses.inside
            if isinstance(n, ast.Assign) and isinstance(n.value, ast.Call)
        ]
        return [
            Event(UNKNOWN, node, next(iter(names)))
            for node, call in calls
            if (names := {n.id for t in node.targets for n in _names(t)} & set(targets))
            and self.context.kind(call).made is None
            and self.context.kind(call.func).what == MODULE
        ]

    def loses_history(self, side: Side, node: ast.expr) -> bool:
        """Whether a tensor from before may require a gradient where a copy of it would not."""
        if not side.bare or self._exact(side.kind):
            return False
        mode, made = self.context.grad_mode(self.at), side.kind.made
        if made is not None:
            return mode is None or made != mode
        names = self.uses.together({n.id for n in _names(node)})
        kept = any(e.what in (ESCAPE, UNKNOWN) for e in self.uses.events(names))
        return mode is None or kept or not isinstance(self.at, ast.If)

    def _within(self, event: Event) -> bool:
        """An event inside the choice itself: its parts are looked at as sides."""
        return any(event.node is n for n in ast.walk(self.at))

    def _after(self, event: Event) -> bool:
        return event.node is self.at or self.uses.after(event, self.at)

    def _shows(self, events: list[Event]) -> str:
        shown = [e for e in events if e.what == TEXT and self._after(e)]
        return _SHOWN.format(text=self._text(shown[0].node)) if shown else ""

    def _first(self, events: list[Event]) -> str:
        for event in events:
            return _DOUBTS[event.what].format(name=event.name, text=self._text(event.node))
        return ""

    def _identity(self, events: list[Event]) -> str:
        leaf = [e for e in events if e.what == LOOK]
        later = [e for e in events if e.what in (WRITE, UNKNOWN) and self._after(e)]
        return (
            self._first(leaf) or self._first(later) or self._shared(events) or self._spoilt(events)
        )

    def _spoilt(self, events: list[Event], elsewhere: Sequence[Event] = ()) -> str:
        """Something may write into what was kept before; `elsewhere`: what others may have kept."""
        kept = [e for e in events if e.what in (ESCAPE, UNKNOWN) and not self._after(e)]
        if not kept and not elsewhere:
            return ""
        writes = LaterWrites(self.context, self.uses, self.at)
        node = writes.first(None if elsewhere else kept)
        name = (kept or elsewhere)[0].name
        return _DOUBTS[WRITE].format(name=name) if node is not None else ""

    def _shared(self, events: list[Event]) -> str:
        """Two holders could tell whether they hold one tensor."""
        kept = [e for e in events if e.what in (ESCAPE, UNKNOWN)]
        before = [e for e in kept if not self._after(e)]
        later = [e for e in kept if self._after(e)]
        turns = self.uses.loops(self.at)
        again = [e for e in later if turns and not isinstance(e.node, ast.Return)]
        if (before and later) or len({e.name for e in later}) > 1 or again:
            name = (before or again or later)[0].name
            return f"`{name}` is kept elsewhere as well, and would be another tensor there"
        return ""

    def _outside(
        self, events: list[Event], forbidden: tuple[str, ...], sides: Sides | tuple[()]
    ) -> str:
        """What callers in the same file do with what the function gives back."""
        if not self._given_back(events):
            return ""
        shown = sides and not self._exact(sides[0].kind)
        wrong = {*forbidden, *((TEXT,) if shown else ())}
        for caller, call in self.context.callers(self.function):
            uses = ValueUses(self.context, caller)
            found = uses.flow(call, self._text(call)) + uses.events(_bound_to(call, uses))
            for event in (e for e in found if e.what in wrong):
                reason = "writes into" if event.what == WRITE else "looks at"
                reason = "shows" if event.what == TEXT else reason
                return f"a caller {reason} what the function gives back: `{self._text(event.node)}`"
        return ""

    def _given_back(self, events: list[Event]) -> bool:
        own = isinstance(self.at, ast.If) and any(
            isinstance(n, ast.Return) for n in ast.walk(self.at)
        )
        return own or any(
            isinstance(e.node, (ast.Return, ast.Yield, ast.YieldFrom)) for e in events
        )

    def _text(self, node: ast.AST) -> str:
        return " ".join(self.context.segment(node).split())


def _one_order(one: Kind, other: Kind) -> bool:
    """Whether the axes of two tensors lie in one order in memory."""
    lines = any(k.rank is not None and k.rank < 2 for k in (one, other))
    return lines or one.order == other.order


def _binds(statement: ast.stmt, name: str) -> bool:
    stores = (n for n in _names(statement) if not isinstance(n.ctx, ast.Load))
    return any(n.id == name for n in stores)


def _is_name(targets: list[ast.expr], name: str) -> bool:
    return len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id == name


def _names(node: ast.AST) -> list[ast.Name]:
    return [n for n in ast.walk(node) if isinstance(n, ast.Name)]


def _bound_to(call: ast.Call, uses: ValueUses) -> set[str]:
    """The names that stand for what a call gives."""
    parent = uses.parents.get(call)
    if isinstance(parent, ast.Assign):
        names = {n.id for t in parent.targets for n in _names(t)}
        return uses.together(names)
    return set()


def write_doubt(into: ast.expr, at: ast.stmt | ast.IfExp, context: TextOracle) -> str:
    """Why writing all elements of the tensor that `into` names, by a statement `at`, may be felt
    where eager writes some of them."""
    if context.kind(into).made is None:
        return "a tensor from elsewhere may have elements that share memory"
    proofs = Proofs(context, at)
    names = proofs.uses.together({n.id for n in _names(into)})
    return proofs._shows(proofs.uses.events(names))


def moves(statement: ast.Assign, target: str, context: Oracle) -> str:
    """Whether a statement that binds a number may run where it did not: nobody else sees the name,
    and it cannot raise. A string tells why not."""
    function = context.function(statement).node
    for node in ast.walk(function):
        if isinstance(node, (ast.Global, ast.Nonlocal)) and target in node.names:
            return f"`{target}` is a name of the code around, and would be bound in any case"
    seen = sees_names(function)
    if seen:
        return f"`{seen}` sees that `{target}` is bound in any case"
    total = _total_number(statement.value, context)
    return "" if total else f"`{target}` is computed in any case, which may raise"


_FRAMES = frozenset("f_locals _getframe currentframe".split())
_LOOKS = _FRAMES | frozenset("locals vars dir eval exec".split())


def sees_names(function: ast.AST) -> str:
    """By what a function looks at its own names, or ""."""
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and node.attr in _FRAMES:
            return node.attr
        called = node.func if isinstance(node, ast.Call) else None
        if isinstance(called, ast.Name) and called.id in _LOOKS:
            return called.id
    return ""


def _total_number(node: ast.expr, context: Oracle) -> bool:
    """Whether a number's expression surely gives one: constants, and what is known to be a number,
    joined by `+`, `-` and `*`."""
    if isinstance(node, ast.BinOp):
        known = isinstance(node.op, (ast.Add, ast.Sub, ast.Mult))
        return known and all(_total_number(n, context) for n in (node.left, node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        return _total_number(node.operand, context)
    kind = context.kind(node)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
        return kind.is_number  # of finfo, whose dtype is asked for apart
    return isinstance(node, (ast.Constant, ast.Name)) and kind.is_number and not kind.optional


# What may write, after a choice, into a tensor that something else holds as well: in eager that
# is the tensor which the choice kept, afterwards a copy of it.

_DEEPEST = 3


class LaterWrites:
    """`uses`: of the function that chooses, at the statement `at`."""

    def __init__(self, context: TextOracle, uses: ValueUses, at: ast.stmt | ast.IfExp) -> None:
        self.context, self.uses, self.at = context, uses, at

    def first(self, kept: list[Event] | None) -> ast.AST | None:
        """The first write that may reach what the events `kept` gave away (None: to anything);
        None: there is none."""
        attributes = None if kept is None else _stored_in(kept)
        for node in self.uses.inside:
            if not isinstance(node, (ast.expr, ast.stmt)):
                continue
            later = self.uses.after(Event("", node, ""), self.at)
            if later and self._may_write(node, attributes, 0):
                return node
        return None

    def _may_write(self, node: ast.AST, attributes: set[str] | None, depth: int) -> bool:
        written = self._written(node)
        if written is not None:
            return self._reaches(written, attributes)
        if isinstance(node, ast.Call) and depth < _DEEPEST:
            found = self.context.called(node)
            inside = ast.walk(found.node) if found is not None else ()
            return any(self._may_write(n, attributes, depth + 1) for n in inside)
        return False

    def _written(self, node: ast.AST) -> ast.expr | None:
        """The expression into which a statement or call writes; None for others."""
        if isinstance(node, ast.AugAssign):
            return node.target
        if isinstance(node, ast.Assign):
            return next(filter(None, map(_stored_inside, node.targets)), None)
        if not isinstance(node, ast.Call):
            return None
        out = [k.value for k in node.keywords if k.arg == "out"]
        name = getattr(node.func, "attr", "") or getattr(node.func, "id", "")
        inplace = self.context.kind(node.func).const is True
        if out or not (inplace or (name.endswith("_") and not name.endswith("__"))):
            return out[0] if out else None
        full = self.context.resolve(node.func) or ""
        if isinstance(node.func, ast.Attribute) and not full.startswith("torch.") and not inplace:
            return node.func.value
        return next(iter(node.args), node)

    def _reaches(self, node: ast.expr, attributes: set[str] | None) -> bool:
        """Whether what is written may be what was given away."""
        kind = self.context.kind(node)
        if kind.is_number or kind.what in ("list", "dict", "str") or kind.fresh:
            return False
        root: ast.expr = node
        while isinstance(root, (ast.Subscript, ast.Call)):
            root = root.func if isinstance(root, ast.Call) else root.value
            root = root.value if isinstance(root, ast.Attribute) and root is not node else root
        if not isinstance(root, ast.Attribute) or attributes is None:
            return True
        return self.context.kind(root.value).what != "self" or root.attr in attributes


def _stored_in(events: list[Event]) -> set[str] | None:
    """The attributes to which alone the tensor went; None: it may be anywhere."""
    found = set()
    for event in events:
        targets = getattr(event.node, "targets", [None])
        if not all(isinstance(t, ast.Attribute) for t in targets):
            return None
        found |= {t.attr for t in targets}
    return found


def _stored_inside(target: ast.expr) -> ast.expr | None:
    """`t` of `t[i] = …` and `t.data = …`."""
    inside = isinstance(target, ast.Subscript)
    inside |= isinstance(target, ast.Attribute) and target.attr == "data"
    return getattr(target, "value", None) if inside else None
