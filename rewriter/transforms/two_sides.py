"""A two-sided choice on a tensor's value as one expression: `torch.where` for plain sides,
`torch.cond` for the others."""

import ast
from dataclasses import dataclass

from ...lowering.opinfo import having
from ..analysis.call_effects import ONLY_COMPUTES, draws, tensor_work
from ..analysis.kinds import MODULE
from ..analysis.where_safety import Plain
from ..source.spans import Safety

_COND = (
    "torch.cond asks both sides for one shape and dtype, and traces them at every eager call, which"
    " takes milliseconds"
)
_SIZED_BY_DATA = having("data_shape")
_WORKS = (ast.BinOp, ast.Call, ast.Subscript, ast.Attribute, ast.UnaryOp, ast.Compare)


@dataclass(frozen=True)
class Choice:
    """Source of the choice: `prelude` (statements to run before it, in order), `text` (the
    expression)."""

    prelude: tuple
    text: str
    safety: Safety
    why: str
    imports: tuple
    form: str


class Chooser:
    """Builds the choice between expressions; `at` is the node whose function the new names must not
    clash with."""

    def __init__(self, context, at):
        self.context, self.at = context, at
        self.plain = Plain(context)
        self.used = []

    def choose(self, test, first, second, statement=True, targets=()):
        """A Choice between the expressions `first` (where `test` holds) and `second`, or a string
        that says why there is none. `statement`: a prelude may be written. `targets`: the names
        that are bound to it."""
        found = self.context.torch(self.at)
        if found is None:
            return "`torch` is hidden by a local name, or not imported at the top of the file"
        if test.negated:
            first, second = second, first
        reason = self._not_tensors(first, second) or self.context.lost_write(
            self.at, (first, second), set(targets)
        )
        if reason:
            return reason
        sides = self.plain.side(first), self.plain.side(second)
        choice = None
        if _plain(sides, statement):
            choice = self._where(test, first, second, sides, found, targets)
        if choice is None or choice.safety is not Safety.SAFE:
            proved = self.context.proved(first, second)
            if proved is not None:
                choice = self._where(test, first, second, proved, found, targets)
            elif statement:
                choice = self._sheltered(test, first, second, found, targets) or choice
        return choice or self._cond(test, first, second, sides, found)

    def _not_tensors(self, *nodes):
        for node in nodes:
            if not self.context.kind(node).is_tensor:
                text = " ".join(self.context.segment(node).split())
                return f"`{text}` is not known to be a tensor"
        return ""

    # torch.where

    def _where(self, test, first, second, sides, found, targets):
        self.used = []
        replaced, prelude = self._hoist(sides)
        condition = test.text
        if prelude and not test.pure:
            condition = self._name("condition", "use_first")
            prelude = [f"{condition} = {test.text}", *prelude]
        condition, lost = self._fit(condition, test.kind, sides, first)
        felt = self.context.doubt(self.at, sides, (first, second), targets)
        doubt = _joined(test.doubt, lost, self._reordered(sides, (first, second)), felt)
        shown = [self._shown(node, replaced) for node in (first, second)]
        text = f"{found[0]}.where({condition}, {shown[0]}, {shown[1]})"
        safety = Safety.UNSAFE if doubt else Safety.SAFE
        return Choice(tuple(prelude), text, safety, doubt, found[1], "where")

    def _sheltered(self, test, first, second, found, targets):
        """A choice between sides of which each has ones for its tensors where it is not taken; None
        where that is not proved."""
        known = self.context.sheltered(first, second)
        if known is None:
            return None
        sides, given = known
        self.used, torch = [], found[0]
        text, lost = self._fit(test.text, test.kind, sides, first)
        felt = self.context.doubt(self.at, sides, (first, second), targets)
        doubt = _joined(test.doubt, lost, felt)
        held = text if test.pure and text.isidentifier() else self._name("condition", "use_first")
        prelude = [] if held == text else [f"{held} = {text}"]
        shown = []
        for node, tensors, form in zip((first, second), given, ("{0}, 1", "1, {0}"), strict=True):
            names = {}
            for tensor in tensors:
                own = self.context.segment(tensor)
                if own not in names:
                    names[own] = self._name(f"{own.rpartition('.')[2]}_or_one")
                    shelter = f"{torch}.where({held}, {form.format(own)})"
                    prelude.append(f"{names[own]} = {shelter}")
            shown.append(self._shown(node, {t: names[self.context.segment(t)] for t in tensors}))
        text = f"{torch}.where({held}, {shown[0]}, {shown[1]})"
        safety = Safety.UNSAFE if doubt else Safety.SAFE
        return Choice(tuple(prelude), text, safety, doubt, found[1], "where")

    def _hoist(self, sides):
        """Calls that both sides make are made once, before the choice."""
        replaced, prelude = {}, []
        for mine, other in zip(sides[0].calls, sides[1].calls, strict=True):
            wish = mine.func.attr if isinstance(mine.func, ast.Attribute) else mine.func.id
            name = self._name(wish, f"{wish}_out", "hidden")
            prelude.append(f"{name} = {self.context.segment(mine)}")
            replaced[mine] = replaced[other] = name
        return replaced, prelude

    def _name(self, *wishes):
        free = [w for w in wishes if w not in self.used] or [f"{wishes[0]}_{len(self.used)}"]
        name = self.context.fresh_name(self.at, *free)
        self.used.append(name)
        return name

    def _shown(self, node, replaced):
        return self.context.source.substituted(node, replaced)

    def _reordered(self, sides, nodes):
        """What a side computes before a call that is made first would be computed after it."""
        for side, node in zip(sides, nodes, strict=True):
            inside = {n for call in side.calls for n in ast.walk(call)}
            last = max(((c.lineno, c.col_offset) for c in side.calls), default=(0, 0))
            for part in ast.walk(node):
                works = isinstance(part, _WORKS) and part not in inside
                if works and (part.end_lineno, part.end_col_offset) <= last:
                    text = " ".join(self.context.segment(part).split())
                    return f"`{text}` would be computed after the call, which may change it"
        return ""

    def _fit(self, condition, kind, sides, first):
        """The condition, moved or reshaped where that is needed to leave the result as it was; and
        a doubt."""
        side = next((s for s in sides if s.kind.is_tensor), sides[0])
        wrapped = condition if condition.isidentifier() else f"({condition})"
        low = min(s.kind.least_rank() for s in sides)
        if (
            kind.rank is not None
            and kind.rank > low
            and kind.shape in self.plain.tokens.one_element
        ):
            condition = wrapped = f"{wrapped}.reshape(())"
        if kind.device == side.kind.device or (kind.rank == 0 and self._moves(kind)):
            return condition, ""
        name = self._on_device(sides, first)
        return (
            (f"{wrapped}.to({name}.device)", "")
            if name
            else (condition, "the condition may lie on another device")
        )

    def _moves(self, kind):
        """torch.where takes a scalar condition from the CPU to the sides' device by itself."""
        return kind.device == self.plain.tokens.default_device

    def _on_device(self, sides, first):
        """A name that stands for a tensor on the sides' device."""
        if sides[0].calls:
            return self.used[0]
        kinds = {n.id: self.context.kind(n) for n in ast.walk(first) if isinstance(n, ast.Name)}
        return next(
            (n for n, k in kinds.items() if k.is_tensor and k.device == sides[0].kind.device), ""
        )

    # torch.cond

    def _cond(self, test, first, second, sides, found):
        why = "; ".join([self._changed_by_cond(first, second, sides), _COND])
        blocked = next((b for b in map(self.blocked, (first, second)) if b), "")
        same = self.context.kind(first).shape == self.context.kind(second).shape
        blocked = blocked or self._part(first, second) or self._by_data(first, second)
        if not blocked and not same and self.computes(first) and self.computes(second):
            return self._broadcast(test, first, second, found)
        blocked = blocked or self.differ(first, second)
        if blocked:
            return blocked
        shown = [self.branch(node, side) for node, side in zip((first, second), sides, strict=True)]
        text = f"{found[0]}.cond({test.text}, lambda: {shown[0]}, lambda: {shown[1]})"
        return Choice((), text, Safety.UNSAFE, why, found[1], "cond")

    def _changed_by_cond(self, first, second, sides):
        """What a torch.cond of these sides changes."""
        partial = next((s.problem for s in sides if s.problem), "")
        calls = [n for node in (first, second) for n in ast.walk(node) if isinstance(n, ast.Call)]
        if draws(first) or draws(second):
            return "other random numbers are drawn"
        if any(self._is_module(c.func) for c in calls):
            return (
                "modules' parameters on the side not taken would get zero gradients, and it raises"
                " where a side writes into a buffer (BatchNorm in training)"
            )
        return partial or "the side not taken would give zero gradients where there were none"

    def _is_module(self, callee):
        """Whether a call may be one of a module."""
        if self.context.kind(callee).what == MODULE:
            return True
        owner = getattr(callee, "value", None)
        return owner is not None and self.context.kind(owner).what == "self"

    def differ(self, first, second):
        """Why the sides surely differ in shape."""
        other = (
            self._other_ranks(first, second) and "the branches give different numbers of dimensions"
        )
        return other or self._part(first, second)

    def _part(self, first, second):
        for one, other in ((first, second), (second, first)):
            folded = isinstance(one, ast.Call) and self.context.kind(one).rank == 0
            owner = getattr(one.func, "value", None) if folded else getattr(one, "value", None)
            part = folded or isinstance(one, ast.Subscript)
            if part and owner is not None and ast.dump(owner) == ast.dump(other):
                return "one branch is a part of the other: they differ in shape"
        return ""

    def _by_data(self, *nodes):
        bools, kind = self.context.inference.tokens.bool, self.context.kind
        for part in (n for node in nodes for n in ast.walk(node)):
            if isinstance(part, ast.Subscript) and kind(part.slice).dtype == bools:
                return "data says how many rows a side has"
        return ""

    def _other_ranks(self, *nodes):
        return len({self.context.kind(n).rank for n in nodes} - {None}) > 1

    def computes(self, node):
        """Whether evaluating a side does nothing but compute: calls of torch's functions and
        tensors' methods alone."""
        for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
            number = isinstance(call.func, ast.Name) and _named_number(call)
            if not number and not tensor_work(call, self.context, ONLY_COMPUTES):
                return False
        return True

    def _broadcast(self, test, first, second, found):
        """torch.cond raises where the sides differ in shape, torch.where does not: the result has
        the larger one."""
        why = (
            "both sides are computed: one may raise, turn a gradient into NaN, or give a zero"
            " gradient where there was none; the result has the larger shape"
        )
        text = (
            f"{found[0]}.where({test.text}, {self.context.segment(first)},"
            f" {self.context.segment(second)})"
        )
        return Choice((), text, Safety.UNSAFE, why, found[1], "where")

    def branch(self, node, side):
        """A side of torch.cond must give a new tensor."""
        text = self.context.segment(node)
        return f"{text}.clone()" if side.bare else text

    def blocked(self, node):
        for part in ast.walk(node):
            if isinstance(part, (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)):
                return "a branch holds an await, a yield or a walrus"
            if isinstance(part, ast.Call) and self._writes(part):
                text = " ".join(self.context.segment(part).split())
                return f"`{text}` writes into a tensor, which torch.cond refuses in eager"
            if self._sized_by_data(part):
                text = " ".join(self.context.segment(part).split())
                return f"the shape of `{text}` may depend on data"
        return ""

    def _sized_by_data(self, node):
        """Whether the shape of an expression may depend on data, where torch.cond does not compile:
        an index that is known to be neither a number nor a tensor of them is a mask, perhaps."""
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", "")
            return name in _SIZED_BY_DATA or (name == "where" and len(node.args) == 1)
        if not isinstance(node, ast.Subscript) or not self.context.kind(node.value).is_tensor:
            return False
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        kinds = [
            self.context.kind(p) for p in parts if not isinstance(p, (ast.Slice, ast.Constant))
        ]
        int64 = self.context.inference.tokens.int64
        return any(k.dtype != int64 if k.is_tensor else not k.is_number for k in kinds)

    def _writes(self, call):
        """Whether a call surely writes into what it is given, or into a module's buffers."""
        name = getattr(call.func, "attr", "") or getattr(call.func, "id", "")
        module = self.context.kind(call.func)
        normed = module.what == MODULE and "BatchNorm" in (module.cls or "")
        inplace = module.what == MODULE and module.const is True
        return normed or inplace or (name.endswith("_") and not name.endswith("__"))


def _joined(*doubts):
    return "; ".join(filter(None, doubts))


def _named_number(call):
    """`float("-inf")` and the like."""
    literal = len(call.args) == 1 and isinstance(call.args[0], ast.Constant)
    return call.func.id == "float" and literal and not call.keywords


def _plain(sides, statement):
    """Whether both sides may be computed; calls that both make need a statement of their own."""
    common = [ast.dump(c) for c in sides[0].calls] == [ast.dump(c) for c in sides[1].calls]
    unknown = any(s.problem for s in sides) or not common
    return not unknown and (statement or not sides[0].calls)
