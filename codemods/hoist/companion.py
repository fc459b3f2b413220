"""The function that computes ahead what another reads on the host, as text, and the edits that hand
its values down."""

import ast
import copy
import itertools
import re
from dataclasses import dataclass, field

from ...rewriter.edits.spans import Edit
from ..analysis.captured_walk import VALUES
from .slices import Slice

_CLOSING = re.compile(r"(\s*\))*")
HELPER = "_read_ahead"
_WIDTH = 120  # columns
HELPER_TEXT = f'''
def {HELPER}(read):
    """Have `read` compute, ahead of the captured call and on the host, what the method takes as `{VALUES}`."""

    def decorate(method):
        @functools.wraps(method)
        def call(self, *args, **kwargs):
            within = torch.compiler.is_compiling() or "{VALUES}" in kwargs  # another graph, or another's values
            if within or torch.nn.modules.module._global_forward_pre_hooks:
                return method(self, *args, **kwargs)
            ahead = torch.compiler.disable(read) if "_dynamo" in torch.__dict__ else read
            try:
                values = ahead(self, *args, **kwargs)
            except Exception:  # raised again where it belongs
                values = {{}}
            return method(self, *args, {VALUES}=values, **kwargs)

        # `call` itself is plain Python to Dynamo, which goes on with what it calls
        frames = torch._C._dynamo.eval_frame
        frames.set_code_exec_strategy(
            call.__code__, frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        )
        return call

    return decorate
'''


@dataclass(eq=False)
class Call:
    """Where the function of `callee` is called: `matched` {parameter: argument}, `extra` {keyword:
    argument} beyond them; `receiver`: what stands for its first parameter, `of_module`: a module
    that is called."""

    caller: "Companion"
    callee: "Companion"
    node: ast.Call
    receiver: ast.expr | None = None
    of_module: bool = False
    spread: bool = False
    matched: dict = field(default_factory=dict)
    extra: dict = field(default_factory=dict)
    part: ast.Subscript | None = None  # the element by which the arguments change in a loop

    @property
    def passed(self):
        """Parameters without a default that the call can only give by the caller's own
        `**kwargs`."""
        callee, args = self.callee, self.callee.function.args
        positional = [*args.posonlyargs, *args.args]
        optional = {a.arg for a in positional[len(positional) - len(args.defaults) :]}
        optional |= {
            a.arg for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=False) if d is not None
        }
        own = {callee.file.self_name(callee.function), callee.kwarg}
        return (callee.slice.needed - set(self.matched) - own - optional) | (
            callee.from_kwargs - set(self.extra)
        )

    @property
    def guard(self):
        """Whether what is called is the function of the companion: `` where it surely is."""
        owner = self.callee.file.cls(self.callee.function)
        if owner is None or self.receiver is None or isinstance(self.receiver, ast.Call):
            return ""
        name, receiver = self.callee.function.name, ast.unparse(self.receiver)
        same = f"type({receiver}).{name} is {owner.name}.{name}"
        return f"{same} and not {receiver}._forward_pre_hooks" if self.of_module else same

    @property
    def in_loop(self):
        """Whether what is computed once is handed down at every turn of a loop."""
        return self.part is None and in_loop(self.caller.file, self.caller.function, self.node)


@dataclass(eq=False)
class Unit:
    """What is computed ahead for `node`: `text`; or, of a loop, its `names`. `index`: what `node`
    takes of it. `is_number`: it is used as an int, or as several, alone."""

    node: ast.AST
    text: str = ""
    index: str = ""
    names: tuple = ()
    is_number: bool = False


class Companion:
    """`units` {key: Unit} are computed here, `calls` {key: Call} by others of its kind."""

    def __init__(self, file, function, purity, absent):
        self.file, self.function = file, function
        self.slice = Slice(file, function, purity, absent)
        self.units, self.calls, self.anchors, self.callers = {}, {}, {}, []
        self.is_root = self.bare = self.is_method = self.is_checked = False
        self.from_kwargs = set()  # what it takes of its function's `**kwargs`

    @property
    def kwarg(self):
        """The name of `**kwargs`."""
        return self.function.args.kwarg and self.function.args.kwarg.arg

    @property
    def takes_self(self):
        return (
            self.is_root
            or self.is_method
            or self.file.self_name(self.function) in self.slice.needed
        )

    @property
    def name(self):
        owner = self.file.cls(self.function)
        prefix = "" if owner is None or self.takes_self else f"{owner.name.lower()}_"
        return f"_{prefix}{self.function.name.lstrip('_')}_{VALUES}"

    @property
    def of(self):
        """The tensors that the values are computed of, where a decorator may hand on others."""
        own = {self.file.self_name(self.function), self.kwarg}
        names = sorted(self.slice.needed - own) if self.is_checked else ()
        facts = {n: self.file.fact(self.function, ast.Name(n, ast.Load())) for n in names}
        return [n for n in names if facts[n] is not None and facts[n].what == "tensor"]

    def key(self, node, wish):
        """A new key for what is computed for `node`; the old one where there is one."""
        for key, known in [*self.units.items(), *self.calls.items()]:
            if known.node is node:
                return key
        numbered = (f"{wish}_{i}" for i in range(2, 1000))
        return next(k for k in [wish, *numbered] if k not in self.units and k not in self.calls)

    # The function

    def text(self, indent, unit):
        """Its source, indented by `indent`."""
        writer = _Writer(self, unit)
        body = [f'"""What `{self.function.name}` reads on the host."""', f"{VALUES} = {{}}"]
        kwargs = self.kwarg
        if self.is_root and self.bare and kwargs:
            body.insert(1, f"if {kwargs}:")
            body.insert(2, f"{unit}return {{}}")
        if self.takes_self and not self.is_root:
            me, owner = self.file.self_name(self.function), self.file.cls(self.function).name
            body.insert(
                1, f"if type({me}).{self.function.name} is not {owner}.{self.function.name}:"
            )
            body.insert(2, f"{unit}return {{}}  # of another class")
        body[1:1] = self._same_methods(unit)
        checked = kwargs in self.slice.needed if kwargs else False
        body += [f"given = dict({kwargs})"] if checked else []
        of = ", ".join(f'"{name}": {name}' for name in self.of)
        body += [f'{VALUES}["of"] = {{{of}}}'] if of else []
        body += writer.block(self.function.body, "")
        body.append(
            f"return {VALUES} if {kwargs} == given else {{}}" if checked else f"return {VALUES}"
        )
        head = self._head(len(indent), unit)
        return (
            "\n".join(f"{indent}{line}" for line in [*head, *(unit + line for line in body)])
            + "\n\n"
        )

    def _same_methods(self, unit):
        """Nothing is computed where a method that would be called is another than the run saw."""
        me = self.file.self_name(self.function)
        tests = [
            f'type({me}).{n}.__qualname__ != "{full}"'
            for n, full in sorted(self.slice.methods.items())
        ]
        return (
            [f"if {' or '.join(tests)}:", f"{unit}return {{}}  # of another class"] if tests else []
        )

    def _head(self, indent, unit):
        parts = self._signature()
        head = f"def {self.name}({', '.join(parts)}):"
        if indent + len(head) <= _WIDTH:
            return [head]
        return [f"def {self.name}(", *(f"{unit}{part}," for part in parts), "):"]

    def _signature(self):
        """All of a root's parameters; of others those that the slice needs, one text each."""
        args, needed = self.function.args, self.slice.needed
        positional = [*args.posonlyargs, *args.args]
        defaults = [None] * (len(positional) - len(args.defaults)) + args.defaults
        me = self.file.self_name(self.function)
        pairs = [(a.arg, d) for a, d in zip(positional, defaults, strict=False)]
        if self.is_root:
            keywords = [(a.arg, d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=False)]
            star = [f"*{args.vararg.arg}"] if args.vararg else (["*"] if keywords else [])
            parts = [*map(_parameter, pairs), *star, *map(_parameter, keywords)]
        else:
            pairs += zip((a.arg for a in args.kwonlyargs), args.kw_defaults, strict=False)
            wanted = [(n, d) for n, d in pairs if n in needed and n != me]
            parts = [me] if self.takes_self else []
            wanted = [(n, None) for n in sorted(self.from_kwargs)] + wanted
            parts += (["*"] if wanted else []) + [_parameter(p) for p in wanted]
        kwarg = self.kwarg
        return [*parts, f"**{kwarg}"] if kwarg and (self.is_root or kwarg in needed) else parts

    def call_text(self, call):
        """The call of this companion where its function is called by `call`."""
        of = (
            (lambda node: one_of(node, call.part))
            if call.part
            else (lambda node: flat(call.caller.file, node))
        )
        given = [f"{name}={of(node)}" for name, node in self.arguments(call)]
        given += [f"{name}={name}" for name in sorted(call.passed)]
        prefix = f"{ast.unparse(call.receiver)}." if self.takes_self else ""
        return f"{prefix}{self.name}({', '.join(given)})"

    def arguments(self, call):
        """[(parameter, expression)] of what the slice needs and the call gives."""
        wanted = [(n, e) for n, e in call.matched.items() if n in self.slice.needed]
        whole = self.kwarg in self.slice.needed
        return wanted + [(n, e) for n, e in call.extra.items() if whole or n in self.from_kwargs]

    # The edits

    def edits(self):
        """Edits of the function: its parameter, its units and its calls."""
        tests = [f'{VALUES}["of"]["{name}"] is not {name}' for name in self.of]
        check = (
            f"if {VALUES} and"
            f" {' or '.join(tests) if len(tests) < 2 else '(' + ' or '.join(tests) + ')'}:"
            if tests
            else ""
        )
        yield from parameter_edits(self.file, self.function, check)
        for key, unit in self.units.items():
            yield from self._loop_edits(key, unit) if unit.names else self._value_edits(key, unit)
        for key, call in self.calls.items():
            yield self._argument_edit(call.node, self._handed(key, call))

    def _handed(self, key, call):
        """The argument that hands values down: nothing where none were computed, or where another
        function is called."""
        index = f"[{flat(self.file, call.part.slice)}]" if call.part else ""
        tests = [
            VALUES,
            f'{VALUES}.get("{key}")',
            *([call.guard] if not call.callee.takes_self and call.guard else []),
        ]
        return f'**({{"{VALUES}": {VALUES}["{key}"]{index}}} if {" and ".join(tests)} else {{}})'

    def _value_edits(self, key, unit):
        """The expression goes into the `else` of a choice; on lines of its own where one would be
        long."""
        source = self.file.source
        start, end = source.span(unit.node)
        line = source.line(unit.node.lineno)
        before = f'{VALUES}["{key}"]{unit.index} if {VALUES} and "{key}" in {VALUES} else '
        if len(line) + len(before) <= _WIDTH:
            return [Edit(start, start, f"({before}"), Edit(end, end, ")")]
        outer = source.newline + line[: len(line) - len(line.lstrip())]
        inner = outer + source.indent_unit()
        before = inner + before.replace(" if ", f"{inner}if ").replace(" else ", f"{inner}else ")
        return [Edit(start, start, f"({before}"), Edit(end, end, f"{outer})")]

    def _loop_edits(self, key, unit):
        """The loop goes into the `else` of a choice."""
        source, newline = self.file.source, self.file.source.newline
        indent, step = source.white_before(unit.node), source.indent_unit()
        names = ", ".join(unit.names) + ("," if len(unit.names) == 1 else "")
        head = [
            f'if {VALUES} and "{key}" in {VALUES}:',
            f'{indent}{step}{names} = {VALUES}["{key}"]',
            f"{indent}else:",
        ]
        start = source.span(unit.node)[0]
        yield Edit(start, start, newline.join(head) + newline + indent + step)
        for line in range(unit.node.lineno + 1, unit.node.end_lineno + 1):
            if source.line(line).strip():
                yield Edit(source.starts[line - 1], source.starts[line - 1], step)

    def _argument_edit(self, call, text):
        source = self.file.source
        parts = [*call.args, *(k.value for k in call.keywords)]
        end = source.span(call)[1] - 1
        if not parts:
            return Edit(end, end, text)
        last = max(parts, key=lambda p: source.span(p)[1])
        at = source.span(last)[1]
        at += _CLOSING.match(source.text[at:end]).end()
        return Edit(at, at, _separator(source, call, parts, last) + text)


class _Writer:
    """Prints the kept statements of a companion's function."""

    def __init__(self, companion, unit):
        self.companion, self.slice, self.unit = companion, companion.slice, unit

    def block(self, body, indent):
        lines = []
        for statement in body:
            for key, anchor in self.companion.anchors.items():
                if anchor is statement:
                    lines += [indent + line for line in self._placed(key)]
            lines += self._statement(statement, indent)
            for key, unit in self.companion.units.items():
                if unit.node is statement:
                    names = ", ".join(unit.names) + ("," if len(unit.names) == 1 else "")
                    lines.append(f'{indent}{VALUES}["{key}"] = {names}')
        return lines

    def _placed(self, key):
        companion = self.companion
        if key in companion.units:
            unit = companion.units[key]
            return [] if unit.names or self._of_kept(key) else [f'{VALUES}["{key}"] = {unit.text}']
        call = companion.calls[key]
        text = call.callee.call_text(call)
        line = (
            f'{VALUES}["{key}"] = {each_of(text, companion.file, call.part) if call.part else text}'
        )
        if not (call.of_module and call.callee.takes_self):
            return [line]
        module = ast.unparse(call.receiver)
        return [
            f'if hasattr({module}, "{call.callee.name}") and not {module}._forward_pre_hooks:',
            self.unit + line,
        ]

    def _of_kept(self, key):
        """Whether the unit is the value of an assignment that is kept: it is computed there."""
        statement = self.companion.anchors[key]
        unit = self.companion.units[key]
        whole = (
            isinstance(statement, ast.Assign) and statement.value is unit.node and not unit.index
        )
        return whole and not unit.is_number and statement in self.slice.kept

    def _statement(self, statement, indent):
        if isinstance(statement, ast.If) and statement in self.slice.flat:
            return self.block([*statement.body, *statement.orelse], indent)
        if statement not in self.slice.kept:
            return []
        if isinstance(statement, ast.If):
            return self._if(statement, indent)
        if statement in self.slice.whole:
            return [indent + line for line in ast.unparse(statement).split("\n")]
        if isinstance(statement, ast.For):
            head = (
                f"{indent}for {ast.unparse(statement.target)} in"
                f" {flat(self.companion.file, statement.iter)}:"
            )
            return [
                head,
                *(self.block(statement.body, indent + self.unit) or [f"{indent}{self.unit}pass"]),
            ]
        if isinstance(statement, (ast.Return, ast.Raise)):
            return [f"{indent}return {VALUES}"]
        keys = [
            k
            for k in self.companion.units
            if self.companion.anchors[k] is statement and self._of_kept(k)
        ]
        also = "".join(f'{VALUES}["{key}"] = ' for key in keys)
        return [indent + line for line in (also + ast.unparse(statement)).split("\n")]

    def _if(self, statement, indent):
        inner = self.block(statement.body, indent + self.unit)
        other = self.block(statement.orelse, indent + self.unit)
        binds = any(isinstance(n, ast.NamedExpr) for n in ast.walk(statement.test))
        if not inner and not other and not binds:
            return []
        test = flat(self.companion.file, statement.test)
        lines = [f"{indent}if {test}:", *(inner or [f"{indent}{self.unit}pass"])]
        return lines + ([f"{indent}else:", *other] if other else [])


def _parameter(pair):
    name, default = pair
    return name if default is None else f"{name}={ast.unparse(default)}"


ELEMENT = "element"


def one_of(node, part):
    """The text of an expression with the element `part` under a name of its own."""
    return ast.unparse(_Named(ast.unparse(part)).visit(copy.deepcopy(node)))


class _Named(ast.NodeTransformer):
    def __init__(self, text):
        self.text = text

    def visit_Subscript(self, node):
        same = ast.unparse(node) == self.text
        return ast.Name(ELEMENT, ast.Load()) if same else self.generic_visit(node)


def each_of(text, file, part):
    """The text of the list of `text` for every element."""
    return f"[{text} for {ELEMENT} in {flat(file, part.value)}]"


def flat(file, node):
    """The text of an expression, on one line."""
    text = file.source.segment(node)
    return ast.unparse(node) if "\n" in text else text


def parameter_edits(file, function, check):
    """The edits by which the function takes the values; `check`: an `if` under which they are not
    those of its arguments."""
    source, args = file.source, function.args
    first = _first(function)
    indent, start = (
        source.white_before(first),
        source.starts[_line(first) - 1] + len(source.white_before(first) or ""),
    )
    lines = [check, f"{source.indent_unit()}{VALUES} = None"] if check else []
    if args.kwarg and indent is not None:  # the signature, which others may look at, stays
        lines = [f'{VALUES} = {args.kwarg.arg}.pop("{VALUES}", None)', *lines]
    else:
        yield _parameter_edit(source, function)
    if lines:
        yield Edit(start, start, "".join(f"{line}{source.newline}{indent or ''}" for line in lines))


def _line(statement):
    return min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])


def _parameter_edit(source, function):
    args = function.args
    every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
    alone = f"{VALUES}=None" if args.vararg or args.kwonlyargs else f"*, {VALUES}=None"
    if not every and not args.vararg:
        at = source.text.index("(", source.text.index("def", source.span(function)[0])) + 1
        return Edit(at, at, alone + (", " if args.kwarg else ""))
    last = args.vararg if args.vararg and not args.kwonlyargs else every[-1]
    ends = [_end(source, n) for n in [last, *args.defaults, *args.kw_defaults, args.vararg] if n]
    parts = every or [last]
    return Edit(max(ends), max(ends), _separator(source, function, parts, last) + alone)


def _end(source, node):
    """The end of a node, behind the parentheses that stand around it."""
    start, end = source.span(node)
    while re.search(r"\(\s*$", source.text[:start][-80:]) and (
        closing := re.match(r"\s*\)", source.text[end:])
    ):
        start = source.text.rindex("(", 0, start)
        if re.search(r"\bdef\s+\w+\s*$", source.text[:start][-200:]):
            break
        end += closing.end()
    return end


def _first(function):
    """The first statement below the docstring."""
    body = function.body
    documented = (
        len(body) > 1 and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    )
    return body[1] if documented else body[0]


def in_loop(file, function, node):
    """Whether `node` runs at every turn of a loop or comprehension of the function, and not in the
    head of one."""
    child, node = node, file.parents[node]
    while child is not function:
        if isinstance(node, (ast.For, ast.While)) and child is not getattr(node, "iter", None):
            return True
        if (
            isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp))
            and child is not node.generators[0]
        ):
            return True
        child, node = node, file.parents.get(node)
    return False


def _separator(source, node, parts, last):
    """A comma, and a new line where every part has one of its own."""
    first = parts[0]
    if first.lineno == node.lineno or any(
        a.lineno == b.lineno for a, b in itertools.pairwise(parts)
    ):
        return ", "
    line = source.line(first.lineno)
    return f",{source.newline}{line[: len(line) - len(line.lstrip())]}"
