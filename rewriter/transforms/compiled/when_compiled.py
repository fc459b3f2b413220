"""A choice on a tensor's value that compiled code alone makes as `torch.where` or `torch.cond`:

    if torch.compiler.is_compiling() and x.is_floating_point():
        x = torch.where(x.max() > 1, x / 255, x)
    elif x.max() > 1:
        x = x / 255

Eager runs the statements that it ran, by construction. Compiled code must give the same values,
dtypes, shapes and gradients; who holds which tensor, and what a print shows, is eager's business.
What the text cannot show of dtypes, shapes and gradients is a *fact* that the code asks for itself:
it is known while the code is traced, costs nothing in the graph, and where it does not hold all is
as it was. The conditions (those of `proofs`, less what only eager can feel):

- sides: for `where`, total (`where_safety.Plain`); for `cond`, which runs one of them, calls of
  torch's functions and tensors' methods that neither write nor draw;
- test: of one element, or that is asked; compared in double where Python did so;
- dtype, shape: equal, or that is asked;
- gradients: both sides feed the same tensors; another one is asked not to require a gradient;
- identity: nobody writes into the tensor that eager would have kept, or looks at its memory."""

import ast
from dataclasses import replace

from ...analysis.call_effects import draws
from ...analysis.proofs import Proofs
from ...analysis.where_safety import Plain
from ...source.spans import Edit, Fix, Refusal, Safety
from ..condition import Condition, condition, host_read
from ..tensor_if import is_elif, value_pairs
from ..two_sides import Chooser
from .gradient_roots import GradientRoots
from .side_shapes import SideShapes
from .trace_time_checks import TraceTimeChecks, grouped, is_a_tensor, negated

_LONGEST = 88
_ZEROS = "tensors used in the branch not taken alone get zero gradients in place of None"
_RAISES = "both branches are traced: one that raises does not compile"
_HANDLED = "what an operator raises goes past the handlers around"
_REPEATED = (  # what is evaluated once more without being felt
    *(ast.Name, ast.Constant, ast.Attribute, ast.Subscript, ast.Slice, ast.Tuple, ast.BinOp),
    *(ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.cmpop, ast.expr_context),
)
_CALLS = (
    "a call in a side raises where it writes into a buffer (BatchNorm in training), and both sides"
    " must agree in shape and dtype"
)


def made(node: ast.If, oracle, loose: bool = False) -> Fix | Refusal:
    """The Fix that adds a form for compiled code to an `if` that a tensor decides. `loose`: one
    that may differ from eager there in gradients, and that may not compile: unsafe."""
    return Compiled(node, oracle, loose).fix()


def made_of_expression(node: ast.IfExp, oracle, loose: bool = False) -> Fix | Refusal:
    """The same for a conditional expression that is all of an assignment or a `return`."""
    return CompiledExpression(node, oracle, loose).fix()


def _is_call(attribute, node):
    """Whether an attribute is what is called within a node: a method, a function of torch."""
    calls = (n.func for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(attribute in ast.walk(func) for func in calls)


def _listed(side):
    return side if isinstance(side, list) else [side]


class Compiled:
    """One `if` (with its `elif`s) on its way to a second form."""

    title = ""

    def __init__(self, node, context, loose=False):
        self.node, self.context, self.source = node, context, context.source
        self.loose, self.doubts = loose, {}
        self.tokens, self.asked = context.inference.tokens, TraceTimeChecks()
        self.proofs = Proofs(context, node)
        self.shapes = SideShapes(context, self.asked_later, getattr(node, "test", None))
        self.torch, self.roots = context.torch(node), GradientRoots(context, node)
        self.held, self.forms, self.rest = "", set(), {}

    def asked_later(self, fact):
        self.asked.add(fact)

    def fix(self):
        found = self.lines()
        early = self._asked_early()
        if isinstance(found, str) or early:
            why = f"`{early}` is bound by the test, before which it would be asked for"
            return Refusal(found if isinstance(found, str) else why)
        lines, returns = found
        return self.inserted(lines, returns)

    def inserted(self, lines, returns):
        indent = self.source.white_before(self.node)
        if indent is None:
            return Refusal("it shares its line with others")
        newline, unit = self.source.newline, self.source.indent_unit()
        word = "elif" if is_elif(self.node, self.source) else "if"
        head = self.guard(word, indent)
        text = newline.join([head, *(f"{indent}{unit}{line}" for line in lines), indent])
        start = self.source.span(self.node)[0]
        joined = text if returns or word == "elif" else f"{text}el"
        form = " and ".join(sorted(self.forms))
        edit = Edit(start, start, joined)
        return self.made(form, edit)

    def made(self, form, *edits):
        if self._handled():
            self.doubts.setdefault(_HANDLED)
        title = self.title or f"use torch.{form} when compiled"
        why = "; ".join(self.doubts) and f"in compiled code {'; '.join(self.doubts)}"
        safety = Safety.UNSAFE if why else Safety.SAFE
        fix = self.context.fix(title, *edits, safety=safety, why=why, imports=self.torch[1])
        sides = [n for name in ("body", "orelse") for n in _listed(getattr(self.node, name, []))]
        shown = _HANDLED not in self.doubts and self.context.ran(sides)
        compiled = {"asked": True, "compiled": True, "ran": shown}
        return replace(fix, **compiled) if isinstance(fix, Fix) else fix

    def _handled(self):
        """Whether it stands in a `try` that has handlers."""
        child, parent = self.node, self.context.parent(self.node)
        while parent is not None and child is not self.proofs.function:
            if isinstance(parent, ast.Try) and parent.handlers and child in parent.body:
                return True
            child, parent = parent, self.context.parent(parent)
        return False

    def guard(self, word, indent):
        facts = [f"{self.torch[0]}.compiler.is_compiling()", *self.asked.texts(self.torch[0])]
        line, newline = f"{word} {' and '.join(facts)}:", self.source.newline
        if len(indent) + len(line) <= _LONGEST:
            return line
        inner = f"{newline}{indent}{self.source.indent_unit()}"
        return f"{word} ({inner}{f'{inner}and '.join(facts)}{newline}{indent}):"

    def shares(self, statement):
        rest = self.source.line(statement.end_lineno)[
            self.source.column(statement.end_lineno, statement.end_col_offset) - 1 :
        ]
        return rest.strip()[:1] not in ("", "#")

    def hidden(self):
        """Why torch has no name here; "" where it has."""
        rebound = self.context.names.torch_rebound(self.proofs.function)
        known = self.torch is not None and not rebound
        return "" if known else f"`{rebound or 'torch'}` is hidden by another name"

    # What is chosen

    def lines(self):
        """(the lines of the form for compiled code, whether they return), or why there is none."""
        hidden = self.hidden()
        if hidden:
            return hidden
        shape = value_pairs(self.node, self.context)
        if isinstance(shape, str):
            return shape
        tests = [self.test(t) for t in shape.tests]
        for fact in shape.facts:
            self.asked.add(fact)
        wrong = next((t for t in tests if isinstance(t, str)), "")
        if wrong or shape.rest:
            return wrong or self._returned(shape, tests)
        swapped = len(tests) == 1 and tests[0].negated
        tests = [replace(tests[0], negated=False)] if swapped else tests
        lines, texts = list(shape.before), [self.shown(t) for t in tests]
        if len(shape.pairs) > 1:
            self.held = self.context.fresh_name(self.node, "condition", "use_first")
            lines, texts = [*lines, f"{self.held} = {texts[0]}"], [self.held]
        for target, *values in shape.pairs:
            values = values[::-1] if swapped else values
            text = self.choice(texts, tests, values, target)
            if text.startswith("!"):
                return text[1:]
            lines.append(f"return {text}" if target is None else f"{target} = {text}")
        leaves = bool(shape.last) or shape.pairs[0][0] is None
        return [*lines, *filter(None, [shape.last])], leaves

    def _returned(self, shape, tests):
        """The lines that return one of two values, of which the second needs statements."""
        self.rest = {s.targets[0].id: s.value for s in shape.rest}
        self.shapes.bound, self.roots.bound = self.rest, self.rest
        values = [*shape.pairs[0][1:], *self.rest.values()]
        other = next((v for v in values if not self.context.kind(v).is_tensor), None)
        why = other and f"`{self.text(other)}` is not known to be a tensor"
        why = why or self._tensors(values[:2]) or self._refused(values, set())
        lines = [self.context.segment(s) for s in shape.rest]
        lines.append(f"return {self.context.segment(values[1])}")
        if why or any("\n" in line for line in lines):
            return why or "a statement has several lines"
        self.forms.add("cond")
        name = self.context.fresh_name(self.node, "otherwise", "not_taken")
        sides = [f"lambda: {self._new(values[0])}", name]
        sides = sides[::-1] if tests[0].negated else sides
        text = self.call("cond", self.shown(replace(tests[0], negated=False)), *sides)
        unit = self.source.indent_unit()
        return [f"def {name}():", *(unit + line for line in lines), f"return {text}"], True

    def _asked_early(self):
        """A name that a test binds, and that what is asked before it mentions, or ""."""
        bound = {n.target.id for n in ast.walk(self.node) if isinstance(n, ast.NamedExpr)}
        bound |= self.rest.keys()
        texts = self.asked.texts("torch") if bound else []
        named = {n.id for t in texts for n in _names(ast.parse(t.strip(), mode="eval"))}
        return min(bound & named, default="")

    def choice(self, texts, tests, values, target):
        """The text of a choice between values, the last of which needs no test; "!why"."""
        reason = self._tensors(values)
        if reason:
            return f"!{reason}"
        targets = {target} - {None}
        asked, doubts = self.asked.copy(), dict(self.doubts)
        text, why = self._where(texts, tests, values, targets)
        if why and len(values) == 2:
            self.asked, self.doubts = asked, doubts
            text, other = self._cond(texts[0], values, targets)
            why = other and f"{why}; {other}"
        return f"!{why}" if why else text

    def _tensors(self, values):
        for value in values:
            kind = self.context.kind(value)
            if not kind.is_tensor:
                return f"`{self.text(value)}` is not known to be a tensor"
            unknown = self.ask_tensors(value)
            if unknown:
                return unknown
        return ""

    def ask_tensors(self, node):
        """Asks of names, and of what methods are called on, that they are tensors where they are if
        inputs are; why that cannot be asked, or ""."""
        for part in ast.walk(node):
            kind, name = self.context.kind(part), isinstance(part, ast.Name)
            given = name and kind.optional
            if not kind.is_tensor or not (given or self.context.assumed_tensor(part, self.node)):
                continue
            method = isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute)
            asked = part if name else part.func.value if method else None
            if asked is None or (not name and self.context.kind(asked).is_tensor):
                continue
            text = self.text(asked)
            if not name and not all(isinstance(n, _REPEATED) for n in ast.walk(asked)):
                return f"`{text}` may be no tensor"
            self.asked.add(is_a_tensor(self.torch[0], text))
        return ""

    # The tests

    def test(self, test):
        """The Condition of a test; Python's part of it is asked first."""
        if isinstance(test, ast.BoolOp):
            led = self._led(test)
            if led is not None:
                return led
        found = condition(test, self.context)
        if not isinstance(found, Condition):
            read = self._with_reads(test)
            found = condition(read, self.context) if read is not None else found
        if not isinstance(found, Condition):
            return found or "the test is not a tensor's value alone"
        return self._certain(found, test)

    def _with_reads(self, test):
        """A test with what names were read from in their place; None where there is no such."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self._with_reads(test.operand)
            return inner and ast.copy_location(ast.UnaryOp(test.op, inner), test)
        if isinstance(test, ast.Name):
            return self._read_behind(test)
        if not isinstance(test, ast.Compare) or len(test.ops) > 1:
            return None
        sides = test.left, test.comparators[0]
        left, right = reads = [self._read_behind(s) for s in sides]
        if left is right is None:
            return None
        left, right = (r or s for r, s in zip(reads, sides, strict=True))
        return ast.copy_location(ast.Compare(left, test.ops, [right]), test)

    def _read_behind(self, node):
        """The read that a name stands for, `t.item()`, where it would give the same now."""
        value, since = (
            self.proofs.since_bound(node.id) if isinstance(node, ast.Name) else (None, ())
        )
        tensor = value is not None and host_read(value, self.context)
        if (
            not tensor
            or draws(value)
            or self.context.acts(value)
            or "\n" in self.context.segment(value)
        ):
            return None
        names = {n.id for n in _names(tensor)} - {self.torch and self.torch[0]}
        chooser, quiet = Chooser(self.context, self.node), True
        if any(isinstance(n, ast.Attribute) and not _is_call(n, tensor) for n in ast.walk(tensor)):
            assigned = [s for s in since if isinstance(s, ast.stmt)]
            plain = (isinstance(s, ast.Assign) and chooser.computes(s.value) for s in assigned)
            quiet = all(plain)
        return value if quiet and self.proofs.still(names, since) else None

    def decides(self, part):
        """Whether a part of a test needs what only runs can tell."""
        return condition(part, self.context) is not None

    def _led(self, test):
        """`python and tensor`, `python or tensor`."""
        first = [v for v in test.values if not self.decides(v)]
        rest = test.values[len(first) :]
        if not first or first != test.values[: len(first)] or len(rest) != 1:
            return None
        for part in first:
            text = self.context.shown(part)
            if isinstance(test.op, ast.And):
                self.asked.add(f"({text})" if isinstance(part, ast.BoolOp) else text)
            else:
                self.asked.add(negated(part, text))
        return self.test(rest[0])

    def _certain(self, found, test):
        """A Condition of which nothing is in doubt any more, or why it is."""
        unknown = self.ask_tensors(test)
        if unknown:
            return unknown
        again = draws(test) or self.context.acts(test)  # asking would do it once more
        if found.doubt and (not found.settled or again):
            if not self.loose:
                return found.doubt
            self.doubts.setdefault(found.doubt)
            return found
        if found.doubt:
            for fact in found.settled:
                self.asked.add(fact)
        return found

    def shown(self, test):
        text = test.exact or test.text
        return f"{self.torch[0]}.logical_not({text})" if test.negated else text

    # torch.where

    def _where(self, texts, tests, values, targets):
        """(text, "") or ("", why)."""
        plain = Plain(self.context, {})
        sides = [plain.side(v) for v in values]
        if self._doubtful(sides):
            assumed = self._floats(values)
            plain = Plain(self.context, {d: a for d, (a, _) in assumed.items()})
            other = [plain.side(v) for v in values]
            if not self._doubtful(other) or self._doubts(other) < self._doubts(sides):
                sides = other
                for _, names in assumed.values():
                    for name in names:
                        self.asked.add(f"{name}.is_floating_point()")
        blocked = [s.problem or s.doubt for s in sides if s.problem or s.doubt]
        blocked += [
            "a branch calls a function that may have side effects" for s in sides if s.calls
        ]
        blocked += ["a random number is drawn" for v in values if draws(v)]
        why = next(iter(blocked), "") or self._agree(sides, values, targets)
        if why:
            return "", why
        self.forms.add("where")
        for name, least in plain.axes.items():
            self.asked.add(f"{name}.dim() > {least - 1}")
        text = self.text(values[-1])
        for shown, test, value in reversed(list(zip(texts, tests, values[:-1], strict=True))):
            moved = self._moved(shown, test, value, values[-1])
            text = self.call("where", moved, self.text(value), text)
        return text, ""

    def _moved(self, text, test, *values):
        """The condition, without axes that would be the result's, on the sides' device."""
        kind, kinds = test.kind, [self.context.kind(v) for v in values]
        wrapped = text if text.isidentifier() else f"({text})"
        low = min(k.least_rank() for k in kinds)
        if kind.rank != 0 and (kind.rank is None or kind.rank > low):
            text = wrapped = f"{wrapped}.reshape(())"
        if any(kind.device == k.device for k in kinds) or (
            kind.rank == 0 and kind.device == self.tokens.default_device
        ):
            return text
        like = next((n.id for v in values for n in _names(v) if self.context.kind(n).is_tensor), "")
        return f"{wrapped}.to({like}.device)" if like else text

    def _doubts(self, sides):
        return sum(bool(s.problem or s.doubt) for s in sides) + (
            len({s.kind.dtype for s in sides}) > 1
        )

    def _doubtful(self, sides):
        return self._doubts(sides) > 0

    def _floats(self, values):
        """{dtype: (a floating-point one in its place, names of it)} of names and attributes of
        which the dtype is not known."""
        found = {}
        for node in (n for v in values for n in ast.walk(v)):
            kind = self.context.kind(node)
            named = isinstance(node, (ast.Name, ast.Attribute)) and kind.is_tensor
            named = named and getattr(node, "id", "") not in self.rest
            if named and self.tokens.category(kind.dtype) not in ("float", "int", "bool"):
                token = found.setdefault(kind.dtype, (self.tokens.some("float"), {}))
                token[1].setdefault(self.text(node))
        return found

    # torch.cond

    def _cond(self, text, values, targets):
        """(text, "") or ("", why)."""
        why = self._refused(values, targets)
        if why:
            return "", why
        self.forms.add("cond")
        shown = [f"lambda: {self._new(v)}" for v in values]
        return self.call("cond", text, *shown), ""

    def _refused(self, values, targets):
        """Why torch.cond cannot choose between the first two of some values, of which the others
        are computed in the second."""
        chooser = Chooser(self.context, self.node)
        sides = [chooser.plain.side(v) for v in values[:2]]
        why = next((b for b in map(chooser.blocked, values) if b), "")
        if not why and not all(map(chooser.computes, values)):
            why = "" if self.loose else "a branch may have side effects"
            self.doubts.setdefault(_CALLS)
            why = why or ("a random number is drawn" if any(map(draws, values)) else "")
        return (
            why
            or chooser.differ(*values[:2])
            or self._raises(values)
            or self._agree(sides, values[:2], targets)
        )

    def _raises(self, values):
        """Why a side may raise while it is traced, where it is not taken."""
        names = [n for _, texts in self._floats(values).values() for n in texts]
        for name in () if self.loose else names:
            self.asked.add(f"{name}.is_floating_point()")
        if all(self.shapes.of(v) is not None for v in values):
            return ""
        if self.loose:
            self.doubts.setdefault(_RAISES)
        return "" if self.loose else _RAISES

    def _new(self, value):
        """A side of torch.cond must give a new tensor."""
        new = self.proofs.uses.new(value)
        return self.context.segment(value) if new else f"{self.context.atom(value)}.clone()"

    def call(self, name, *parts):
        """A call of a function of torch, over several lines where one would be long."""
        short = f"{self.torch[0]}.{name}({', '.join(parts)})"
        indent = (self.source.white_before(self.node) or "") + self.source.indent_unit()
        if len(indent) + len(short) <= _LONGEST:
            return short
        newline = f"{self.source.newline}{indent}"
        inner = "".join(f"{newline}{self.source.indent_unit()}{p}," for p in parts)
        return f"{self.torch[0]}.{name}({inner}{newline})"

    # What both must agree in

    def _agree(self, sides, values, targets):
        for side, value in zip(sides[1:], values[1:], strict=True):
            why = self._alike(sides[0], side, values[0], value)
            if why:
                return why
        for side, value in zip(sides, values, strict=True):
            if self.proofs.loses_history(side, value) and not self.loose:
                self.asked.histories.setdefault(self.text(value))
        return self._gradients(sides, values) or self.proofs.why_compiled_differs(
            sides, values, targets
        )

    def _alike(self, one, other, *values):
        categories = {self.tokens.category(s.kind.dtype) for s in (one, other)}
        if len(categories & {"bool", "int", "float"}) > 1:
            return "the branches give different dtypes"
        if any(a.rank is not None and a.rank < b.least_rank() for a, b in _both_ways(one, other)):
            return "the branches give different numbers of dimensions"
        if one.kind.shape != other.kind.shape and not self.shapes.agree(*values):
            if not self.loose:
                return "the branches may give different shapes"
            if _CALLS in self.doubts or any(_picks(v) or draws(v) for v in values):
                self.doubts.setdefault("branches of different shapes do not compile")
            else:
                self.asked.add(" == ".join(f"{grouped(v, self.text(v))}.shape" for v in values))
        if one.kind.dtype == other.kind.dtype or (self.loose and _CALLS in self.doubts):
            return ""  # asking would call what is called
        if self._floats_of_one_dtype(values):
            return ""
        if any(_picks(v) or draws(v) for v in values):
            if not self.loose:
                return "the branches may give different dtypes"
            self.doubts.setdefault("branches of different dtypes do not compile")
            return ""
        texts = [grouped(v, self.text(v)) for v in values]
        self.asked.add(f"{texts[0]}.dtype == {texts[1]}.dtype")
        return ""

    def _floats_of_one_dtype(self, values):
        """Whether both sides have one dtype if it is floating-point, which is asked then."""
        facts = []
        self.shapes.ask = facts.append
        one = self.shapes.one_dtype(*values)
        self.shapes.ask = self.asked_later
        if not isinstance(one, int):
            return False
        if self.tokens.category(one) != "float":
            facts.append(f"{self.shapes.named[one]}.is_floating_point()")
        for fact in facts:
            self.asked.add(fact)
        return True

    def _gradients(self, sides, values):
        """Tensors that one side feeds and another does not must not require a gradient."""
        if all(self.tokens.category(s.kind.dtype) in ("int", "bool") for s in sides):
            return ""
        fed = [self.roots.fed(v) for v in values]
        every = {d: n for f in fed for d, n in f.items()}
        for dump, node in every.items():
            if all(dump in f for f in fed):
                continue
            if self.loose:
                self.doubts.setdefault(_ZEROS)
                continue
            if not self.context.kind(node).is_tensor or self.roots.learns(node):
                text = self.text(node)
                return f"`{text}` would get a zero gradient where it had none"
            self.asked.gradients.setdefault(self.text(node))
        return ""

    def text(self, node):
        return " ".join(self.context.segment(node).split())


class CompiledExpression(Compiled):
    """`x = a if t else b`, `return a if t else b`."""

    def lines(self):
        statement = self.context.parent(self.node)
        plain = isinstance(statement, ast.Return) or (
            isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name)
        )
        if not plain or self.hidden():
            return "it is only a part of an assignment or a return"
        test = self.test(self.node.test)
        if isinstance(test, str):
            return test
        target = None if isinstance(statement, ast.Return) else statement.targets[0].id
        text = self.choice([self.shown(test)], [test], [self.node.body, self.node.orelse], target)
        if text.startswith("!"):
            return text[1:]
        return [f"return {text}" if target is None else f"{target} = {text}"], target is None

    def inserted(self, lines, returns):
        statement = self.context.parent(self.node)
        indent, (start, end) = self.source.indent_of(statement), self.source.span(statement)
        if indent is None or self.source.has_long_string(start, end) or self.shares(statement):
            return Refusal("it shares its line with others")
        newline, unit = self.source.newline, self.source.indent_unit()
        head = [self.guard("if", indent), f"{indent}{unit}{lines[0]}"]
        form = " and ".join(sorted(self.forms))
        text = newline.join([*head, indent if returns else f"{indent}else:"])
        edits = [Edit(start, start, text if returns else f"{text}{newline}{indent}{unit}")]
        if not returns and newline in self.source.text[start:end]:
            return Refusal("it goes over several lines")
        return self.made(form, *edits)


def _both_ways(one, other):
    return (one.kind, other.kind), (other.kind, one.kind)


def _names(node):
    return [n for n in ast.walk(node) if isinstance(n, ast.Name)]


def _picks(node):
    """Whether a part is picked by something else than constants."""
    indices = (n.slice for n in ast.walk(node) if isinstance(n, ast.Subscript))
    plain = (ast.Constant, ast.Slice, ast.Tuple, ast.UnaryOp, ast.USub, ast.Load)
    return any(not isinstance(n, plain) for index in indices for n in ast.walk(index))
