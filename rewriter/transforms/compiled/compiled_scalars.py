"""Numbers that only go into arithmetic with tensors, as tensors of no axis in compiled code alone:

    if torch.compiler.is_compiling() and x.dim() > 0 and x.is_floating_point():
        x = x / x.abs().max().detach().double()
    else:
        x = x / x.abs().max().item()

Such a tensor counts in arithmetic as the number does, where the other one has axes and is
floating-point: both are asked where the text does not show them. In double, numbers are added and
multiplied as Python does it."""

import ast
from dataclasses import replace

from ....lowering.opinfo import having
from ...analysis.kinds import literal
from ...analysis.name_scopes import rebindings
from ...analysis.torch_facts import SAME_FLOAT
from ...source.spans import Edit, Fix, Refusal
from ..condition import DECIDES, Condition, host_read, short
from .trace_time_checks import is_a_tensor
from .when_compiled import Compiled, CompiledExpression

_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div)
_ELEMENTWISE = SAME_FLOAT | frozenset("abs neg relu clamp round floor ceil clone".split())
_SINGLE = ("float32", "float64", "int64")
_OWN = "goes elsewhere than into arithmetic with a tensor"


class Arithmetic:
    """Whether a number only goes into arithmetic; what must hold of the tensors there is asked by
    the form `compiled`. `single`: the number is made in float32, so that tensors without axes may
    be of that dtype."""

    def __init__(self, compiled, single=False):
        self.compiled, self.context, self.single = compiled, compiled.context, single
        self.function = self.context.function(compiled.node).node
        self.once = rebindings(self.function).once

    def wrong(self, node):
        """Why the value of `node` may be felt to be a tensor; "" where it cannot."""
        parent = self.context.parent(node)
        if isinstance(parent, ast.AugAssign) and isinstance(parent.op, _ARITHMETIC):
            into = self.context.kind(parent.target)
            return (
                self._assume_tensor_dtype(parent.target, into)
                if into.is_tensor
                else self._elsewhere(node)
            )
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, _ARITHMETIC):
            return self._operand(node, parent)
        if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.USub):
            return self.wrong(parent)
        if isinstance(parent, ast.IfExp) and parent.test is not node:
            return self.wrong(parent)
        target = _target(node, parent, self.context)
        return self._elsewhere(node) if target is None else self.name(target)

    def _elsewhere(self, node):
        return "" if eager_only(node, self.context) else f"`{self.compiled.text(node)}` {_OWN}"

    def name(self, target):
        """The same of a name."""
        if target not in self.once:
            return f"`{target}` is bound at several places"
        every = (n for n in ast.walk(self.function) if isinstance(n, ast.Name) and n.id == target)
        loads = [n for n in every if isinstance(n.ctx, ast.Load)]
        return next(filter(None, map(self.wrong, loads)), "" if loads else f"`{target}` {_OWN}")

    def _operand(self, node, parent):
        other = parent.right if parent.left is node else parent.left
        kind = self.context.kind(other)
        if kind.is_tensor:
            return self._assume_tensor_dtype(other, kind)
        divides = isinstance(parent.op, ast.Div) and parent.right is node
        if divides or (isinstance(parent.op, ast.Div) and not literal_number(other)):
            return f"`{self.compiled.text(parent)}` may divide by zero"
        known = kind.is_number and not kind.optional
        return self.wrong(parent) if known else self._elsewhere(node)

    def _assume_tensor_dtype(self, other, kind):
        """Asks that a tensor decides the dtype of what it gives with the number: elementwise
        operators give what their own tensors are."""
        parts = self._elementwise(other)
        if not parts:
            return self._decides(other, kind)
        return next(
            filter(None, (self._assume_tensor_dtype(p, self.context.kind(p)) for p in parts)), ""
        )

    def _elementwise(self, node):
        if isinstance(node, ast.UnaryOp):
            return [node.operand]
        if isinstance(node, ast.BinOp) and isinstance(node.op, _ARITHMETIC):
            return [n for n in (node.left, node.right) if self.context.kind(n).is_tensor]
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            return []
        keeps = node.func.attr in _ELEMENTWISE and not node.keywords
        method = self.context.kind(node.func.value).is_tensor
        return (
            [node.func.value if method else node.args[0]] if keeps and (method or node.args) else []
        )

    def _decides(self, other, kind):
        tokens, context = self.compiled.tokens, self.context
        named = isinstance(other, ast.Name) and self._stays(other) and self._before(other)
        floats = tokens.category(kind.dtype) == "float"
        if self.single and kind.dtype in map(tokens.of_name, _SINGLE):
            return ""
        if not named and not (floats and kind.least_rank()):
            return f"`{self.compiled.text(other)}` may have no axes, or not be floating-point"
        if not floats:
            self.compiled.asked.add(f"{other.id}.is_floating_point()")
        if not kind.least_rank():
            self.compiled.asked.add(f"{other.id}.dim() > 0")
        if named and context.assumed_tensor(other, self.compiled.node):
            self.compiled.asked.add(is_a_tensor(self.compiled.torch[0], other.id))
        return "" if self.single else self._same_device(other, kind, named)

    def _same_device(self, other, kind, named):
        """A tensor of no axis on a GPU goes with no tensor on another device."""
        if all(self.context.kind(r).device == kind.device for r in self.compiled.reads):
            return ""
        tensors = (n for r in self.compiled.reads for n in names_of(r))
        owner = next((n.id for n in tensors if self.context.kind(n).is_tensor), "")
        if not named or not owner:
            return f"`{self.compiled.text(other)}` may lie on another device"
        if owner != other.id:
            self.compiled.asked.add(f"{other.id}.device == {owner}.device")
        return ""

    def _stays(self, name):
        """Whether a name is bound once, but for writes into its tensor, which keep dtype, axes and
        device: `x /= y`."""
        places = rebindings(self.function).places.get(name.id, 0)
        return places - len(self._stores(name)) + len(self._bindings(name)) == 1

    def _stores(self, name):
        named = (n for n in ast.walk(self.function) if isinstance(n, ast.Name) and n.id == name.id)
        return [n for n in named if not isinstance(n.ctx, ast.Load)]

    def _bindings(self, name):
        """The places that bind a name anew."""
        return [n for n in self._stores(name) if not self._writes(n)]

    def _writes(self, name):
        augmented = isinstance(self.context.parent(name), ast.AugAssign)
        return augmented and self.context.kind(name).is_tensor

    def _before(self, name):
        """Whether a name is bound where the form asks for it."""
        stores = self._bindings(name)
        start = self.context.statement(self.compiled.node)
        ends = [self.context.statement(n).end_lineno for n in stores]
        places = [self.context.parent(self.context.statement(n)) for n in stores]
        straight = all(p is self.function for p in places)
        return straight and all(end < start.lineno for end in ends)


def names_of(node):
    return [n for n in ast.walk(node) if isinstance(n, ast.Name)]


def eager_only(node, context):
    """Whether a node stands under `if not torch.compiler.is_compiling():`."""
    parent = context.parent(node)
    while parent is not None:
        off = isinstance(parent, ast.If) and isinstance(parent.test, ast.UnaryOp)
        call = off and parent.test.operand
        name = isinstance(call, ast.Call) and context.resolve(call.func)
        if name == "torch.compiler.is_compiling" and node not in parent.orelse:
            return True
        node, parent = parent, context.parent(parent)
    return False


def literal_number(node):
    value = literal(node)
    return isinstance(value, (int, float)) and value != 0


def _target(node, parent, context):
    """The name to which a value is bound, by itself or as a part of `a, b = x, y`."""
    if isinstance(parent, ast.Tuple):
        whole = context.parent(parent)
        pair = isinstance(whole, ast.Assign) and len(whole.targets) == 1 and whole.targets[0]
        if not isinstance(pair, ast.Tuple) or len(pair.elts) != len(parent.elts):
            return None
        target = pair.elts[parent.elts.index(node)]
    elif isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        target = parent.targets[0]
    else:
        return None
    return target.id if isinstance(target, ast.Name) else None


def made_of_reads(node: ast.expr, oracle) -> Fix | Refusal:
    """The Fix that adds a form for compiled code to a statement with the host read `node`."""
    return _Reads(node, oracle).fix()


def made_of_draws(node: ast.expr, drawn, oracle) -> Fix | Refusal:
    """The same for a number that is drawn outside torch; `drawn(call)`: torch's source for it, or
    None."""
    return _Draws(node, oracle, drawn).fix()


class _Reads(Compiled):
    """A statement whose numbers become tensors of no axis."""

    single = False

    def __init__(self, node, context):
        super().__init__(node, context)
        self.statement, self.reads = context.statement(node), []

    def replaced(self):
        """{node: source} of what becomes a tensor; None where one cannot."""
        found = {}
        for node in ast.walk(self.statement):
            read = host_read(node, self.context)
            if read is None:
                continue
            name = getattr(node.func, "attr", "") or node.func.id
            category = self.tokens.category(self.context.kind(read).dtype)
            if name not in ("item", "float") or self.context.kind(read).rank != 0:
                return None
            if self.ask_tensors(read):
                return None
            if category != "float" and not self._asks_float(read):
                return None
            if not self.proofs.uses.new(read):
                return None
            self.reads.append(read)
            found[node] = f"{self.context.atom(read)}.detach().double()"
        return self._with_extremes(found)

    def _with_extremes(self, found):
        """The same with `min(a, b)` and `max(a, b)` of two reads as one choice, which gives the
        first where it is not beaten, as Python does. None where they may lie on two devices."""
        for call in [n for n in ast.walk(self.statement) if isinstance(n, ast.Call)]:
            beats = _BEATS.get(self.context.resolve(call.func))
            reads = [a for a in call.args if a in found]
            if not beats or call.keywords or len(reads) != 2 or len(call.args) != 2:
                continue
            owners = [next(self._owners(r), "") for r in reads]
            if len(set(owners)) > 1 and not all(owners):
                return None
            if len(set(owners)) > 1:
                self.asked.add(f"{owners[1]}.device == {owners[0]}.device")
            one, other = (found.pop(r) for r in reads)
            found[call] = f"{self.torch[0]}.where({other} {beats} {one}, {other}, {one})"
        return found

    def _owners(self, node):
        return (n.id for n in names_of(node) if self.context.kind(n).is_tensor)

    def _asks_float(self, read):
        """Asks that what is read of is floating-point: a reduction of a name keeps its dtype."""
        owner = read
        while isinstance(owner, ast.Call) and isinstance(owner.func, ast.Attribute):
            by_name = self.context.resolve(owner.func) == f"torch.{owner.func.attr}"
            given = len(owner.args) - by_name
            if given or owner.keywords or owner.func.attr not in _KEEP:
                return False
            owner = owner.args[0] if by_name else owner.func.value
        if not isinstance(owner, ast.Name):
            return False
        self.asked.add(f"{owner.id}.is_floating_point()")
        return True

    def lines(self):
        hidden = self.hidden()
        if hidden:
            return hidden
        if not isinstance(self.statement, (ast.Assign, ast.Return)):
            return "it is not in an assignment or a return"
        replaced = self.replaced()
        if not replaced:
            return "it is not the value of one floating-point element"
        arithmetic = Arithmetic(self, self.single)
        why = next(filter(None, map(arithmetic.wrong, replaced)), "")
        if why:
            return why
        unknown = next(filter(None, map(self.ask_tensors, replaced)), "")
        if unknown:
            return unknown
        text = self.source.substituted(self.statement, replaced)
        return [" ".join(text.split())], isinstance(self.statement, ast.Return)

    def inserted(self, lines, returns):
        start, end = self.source.span(self.statement)
        indent, newline = self.source.indent_of(self.statement), self.source.newline
        if indent is None or self.source.has_long_string(start, end) or self.shares(self.statement):
            return Refusal("it shares its line with others")
        if newline in self.source.text[start:end]:
            return Refusal("it goes over several lines")
        unit = self.source.indent_unit()
        head = [self.guard("if", indent), f"{indent}{unit}{lines[0]}", f"{indent}else:"]
        edit = Edit(start, start, f"{newline.join(head)}{newline}{indent}{unit}")
        return self.made("", edit)

    title = "keep the tensor when compiled"


_BEATS = {"min": "<", "max": ">"}
_KEEP = having("keeps_one")


class _Draws(_Reads):
    single, title = True, "draw with torch when compiled"

    def __init__(self, node, context, drawn):
        super().__init__(node, context)
        self.drawn = drawn

    def replaced(self):
        calls = [n for n in ast.walk(self.statement) if isinstance(n, ast.Call)]
        found = {c: self.drawn(c) for c in calls}
        return {c: text for c, text in found.items() if text}


# A branch that a number drawn outside torch decides. Compiled code draws from torch's generator, as
# it does wherever it is compiled: other numbers, of the same distribution.


def made_of_drawn_test(node: ast.If | ast.IfExp, drawn, oracle) -> Fix | Refusal:
    """The Fix for a branch that a draw decides; `drawn(call)`: torch's source for it, or None."""
    kind = _DrawnIf if isinstance(node, ast.If) else _DrawnExpression
    return kind(node, oracle, drawn).fix()


class _Drawn:
    title = "draw with torch when compiled"

    def __init__(self, node, context, drawn):
        super().__init__(node, context)
        self.drawn = drawn

    def test(self, test):
        compared = self._compared(test)
        return compared or super().test(test)

    def decides(self, part):
        return self._compared(part) is not None or super().decides(part)

    def _compared(self, test):
        """The Condition of `random.random() < p`; None where it is none."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._compared(test.operand)
            return inner and replace(inner, negated=not inner.negated)
        if not isinstance(test, ast.Compare) or type(test.ops[0]) not in DECIDES:
            return None
        sides = [test.left, *test.comparators]
        texts = [isinstance(s, ast.Call) and self.drawn(s) for s in sides]
        if len(sides) != 2 or sum(map(bool, texts)) != 1:
            return None
        other = next(s for s, t in zip(sides, texts, strict=True) if not t)
        if not isinstance(other, (ast.Name, ast.Attribute, ast.Constant)):
            return None
        shown = [t or self.context.segment(s) for s, t in zip(sides, texts, strict=True)]
        kind = replace(self.tokens.tensor(rank=0), dtype=self.tokens.bool)
        kind = replace(kind, device=self.tokens.default_device)
        return Condition(f"{shown[0]} {DECIDES[type(test.ops[0])]} {shown[1]}", kind)


class _DrawnIf(_Drawn, Compiled):
    pass


class _DrawnExpression(_Drawn, CompiledExpression):
    pass


# `w = 1.0 if t else -1.0` of numbers that only go into arithmetic with tensors.


def made_of_numbers(node: ast.IfExp, oracle) -> Fix | Refusal:
    """The Fix that adds a form for compiled code to a choice between two numbers."""
    return _Numbers(node, oracle).fix()


class _Numbers(CompiledExpression):
    def choice(self, texts, tests, values, target):
        numbers = [literal(v) for v in values]
        if not all(type(n) in (int, float) and short(n) for n in numbers):
            return "!the sides are no tensors, and no short numbers"
        if len({type(n) for n in numbers}) > 1:
            return "!the sides are an int and a float"
        why = self._arithmetic(target, tests[0])
        if why:
            return f"!{why}"
        self.forms.add("where")
        text = texts[0] if tests[0].kind.rank == 0 else f"({texts[0]}).reshape(())"
        return self.call("where", text, *(self.text(v) for v in values))

    def _arithmetic(self, target, test):
        """Why the number may be felt to be a tensor; asks what must hold of the tensors that it
        goes into arithmetic with."""
        function = self.context.function(self.node).node
        once = rebindings(function).once
        if target not in once:
            return f"`{target}` is bound at several places"
        loads = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == target]
        for load in (n for n in loads if isinstance(n.ctx, ast.Load)):
            parent = self.context.parent(load)
            known = isinstance(parent, ast.BinOp) and isinstance(parent.op, _ARITHMETIC)
            other = known and (parent.right if parent.left is load else parent.left)
            if not isinstance(other, ast.Name) or not self.context.kind(other).is_tensor:
                return f"`{target}` goes elsewhere than into arithmetic with a tensor"
            if other.id not in once:
                return f"`{other.id}` is bound at several places"
            self.asked.add(f"{other.id}.is_floating_point()")
            self.asked.add(f"{other.id}.dim() > 0")
            if self.context.kind(other).device != test.kind.device:
                self.asked.add(f"{other.id}.device == {self._like(test)}.device")
        return ""

    def _like(self, test):
        names = (n for n in ast.walk(self.node.test) if isinstance(n, ast.Name))
        return next((n.id for n in names if self.context.kind(n).is_tensor), f"({test.text})")
