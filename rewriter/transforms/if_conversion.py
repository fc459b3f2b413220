"""An `if` on a tensor's value whose body writes: every write made under the condition instead
(if-conversion, Allen et al., POPL 1983)."""

import ast

from ..analysis.call_effects import ONLY_COMPUTES, tensor_work
from ..analysis.kinds import literal
from ..source.spans import Safety
from .condition import condition, host_read

_IDENTITY = {ast.Add: ("+", "0"), ast.Sub: ("-", "0"), ast.Mult: ("*", "1"), ast.Div: ("/", "1")}
_NAMED = (ast.Name, ast.Constant, ast.Subscript, ast.Call, ast.Attribute)
_QUIET = (
    ast.Name,
    ast.Constant,
    ast.Subscript,
    ast.Attribute,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.Slice,
    ast.Tuple,
)
_WHY = (
    "what the body computes is computed at every call: it may raise, or turn a gradient into NaN;"
    " counters become tensors, and what is written in place is written at every call: a backward"
    " that needs its old values raises"
)


class Predicated:
    """One `if` without an else. `fix()` gives the Fix, or None where its body cannot be written
    so."""

    def __init__(self, node, context):
        self.node, self.context, self.source = node, context, context.source
        self.function = context.function(node).node
        self.edits, self.numbers, self.doubt = [], set(), ""
        self.torch = context.torch(node)

    def fix(self):
        indent = self.source.indent_of(self.node)
        if (
            self.node.orelse
            or self.torch is None
            or indent is None
            or not self._writes(self.node.body)
        ):
            return None
        test = self._test()
        if test is None:
            return None
        self.held = self.context.fresh_name(self.node, "holds", "condition")
        lines = self._block(self.node.body, "")
        if lines is None or not all(map(self._count_from_tensor, sorted(self.numbers))):
            return None
        start, end = self.source.span(self.node)
        if self.source.has_long_string(start, end) or self.context.lost_comments(start, end):
            return None
        text = f"{self.source.newline}{indent}".join([f"{self.held} = {test}", *lines])
        edits = *self.edits, self.context.replacement(self.node, text)
        why = f"{self.doubt}; {_WHY}" if self.doubt else _WHY
        return self.context.fix(
            "write under the condition",
            *edits,
            safety=Safety.UNSAFE,
            why=why,
            imports=self.torch[1],
        )

    def _writes(self, body):
        """Whether a body does more than bind names: else it is for torch.where or torch.cond."""
        return any(isinstance(s, ast.AugAssign) or _stores_item(s) for s in body)

    # The test

    def _test(self):
        """The source of the test as a bool tensor; a number that it compares, read from a tensor,
        is left one."""
        found = condition(self.node.test, self.context)
        if found is not None and not isinstance(found, str):
            self.doubt = found.doubt
            return self._positive(found)
        test = self.node.test
        read = test.left if isinstance(test, ast.Compare) and len(test.ops) == 1 else None
        number = isinstance(read, ast.Name) and literal(test.comparators[0])
        if type(number) not in (int, float) or not self._stays_tensor(read):
            return None
        return self.context.segment(test)

    def _positive(self, found):
        return f"{self.torch[0]}.logical_not({found.text})" if found.negated else found.text

    def _stays_tensor(self, name):
        """Whether a name is bound once, to `<tensor>.item()`, and read in arithmetic and
        comparisons alone: the edit that leaves the tensor."""
        stores = self._stores(name.id)
        statement = self.context.parent(stores[0]) if len(stores) == 1 else None
        value = statement.value if isinstance(statement, ast.Assign) else None
        inner = host_read(value, self.context) if value is not None else None
        if (
            inner is None
            or not isinstance(value.func, ast.Attribute)
            or not self._arithmetic(name.id)
        ):
            return False
        shape = "" if self.context.kind(inner).rank == 0 else ".reshape(())"
        text = f"{self.context.atom(inner)}.detach(){shape}"
        self.edits.append(self.context.replacement(value, text))
        return not isinstance(inner, (ast.BinOp, ast.UnaryOp, ast.Compare))

    def _stores(self, name):
        every = (n for n in ast.walk(self.function) if isinstance(n, ast.Name) and n.id == name)
        return [n for n in every if isinstance(n.ctx, ast.Store)]

    def _arithmetic(self, name):
        """Whether a name is read as an operand of arithmetic, in a comparison, or for an `if`
        alone."""
        loads = [n for n in ast.walk(self.function) if isinstance(n, ast.Name) and n.id == name]
        loads = [n for n in loads if isinstance(n.ctx, ast.Load)]
        fits = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.AugAssign)
        return bool(loads) and all(isinstance(self.context.parent(n), fits) for n in loads)

    # The body

    def _block(self, body, indent):
        """The lines of statements under the condition, or None."""
        lines = []
        for statement in body:
            handler = getattr(self, f"_under_{type(statement).__name__}", None)
            found = (
                handler(statement, indent) if handler and self._only_computes(statement) else None
            )
            if found is None:
                return None
            lines += found
        return lines

    def _only_computes(self, statement):
        """Whether computing a statement's parts does nothing but compute."""
        if isinstance(statement, ast.If):
            return True
        calls = (n for n in ast.walk(statement) if isinstance(n, ast.Call))
        return all(tensor_work(c, self.context, ONLY_COMPUTES) for c in calls)

    def _under_If(self, statement, indent):
        """A condition that no tensor decides stays, around what is written under the other."""
        test = statement.test
        plain = all(
            isinstance(n, (*_QUIET, ast.expr_context, ast.operator, ast.unaryop, ast.cmpop))
            for n in ast.walk(test)
        )
        parts = [n for n in ast.walk(test) if isinstance(n, (ast.Name, ast.Attribute, ast.Compare))]
        if not plain or any(
            self.context.kind(p).is_tensor or self.context.kind(p).host for p in parts
        ):
            return None
        unit = self.source.indent_unit()
        body, orelse = (
            self._block(statement.body, indent + unit),
            self._block(statement.orelse, indent + unit),
        )
        if body is None or orelse is None:
            return None
        otherwise = [f"{indent}else:", *orelse] if orelse else []
        return [f"{indent}if {self.context.segment(test)}:", *body, *otherwise]

    def _under_Assign(self, statement, indent):
        """`t[mask] = number` and `t[i] = value`."""
        target = statement.targets[0]
        if len(statement.targets) != 1 or not isinstance(target, ast.Subscript):
            return None
        base, index = self.context.kind(target.value), self.context.kind(target.slice)
        into, value = self.context.segment(target), self.context.segment(statement.value)
        if not (base.is_tensor or base.what == "unknown"):
            return None
        if index.is_tensor and index.dtype == self.context.inference.tokens.bool:
            return self._masked(target, statement.value, indent)
        if index.host or not (index.is_number or literal(target.slice) is ...):
            return None
        return [f"{indent}{into} = {self.torch[0]}.where({self.held}, {value}, {into})"]

    def _masked(self, target, value, indent):
        single = self.context.kind(value)
        gathers = any(
            isinstance(n, ast.Subscript) and not self._single(n.slice) for n in ast.walk(value)
        )
        if gathers or not (single.is_number or single.rank in (0, None)):
            return None
        mask, into = self.context.segment(target.slice), self.context.segment(target.value)
        mask = mask if isinstance(target.slice, _NAMED) else f"({mask})"
        return [f"{indent}{into}[{mask} & {self.held}] = {self.context.segment(value)}"]

    def _single(self, index):
        kind = self.context.kind(index)
        return kind.is_number and not kind.host

    def _under_AugAssign(self, statement, indent):
        """`t op= value` with the operator's neutral element in its place where the condition does
        not hold."""
        operator, neutral = _IDENTITY.get(type(statement.op), ("", ""))
        target, kind = statement.target, self.context.kind(statement.target)
        if not operator:
            return None
        value, into = self.context.segment(statement.value), self.context.segment(target)
        chosen = f"{self.torch[0]}.where({self.held}, {value}, {neutral})"
        if isinstance(target, ast.Name) and not kind.is_tensor:
            if type(literal(statement.value)) is not int or operator not in "+-":
                return None
            self.numbers.add(target.id)
            return [f"{indent}{into} = {into} {operator} {chosen}"]
        # else it may not be cast
        fits = kind.is_tensor and self.context.inference.tokens.category(kind.dtype) == "float"
        return [f"{indent}{into} {operator}= {chosen}"] if fits else None

    def _count_from_tensor(self, name):
        """Whether a counter starts once from an int literal, and is read in arithmetic alone: the
        edit that starts it as a tensor."""
        inside = set(ast.walk(self.node))
        stores = [n for n in self._stores(name) if n not in inside]
        statement = self.context.parent(stores[0]) if len(stores) == 1 else None
        plain = isinstance(statement, ast.Assign) and len(statement.targets) == 1
        if not plain or type(literal(statement.value)) is not int or not self._arithmetic(name):
            return False
        made = f"{self.torch[0]}.tensor({self.context.segment(statement.value)})"
        self.edits.append(self.context.replacement(statement.value, made))
        return True


def _stores_item(statement):
    if isinstance(statement, ast.If):
        return any(map(_stores_item, [*statement.body, *statement.orelse]))
    return isinstance(statement, ast.Assign) and any(
        isinstance(t, ast.Subscript) for t in statement.targets
    )
