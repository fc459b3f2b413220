"""Statements that nothing else mends, as a function of their own, which compiled code runs in eager
as one operator of the graph:

    @eager_op("(Tensor boxes, Tensor scores, float limit) -> int64[?]")
    def _chosen(boxes, scores, limit):
        …
        return keep"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from ....rewriter.analysis.call_effects import CHANGES_CONTAINERS
from ....rewriter.analysis.kinds import UNKNOWN
from ....rewriter.analysis.name_scopes import bound_by, rebindings
from ....rewriter.source.import_places import after_imports
from ....rewriter.source.intents import insert_before, replace_statements
from ....rewriter.source.spans import Fix, Refusal, Safety, hidden
from ..branches.exception_flow import handled

if TYPE_CHECKING:
    from ....rewriter.analysis.kinds import Kind
    from ....rewriter.source.spans import Edit
    from ...analysis.definitions import Function
    from ...analysis.file_context import FileContext

NAME = "eager_op"
_HELPER = f"""
try:
    from dynfix import {NAME}
except ImportError:  # without dynfix, the graph breaks there

    def {NAME}(signature):
        return TORCH.compiler.disable"""
TITLE = "run it in eager, as one operator"
_WHY = (
    "compiled code runs these statements as they are, in one operator of the graph: they become no"
    " faster; what they take and give is what a run showed; numbers that they give are tensors in"
    " compiled code, and parameters of a module in it that are not used get zero gradients"
)
_SCHEMA = {"int": "SymInt", "size": "SymInt", "float": "float", "bool": "bool", "str": "str"}
_LISTS = {"tensors": "Tensor[]", "ints": "SymInt[]", "floats": "float[]"}
_NUMBERS = {"int": "int64", "size": "int64", "float": "float64", "bool": "bool"}
_NEVER = (ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.Delete, ast.NamedExpr)
_LOOKS = frozenset("super __class__ locals globals vars dir eval exec hasattr".split())
_MOST_TRIED, _DEEPEST = 64, 20  # runs of statements, and blocks inside each other
_BLOCKS = ("body", "orelse", "finalbody")


class _Unfit(Exception):
    """Why some statements cannot be an operator; with more of them they may be."""


def eager_part(function: Function, found: list[int], context: FileContext) -> Fix | Refusal:
    """The Fix that covers the first of some lines of a function, and as few statements as it
    can."""
    torch = context.torch(function.node)
    if torch is None or torch[1]:
        return hidden()
    imported = f"from dynfix import {NAME}" in context.source.text
    if not imported and NAME in context.names.bound:
        return hidden(NAME)
    why = "it stands in no statement"
    for statements in islice(_regions(function.node, found), _MOST_TRIED):
        try:
            return _Part(function, statements, context, torch[0]).fix(imported)
        except _Unfit as error:
            why = str(error)
    return Refusal(why)


def _regions(function: ast.FunctionDef, found: list[int]) -> Iterator[list[ast.stmt]]:
    """Runs of adjacent statements around findings: ever longer, then of the block around."""
    found = [line for line in found if line >= function.body[0].lineno]
    first = next(_blocks(function, found[:1]), None) if found else None
    if first is None:  # it stands in a decorator or a default
        return
    inside = [f for f in found if f <= first[0][first[1]].end_lineno]
    blocks = list(islice(_blocks(function, inside), _DEEPEST + 1))
    for block, index in reversed(blocks) if len(blocks) <= _DEEPEST else ():
        last = index
        while last + 1 < len(block) and inside[-1] > block[last].end_lineno:
            last += 1
        for size in range(last - index + 1, len(block) + 1):
            for start in range(min(index, len(block) - size), max(-1, last - size), -1):
                yield block[start : start + size]


def _blocks(node: ast.AST, found: list[int]) -> Iterator[tuple[list[ast.stmt], int]]:
    """The blocks that hold some findings, from the outermost, with the statement of the first."""
    blocks = [b for name in _BLOCKS if isinstance(b := getattr(node, name, None), list) and b]
    blocks += [h.body for h in getattr(node, "handlers", ())]
    for block in blocks:
        if block[0].lineno <= found[0] and found[-1] <= block[-1].end_lineno:
            index = max(i for i, s in enumerate(block) if s.lineno <= found[0])
            yield block, index
            yield from _blocks(block[index], found)


def _is_deep(body: list[ast.stmt]) -> bool:
    """Whether more blocks are inside each other than are looked through."""
    level: list[ast.AST] = [*body]
    for _ in range(_DEEPEST):
        fields = [getattr(n, name, None) for n in level for name in (*_BLOCKS, "handlers")]
        level = [s for f in fields if isinstance(f, list) for s in f]
    return bool(level)


@dataclass
class _Given:
    """What the operator takes: its schema's type, and the expressions that its name stands for."""

    name: str
    type: str
    nodes: list[ast.expr]
    shown: str
    written: bool = False


@dataclass(frozen=True)
class _Result:
    """What it gives: dtype and sizes, the name that has it, and whether eager has a number."""

    type: str
    name: str
    number: bool = False
    own: bool = field(default=False, compare=False)  # nothing else holds it

    @property
    def differentiable(self) -> bool:
        return not self.number and self.type.startswith(("float", "bfloat", "complex"))

    @property
    def plain(self) -> bool:
        """Whether it is a tensor without a gradient, of sizes that are known."""
        return not (self.number or self.differentiable or "?" in self.type)

    def as_tensor(self, value: str, torch: str) -> str:
        if not self.number:
            return value
        dtype = f", dtype={torch}.float64" if self.type.startswith("float") else ""
        return f"{torch}.tensor({value}{dtype})"

    def as_eager(self, torch: str) -> str:
        read = f"{self.name} if {torch}.compiler.is_compiling() else {self.name}.item()"
        return read if self.number else self.name


@dataclass
class _Part:
    function: Function
    body: list[ast.stmt]
    context: FileContext
    torch: str
    given: dict[str, _Given] = field(default_factory=dict)
    results: list[_Result] = field(default_factory=list)

    def fix(self, imported: bool) -> Fix | Refusal:
        self._only_statements()
        self._stored = set(_changed_attributes(self._with_reached(), self.context))
        self._inputs()
        self._check_shared_attributes()
        returned = self._returned()
        self._outputs() if returned is None else None
        self._writes()
        self._gradient()
        self._leaves_something()
        call, tail = self._call(returned)
        edits = self._edits(call, tail, returned, imported)
        safety = Safety.SAFE if self._proved() else Safety.UNSAFE
        why = "" if safety is Safety.SAFE else _WHY
        fix = self.context.fix(TITLE, *edits, safety=safety, why=why)
        if isinstance(fix, Refusal):
            raise _Unfit(fix.why)
        numbers = any(r.number for r in self.results)
        ran = not numbers and self.context.ran([*self.body])
        return replace(fix, compiled=True, operator=True, ran=ran)

    def _proved(self) -> bool:
        """Whether compiled code surely computes the same: no gradient flows into it, what it gives
        is new, of a type that the text shows and of no size that data says, and what it writes is
        written on every way. (What it takes, `eager_op` asks.)"""
        written = {g.shown for g in self.given.values() if g.written}
        given = all(r.own and r.plain for r in self.results)
        quiet = self._without_grad() or not written
        sure = written <= _surely_written(self.body, self.context)
        return self.context.facts is None and given and quiet and sure

    # What it may be made of

    def _only_statements(self) -> None:
        if _is_deep(self.body):
            raise _Unfit("its blocks are nested too deeply")
        node, stored = self.function.node, {n.id for n in _stores_in(self.body)}
        if not isinstance(node, ast.FunctionDef) or self.context.program.scripted(self.function):
            raise _Unfit("it stands in a coroutine, or in what TorchScript compiles")
        for each in self._walk():
            name = getattr(each, "id", getattr(each, "attr", ""))
            private = name.startswith("__") and not name.endswith("__")
            if isinstance(each, _NEVER) or name in _LOOKS or private:
                raise _Unfit(f"`{name or type(each).__name__.lower()}` stands in it")
        if not stored.isdisjoint(rebindings(node).shared):
            raise _Unfit("it binds a name of another scope")
        last = self.body[-1]
        whole = self.function.node.body
        exits = list(_exits(self.body))
        if any(isinstance(e, (ast.Break, ast.Continue)) for e in exits):
            raise _Unfit("it leaves a loop around it")
        returns = [e for e in exits if isinstance(e, ast.Return)]
        bare = not any(e.value for e in returns)
        if returns and not (isinstance(last, ast.Return) or (bare and last is whole[-1])):
            raise _Unfit("it returns from the function")
        raises = any(isinstance(n, ast.Raise) for s in self._with_reached() for n in ast.walk(s))
        within = any(isinstance(a, ast.Try) for a in self._around())
        if within or (raises and handled(self.body[0], self.context)):
            raise _Unfit("an exception of it may be handled around it")

    def _walk(self) -> Iterator[ast.AST]:
        return (n for s in self.body for n in ast.walk(s))

    def _leaves_something(self) -> None:
        """Of what is compiled by itself, an operator in the place of all would leave nothing to
        compile. A module may be a part of another one."""
        node, context = self.function.node, self.context
        if self.function not in context.program.compiled:
            return
        inside = set(self._walk())
        rest = (n for s in node.body for n in ast.walk(s) if n not in inside)
        work = (n for n in rest if isinstance(n, (ast.Call, ast.BinOp, ast.Compare)))
        if not any(context.kind(n).is_tensor for n in work):
            raise _Unfit("nothing would be left to compile")

    # What it takes

    def _inputs(self) -> None:
        before = self._bound_before()
        local = self.context.local_names(self.body[0])
        bound = {name for n in self._walk() for name in bound_by(n)}
        surely = self._surely_before()
        first = _read_first(self.body, set())
        for statement in self.body:
            for chain in self._chains(statement):
                name = chain[0].id
                if name in before and name in first:
                    if name not in surely:
                        raise _Unfit(f"`{name}` may be bound nowhere")
                    self._take(chain)
                elif name in local and name not in bound | before:
                    raise _Unfit(f"`{name}` is bound behind it, or by an import")

    def _bound_before(self) -> set[str]:
        """The local names that are bound where it begins."""
        node, start = self.function.node, self.body[0].lineno
        names, loop = self._bound_outside(), self._loop()
        for each in _stores(node):
            if each.lineno < start or (loop is not None and loop.lineno <= each.lineno):
                names.add(each.id)
        return names

    def _surely_before(self) -> set[str]:
        """The local names that are bound where it begins, whatever way led there."""
        node, child = self.function.node, self.body[0]
        names = self._bound_outside()
        for around in [*self._around(), node]:
            blocks = [b for name in _BLOCKS if isinstance(b := getattr(around, name, None), list)]
            block = next((b for b in blocks if child in b), [])
            names |= _surely_bound(block[: block.index(child)] if block else [])
            bound = [getattr(around, "target", None), *getattr(around, "items", ())]
            names |= {n.id for b in bound if isinstance(b, ast.AST) for n in _stores(b)}
            child = around
        return names

    def _bound_outside(self) -> set[str]:
        """The parameters, and the names of functions around."""
        args = self.function.node.args
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        names = {a.arg for a in every if a is not None}
        outer = self.function.outer
        while outer is not None:
            names |= self.context.local_names(outer.node.body[0])
            outer = outer.outer
        return names

    def _loop(self) -> ast.stmt | None:
        """The outermost loop of the function around it."""
        loops = [a for a in self._around() if isinstance(a, (ast.For, ast.While))]
        return loops[-1] if loops else None

    def _around(self) -> Iterator[ast.AST]:
        """The statements of the function around it, from within."""
        parents = self.context.whole_parents()
        parent = parents.get(self.body[0])
        while parent is not None and parent is not self.function.node:
            yield parent
            parent = parents.get(parent)

    def _chains(self, statement: ast.stmt) -> Iterator[list[ast.expr]]:
        """The names that a statement looks at, each with its attributes, innermost first."""
        parents = self.context.whole_parents()
        for node in ast.walk(statement):
            if not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Store):
                continue
            if self._is_scoped(node):
                continue
            chain: list[ast.expr] = [node]
            while isinstance(parents.get(chain[-1]), ast.Attribute):
                chain.append(parents[chain[-1]])
            yield chain

    def _is_scoped(self, node: ast.Name) -> bool:
        """Whether a comprehension, a lambda or a function within binds a name."""
        parents, around = self.context.whole_parents(), node
        while around not in self.body:
            around = parents[around]
            if node.id in _scope_of(around):
                return True
        return False

    def _take(self, chain: list[ast.expr]) -> None:
        """A name, or an attribute of it that an operator can take; else the module that has it."""
        own = [n for n in chain if not self._changes(n)]
        plain = next((n for n in own if self._type(n)), None)
        if plain is not None and chain.index(plain) < len(own):
            self._add(plain, self._type(plain))
            return
        modules = [n for n in chain if self._is_module(n)]
        if not modules:
            raise _Unfit(f"`{ast.unparse(chain[-1])}` cannot be given to an operator")
        self._add(modules[-1], "Module")

    def _changes(self, node: ast.expr) -> bool:
        """Whether an attribute is another after a part of it ran, or does more than to be read."""
        attribute = isinstance(node, ast.Attribute)
        return attribute and (node.attr in self._stored or self.context.acts(node))

    def _is_module(self, node: ast.expr) -> bool:
        kind, fact = self.context.kind(node), self._fact(node)
        if kind.what == "self":
            cls = self.context.program.classes.get(kind.cls)
            return cls is not None and cls.is_module
        known = kind.what in ("module", "modules") or (fact is not None and fact.what == "module")
        return known and isinstance(node.ctx, ast.Load)

    def _add(self, node: ast.expr, type_: str) -> None:
        shown = ast.unparse(node)
        known = self.given.get(shown)
        if known is None:
            name = shown if isinstance(node, ast.Name) else self._free_name(node.attr)
            known = self.given[shown] = _Given(name, type_, [], shown)
        if known.type != type_:
            raise _Unfit(f"`{shown}` is not always the same")
        known.nodes.append(node)

    def _free_name(self, wish: str) -> str:
        names = {g.name for g in self.given.values()}
        names |= {n.id for n in ast.walk(self.function.node) if isinstance(n, ast.Name)}
        wish = wish.strip("_") or "value"
        return next(n for n in [wish, *(f"{wish}_{i}" for i in range(1, 99))] if n not in names)

    def _type(self, node: ast.expr) -> str:
        """The type of a value in torch's schemas; "" where it is none of them."""
        kind, fact = self.context.kind(node), self._fact(node)
        optional = kind.optional or (fact is not None and fact.optional)
        if kind.is_tensor or (fact is not None and fact.what == "tensor"):
            return "Tensor?" if optional else "Tensor"
        if kind.what == "tensors" or (fact is not None and fact.what in _LISTS):
            return _LISTS[fact.what if fact is not None and fact.what in _LISTS else "tensors"]
        what = fact.what if fact is not None else kind.what
        type_ = "Tensor?" if what == "none" and fact is not None else _SCHEMA.get(what, "")
        return f"{type_}?" if type_ and fact is not None and fact.optional else type_

    def _fact(self, node: ast.expr) -> Any:
        facts = self.context.facts
        return facts.of(self.function.qualified, node) if facts else None

    def _reached(self) -> list[ast.AST]:
        """The functions of the file that it surely calls, at any depth."""
        found: list[ast.AST] = []
        todo: list[ast.AST] = [*self.body]
        while todo:
            calls = (n for n in ast.walk(todo.pop()) if isinstance(n, ast.Call))
            called = (f.node for f in map(self.context.called, calls) if f is not None)
            new = [n for n in called if n not in found]
            found, todo = [*found, *new], [*todo, *new]
        return found

    def _with_reached(self) -> list[ast.AST]:
        return [*self.body, *self._reached()]

    def _check_shared_attributes(self) -> None:
        """Raises where it and other compiled code look at attributes that one of them changes: what
        the graph changes is written when it has run, what the operator changes, while it runs."""
        if not any(g.type == "Module" for g in self.given.values()):
            return
        inside = {n for s in self._with_reached() for n in ast.walk(s)}
        hoisted = {n for g in self.given.values() if g.type != "Module" for n in g.nodes}
        own = {n.attr for n in inside - hoisted if isinstance(n, ast.Attribute)}
        captured = self.context.program.captured(self.context.settings.scope)
        other = [f.node for f in captured if f.node not in inside]
        rest = [n for f in other for n in ast.walk(f) if n not in inside]
        seen = {n.attr for n in rest if isinstance(n, ast.Attribute)}
        both = (self._stored & seen) | (own & set(_changed_attributes(rest, self.context, False)))
        if both:
            raise _Unfit(f"`{min(both)}` is changed, and used in other compiled code")

    # What it gives

    def _outputs(self) -> None:
        sure = _surely_bound(self.body)
        names = {n.id for n in _stores_in(self.body)}
        names |= {n.name for n in self._walk() if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
        later = self._read_later()
        for name in sorted(names & later.keys()):
            if name not in sure and name not in self._names():
                self._take_unread(name)
            result = self._result(later[name], name)
            if result.number:
                self._only_computed_with(name)
            self.results.append(result)

    def _names(self) -> set[str]:
        return {g.name for g in self.given.values() if g.shown == g.name}

    def _take_unread(self, name: str) -> None:
        """A name that it may leave as it was."""
        node = self.function.node
        loads = [n for n in ast.walk(node) if isinstance(n, ast.Name) and n.id == name]
        before = [n for n in loads if n.lineno < self.body[0].lineno]
        known = next((n for n in before if self._type(n)), None)
        if name not in self._surely_before() or known is None:
            raise _Unfit(f"`{name}` may be bound nowhere")
        self.given[name] = _Given(name, self._type(known), [], name)

    def _read_later(self) -> dict[str, ast.Name]:
        """The names that the function reads behind it, or in another turn of a loop around it."""
        found: dict[str, ast.Name] = {}
        end, loop = self.body[-1].end_lineno, self._loop()
        inside = set(self._walk())
        for node in ast.walk(self.function.node):
            if not isinstance(node, ast.Name) or isinstance(node.ctx, ast.Store):
                continue
            again = loop is not None and node.lineno >= loop.lineno
            carried = node in inside and node.id in self._names()
            if (node not in inside and (node.lineno >= end or again)) or (again and carried):
                found.setdefault(node.id, node)
        return found

    def _result(self, node: ast.expr, name: str) -> _Result:
        """A value that it gives."""
        for each in (node, *self._last_values(name)):
            shown = self._tensor_result(each)
            if shown:
                return _Result(shown, name, own=self.context.kind(each).fresh)
        kind, fact = self.context.kind(node), self._fact(node)
        what = kind.what if kind.what in _NUMBERS else (fact.what if fact is not None else "")
        if what not in _NUMBERS:
            raise _Unfit(f"`{ast.unparse(node)}` is neither a tensor nor a number")
        return _Result(f"{_NUMBERS[what]}[]", name, number=True)

    def _last_values(self, name: str) -> list[ast.expr]:
        """What a name is assigned at the end of it."""
        last = self.body[-1]
        if not name or not isinstance(last, ast.Assign):
            return []
        return [last.value] if [ast.unparse(t) for t in last.targets] == [name] else []

    def _tensor_result(self, node: ast.expr) -> str:
        kind, fact = self.context.kind(node), self._fact(node)
        if fact is not None and fact.what != "tensor":
            fact = None
        if not kind.is_tensor and fact is None:
            return ""
        dtype = self._dtype(kind) or (fact and fact.dtype)
        rank = kind.rank if kind.rank is not None else (fact and fact.rank)
        if not dtype or rank is None or kind.optional:
            return ""
        like = (g.name for g in self.given.values() if self._same_shape(g, kind))
        sizes = next((f"*{name}" for name in like), ", ".join(["?"] * rank))
        return f"{dtype}[{sizes}]"

    def _same_shape(self, given: _Given, kind: Kind) -> bool:
        """Whether a tensor that it takes surely has the shape of another."""
        kinds = [self.context.kind(n) for n in given.nodes]
        same = kind.shape is not None and all(k.shape == kind.shape for k in kinds)
        return given.type == "Tensor" and bool(kinds) and same

    def _dtype(self, kind: Kind) -> str:
        return self.context.inference.tokens.name_of(kind.dtype)

    def _only_computed_with(self, name: str) -> None:
        """A number that compiled code has as a tensor must not decide, or say a size."""
        parents = self.context.whole_parents()
        inside = set(self._walk())
        for node in ast.walk(self.function.node):
            named = isinstance(node, ast.Name) and node.id == name and node not in inside
            if not named or isinstance(node.ctx, ast.Store) or node.lineno < self.body[0].lineno:
                continue
            parent = parents[node]
            arithmetic = isinstance(parent, ast.BinOp) and any(
                self.context.kind(s).is_tensor for s in (parent.left, parent.right)
            )
            if not arithmetic and not isinstance(parent, (ast.Return, ast.Tuple)):
                raise _Unfit(f"the number `{name}` is used behind it")

    # What it returns

    def _returned(self) -> list[ast.Return] | None:
        """The `return`s in it; None where there are none."""
        found = [e for e in _exits(self.body) if isinstance(e, ast.Return)]
        if not any(e.value for e in found):
            return None
        forms = {_form(e.value) for e in found}
        if len(forms) != 1 or not all(e.value for e in found):
            raise _Unfit("what is returned differs in its form")
        rows = [_leaves(e.value) for e in found]
        for column in zip(*rows, strict=True):
            self._column(column)
        if not self.results:
            raise _Unfit("it returns nothing")
        return found

    def _column(self, nodes: tuple[ast.expr, ...]) -> None:
        name = self._free_name(f"result_{len(self.results) + 1}")
        known = [node for node in nodes if self._fact(node) or not self._never_ran(node)]
        found = {self._result(node, name) for node in known or nodes}
        if len(found) != 1:
            raise _Unfit("what is returned differs in rank or dtype")
        self.results.append(found.pop())

    def _never_ran(self, node: ast.expr) -> bool:
        """Whether only what a run did not get to may tell what a value is."""
        kind = self.context.kind(node)
        return bool(self.context.facts) and (kind.is_tensor or kind.what == UNKNOWN)

    # Writes and gradients

    def _writes(self) -> None:
        stored = {n.id for n in _stores_in(self.body)}
        for node in self._walk():
            target = written_into(node, self.context)
            if target is None:
                continue
            root, given = _root(target), self._given_of(target)
            anew = isinstance(root, ast.Name) and root.id in stored
            if anew and self.context.kind(root).fresh:
                continue  # bound here to a tensor of its own
            if given is None:
                self._own(target)
                continue
            if given.type == "Module":
                continue
            if given.type != "Tensor":
                raise _Unfit(f"`{given.shown}` is changed")
            given.written = True
            if given.name in stored:
                raise _Unfit(f"`{given.shown}` is changed, and bound anew")
        for given in self.given.values():
            if given.written and "." not in given.shown and not self._without_grad():
                raise _Unfit(f"`{given.shown}` is written")

    def _own(self, target: ast.expr) -> None:
        """What is written, and was made here, must be no view of what was given."""
        root = _root(target)
        name = root.id if isinstance(root, ast.Name) else ""
        if isinstance(root, ast.Name) and name in {n.id for n in _stores_in(self.body)}:
            kind = self.context.kind(root)
            if not kind.fresh and (kind.is_tensor or kind.what == UNKNOWN):
                raise _Unfit(f"`{name}` may be a view of what it is given")
            return
        raise _Unfit(f"`{ast.unparse(target)}` is changed")

    def _given_of(self, target: ast.expr) -> _Given | None:
        inside = set(ast.walk(target))
        return next((g for g in self.given.values() if any(n in inside for n in g.nodes)), None)

    def _gradient(self) -> None:
        if self._without_grad() or not any(r.differentiable for r in self.results):
            return
        if any(g.written for g in self.given.values()):
            raise _Unfit("it writes, and a gradient may flow through it")

    def _without_grad(self) -> bool:
        """Whether no gradient is noted around it."""
        modes = ("torch.no_grad", "torch.inference_mode")
        around: list[ast.expr] = [*self.function.node.decorator_list]
        entered = (a.items for a in self._around() if isinstance(a, ast.With))
        around += [item.context_expr for items in entered for item in items]
        called = (d.func if isinstance(d, ast.Call) else d for d in around)
        return any(self.context.names.resolve(d) in modes for d in called)

    # Its text

    def _call(self, returned: list[ast.Return] | None) -> tuple[str, list[str]]:
        """(the statement in the place of it, those behind that make its results what they were)."""
        call = f"{self._operator_name()}({', '.join(g.shown for g in self._ordered())})"
        if returned is not None:
            value = returned[0].value
            if self._returns_as_is(value):
                return f"return {call}", []
            shown = {n: r.as_eager(self.torch) for n, r in self._paired(value)}
            shown = {n: f"({s})" if " if " in s else s for n, s in shown.items()}
            text = self.context.source.substituted(value, shown)
            return f"{self._targets()} = {call}", [f"return {text}"]
        if not self.results:
            if not any(g.written for g in self.given.values()):
                raise _Unfit("it gives nothing")
            return call, []
        numbers = [r for r in self.results if r.number]
        return f"{self._targets()} = {call}", [
            f"{r.name} = {r.as_eager(self.torch)}" for r in numbers
        ]

    def _targets(self) -> str:
        return ", ".join(r.name for r in self.results)

    def _paired(self, value: Any) -> Iterator[tuple[ast.expr, _Result]]:
        return zip(_leaves(value), self.results, strict=True)

    def _returns_as_is(self, value: Any) -> bool:
        """Whether a result is a tensor, or a tuple of them."""
        leaves = _leaves(value)
        flat = isinstance(value, ast.Tuple) and leaves == value.elts
        return (flat or leaves == [value]) and not any(r.number for r in self.results)

    def _operator_name(self) -> str:
        base = f"_{self.function.name.strip('_')}_part"
        taken = self.context.names.bound | set(self.context.names.aliases)
        return next(n for n in [base, *(f"{base}_{i}" for i in range(2, 99))] if n not in taken)

    def _ordered(self) -> list[_Given]:
        return sorted(self.given.values(), key=lambda g: not g.type.startswith("Tensor"))

    def _edits(
        self, call: str, tail: list[str], returned: list[ast.Return] | None, imported: bool
    ) -> list[Any]:
        source, newline = self.context.source, self.context.source.newline
        indent = source.white_before(self.body[0])
        start, end = source.begin(self.body[0]), source.span(self.body[-1])[1]
        if indent is None or source.has_long_string(start, end):
            raise _Unfit("its lines cannot be moved")
        body = self._moved(start, end, indent, returned)
        unit = source.indent_unit()
        params = ", ".join(self._param(g) for g in self._ordered())
        results = ", ".join(r.type for r in self.results)
        results = results if len(self.results) == 1 else f"({results})"
        head = [
            f'@{NAME}("({params}) -> {results}")',
            f"def {self._operator_name()}({', '.join(g.name for g in self._ordered())}):",
        ]
        lines = [*head, *(unit + line if line else "" for line in body)]
        if returned is None and self.results:
            shown = (r.as_tensor(r.name, self.torch) for r in self.results)
            lines.append(f"{unit}return {', '.join(shown)}")
        moved = newline.join([*lines, "", ""])
        top = next(s for s in source.tree.body if self.function.node in set(ast.walk(s)))
        text = newline.join([call, *(indent + t for t in tail)])
        moved, helper = (moved, None) if imported else self._with_helper(moved, top)
        edits = [
            insert_before(source, top, moved),
            replace_statements(source, self.body, text, moved=moved),
        ]
        return edits if helper is None else [*edits, helper]

    def _with_helper(self, moved: str, top: ast.stmt) -> tuple[str, Edit | None]:
        """The lines to be inserted, and the edit that imports the decorator; one insertion where no
        line is between the imports and what follows them."""
        source, newline = self.context.source, self.context.source.newline
        helper = _HELPER.replace("TORCH", self.torch).replace("\n", newline)
        edit = after_imports(source, helper, self.torch)
        if edit is None:
            raise _Unfit("the imports leave no place for it")
        if edit.start >= source.begin(top):
            return helper.lstrip() + newline * 3 + moved, None
        return moved, edit

    def _param(self, given: _Given) -> str:
        alias = f"({'abcdefghij'[self._ordered().index(given)]}!)" if given.written else ""
        return f"{given.type.replace('Tensor', 'Tensor' + alias, 1)} {given.name}"

    def _moved(
        self, start: int, end: int, indent: str, returned: list[ast.Return] | None
    ) -> list[str]:
        """The lines of the operator's body."""
        source = self.context.source
        places = [
            (source.span(n), g.name)
            for g in self.given.values()
            for n in g.nodes
            if g.shown != g.name
        ]
        for each in returned or ():
            if self._returns_as_is(each.value):
                continue
            parts = []
            for leaf, result in self._paired(each.value):
                text = _spliced(source.text, *source.span(leaf), places)
                parts.append(result.as_tensor(text, self.torch))
            first, last = source.span(each.value)
            places = [p for p in places if not (first <= p[0][0] and p[0][1] <= last)]
            places.append(((first, last), ", ".join(parts)))
        text = _spliced(source.text, start, end, places)
        return [line.removeprefix(indent) if line.strip() else "" for line in text.splitlines()]


def _spliced(text: str, start: int, end: int, places: list[tuple[tuple[int, int], str]]) -> str:
    parts, at = [], start
    for (first, last), new in sorted(p for p in places if start <= p[0][0] and p[0][1] <= end):
        parts += [text[at:first], new]
        at = last
    return "".join([*parts, text[at:end]])


def _exits(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The `return`s of statements, and what leaves a loop that is not among them."""
    todo: list[tuple[ast.AST, bool]] = [(s, False) for s in body]
    while todo:
        node, looped = todo.pop(0)
        if isinstance(node, ast.Return) or (
            isinstance(node, (ast.Break, ast.Continue)) and not looped
        ):
            yield node
        if isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        inner = looped or isinstance(node, (ast.For, ast.While))
        todo += [(child, inner) for child in ast.iter_child_nodes(node)]


def _stores_in(body: list[ast.stmt]) -> list[ast.Name]:
    return [n for s in body for n in _stores(s)]


def _stores(node: ast.AST) -> Iterator[ast.Name]:
    """The names that are bound in a node, but for those of comprehensions."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.comprehension):
            for part in (child.iter, *child.ifs):
                yield from _stores(part)
        else:
            yield from _stores(child)


def _scope_of(node: ast.AST) -> set[str]:
    """The names that a comprehension, a lambda or a function binds for what it holds."""
    if isinstance(node, (ast.Lambda, ast.FunctionDef)):
        names = {a.arg for a in ast.walk(node.args) if isinstance(a, ast.arg)}
        body = node.body if isinstance(node, ast.FunctionDef) else []
        return names | {n.id for n in _stores_in(body)}
    targets = (g.target for g in getattr(node, "generators", ()))
    return {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}


def _read_first(body: list[ast.stmt], bound: set[str]) -> set[str]:
    """The names that statements may read before they bind them; `bound` are bound before."""
    found, bound = set[str](), set(bound)
    for statement in body:
        blocks = [b for name in _BLOCKS if isinstance(b := getattr(statement, name, None), list)]
        blocks += [h.body for h in getattr(statement, "handlers", ())]
        inside = {n for b in blocks for s in b for n in ast.walk(s)}
        own = [n for n in ast.walk(statement) if n not in inside and isinstance(n, ast.Name)]
        found |= {n.id for n in own if not isinstance(n.ctx, ast.Store)} - bound
        if isinstance(statement, ast.AugAssign):
            found |= {n.id for n in own} - bound
        within = bound | {n.id for n in own if isinstance(n.ctx, ast.Store)}
        simple = isinstance(statement, (ast.FunctionDef, ast.ClassDef))
        for block in blocks:
            found |= (
                {n.id for n in inside if isinstance(n, ast.Name)} - bound
                if simple
                else (_read_first(block, within))
            )
        bound |= _surely_bound([statement])
    return found


def _surely_bound(body: list[ast.stmt]) -> set[str]:
    """The names that statements bind on every way through them."""
    found: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.If):
            sides = [
                None if _leaves_early(b) else _surely_bound(b)
                for b in (statement.body, statement.orelse)
            ]
            known = [s for s in sides if s is not None]
            found |= set.intersection(*known) if known else set()
        elif isinstance(statement, ast.With):
            found |= _surely_bound(statement.body)
            found |= {n.id for i in statement.items for n in _stores(i)}
        elif isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = getattr(statement, "targets", None) or [statement.target]
            if getattr(statement, "value", None) is not None:
                found |= {n.id for t in targets for n in _stores(t)}
        elif isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            found.add(statement.name)
        elif isinstance(statement, (ast.Import, ast.ImportFrom)):
            found |= {(a.asname or a.name).split(".")[0] for a in statement.names}
    return found


def _leaves_early(body: list[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], (ast.Return, ast.Raise, ast.Break, ast.Continue))


def _root(node: ast.expr) -> ast.expr:
    while True:
        if isinstance(node, (ast.Subscript, ast.Attribute)):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        else:
            return node


def written_into(node: ast.AST, context: FileContext) -> ast.expr | None:
    """What a node writes into; None where it binds names alone, or nothing."""
    if isinstance(node, (ast.Subscript, ast.Attribute)) and isinstance(node.ctx, ast.Store):
        return node.value
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        number = context.kind(node.target).is_number or context.kind(node.value).is_number
        kind = context.kind(node.target)
        return node.target if kind.is_tensor or not (number or kind.what == "str") else None
    if not isinstance(node, ast.Call) or (context.resolve(node.func) or "").startswith("torch."):
        return next((k.value for k in getattr(node, "keywords", ()) if k.arg == "out"), None)
    out = next((k.value for k in node.keywords if k.arg == "out"), None)
    if out is not None:
        return out
    if isinstance(node.func, ast.Attribute):
        name = node.func.attr
        inplace = name.endswith("_") and not name.endswith("__")
        container = name in CHANGES_CONTAINERS and not context.kind(node.func.value).is_tensor
        return node.func.value if inplace or container else None
    return None


def _surely_written(body: list[ast.stmt], context: FileContext) -> set[str]:
    """What statements write into on every way through them."""
    found: set[str] = set()
    for statement in body:
        if isinstance(statement, ast.If):
            sides = statement.body, statement.orelse
            found |= set.intersection(*(_surely_written(side, context) for side in sides))
        elif isinstance(statement, ast.With):
            found |= _surely_written(statement.body, context)
        elif isinstance(statement, (ast.Assign, ast.AugAssign, ast.Expr)):
            targets = (written_into(n, context) for n in ast.walk(statement))
            found |= {ast.unparse(t) for t in targets if t is not None}
    return found


def _changed_attributes(
    nodes: list[ast.AST], context: FileContext, deep: bool = True
) -> Iterator[str]:
    """The names of attributes that are stored, or whose values are changed in place."""
    for node in (n for s in nodes for n in (ast.walk(s) if deep else (s,))):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            yield node.attr
            continue
        target = written_into(node, context)
        if target is not None and not context.kind(target).is_tensor:
            inner = (n for n in ast.walk(target) if isinstance(n, ast.Attribute))
            yield from (n.attr for n in inner)


def _form(value: ast.expr | None) -> str:
    """The form of a result: tuples, lists and dicts, and where its values are."""
    if isinstance(value, (ast.Tuple, ast.List)):
        return f"{type(value).__name__}({', '.join(map(_form, value.elts))})"
    if isinstance(value, ast.Dict):
        keys = ", ".join("**" if k is None else ast.unparse(k) for k in value.keys)
        return f"Dict({keys}: {', '.join(map(_form, value.values))})"
    return "" if value is not None else "None"


def _leaves(value: Any) -> list[ast.expr]:
    if isinstance(value, (ast.Tuple, ast.List)):
        return [leaf for e in value.elts for leaf in _leaves(e)]
    if isinstance(value, ast.Dict):
        return [leaf for e in value.values for leaf in _leaves(e)]
    return [value]
