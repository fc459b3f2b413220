"""Flow-sensitive inference over `ast`: the kind of every expression of a function. Never by a
variable's name."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...rewriter.analysis.kinds import (
    ANY,
    BOOL,
    DICT,
    FLOAT,
    FUNCTION,
    INT,
    LIST,
    MODULE,
    NO_CONST,
    OF_INPUT,
    SIMPLE,
    SIZE,
    STR,
    TENSOR,
    TENSORS,
    TUPLE,
    UNKNOWN,
    Kind,
)
from ...rewriter.analysis.name_scopes import bound_in, captured_names
from ...rewriter.analysis.torch_facts import DTYPES
from .block_ends import ExitEnvironments, always_returns, leaves
from .grad_modes import keeps_grad_mode, swallows_nothing
from .infer_calls import Calls
from .infer_expressions import GRAD_MODE

if TYPE_CHECKING:
    from .definitions import Function
    from .file_links import CallSite


_ROUNDS = 20
_TYPE_TESTS = ("isinstance", "type", "hasattr", "callable")
_TENSOR_TYPES = (
    "torch.Tensor",
    "torch.nn.Parameter",
    "torch.nn.parameter.Parameter",
    "torch.autograd.Variable",
)
_ARRAY_TYPES = {"Float": "float", "Int": "int", "Bool": "bool", "Integer": "int", "UInt": "int"}
_ARRAY_TYPES |= {"Shaped": "", "Num": "", "Inexact": "", "Real": "", "Complex": ""}
_NO_TENSORS = frozenset(["int", "float", "bool", "str", "list", "tuple", "dict"])
_SCALARS = {"int": INT, "float": "float", "bool": BOOL, "str": STR}


class Inference(Calls):
    """`kinds[node]` after `function(f)`; `returns(f)` is the kind that a function of the file gives
    back."""

    def function(self, function: Function) -> None:
        """Infer every expression of one function, twice where its body proves that a parameter is a
        tensor."""
        if function in self.done:
            return
        self.done.add(function)
        saved = self.env, self.current, self.returned, self.proved, self.scope, self.flow
        self.current, self.proved = function, set()
        self.scope, self.flow = self.scope_of(function.node), ExitEnvironments()
        try:
            self._body_of(function)
            proved = self.proved - self._tested(function.node)
            self.proved_of[function] = proved
            if proved:
                self._body_of(function, proved)
                self.proved = proved
            self.return_kinds[function] = self._joined(self.returned)
            self.final_env[function] = self.env
        finally:
            self.env, self.current, self.returned, self.proved, self.scope, self.flow = saved
        if function in self.cut_short and function not in self.again:
            self.again.add(function)
            self.done.discard(function)

    def _body_of(
        self, function: Function, tensors: frozenset[Any] | set[str] = frozenset()
    ) -> None:
        self.env, self.returned = dict(self._around(function)), []
        for name in self.scope.bound | self.scope.shared:
            self.env.pop(name, None)
        self.enter_grad_mode()
        self._parameters(function, tensors)
        self.block(function.node.body)
        if not always_returns(function.node.body):
            self.returned.append(SIMPLE["none"])

    def _around(self, function: Function) -> dict[str, Kind]:
        """What a function sees from outside: the module's names, or those of the function around it
        at its end."""
        if function.outer is None:
            return self.module_env
        self.function(function.outer)
        once = self.scope_of(function.outer.node).once
        seen = self.final_env.get(function.outer, {})
        return {**self.module_env, **{n: seen.get(n, ANY) for n in once}}

    def _tested(self, node: ast.FunctionDef) -> set[Any]:
        """Parameters whose type the body asks for: a use on one path proves nothing on the
        others."""
        found = set()
        for call in self.program.nodes(node):
            asks = (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id in _TYPE_TESTS
            )
            if asks and call.args and isinstance(call.args[0], ast.Name):
                found.add(call.args[0].id)
        return found

    def _joined(self, kinds: list[Kind]) -> Kind:
        result = None
        for kind in kinds:
            result = kind if result is None else self.join(result, kind)
        return result or ANY

    def returns(self, function: Function) -> Kind:
        """What a function gives; nothing is known where that is just being found out, and what asks
        is inferred once more when it is asked for again."""
        self.users.setdefault(function, set()).add(self.current)
        if function not in self.done:
            self.function(function)
        elif function not in self.return_kinds and self.current is not function:
            self.cut_short.add(self.current)
        kind = self.return_kinds.get(function, ANY)
        if kind.of_input:  # no input of the caller
            return Kind(UNKNOWN, cls=OF_INPUT)
        return self.portable(kind, self) if kind.is_tensor else kind

    # The second look, with inputs taken to be tensors where their use or their calls suggest it

    def affected(self, start: set[Function | None]) -> set[Function]:
        """The functions whose kinds change with those of some: what stands in them, and what uses
        what they return."""
        found: set[Function] = set()
        todo = list(start)
        while todo:
            function = todo.pop()
            if function is not None and function.name == "__init__":
                return set(self.program.functions)  # what it stores may be read anywhere
            if function is not None and function not in found:
                found.add(function)
                todo += [*self.program.inner(function), *self.users.get(function, ())]
        return found

    def supposing(self, functions: set[Function], any_path: bool = False) -> Inference:
        """What is known, with these functions to be inferred anew, their inputs as suggested;
        `any_path`: and what is a tensor on some path as one."""
        other = copy.copy(self)
        other.suppose, other.any_path, other.done = True, any_path, self.done - functions
        other.cut_short, other.again = set(), set()
        for name in ("kinds", "final_env", "at_branch", "grad_modes"):
            setattr(other, name, dict(getattr(self, name)))
        known = self.return_kinds
        other.return_kinds = {f: k for f, k in known.items() if f not in functions}
        made_anew = any(f.name == "__init__" for f in functions)
        other.class_kinds = {} if made_anew else dict(self.class_kinds)
        return other

    # Parameters and annotations

    def _parameters(self, function: Function, tensors: frozenset[Any] | set[str]) -> None:
        args = function.node.args
        given = self._given(function)
        positional = [*args.posonlyargs, *args.args]
        defaults = [None] * (len(positional) - len(args.defaults)) + args.defaults
        for arg, default in [
            *zip(positional, defaults, strict=True),
            *zip(args.kwonlyargs, args.kw_defaults, strict=True),
        ]:
            optional = isinstance(default, ast.Constant) and default.value is None
            kind = self._parameter(arg, optional, arg.arg in tensors)
            told = given.get(arg.arg) if kind.what == UNKNOWN else None
            if kind.is_tensor and self.suppose:
                kind = self._with_facts(kind, given.get(arg.arg, ANY))
            if kind.what == UNKNOWN and isinstance(default, ast.Name) and self._is_side(function):
                told = self.kinds.get(default)
            self.env[arg.arg] = kind if told is None else replace(told, optional=optional)
        for arg in filter(None, (args.vararg, args.kwarg)):
            self.env[arg.arg] = ANY
        if function.self_name:
            self.env[function.self_name] = Kind("self", cls=function.cls.name)

    def _with_facts(self, stated: Kind, given: Kind) -> Kind:
        """What an annotation says, with the rank and the dtype that calls give."""
        known = given.is_tensor and bool(self.tokens.category(given.dtype))
        unknown = self.tokens.category(stated.dtype) is None
        rank = given.rank if given.is_tensor and stated.rank is None else stated.rank
        stated = replace(stated, rank=rank)
        return replace(stated, dtype=given.dtype) if known and unknown else stated

    def _is_side(self, function: Function) -> bool:
        """Whether a function is a side of torch.cond alone, which gives it nothing."""
        if function.outer is None:
            return False
        around = list(self.program.nodes(function.outer.node))
        sides = {
            id(a)
            for n in around
            if isinstance(n, ast.Call) and self.names.resolve(n.func) == "torch.cond"
            for a in n.args[1:3]
        }
        named = [n for n in around if isinstance(n, ast.Name) and n.id == function.name]
        return bool(named) and all(id(n) in sides for n in named)

    def _given(self, function: Function) -> dict[str, Kind]:
        """What the captured calls of a function give it, where only this is asked for: others may
        call it too. {parameter: kind}, of those of which the calls tell the same."""
        sites = self.program.links.callers.get(function.qualified, ())
        if not sites:
            return {}
        self.suggested.add(function)
        found: dict[str, list[Kind]] = {}
        for site in sites if self.suppose else ():
            for name, kind in self._arguments(function, site):
                found.setdefault(name, []).append(kind)
        return {n: told for n, kinds in found.items() if (told := self._stated(kinds)) is not None}

    def _stated(self, kinds: list[Kind]) -> Kind | None:
        """What several calls give for a parameter: what all of them that tell anything agree on."""
        same = all(k.is_tensor for k in kinds)
        return self._joined(kinds) if same else _agreed(kinds)

    def _arguments(self, function: Function, site: CallSite) -> Iterator[tuple[str, Kind]]:
        """(parameter, kind) of the arguments of a call."""
        place = self.neighbours.place(site, self) if self.neighbours else (self, site)
        caller = place[0].program.by_name.get(site.caller) if place else None
        if caller is None:
            return
        there = place[0]
        there.function(caller)
        call = there.program.call_at(caller, site.line, site.column)
        if call is None:
            return
        args = function.node.args
        names = [a.arg for a in [*args.posonlyargs, *args.args]][bool(function.self_name) :]
        named = [(k.arg, k.value) for k in call.keywords if k.arg]
        given = dict([*zip(names, call.args, strict=False), *named])
        for name, node in given.items():
            if isinstance(node, ast.Starred):
                return
            yield name, self.portable(there.kind(node), there)
        if len(named) == len(call.keywords) and function.name != "forward":
            left_out = _none_by_default(args) - given.keys()
            yield from ((name, SIMPLE["none"]) for name in left_out)

    def _parameter(self, arg: ast.arg, optional: bool, proved: bool) -> Kind:
        if proved:
            return self.tokens.tensor(optional=optional)
        if arg.annotation is None:
            return Kind("unknown", param=arg.arg, optional=optional)
        kind = self.annotation(arg.annotation)
        return replace(kind, optional=kind.optional or optional)

    def annotation(self, node: ast.expr) -> Kind:
        """The kind that an annotation names."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            try:
                node = ast.parse(node.value, mode="eval").body
            except SyntaxError:
                return ANY
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return self._union([node.left, node.right])
        if isinstance(node, ast.Subscript):
            return self._generic(node)
        if isinstance(node, ast.Constant) and node.value is None:
            return SIMPLE["none"]
        return self._plain_annotation(node)

    def _plain_annotation(self, node: ast.expr) -> Kind:
        name = self.names.resolve(node) or ""
        if name in _SCALARS:
            return SIMPLE[_SCALARS[name]]
        if name in _TENSOR_TYPES:
            return self.tokens.tensor()
        if name.startswith("torch.") and name.count(".") == 1:
            return self._legacy(name[6:])
        if name in ("numpy.ndarray",):
            return SIMPLE["ndarray"]
        if name.startswith("torch.nn."):
            return Kind(MODULE, cls="torch.nn")  # or of a class below
        own = isinstance(node, ast.Name) and node.id in self.program.classes
        return self._object(node.id if own else name)

    def _union(self, parts: list[ast.expr]) -> Kind:
        kinds = [self.annotation(p) for p in parts]
        rest = [k for k in kinds if k.what != "none"]
        if len(rest) != 1:
            return ANY if len({k.what for k in rest}) != 1 or not rest else rest[0]
        return replace(rest[0], optional=len(rest) < len(kinds) or rest[0].optional)

    def _generic(self, node: Any) -> Any:
        name = (self.names.resolve(node.value) or "").rpartition(".")[2]
        if name in _ARRAY_TYPES:
            return self._array(name, node.slice)
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if name == "Optional":
            return self._union([node.slice, ast.Constant(None)])
        if name == "Union":
            return self._union(inner)
        if name in ("List", "list", "Tuple", "tuple", "Sequence", "Iterable"):
            return self._sequence(name, inner)
        if name in ("Dict", "dict", "Mapping", "OrderedDict") and len(inner) == 2:
            return Kind(DICT, item=self._plain_item(inner[1]))
        return ANY

    def _sequence(self, name: str, inner: list[ast.expr]) -> Kind:
        dots = any(isinstance(n, ast.Constant) and n.value is ... for n in inner)
        kinds = [self.annotation(n) for n in (inner[:1] if dots else inner)]
        if kinds and all(k.is_tensor for k in kinds):
            return Kind(TENSORS)
        if name in ("Tuple", "tuple") and not dots:
            return Kind(TUPLE, parts=tuple(kinds))
        return Kind(LIST, item=self._plain_item(inner[0]))

    def _plain_item(self, node: ast.expr) -> Kind | None:
        """What a container holds, by its annotation."""
        kind = self.annotation(node)
        return kind if kind.what != UNKNOWN or kind.owner else None

    def _array(self, name: str, inner: ast.expr) -> Kind:
        """As jaxtyping writes them: `Float[Tensor, "b n"]`, or a wrapper's `Float["b n"]`."""
        parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
        if not any(isinstance(p, ast.Constant) and isinstance(p.value, str) for p in parts):
            return ANY
        of = self.annotation(parts[0]) if len(parts) > 1 else self.tokens.tensor()
        category = _ARRAY_TYPES[name]
        if not of.is_tensor or not category:
            return of
        known = self.tokens.bool if category == "bool" else self.tokens.some(category)
        return replace(of, dtype=known)

    # Statements

    def block(self, body: list[ast.stmt]) -> None:
        for node in body:
            self._watched()
            handler = getattr(self, f"do_{type(node).__name__}", None)
            if handler:
                handler(node)
            else:
                self._children(node)
        self._watched()

    def _watched(self) -> None:
        """Between any two statements of a `try` an exception may go on in its handlers."""
        for seen in self.flow.watchers:
            seen.append(dict(self.env))

    def _children(self, node: ast.stmt) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.expr(child)

    def do_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.env[node.name] = Kind(FUNCTION, cls=node.name)
        for child in [*node.decorator_list, *node.args.defaults]:
            self.expr(child)

    do_AsyncFunctionDef = do_FunctionDef

    def do_ClassDef(self, node: Any) -> None:
        self.env[node.name] = ANY

    def do_Import(self, node: Any) -> None:
        for alias in node.names:
            self.env.pop((alias.asname or alias.name).split(".")[0], None)

    do_ImportFrom = do_Import

    def do_Break(self, node: Any) -> None:
        self.flow.breaks[-1].append(dict(self.env))

    def do_Continue(self, node: Any) -> None:
        self.flow.continues[-1].append(dict(self.env))

    def do_Return(self, node: ast.Return) -> None:
        self.returned.append(self.expr(node.value) if node.value else SIMPLE["none"])

    def do_Expr(self, node: ast.Expr) -> None:
        self.expr(node.value)

    def do_Assign(self, node: ast.Assign) -> None:
        kind = self.expr(node.value)
        for target in node.targets:
            self.assign(target, kind, node.value)

    def do_AnnAssign(self, node: ast.AnnAssign) -> None:
        kind = self.expr(node.value) if node.value else ANY
        stated = self.annotation(node.annotation)
        self.assign(node.target, stated if kind.what == "unknown" else kind, node.value)

    def do_AugAssign(self, node: ast.AugAssign) -> None:
        old, value = self.expr(node.target), self.expr(node.value)
        if old.is_tensor:  # written in place
            self.assign(node.target, old, None)
            return
        self.assign(node.target, replace(self.binary(node.op, old, value), made=None), None)

    def assign(self, target: ast.expr, kind: Kind, value: ast.expr | None) -> None:
        """Bind `target` to something of `kind`; `value` is the expression, where there is one."""
        if isinstance(target, ast.Name):
            known = ANY if target.id in self.scope.shared else kind
            self.kinds[target] = self.env[target.id] = known
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, kind, value)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, Kind(TENSORS) if kind.is_tensor else Kind(LIST), None)
        else:
            self._store(target, kind)

    def _store(self, target: ast.expr, kind: Kind) -> None:
        owner = self.expr(target.value)
        if isinstance(target, ast.Attribute) and owner.is_tensor and target.attr == "data":
            self.scramble()
        if isinstance(target, ast.Subscript):
            self.expr(target.slice)
        elif (
            isinstance(target.value, ast.Name) and self.env.get(target.value.id, ANY).what == "self"
        ):
            self.stored.setdefault(target.attr, []).append(kind)
            owner = self.current.owner if self.current else None
            if kind.is_tensor and owner is not None:
                known = replace(self.portable(kind, self), optional=True)
                self.kept_tensors[owner.name, target.attr] = known

    def _unpack(self, target: ast.Tuple, kind: Kind, value: ast.expr | None) -> None:
        number = len(target.elts)
        written = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
        starred = any(isinstance(part, ast.Starred) for part in target.elts)
        if len(written) == number:
            kinds = [self.kinds[part] for part in written]
        elif len(kind.parts) == number and not starred:
            kinds = list(kind.parts)
        else:
            kinds = [self.element(kind)] * number
        for part, item in zip(target.elts, kinds, strict=True):
            self.assign(part, item, None)

    def do_If(self, node: ast.If) -> None:
        test = self.expr(node.test)
        self.grad_modes[node] = self.grad_mode
        before = dict(self.env)
        self._refine(node.test, True)
        if test.is_tensor or test.host or isinstance(node.test, ast.BoolOp) or _calls(node.test):
            self.at_branch[node] = dict(self.env)
        self.block(node.body)
        after_body = self.env
        self.env = before
        self._refine(node.test, False)
        self.block(node.orelse)
        self._merge(after_body, leaves(node.body), leaves(node.orelse))

    def _merge(self, other: dict[str, Kind], other_left: bool, self_left: bool) -> None:
        """Join the environment of two paths; a path that left the block counts for nothing."""
        if self_left and not other_left:
            self.env = other
        elif not other_left:
            self.env = self._joined_envs([other, self.env])

    def _refine(self, test: ast.expr, holds: bool) -> None:
        """What a test tells of a name on the path where it holds."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            self._refine(test.operand, not holds)
        elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if holds else ast.Or):
            for part in test.values:
                self._refine(part, holds)
        elif isinstance(test, ast.Compare):
            self._refine_none(test, holds)
            self._refine_dtype(test, holds)
        elif isinstance(test, ast.Call) and test.args and isinstance(test.args[0], ast.Name):
            self._refine_type(test, holds)

    def _refine_none(self, test: ast.Compare, holds: bool) -> None:
        if (
            isinstance(test.left, ast.Name)
            and isinstance(test.comparators[0], ast.Constant)
            and len(test.ops) == 1
        ):
            old = self.env.get(test.left.id, ANY)
            if test.comparators[0].value is None and isinstance(
                test.ops[0], ast.IsNot if holds else ast.Is
            ):
                self.env[test.left.id] = replace(old, optional=False)

    def _refine_dtype(self, test: ast.Compare, holds: bool) -> None:
        """`x.dtype == torch.float16`."""
        asks = (
            isinstance(test.left, ast.Attribute)
            and test.left.attr == "dtype"
            and isinstance(test.left.value, ast.Name)
        )
        if (
            not asks
            or len(test.ops) != 1
            or not isinstance(test.ops[0], ast.Eq if holds else ast.NotEq)
        ):
            return
        name, old = test.left.value.id, self.env.get(test.left.value.id, ANY)
        dtype = (self.names.resolve(test.comparators[0]) or "").removeprefix("torch.")
        if old.is_tensor and dtype in DTYPES:
            self.env[name] = replace(old, dtype=self._dtype_token(dtype))

    def _refine_type(self, test: ast.Call, holds: bool) -> None:
        name, of = self.names.resolve(test.func), test.args[0].id
        asks = name in ("torch.is_tensor", "torch.jit.isinstance")
        types = test.args[1] if name == "isinstance" and len(test.args) == 2 else None
        named = {self.names.resolve(t) for t in getattr(types, "elts", [types]) if t is not None}
        asks = asks or named == {"torch.Tensor"}
        known = self.env.get(of, ANY)
        is_tensor = known.is_tensor
        if asks and holds and known.what == UNKNOWN:
            self.env[of] = self.tokens.tensor()
        elif is_tensor and (asks if not holds else bool(named) and named <= _NO_TENSORS):
            self.env[of] = ANY

    def do_For(self, node: ast.For) -> None:
        iterated = self.expr(node.iter)
        self._loop(node, lambda: self.assign(node.target, self.element(iterated), None))

    do_AsyncFor = do_For

    def do_While(self, node: ast.While) -> None:
        self.at_branch[node] = dict(self.env)
        self._loop(node, lambda: self.expr(node.test))

    def _loop(self, node: ast.stmt, enter: Callable[..., Any]) -> None:
        head = dict(self.env)
        for turn in range(_ROUNDS):
            if turn == _ROUNDS - 1:  # no fixed point: nothing is known of what the body binds
                head = {n: k for n, k in head.items() if n not in bound_in(node)}
            self.env = dict(head)
            breaks, nexts = self._turn(node, enter)
            widened = self._widened(node, head, self._joined_envs([self.env, *nexts]))
            if widened == head:
                break
            head = widened
        self.env = head
        self.block(node.orelse)
        self.env = self._joined_envs([self.env, *breaks])

    def _turn(self, node: Any, enter: Any) -> Any:
        """One turn of a loop; the environments at its breaks, and at its continues."""
        breaks, nexts = [], []
        self.flow.breaks.append(breaks)
        self.flow.continues.append(nexts)
        enter()
        self.block(node.body)
        self.flow.breaks.pop()
        self.flow.continues.pop()
        return breaks, nexts

    def _widened(self, loop: Any, head: Any, last: Any) -> dict[str, Kind]:
        """What holds at a loop's head at every turn. Facts that change get a token that stands for
        the name at this head, so that a fixed point is one in its tokens as well."""
        place, found = (loop.lineno, loop.col_offset), {}
        for name in head.keys() & last.keys():
            one, other = head[name], last[name]
            joined = found[name] = self.join(one, other)
            if joined != one and one.is_tensor and other.is_tensor:
                found[name] = self.tokens.at_head(joined, one, other, (place, name))
        return found

    def do_With(self, node: ast.With) -> None:
        mode = self.env.get(GRAD_MODE, ANY)
        for item in node.items:
            kind = self.expr(item.context_expr)
            if not keeps_grad_mode(item.context_expr, self.names):
                self.enter_grad_mode()
            if item.optional_vars is not None:
                self.assign(item.optional_vars, ANY if kind.is_tensor else kind, None)
        inside, seen = self.env.get(GRAD_MODE, ANY), []
        self.flow.watchers.append(seen)
        self.block(node.body)
        self.flow.watchers.pop()
        if not all(swallows_nothing(item.context_expr, self.names) for item in node.items):
            self.env = self._joined_envs([self.env, *seen])
        if self.env.get(GRAD_MODE, ANY) == inside:
            self.env[GRAD_MODE] = mode
        else:
            self.enter_grad_mode()

    do_AsyncWith = do_With

    def do_Try(self, node: ast.Try) -> None:
        seen, handled = [dict(self.env)], []
        self.flow.watchers += [seen, handled]
        self.block(node.body)
        self.flow.watchers.remove(seen)
        caught = self._joined_envs(seen)
        self.block(node.orelse)
        ends = [self.env]
        for handler in node.handlers:
            self.env = {**caught, **({handler.name: ANY} if handler.name else {})}
            self.block(handler.body)
            ends.append(self.env)
        self.flow.watchers.remove(handled)
        self.env = self._joined_envs(ends)
        if node.finalbody:
            self.env = self._joined_envs([*ends, *handled])
            self.block(node.finalbody)

    do_TryStar = do_Try

    def do_Match(self, node: Any) -> None:
        self.expr(node.subject)
        bound = {n: ANY for case in node.cases for n in captured_names(case.pattern)}
        before = {**self.env, **bound}
        ends = [before]
        for case in node.cases:
            self.env = dict(before)
            if case.guard is not None:
                self.expr(case.guard)
            self.block(case.body)
            ends.append(self.env)
        self.env = self._joined_envs(ends)

    def do_Delete(self, node: Any) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.env.pop(target.id, None)
            else:
                self._children(target)

    def do_Assert(self, node: ast.Assert) -> None:
        self._children(node)
        self._refine(node.test, True)


def _none_by_default(args: ast.arguments) -> set[str]:
    """The parameters that are None where a call leaves them out."""
    positional = [*args.posonlyargs, *args.args]
    ended = positional[len(positional) - len(args.defaults) :]
    pairs = [*zip(ended, args.defaults, strict=True)]
    pairs += zip(args.kwonlyargs, args.kw_defaults, strict=True)
    return {a.arg for a, d in pairs if isinstance(d, ast.Constant) and d.value is None}


def _agreed(kinds: list[Kind]) -> Kind | None:
    """What all kinds are, of those that tell anything."""
    known = [k for k in kinds if k.what not in (UNKNOWN, "none")]
    if all(k.what == "none" for k in kinds):
        return SIMPLE["none"]
    if not known or len({k.what for k in known}) != 1:
        return None
    if len(known) < len(kinds) and not known[0].is_tensor:
        return None
    if known[0].what not in (TENSOR, TENSORS, INT, SIZE, FLOAT, BOOL, STR):
        return None
    return replace(known[0], host=False, const=NO_CONST)  # what was read, was read by the caller


def _calls(test: ast.expr) -> bool:
    """Whether a test compares what a call gives: a number that is drawn, perhaps."""
    compares = isinstance(test, ast.Compare)
    return compares and any(isinstance(s, ast.Call) for s in (test.left, *test.comparators))
