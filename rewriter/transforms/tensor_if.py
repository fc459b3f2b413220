"""An `if` on a tensor's value whose sides give values, as a choice: `torch.where` or
`torch.cond`."""

import ast
from dataclasses import dataclass, replace

from ..analysis.kinds import ANY, PYTHON_NUMBERS
from ..analysis.name_scopes import rebindings
from ..analysis.oracle import Oracle
from ..analysis.proofs import moves
from ..analysis.tree_walk import below
from ..source.spans import Edit, Fix, Refusal, Safety
from .condition import Condition, condition, is_total
from .two_sides import Chooser

_MOST_BETWEEN = 8


@dataclass(frozen=True)
class Shape:
    """An `if` that computes values: `pairs` of (target text or None for return, expression if true,
    if false); `last`: the statement that the rewritten code ends with (the `if`, or the `return`
    after it); `rest`: the assignments between them, in code that compiled code alone takes."""

    pairs: tuple
    last: ast.stmt
    rest: tuple = ()


def chosen(node: ast.If, oracle: Oracle) -> Fix | Refusal | None:
    """The Fix that makes the `if` a choice, or the Refusal; None: no tensor decides it."""
    test = condition(node.test, oracle)
    if test is None:
        return None
    lead = None
    if isinstance(test, str):
        lead, test = led(node, oracle) or (None, test)
    made = test if isinstance(test, str) else _Rewrite(node, oracle, test, lead).fix()
    return Refusal(made) if isinstance(made, str) else made


@dataclass(frozen=True)
class Values:
    """An `if` with its `elif`s that computes values: `tests`, and for each target (None for return)
    its value under each of them, and without; `before`: statements to run ahead; `last`: one that
    must follow, so that the old form does not run as well; `facts`: what is to be asked before;
    `rest`: assignments that the last value needs."""

    tests: tuple
    pairs: tuple
    before: tuple = ()
    last: str = ""
    facts: tuple = ()
    rest: tuple = ()


def value_pairs(node: ast.If, oracle: Oracle) -> Values | str:
    """The Values of an `if`, or a string that says why it is none."""
    tests, bodies, last = [node.test], [when_traced(node.body, oracle)], node
    while len(last.orelse) == 1 and isinstance(last.orelse[0], ast.If):
        last = last.orelse[0]
        tests.append(last.test)
        bodies.append(when_traced(last.body, oracle))
    if len(tests) == 1:
        rewrite = _Rewrite(node, oracle, "", "", optional=True)
        if len(node.body) == 1 and isinstance(node.body[0], ast.Continue):
            return _skipped(node, rewrite, oracle)
        shape = rewrite.shape()
        if isinstance(shape, str) or rewrite.doubt:
            return shape if isinstance(shape, str) else rewrite.doubt
        before, facts = tuple(rewrite.before), tuple(rewrite.facts)
        return Values((node.test,), shape.pairs, before, facts=facts, rest=shape.rest)
    return _chain(tests, bodies, last, oracle)


def when_traced(body: list[ast.stmt], oracle: Oracle) -> list[ast.stmt]:
    """The statements of a block that matter to compiled code: neither `if not torch.compiler
    .is_compiling():`, under which prints and the like stand, nor what is computed for these."""
    return [s for s in body if not (_is_eager_only(s, oracle) or _is_shown_only(s, oracle))]


def _is_shown_only(statement, oracle):
    """Whether a statement computes what stands under such an `if` alone."""
    target = _target(statement, oracle)
    if not target or not Chooser(oracle, statement).computes(statement.value):
        return False
    function = oracle.function(statement).node
    nodes = list(ast.walk(function))
    eager = {n for s in nodes if _is_eager_only(s, oracle) for n in ast.walk(s)}
    loads = [n for n in nodes if isinstance(n, ast.Name) and n.id == target]
    loads = [n for n in loads if isinstance(n.ctx, ast.Load)]
    own = target not in rebindings(function).shared
    return own and bool(loads) and eager.issuperset(loads)


def _is_eager_only(statement, oracle):
    test = statement.test if isinstance(statement, ast.If) and not statement.orelse else None
    call = test.operand if isinstance(test, ast.UnaryOp) else None
    asks = isinstance(call, ast.Call) and isinstance(test.op, ast.Not)
    return asks and oracle.resolve(call.func) == "torch.compiler.is_compiling"


def _skipped(node, rewrite, oracle):
    """The Values of `if test: continue` above the last statement of a turn, `name = value`."""
    block, index = oracle.block(node)
    rest = block[index + 1 :]
    target = _target(rest[0], oracle) if len(rest) == 1 and not node.orelse else ""
    if not target or not isinstance(oracle.parent(node), (ast.For, ast.While)):
        return "the rest of the loop's body does more than assign one value"
    old = rewrite.old(rest[0], target)
    if isinstance(old, str):
        return old
    return Values((node.test,), ((target, old, rest[0].value),), (), "continue")


def _chain(tests, bodies, last, oracle):
    """The Values of a chain of which every part gives one value."""
    bodies = [*bodies, when_traced(last.orelse, oracle)] if last.orelse else bodies
    if all(map(_is_return, bodies)) and last.orelse:
        return Values(tuple(tests), ((None, *(b[0].value for b in bodies)),))
    targets = {_target(b[0], oracle) if len(b) == 1 else "" for b in bodies}
    target = targets.pop()
    if targets or not target:
        return "the branches do more than assign values"
    values = [b[0].value for b in bodies]
    if not last.orelse:
        old = _Rewrite(last, oracle, "", "", optional=True).old(bodies[-1][0], target)
        if isinstance(old, str):
            return old
        values.append(old)
    return Values(tuple(tests), ((target, *values),))


@dataclass(frozen=True)
class PythonTest:
    """The Python part of a test, which is asked before what tensors decide. `settles`: the
    statements that run where it decides alone."""

    text: str
    ends: bool
    settles: tuple


def led(node, context):
    """(Lead, Condition of the rest) of a test that joins Python's conditions and tensors by `and`
    or by `or`; None for others. Python's come first, or are plain."""
    test = node.test
    if not isinstance(test, ast.BoolOp):
        return None
    decide = [condition(v, context) is not None for v in test.values]
    python = [v for v, tensor in zip(test.values, decide, strict=True) if not tensor]
    rest = [v for v, tensor in zip(test.values, decide, strict=True) if tensor]
    if not python or not rest:
        return None
    behind = python[decide.index(True) :]
    if not all(_is_plain(v, context) for v in behind):
        return None
    last = rest[0] if len(rest) == 1 else ast.copy_location(ast.BoolOp(test.op, rest), rest[0])
    found = condition(last, context)
    text = _joined(python, test.op, context)
    if not isinstance(found, Condition) or "\n" in text:
        return None
    if behind and not found.doubt and not is_total(rest, found, context):
        found = replace(found, doubt="the test may raise where it is not evaluated")
    ends = isinstance(test.op, ast.Or)
    return PythonTest(text, ends, tuple(node.body if ends else node.orelse)), found


def _is_plain(node, context):
    """Whether asking for a condition sooner, or at all, changes nothing."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _is_plain(node.operand, context)
    if isinstance(node, ast.Compare):
        told = all(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops)
        return told and all(_is_bound(n, context) for n in (node.left, *node.comparators))
    own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    if own and node.attr == "training":
        return context.kind(node.value).what == "self"
    known = context.kind(node).what in (*PYTHON_NUMBERS, "none", "str")
    return isinstance(node, (ast.Constant, ast.Name)) and known


def _is_bound(node, context):
    """Whether a name surely has a value."""
    if isinstance(node, ast.Constant):
        return True
    args = context.function(node).node.args
    own = {a.arg for a in (*args.posonlyargs, *args.args, *args.kwonlyargs)}
    known = context.kind(node).what != "unknown"
    return isinstance(node, ast.Name) and (known or node.id in own)


def _joined(parts, op, context):
    """The source of conditions joined by `op`, as they stand where they stand side by side."""
    word = "and" if isinstance(op, ast.And) else "or"
    simple = (ast.Compare, ast.Call, ast.Name, ast.Attribute, ast.Constant, ast.UnaryOp)
    texts = [context.segment(p) for p in parts]
    texts = [t if isinstance(p, simple) else f"({t})" for p, t in zip(parts, texts, strict=True)]
    return texts[0] if len(parts) == 1 else f" {word} ".join(texts)


def is_elif(node, source):
    return source.text.startswith("elif", source.span(node)[0])


class _Rewrite:
    """One `if` statement on its way to an expression."""

    def __init__(self, node, context, test, lead, optional=False):
        self.optional = optional  # whether what may be None is asked for by the new code
        self.node, self.context, self.test, self.lead = node, context, test, lead
        self.before, self.facts, self.doubt = [], [], ""
        self.source = context.source
        self.held = ""

    def fix(self):
        """The Fix, or a string that says why there is none."""
        shape = self.shape()
        if isinstance(shape, str):
            return shape
        indent, elif_ = self.source.indent_of(self.node), is_elif(self.node, self.source)
        if elif_ and shape.last is self.node:
            indent = self.source.white_before(self.node)
        if indent is None:
            return "the statement shares its line with others"
        if not self._shown_whole():
            return "a branch has an expression over several lines"
        chosen = self._choose(shape)
        if isinstance(chosen, str):
            return chosen
        return self._build(shape, chosen, indent)

    def _choose(self, shape):
        test = self._once(shape)
        chooser, choices = Chooser(self.context, self.node), []
        for target, first, second in shape.pairs:
            choice = chooser.choose(test, first, second, targets={target} - {None})
            if isinstance(choice, str):
                return choice
            choices.append(choice)
        if len(choices) > 1 and any(c.prelude for c in choices):
            return "the branches share calls in more than one assignment"
        return choices

    def _once(self, shape):
        """The test for several values: a name that holds it, so that it is computed once, before
        any of them changes."""
        if len(shape.pairs) == 1:
            return self.test
        self.held = self.context.fresh_name(self.node, "condition", "use_first")
        return replace(self.test, text=self.held, pure=True)

    def _build(self, shape, choices, indent):
        newline = self.source.newline
        last = self.node if self.lead and not self.lead.ends else shape.last
        start, end = self.source.span(self.node)[0], self.source.span(last)[1]
        kept = [self.source.span(side) for pair in shape.pairs for side in pair[1:]] + [
            self.source.span(self.node.test)
        ]
        lines = self.context.lost_comments(start, end, kept)
        lines += self.before
        lines += [f"{self.held} = {self.test.text}"] if self.held else []
        lines += [line for choice in choices for line in choice.prelude]
        for (target, _, _), choice in zip(shape.pairs, choices, strict=True):
            lines.append(f"return {choice.text}" if target is None else f"{target} = {choice.text}")
        unit = self.source.indent_unit()
        if self.lead:
            lines = self._led(lines, unit)
        if is_elif(self.node, self.source):
            lines = ["else:", *(unit + line for line in lines)]
        why = self.doubt or next((c.why for c in choices if c.safety is Safety.UNSAFE), "")
        return self.context.fix(
            f"use torch.{choices[0].form}",
            Edit(start, end, f"{newline}{indent}".join(lines)),
            safety=Safety.UNSAFE if why else Safety.SAFE,
            why=why,
            imports=choices[0].imports,
        )

    def _led(self, lines, unit):
        """The lines behind the Python part, which may decide alone."""
        settled = [self.context.segment(s) for s in self.lead.settles]
        first, second = (settled, lines) if self.lead.ends else (lines, settled)
        otherwise = ["else:", *(unit + line for line in second)] if second else []
        return [f"if {self.lead.text}:", *(unit + line for line in first), *otherwise]

    def _shown_whole(self):
        """Whether what stands behind the Python part can stand elsewhere."""
        spans = [self.source.span(s) for s in self.lead.settles] if self.lead else []
        return not any("\n" in self.source.text[start:end] for start, end in spans)

    def shape(self):
        body, orelse = self.node.body, self.node.orelse
        if self.optional:  # a form for compiled code
            body, orelse = when_traced(body, self.context), when_traced(orelse, self.context)
        if not body:
            return "the branches do more than assign values"
        if len(orelse) == 1 and isinstance(orelse[0], ast.If):
            return "an `elif` follows that cannot be fixed, or not before this one"
        if _is_return(body):
            return self._returning(body, orelse)
        if not orelse:
            body = self._without_numbers(body)
        body, orelse = unpacked(body), unpacked(orelse)
        targets = [_target(s, self.context) for s in body]
        if not all(targets):
            return "the branches do more than assign values"
        if len(set(targets)) < len(targets) or self._chained(body, targets):
            return "the assignments of a branch depend on each other"
        return self._assigning(body, orelse, targets)

    def _without_numbers(self, body):
        """Leading assignments of Python numbers that only this block uses are made before the
        choice."""
        body = list(body)
        while len(body) > 1 and self._number(body[0]):
            statement = body.pop(0)
            self.context.runs(statement.targets[0].id, statement.value)
            self.before.append(self.context.segment(statement))
        return body

    def _number(self, statement):
        target = _target(statement, self.context)
        if (
            not target
            or not self.context.kind(statement.value).is_number
            or self.context.kind(statement.value).host
        ):
            return False
        inside = set(ast.walk(self.node))
        everywhere = ast.walk(self.context.function(self.node).node)
        if any(isinstance(n, ast.Name) and n.id == target and n not in inside for n in everywhere):
            return False
        for call in (n for n in ast.walk(statement.value) if isinstance(n, ast.Call)):
            if self.context.resolve(call.func) != "torch.finfo" or len(call.args) != 1:
                return False
            self.doubt = self.doubt or self._finfo(call.args[0])
        self.doubt = self.doubt or moves(statement, target, self.context)
        return True

    def _finfo(self, dtype):
        tensor = self.context.kind(dtype.value) if isinstance(dtype, ast.Attribute) else ANY
        if tensor.is_tensor and self.context.inference.tokens.category(tensor.dtype) == "float":
            return ""
        if self.optional and isinstance(getattr(dtype, "value", None), ast.Name):
            self.facts.append(f"{dtype.value.id}.is_floating_point()")
            return ""
        return "torch.finfo raises for a dtype that is not floating-point"

    def _returning(self, body, orelse):
        if _is_return(orelse):
            return Shape(((None, body[0].value, orelse[0].value),), self.node)
        block, index = self.context.block(self.node)
        after = block[index + 1 :]
        if self.optional and not orelse:
            after = when_traced(after, self.context)
        rest = tuple(after[:-1]) if self.optional else ()
        after = after[len(rest) :]
        if orelse or not _is_return(after[:1]) or not self._computed(rest):
            return "the branches do more than assign values"
        if self.context.kind(after[0].value).what == "none":
            return "one side returns nothing"
        return Shape(((None, body[0].value, after[0].value),), after[0], rest)

    def _computed(self, rest):
        """Whether statements bind new names to what is computed alone, one after the other."""
        targets = [_target(s, self.context) for s in rest]
        if not all(targets) or len(set(targets)) < len(targets) or len(targets) > _MOST_BETWEEN:
            return False
        function, inside = (
            self.context.function(self.node).node,
            {n for s in rest for n in below(s)},
        )
        early = (n for n in below(function) if isinstance(n, (ast.Name, ast.arg)))
        named = {
            getattr(n, "id", "") or getattr(n, "arg", "")
            for n in early
            if n not in inside and n.lineno <= self.node.end_lineno
        }
        late = rebindings(function).shared
        if set(targets) & (named | late) or any(
            self._reads_late(rest, i) for i in range(len(rest))
        ):
            return False
        return all(Chooser(self.context, self.node).computes(s.value) for s in rest)

    def _reads_late(self, rest, index):
        """Whether a statement reads what it, or one after it, binds."""
        later = {_target(s, self.context) for s in rest[index:]}
        return any(isinstance(n, ast.Name) and n.id in later for n in ast.walk(rest[index].value))

    def _chained(self, body, targets):
        """Whether a later value of a side uses a name that an earlier one binds."""
        for index, statement in enumerate(body):
            used = {n.id for n in ast.walk(statement.value) if isinstance(n, ast.Name)}
            if used & set(targets[:index]):
                return True
        return False

    def _assigning(self, body, orelse, targets):
        others = {_target(s, self.context): s.value for s in orelse if isinstance(s, ast.Assign)}
        if orelse and (list(others) != targets or len(orelse) != len(targets)):
            return "the branches do not assign the same names"
        if orelse and self._chained(orelse, targets):
            return "the assignments of a branch depend on each other"
        pairs = []
        for statement, target in zip(body, targets, strict=True):
            other = others.get(target) or self.old(statement, target)
            if isinstance(other, str):
                return other
            pairs.append((target, _value(statement), other))
        reads = {
            n.id
            for pair in pairs[1:]
            for side in pair[1:]
            for n in ast.walk(side)
            if isinstance(n, ast.Name)
        }
        if reads & set(targets[:-1]) and len(pairs) > 1:
            return "the assignments of a branch depend on each other"
        return Shape(tuple(pairs), self.node)

    def old(self, statement, target):
        """The value that `target` had before, as a node with a kind."""
        kind = self.context.inference.at_branch.get(self.node, {}).get(target, ANY)
        if not kind.is_tensor or (kind.optional and not self.optional):
            return f"`{target}` is not known to be a tensor before"
        node = statement.targets[0]
        old = ast.Name(target, ast.Load())
        ast.copy_location(old, node)
        self.context.inference.kinds[old] = kind
        return old


def unpacked(body):
    """The statements of a block with `a, b = x, y` as two assignments: what depends on their order
    is refused."""
    found = []
    for statement in body:
        parts = _pair(statement)
        found += [
            ast.copy_location(ast.Assign([target], value), statement) for target, value in parts
        ] or [statement]
    return found


def _pair(statement):
    """(name, value) of each part of `a, b = x, y`; () for others."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return ()
    target, value = statement.targets[0], statement.value
    both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
    if not both or len(target.elts) != len(value.elts):
        return ()
    return (
        ()
        if any(isinstance(e, ast.Starred) for e in value.elts)
        else tuple(zip(target.elts, value.elts, strict=True))
    )


def _is_return(body):
    return len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value is not None


def _target(statement, context):
    """The one name that a plain assignment binds; "" for any other statement."""
    if (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
    ):
        return statement.targets[0].id if isinstance(_value(statement), ast.expr) else ""
    return ""


def _value(statement):
    return statement.value
