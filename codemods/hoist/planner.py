"""Which companions compute what for whom: each read is placed as far out as it can be computed."""

from __future__ import annotations

import ast
import copy
from typing import TYPE_CHECKING, Any

from ..analysis.definitions import VALUES
from .companion import AheadValue, Companion
from .companion_source import HELPER, flat, one_of
from .hoist_legality import check_defaults, check_function, matched, only_read
from .numbers import as_python
from .project import Project
from .purity import Impure, Purity
from .read_candidates import (
    candidates,
    changing_element,
    handed_as,
    has_no_graph_form,
    is_heavy,
    is_repeated,
    of_all,
    targets,
    wished_key,
)

if TYPE_CHECKING:
    from ..trace.trace_facts import TraceFacts
    from .project import File, Frame


class NoReceiver(Impure):
    """The object whose method is called is not there ahead: `companion` must do without it."""

    def __init__(self, companion: Any, why: Any) -> None:
        super().__init__(why)
        self.companion = companion


class Planner:
    """Takes reads one by one; what cannot be computed ahead leaves no trace."""

    def __init__(self, facts: dict[str, TraceFacts], load: Any) -> None:
        self.project = Project(facts, load)
        self.purity = Purity(self.project)
        self.companions, self.reads, self.failed = {}, [], []
        self.tests: list[list[Frame]] = []

    def add(self, raw: list[list[list[int] | str]]) -> None:
        """One read, by its frames."""
        for chain in targets(self.project.chain(raw)):
            if chain[-1].file.tested_by(chain[-1].node) is not None:
                self.tests.append(chain)
            else:
                self._add(chain)

    def add_tests(self) -> None:
        """The tests around what was placed, and of branches that change lists and the like: another
        branch on a tensor has other forms, which take both outcomes into one graph."""
        for chain in self.tests:
            last = chain[-1]
            test = last.file.tested_by(last.node)
            inside = set(ast.walk(test))
            around = any(f.function is last.function and n in inside for f, n in self.reads)
            if around or has_no_graph_form(test):
                self._add(chain)

    def _add(self, chain: list[Frame]) -> None:
        """What is read is placed as far out as it can be computed."""
        why = Impure("no place was found for it")
        places = list(candidates(chain))
        for level, node in sorted(places, key=lambda c: is_heavy(chain[c[0]], c[1])):
            try:
                self._try(chain[: level + 1], node)
                self.reads.append((chain[-1], node))
                return
            except Impure as error:
                why = error
        self.failed.append((chain[-1], str(why)))

    def _try(self, chain: list[Frame], node: ast.AST) -> None:
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
        raise Impure("its object does not exist before the call")

    def _place(self, chain: list[Frame], node: ast.AST, absent: set[Any]) -> None:
        companions = [self._companion(frame, absent) for frame in chain]
        self._root(companions[0], chain[0])
        last = companions[-1]
        if all(u.node is not node for u in last.units.values()):
            unit, anchor = self._unit(last, chain[-1].file, node)
            key = last.key(node, "_".join(unit.names) or wished_key(chain[-1].file, node))
            last.units[key], last.anchors[key] = unit, anchor
        for frame, caller, callee in zip(chain, companions, companions[1:], strict=False):
            self._call(caller, callee, frame.node)
        self._grow(last)
        self._check()

    def _check(self) -> None:
        """What holds of all companions together."""
        names = [
            (c.file.path, c.takes_self and c.file.cls(c.function), c.name)
            for c in self.companions.values()
        ]
        if len(set(names)) < len(names):
            raise Impure("two generated functions would have one name")
        for companion in self.companions.values():
            check_defaults(companion)
            messages, slices = companion.slice.messages, [c.slice for c in _around(companion)]
            if messages and any(s.flat or s.left for s in slices):
                raise Impure(f"`{min(messages)}` may show a message that is not shown there")
            if companion.is_root and companion.callers:
                raise Impure("an outermost module is called within another")
            for unit in companion.units.values():
                if is_repeated(companion, unit.node) and not only_read(
                    companion.file, companion.function, unit
                ):
                    raise Impure("a value computed once is changed in every iteration of a loop")

    def _unit(self, companion: Companion, file: File, node: ast.AST) -> Any:
        """(value, the statement before which it is computed): of an expression, of an element of
        one, or of a loop."""
        if isinstance(node, ast.stmt):
            names = companion.slice.block(node)
            if (
                not names
                or file.source.has_long_string(*file.source.span(node))
                or not file.source.white_before(node)
            ):
                raise Impure("the loop around it leaves nothing that could be handed down")
            return AheadValue(node, names=tuple(names)), node
        state, python = _state(companion), as_python(file, companion.function, node)
        try:
            anchor = companion.slice.need([node], node)
            text = flat(file, node)
            return AheadValue(
                node, handed_as(file, companion.function, node, text), is_number=python is not None
            ), anchor
        except Impure:
            _restore(companion, state)
            part = changing_element(file, companion.function, node)
            if part is None:
                raise
        text, expressions = of_all(file, companion.function, node, part)
        anchor = companion.slice.need(expressions, part.value)
        return AheadValue(
            node, text, f"[{flat(file, part.slice)}]", is_number=python is not None
        ), anchor

    def _companion(self, frame: Frame, absent: set[Any]) -> Companion:
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

    def _root(self, companion: Companion, frame: Frame) -> None:
        if (
            companion.file.self_name(companion.function) is None
            or companion.function.name != "forward"
        ):
            raise Impure("it is not reached from the `forward` of a module")
        bound = companion.file.names.bound & {"torch", HELPER}
        if bound and not (
            bound == {HELPER} and f"from dynfix import {HELPER}" in companion.file.source.text
        ):
            raise Impure(f"`{min(bound)}` means something else there")
        if companion.slice.absent:
            raise Impure("the outermost module is called in a loop of another")
        companion.is_root = True

    def _call(self, caller: Any, callee: Any, node: Any) -> None:
        if not isinstance(node, ast.Call) or any(
            isinstance(a, (ast.Starred, ast.GeneratorExp)) for a in node.args
        ):
            raise Impure("the call that leads to it cannot hand anything down")
        known = [c for c in callee.callers if c.node is node]
        if any(c.node is node and c.callee is not callee for c in caller.calls.values()):
            raise Impure("more than one function is called there")
        if not known:
            call = matched(self.project, caller, callee, node)
            key = caller.key(node, wished_key(caller.file, node.func))
            caller.calls[key] = call
            callee.callers.append(call)

    def _grow(self, companion: Companion, seen: tuple[Any, ...] = ()) -> None:
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

    def _arguments(self, call: Any, needed: Any) -> Any:
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
                if (p := changing_element(call.caller.file, call.caller.function, e))
            }
            if len(found) != 1:
                raise
        (call.part,) = found.values()
        each = [ast.parse(one_of(e, call.part), mode="eval").body for e in needed]
        return part.need([*each, call.part.value], call.part.value)

    def _passed(self, call: Any) -> Any:
        """Whether the call may give parameters by the caller's own `**kwargs`; those without a
        default the caller takes from there."""
        if call.passed and (not call.spread or call.caller.kwarg is None or call.caller.is_root):
            raise Impure(f"the call does not say what `{min(call.passed)}` is")
        call.caller.from_kwargs |= call.passed
        return call.spread and bool(call.callee.slice.needed - set(call.matched))

    def _receive(self, caller: Any, call: Any) -> None:
        try:
            if call.receiver is None:
                raise Impure("its object does not exist before the call")
            caller.slice.need([call.receiver], call.node)
        except Impure as error:
            if isinstance(error, NoReceiver):
                raise
            key = call.callee.file.path, call.callee.file.names_of[call.callee.function]
            raise NoReceiver(key, str(error)) from None

    def _visible(self, caller: Any, callee: Any) -> None:
        """In another file a companion is found by its object alone."""
        if callee.file is not caller.file and not callee.takes_self:
            if callee.file.self_name(callee.function) is None or callee.slice.absent:
                raise Impure(f"`{callee.function.name}` stands in another file")
            callee.is_method = True


def _around(companion: Companion) -> list[Companion]:
    """It, and the companions that call it."""
    found = [companion]
    for known in found:
        found += [c.caller for c in known.callers if c.caller not in found]
    return found


_GROWING = ("kept", "flat", "whole", "needed", "lookups", "messages", "left")


def _state(companion: Companion) -> Any:
    part = companion.slice
    sets = [set(getattr(part, name)) for name in _GROWING]
    dicts = (
        dict(companion.units),
        dict(companion.calls),
        dict(companion.anchors),
        list(companion.callers),
    )
    flags = companion.is_root, companion.bare, companion.is_method, companion.is_checked
    return sets, dicts, flags, set(companion.from_kwargs)


def _restore(companion: Companion, state: Any) -> None:
    (
        part,
        dicts,
        (companion.is_root, companion.bare, companion.is_method, companion.is_checked),
        from_kwargs,
    ) = state
    companion.from_kwargs = set(from_kwargs)
    companion.units, companion.calls, companion.anchors, companion.callers = map(copy.copy, dicts)
    for name, kept in zip(_GROWING, part, strict=True):
        setattr(companion.slice, name, set(kept))
