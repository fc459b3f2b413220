"""Which host reads of a traced run can be computed ahead of the captured call, and the edits that
do so.

A read that depends on the inputs of the outermost module alone is computed by a companion of that
module's `forward` (and of each function between), which runs before it, outside the graph; the
values are handed down as a parameter."""

import ast
import copy
import functools
from dataclasses import dataclass

from ...rewriter.edits.source_file import Source, SourceError
from ...rewriter.edits.spans import Edit, Fix, Safety, after_imports, apply
from ..analysis.findings import Finding
from ..cli.suppressions import Suppressions
from .companion import (
    ELEMENT,
    HELPER,
    HELPER_TEXT,
    VALUES,
    Companion,
    Unit,
    each_of,
    flat,
    in_loop,
    one_of,
)
from .legal import check_defaults, check_function, matched, only_read
from .movable import Impure, Purity
from .numbers import as_python, numbers, source_of
from .project import Frame, Project

CODE = "DYN110"
_TITLE = "compute it ahead of the call"
_WHY = "which functions lead to it, and with which objects, is what one run showed"


class NoReceiver(Impure):
    """The object whose method is called is not there ahead: `companion` must do without it."""

    def __init__(self, companion, why):
        super().__init__(why)
        self.companion = companion


class Planner:
    """Takes reads one by one; what cannot be computed ahead leaves no trace."""

    def __init__(self, facts, load):
        self.project = Project(facts, load)
        self.purity = Purity(self.project)
        self.companions, self.reads, self.failed = {}, [], []

    def add(self, raw):
        """One read, by its frames."""
        for chain in _targets(self.project.chain(raw)):
            self._add(chain)

    def _add(self, chain):
        """What is read is placed as far out as it can be computed."""
        why = Impure("no place was found for it")
        candidates = list(_candidates(chain))
        for level, node in sorted(candidates, key=lambda c: _is_heavy(chain[c[0]], c[1])):
            try:
                self._try(chain[: level + 1], node)
                self.reads.append((chain[-1], node))
                return
            except Impure as error:
                why = error
        self.failed.append((chain[-1], str(why)))

    def _try(self, chain, node):
        """With the objects of all methods at hand; then without those that are others at every turn
        of a loop."""
        absent = set()
        for _ in chain:
            before = copy.copy(self.companions), [(c, _state(c)) for c in self.companions.values()]
            try:
                return self._place(chain, node, absent)
            except Impure as error:
                self.companions = before[0]
                for companion, state in before[1]:
                    _restore(companion, state)
                if not isinstance(error, NoReceiver) or error.companion in absent:
                    raise
                absent.add(error.companion)
        raise Impure("its object is not there ahead")

    def _place(self, chain, node, absent):
        companions = [self._companion(frame, absent) for frame in chain]
        self._root(companions[0], chain[0])
        last = companions[-1]
        if all(u.node is not node for u in last.units.values()):
            unit, anchor = self._unit(last, chain[-1].file, node)
            key = last.key(node, "_".join(unit.names) or _wish(chain[-1].file, node))
            last.units[key], last.anchors[key] = unit, anchor
        for frame, caller, callee in zip(chain, companions, companions[1:], strict=False):
            self._call(caller, callee, frame.node)
        self._grow(last)
        self._check()

    def _check(self):
        """What holds of all companions together."""
        names = [
            (c.file.path, c.takes_self and c.file.cls(c.function), c.name)
            for c in self.companions.values()
        ]
        if len(set(names)) < len(names):
            raise Impure("two companions would have one name")
        for companion in self.companions.values():
            check_defaults(companion)
            if companion.is_root and companion.callers:
                raise Impure("an outermost module is called within another")
            for unit in companion.units.values():
                if _is_repeated(companion, unit.node) and not only_read(
                    companion.file, companion.function, unit
                ):
                    raise Impure("what is computed once would be changed at every turn of a loop")

    def _unit(self, companion, file, node):
        """(Unit, the statement before which it is computed): of an expression, of an element of
        one, or of a loop."""
        if isinstance(node, ast.stmt):
            names = companion.slice.block(node)
            if (
                not names
                or file.source.has_long_string(*file.source.span(node))
                or not file.source.white_before(node)
            ):
                raise Impure("the loop around it leaves nothing that could be handed down")
            return Unit(node, names=tuple(names)), node
        state, python = _state(companion), as_python(file, companion.function, node)
        try:
            anchor = companion.slice.need([node], node)
            text = flat(file, node)
            return Unit(
                node, _handed_as(file, companion.function, node, text), is_number=python is not None
            ), anchor
        except Impure:
            _restore(companion, state)
            part = _element(file, companion.function, node)
            if part is None:
                raise
        text, expressions = _of_all(file, companion.function, node, part)
        anchor = companion.slice.need(expressions, part.value)
        return Unit(node, text, f"[{flat(file, part.slice)}]", is_number=python is not None), anchor

    def _companion(self, frame, absent):
        if frame.key not in self.companions:
            me = frame.file.self_name(frame.function)
            without = {me} if frame.key in absent else ()
            check_function(self.project, frame.file, frame.function)
            if any(
                getattr(n, "id", getattr(n, "arg", "")) == VALUES for n in ast.walk(frame.function)
            ):
                raise Impure("values are handed down to it already")
            self.companions[frame.key] = Companion(frame.file, frame.function, self.purity, without)
        self.companions[frame.key].is_checked |= frame.changed
        return self.companions[frame.key]

    def _root(self, companion, frame):
        if (
            companion.file.self_name(companion.function) is None
            or companion.function.name != "forward"
        ):
            raise Impure("it is not reached from the `forward` of a module")
        bound = companion.file.names.bound & {"functools", "torch", HELPER}
        if bound and not (
            bound == {HELPER} and "Have `read` compute" in companion.file.source.text
        ):
            raise Impure(f"`{min(bound)}` means something else there")
        if companion.slice.absent:
            raise Impure("the outermost module is called in a loop of another")
        companion.is_root = True

    def _call(self, caller, callee, node):
        if not isinstance(node, ast.Call) or any(
            isinstance(a, (ast.Starred, ast.GeneratorExp)) for a in node.args
        ):
            raise Impure("the call that leads to it cannot hand anything down")
        known = [c for c in callee.callers if c.node is node]
        if any(c.node is node and c.callee is not callee for c in caller.calls.values()):
            raise Impure("more than one function is called there")
        if not known:
            call = matched(self.project, caller, callee, node)
            key = caller.key(node, _wish(caller.file, node.func))
            caller.calls[key] = call
            callee.callers.append(call)

    def _grow(self, companion, seen=()):
        """Have the callers compute what the companion needs."""
        if companion in seen:
            raise Impure("it calls itself")
        for call in companion.callers:
            caller, key = call.caller, call.caller.key(call.node, "")
            self._visible(caller, companion)
            needed = [e for _, e in companion.arguments(call)]
            caller.bare |= (
                companion.bare or companion.kwarg in companion.slice.needed or self._passed(call)
            )
            if companion.takes_self:
                self._receive(caller, call)
            caller.anchors[key] = self._arguments(call, needed)
            self._grow(caller, (*seen, companion))

    def _arguments(self, call, needed):
        """The statement before which the arguments are there; of one element at every turn of a
        loop, for all of them."""
        part, state = call.caller.slice, _state(call.caller)
        call.part = None
        try:
            return part.need(needed or [ast.Constant(0)], call.node)
        except Impure:
            _restore(call.caller, state)
            found = {
                ast.unparse(p): p
                for e in needed
                if (p := _element(call.caller.file, call.caller.function, e))
            }
            if len(found) != 1:
                raise
        (call.part,) = found.values()
        each = [ast.parse(one_of(e, call.part), mode="eval").body for e in needed]
        return part.need([*each, call.part.value], call.part.value)

    def _passed(self, call):
        """Whether the call may give parameters by the caller's own `**kwargs`; those without a
        default the caller takes from there."""
        if call.passed and (not call.spread or call.caller.kwarg is None or call.caller.is_root):
            raise Impure(f"the call does not say what `{min(call.passed)}` is")
        call.caller.from_kwargs |= call.passed
        return call.spread and bool(call.callee.slice.needed - set(call.matched))

    def _receive(self, caller, call):
        try:
            if call.receiver is None:
                raise Impure("its object is not there ahead")
            caller.slice.need([call.receiver], call.node)
        except Impure as error:
            if isinstance(error, NoReceiver):
                raise
            key = call.callee.file.path, call.callee.file.names_of[call.callee.function]
            raise NoReceiver(key, str(error)) from None

    def _visible(self, caller, callee):
        """In another file a companion is found by its object alone."""
        if callee.file is not caller.file and not callee.takes_self:
            if callee.file.self_name(callee.function) is None or callee.slice.absent:
                raise Impure(f"`{callee.function.name}` stands in another file")
            callee.is_method = True

    # What it comes to

    def edits(self):
        """{path: (edits, imports)}."""
        found = {}
        used = [c for c in self.companions.values() if c.units or c.calls]
        for companion in used:
            edits, imports = found.setdefault(companion.file.path, ([], set()))
            edits += [*companion.edits(), _definition(companion)]
            if companion.is_root:
                edits.append(_decorator(companion))
                imports.add("functools")
        for path, (edits, imports) in found.items():
            source = self.project.file(path).source
            if imports and f"def {HELPER}(" not in source.text:
                edits.append(
                    after_imports(
                        source, HELPER_TEXT.rstrip("\n").replace("\n", source.newline), "torch"
                    )
                )
        return found

    def fixes(self):
        """{path: Fix}; none where one of them cannot be made."""
        found = {}
        for path, (edits, imports) in self.edits().items():
            source = self.project.file(path).source
            if None in edits:
                return {}
            found[path] = Fix(
                tuple(edits), _TITLE, Safety.UNSAFE, _WHY, tuple(sorted(imports)), first=True
            )
            try:
                source.with_text(apply(source.text, edits))
            except (SourceError, ValueError):
                return {}
        return found


def _candidates(chain):
    """(level, node), outermost functions first: the call that leads on, expressions around it, the
    loop around them."""
    for level, frame in enumerate(chain):
        node, loop = frame.node, None
        if level == len(chain) - 1:
            yield from ((level, n) for n in _others(frame))
        while isinstance(node, (ast.expr, ast.keyword, ast.comprehension)):
            if _is_value(node):
                yield level, node
            node = frame.file.parents[node]
        if level == len(chain) - 1 and isinstance(frame.node, ast.Subscript):
            read = _mask(frame) or frame.node
            if _is_value(read):
                yield level, read
        while node is not frame.function:
            loop = node if isinstance(node, (ast.For, ast.While)) else loop
            node = frame.file.parents[node]
        if loop is not None:
            yield level, loop


def _targets(chain):
    """The chain of a read; of ints that are made of tensors without saying so, one for each of
    them."""
    if not chain:
        return
    last = chain[-1]
    found = numbers(last.file, last.function, last.node)
    if not found or _mask(last) is not None:
        yield chain
    for node in found:
        yield [*chain[:-1], Frame(last.file, last.function, node, last.changed)]


def _others(frame):
    """What a number was unpacked from, in place of the number."""
    source = (
        source_of(frame.file, frame.function, frame.node.id)
        if isinstance(frame.node, ast.Name)
        else None
    )
    if source is not None:
        yield source


def _is_value(node):
    """Whether a node is an expression that can stand alone, and binds no name that others read."""
    if not isinstance(node, ast.expr) or isinstance(node, (ast.Slice, ast.Starred)):
        return False
    if isinstance(node, ast.Tuple) and any(
        isinstance(e, (ast.Slice, ast.Starred)) for e in node.elts
    ):
        return False
    return not any(isinstance(n, ast.NamedExpr) for n in ast.walk(node))


def _mask(frame):
    """The bool tensor of an index with one tensor: of one dimension where there are other
    indices."""
    if not isinstance(frame.node, ast.Subscript):
        return None
    index = frame.node.slice
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    facts = [(p, frame.file.fact(frame.function, p)) for p in parts]
    tensors = [(p, f) for p, f in facts if f is not None and f.what == "tensor"]
    if len(tensors) != 1 or any(isinstance(p, ast.Starred) for p in parts):
        return None
    (part, fact), alone = tensors[0], len(parts) == 1
    return part if fact.dtype == "bool" and (fact.rank == 1 or (alone and fact.rank)) else None


def _is_heavy(frame, node):
    """Whether floating-point tensors go into it: work that belongs into the graph, where there is
    another way."""
    facts = (frame.file.fact(frame.function, n) for n in ast.walk(node) if isinstance(n, ast.expr))
    return any(f is not None and f.what == "tensor" and "float" in (f.dtype or "") for f in facts)


def _element(file, function, node):
    """The `x[i]` by which alone an expression changes in a loop: a tensor's element at a Python
    int."""
    found = {ast.unparse(n): n for n in ast.walk(node) if _is_element(file, function, n)}
    named = any(isinstance(n, ast.Name) and n.id == ELEMENT for n in ast.walk(node))
    return next(iter(found.values())) if len(found) == 1 and not named else None


def _is_element(file, function, node):
    if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Name):
        return False
    whole, index = file.fact(function, node.value), file.fact(function, node.slice)
    return (
        whole is not None and whole.what == "tensor" and index is not None and index.what == "int"
    )


def _handed_as(file, function, node, text):
    """The text of what is handed down for `node`: indices of a mask, and the numbers that tensors
    are meant as."""
    above, fact, python = (
        file.parents[node],
        file.fact(function, node),
        as_python(file, function, node),
    )
    if python is not None:
        return f"({text}).__index__()" if python == "int" else f"({text}).tolist()"
    if fact is None or fact.dtype != "bool":
        return text
    if isinstance(above, ast.Subscript) and above.slice is node:
        return f"({text}).nonzero(as_tuple=True)"
    if isinstance(above, ast.Tuple) and isinstance(file.parents[above], ast.Subscript):
        return f"({text}).nonzero()[:, 0]"
    return text


def _of_all(file, function, node, part):
    """(the text of the list of what `node` is for every element, the expressions that it reads).
    `x[i].tolist()` is an item of one list."""
    told = (
        isinstance(node, ast.Call) and getattr(node.func, "value", None) is part and not node.args
    )
    python = as_python(file, function, node)
    if (told and node.func.attr == "tolist") or (python is not None and node is part):
        return f"{flat(file, part.value)}.tolist()", [part.value]
    each = one_of(node, part)
    text = each if python is None else _handed_as(file, function, node, each)
    return each_of(text, file, part), [ast.parse(each, mode="eval").body, part.value]


def _is_repeated(companion, node=None):
    """Whether a value is used more than once for each time that it is computed."""
    if (
        node is not None
        and isinstance(node, ast.expr)
        and in_loop(companion.file, companion.function, node)
    ):
        return True
    return any(call.in_loop or _is_repeated(call.caller) for call in companion.callers)


def _state(companion):
    part = companion.slice
    sets = set(part.kept), set(part.flat), set(part.whole), set(part.needed)
    dicts = (
        dict(companion.units),
        dict(companion.calls),
        dict(companion.anchors),
        list(companion.callers),
    )
    flags = companion.is_root, companion.bare, companion.is_method, companion.is_checked
    return sets, dicts, flags, set(companion.from_kwargs)


def _restore(companion, state):
    (
        part,
        dicts,
        (companion.is_root, companion.bare, companion.is_method, companion.is_checked),
        from_kwargs,
    ) = state
    companion.from_kwargs = set(from_kwargs)
    companion.units, companion.calls, companion.anchors, companion.callers = map(copy.copy, dicts)
    companion.slice.kept, companion.slice.flat, companion.slice.whole, companion.slice.needed = map(
        set, part
    )


def _wish(file, node):
    """A key that says what it is: the names that it is assigned to, or the last name in it."""
    statement = file.statement(node)
    if isinstance(statement, ast.Assign) and statement.value is node:
        return (
            "_".join(n.id for n in ast.walk(statement.targets[0]) if isinstance(n, ast.Name))
            or "value"
        )
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
    ):
        return f"{node.func.value.id}_{node.func.attr}"
    names = [getattr(n, "attr", getattr(n, "id", "")) for n in ast.walk(node)]
    return next((n for n in names if n and not n.startswith("__")), "value").strip("_") or "value"


def _definition(companion):
    """The companion before its function, or, without an object, before the class."""
    source, node = companion.file.source, companion.function
    owner = companion.file.cls(node)
    place = node if owner is None or companion.takes_self else owner
    first = min([place.lineno, *(d.lineno for d in place.decorator_list)])
    indent = source.white_before(place) or ""
    while first > 1 and source.line(first - 1).startswith(f"{indent}#"):
        first -= 1  # a comment that belongs to it
    start = source.starts[first - 1]
    text = companion.text(indent, source.indent_unit())
    text = text if place is not owner else text + "\n"
    return Edit(start, start, text.replace("\n", source.newline))


def _decorator(companion):
    """The decorator that runs a root's companion, above the others; part of the same edit as the
    definition's place."""
    source, node = companion.file.source, companion.function
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    at = source.starts[first - 1]
    indent = source.white_before(node) or ""
    return Edit(
        at, at + len(indent), f"{indent}@{HELPER}({companion.name}){source.newline}{indent}"
    )


@dataclass(frozen=True)
class Plan:
    """One file's part: it holds for this text alone, and together with the other files' parts."""

    text: str
    findings: tuple


def planned(facts, settings, load=None):
    """The facts, each with its file's part of the plan; of files that the settings let be changed.
    `load(path)` gives the Source of a file."""
    known = {path: copy.copy(fact) for path, fact in facts.items()}
    load = functools.cache(load or _load)
    planner = Planner(facts, load)
    for path in sorted(facts):
        for raw, clean in facts[path].reads:
            if clean and all(_may_change(p, line, load, settings) for p, _, (line, *_) in raw):
                planner.add(raw)
    for path, fix in planner.fixes().items():
        known[path].plan = Plan(load(path).text, _findings(planner, path, fix))
    return known


def _load(path):
    """The Source at `path`; None where it is none."""
    try:
        with open(path, "rb") as stream:
            return Source.from_bytes(stream.read(), path)
    except (OSError, SourceError):
        return None


def _may_change(path, line, load, settings):
    source = load(path)
    if source is None or not settings.selects(CODE, path) or not settings.fixes(CODE):
        return False
    return not Suppressions(source).covers(CODE, line, line)


def _findings(planner, path, fix):
    source = planner.project.file(path).source
    places = {(f.file, n) for f, n in planner.reads if f.file.source is source}
    nodes = sorted({n for _, n in places}, key=lambda n: (n.lineno, n.col_offset))
    nodes = (
        nodes or [c.function for c in planner.companions.values() if c.file.source is source][:1]
    )
    return tuple(_finding(source, node, fix) for node in nodes)


def _finding(source, node, fix):
    message = "what is read here depends on inputs alone, and is read in the midst of the graph"
    end = node.end_lineno if isinstance(node, ast.expr) else node.lineno
    column = node.end_col_offset if isinstance(node, ast.expr) else node.col_offset + 3
    place = (
        node.lineno,
        source.column(node.lineno, node.col_offset),
        end,
        source.column(end, column),
    )
    return Finding(CODE, message, source.path, *place, fix, traced=True)
