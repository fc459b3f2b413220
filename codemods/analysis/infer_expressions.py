"""The kind of an expression: operators, attributes, items, displays."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...rewriter.analysis import torch_facts as tables
from ...rewriter.analysis.kinds import (
    ANY,
    BOOL,
    DICT,
    FLOAT,
    FUNCTION,
    INT,
    LIST,
    MODULE,
    MODULES,
    NDARRAY,
    NO_CONST,
    NONE,
    NUMBER,
    OF_INPUT,
    SIMPLE,
    SIZE,
    STR,
    TENSOR,
    TENSORS,
    TUPLE,
    UNKNOWN,
    Kind,
    Tokens,
    constant,
    instance,
    product_rank,
)
from ...rewriter.analysis.name_scopes import Rebindings, rebindings
from .assumed_tensors import comes_of_input, picks_axes
from .block_ends import ExitEnvironments

if TYPE_CHECKING:
    from ...rewriter.analysis.import_names import ImportedNames
    from ..trace.trace_facts import TraceFacts
    from .definitions import Class, FileProgram


GRAD_MODE, LAYER_CLASS = "<grad mode>", "layer class"
_RECURRENT_BASE = "torch.nn.RNNBase"
_RECURRENT = frozenset(["torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN", _RECURRENT_BASE])
_NO_SCOPE = Rebindings(frozenset(), frozenset(), frozenset(), {})


class Expressions:
    """State of one file's inference, and the expression half of it."""

    def __init__(
        self,
        program: FileProgram,
        names: ImportedNames,
        facts: TraceFacts | None = None,
        neighbours: Any = None,
    ) -> None:
        self.program, self.names, self.tokens, self.facts = program, names, Tokens(), facts
        self.neighbours = neighbours  # what is known of other files' values (see neighbours)
        self.suppose, self.suggested, self.users = False, set(), {}
        # Whether what is a tensor on one of several paths is taken for one; where that matters, and
        # what attributes hold in that case: {(class, attribute): kind}.
        self.any_path, self.partly, self.kept_tensors = False, set(), {}
        self.proved_of: dict[Any, set[str]] = {}  # {function: parameters that are tensors}
        self.cut_short, self.again = set(), set()  # functions: see Inference.returns
        self.kinds, self.done, self.return_kinds, self.final_env = {}, set(), {}, {}
        self.stored, self.class_kinds, self.proved, self.at_branch = {}, {}, set(), {}
        self.env, self.returned, self.current = {}, [], None
        self.scope, self.flow, self.module_env = _NO_SCOPE, ExitEnvironments(), {}
        self.grad_modes, self.at_once = {}, set()
        self.switching, self._scopes = program.switching, {}
        self._module_level()

    def _module_level(self) -> None:
        """Kinds of the names that the module binds once, by plain assignment."""
        seen, rebound = {}, self.program.rebound
        for node in self.program.tree.body:
            if (
                isinstance(node, ast.Assign)
                and len(node.targets) == 1
                and isinstance(node.targets[0], ast.Name)
            ):
                seen.setdefault(node.targets[0].id, []).append(node.value)
        for name, values in seen.items():
            if len(values) == 1 and name not in rebound:
                self.env[name] = self.expr(values[0])
        self.module_env = self.env

    # What stands in other files

    def beyond(self, name: str | None) -> tuple[Any, str] | None:
        """(what is known of the file, qualified name) of what a name of the project stands for; the
        name is the file's own, or says the place (`_placed`)."""
        place = self.program.links.targets.get(name or "")
        if name and name.startswith("@") and self.neighbours:
            path, _, qualified = name[1:].rpartition(":")
            place = path, qualified
        found = self.neighbours.inference(place[0], self.suppose) if place else None
        return (found, place[1]) if found is not None else None

    def class_named(self, name: str | None) -> tuple[Any, Class] | None:
        """(what is known of its file, the class) of this file or of the project."""
        if name in self.program.classes:
            return self, self.program.classes[name]
        there, qualified = self.beyond(name) or (None, "")
        found = there.program.classes.get(qualified) if there is not None else None
        return (there, found) if found is not None else None

    def _placed(self, name: str) -> str | None:
        """The name by which other files know a class that this one names so."""
        place = self.program.links.targets.get(name)
        if name in self.program.classes and self.program.links.path:
            place = self.program.links.path, name
        return name if name.startswith("@") else f"@{place[0]}:{place[1]}" if place else None

    def bases(self, cls: Class) -> Iterator[tuple[Any, Class]]:
        """(what is known of its file, the class) of the classes that a class derives from, the last
        first."""
        for base in reversed(cls.bases):
            known = None if base in self.program.classes else self.beyond(base)
            there, name = known or (self, base)
            found = there.program.classes.get(name)
            if found is not None and found is not cls:
                yield there, found

    def _object(self, name: str) -> Kind:
        """An object of a class of the project."""
        found = self.class_named(name)
        if found is None:
            return ANY
        return Kind(MODULE, cls=name) if found[1].is_module else instance(name)

    def portable(self, kind: Kind, there: Any) -> Kind:
        """What holds of a kind, known in another file (or function: `there` is this one's then),
        everywhere."""
        tokens = there.tokens
        if kind.is_tensor:
            facts = {"low": kind.least_rank(), "rank": kind.rank, "optional": kind.optional}
            category, made = tokens.category(kind.dtype), self.tokens.tensor(**facts)
            known = self.tokens.bool if category == "bool" else self.tokens.of_category(kind.dtype)
            if tokens is not self.tokens and category not in (None, "bool"):
                known = self.tokens.some(category)
            return replace(made, dtype=known)
        if there is not self and (kind.what in (MODULE, "self") or kind.owner):
            if kind.what == MODULE and (kind.cls or "").startswith("torch."):
                return replace(kind, param=None)
            name = there._placed(kind.owner or kind.cls or "")
            return ANY if name is None else self._object(name)
        item = self.portable(kind.item, there) if kind.item else None
        parts = tuple(self.portable(k, there) for k in kind.parts)
        return replace(kind, item=item, parts=parts, param=None, made=None)

    def kind(self, node: ast.expr) -> Kind:
        """The kind that inference gave to `node`."""
        return self.kinds.get(node, ANY)

    def expr(self, node: ast.expr) -> Kind:
        handler = getattr(self, f"on_{type(node).__name__}", None)
        kind = handler(node) if handler else self._other(node)
        learnt = self.learnt(node, kind)
        if learnt is not kind and isinstance(node, ast.Name):  # one tensor at every use
            elsewhere = node.id in self.module_env or node.id in self.scope.shared
            self.env.update({} if elsewhere else {node.id: learnt})
        self.kinds[node] = learnt
        return learnt

    def learnt(self, node: ast.expr, kind: Kind) -> Kind:
        """What inference does not know, the traced run may."""
        fact = self.facts.of(self.current.qualified, node) if self.facts and self.current else None
        seen = fact.kind(self.tokens) if fact else None
        if seen is None:
            return kind
        if kind.what == UNKNOWN or (kind.what == NDARRAY and not seen.is_tensor):
            return seen
        if kind.is_tensor and seen.what == TENSORS:
            return seen
        if not (kind.is_tensor and seen.is_tensor):
            return kind
        rank = {"rank": seen.rank} if kind.rank is None and seen.rank is not None else {}
        unknown = bool(self.tokens.category(seen.dtype)) and not self.tokens.is_known(kind.dtype)
        return replace(
            kind,
            optional=kind.optional and seen.optional,
            strided=kind.strided or seen.strided,
            **rank,
            **({"dtype": seen.dtype} if unknown else {}),
        )

    def _other(self, node: ast.expr) -> Kind:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.expr(child)
        return ANY

    def on_Constant(self, node: ast.Constant) -> Kind:
        return constant(node.value)

    def on_Name(self, node: ast.Name) -> Kind:
        if node.id not in self.env and node.id in self.scope.bound:
            self.partly.add(self.current)
        return self.env.get(node.id, ANY)

    def join(self, left: Kind, right: Kind) -> Kind:
        """What holds on both of two paths; or, where that is asked for, on one of them."""
        if left.is_tensor != right.is_tensor and NONE not in (left.what, right.what):
            self.partly.add(self.current)
            if self.any_path:
                return replace(left if left.is_tensor else right, optional=True, made=None)
        of_layers = left.what == right.what and left.what in (MODULE, LAYER_CLASS)
        if of_layers and {left.cls, right.cls} <= _RECURRENT:
            return Kind(left.what, cls=_RECURRENT_BASE)
        return self.tokens.join(left, right)

    def _joined_envs(self, envs: Any) -> Any:
        """What holds at the end of all of several paths."""
        first, *others = envs
        for env in others:
            both = first.keys() & env.keys()
            one = {**first, **env} if self.any_path else {}
            alone = {n: k for n, k in one.items() if n not in both and k.is_tensor}
            first = alone | {n: self.join(first[n], env[n]) for n in both}
        return first

    def on_JoinedStr(self, node: ast.JoinedStr) -> Kind:
        self._other(node)
        return SIMPLE[STR]

    def on_FormattedValue(self, node: ast.FormattedValue) -> Kind:
        self._other(node)
        return SIMPLE[STR]

    def on_NamedExpr(self, node: Any) -> Any:
        kind = self.expr(node.value)
        self.env[node.target.id] = ANY if node.target.id in self.scope.shared else kind
        return kind

    def on_Lambda(self, node: ast.Lambda) -> Kind:
        saved = dict(self.env) if node in self.at_once else self._later()
        args = node.args
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs]
        for arg in [*every, *filter(None, (args.vararg, args.kwarg))]:
            self.env[arg.arg] = ANY
        self.expr(node.body)
        self.env = saved
        return SIMPLE[FUNCTION]

    def scope_of(self, function: Any) -> Any:
        """The Rebindings of a function's names."""
        if function not in self._scopes:
            self._scopes[function] = rebindings(function)
        return self._scopes[function]

    def _later(self) -> Any:
        """Leaves in the environment what holds whenever an expression runs that is evaluated later;
        gives back the one of now."""
        saved = dict(self.env)
        known = self.scope.once | self.module_env.keys()
        self.env = {n: k for n, k in self.env.items() if n in known}
        self.enter_grad_mode()
        return saved

    def enter_grad_mode(self) -> None:
        """From here on the grad mode may be another."""
        self.env[GRAD_MODE] = Kind(GRAD_MODE, const=self.tokens.fresh())

    @property
    def grad_mode(self) -> Any:
        """A number for the grad mode at this point; None where several paths lead here."""
        mode = self.env.get(GRAD_MODE, ANY).const
        return None if mode is NO_CONST else mode

    def new(self, kind: Any, strided: bool = False) -> Any:
        """`kind` as a tensor that is made here: dense, in memory of its own."""
        return replace(kind, made=self.grad_mode, fresh=True, strided=kind.strided or strided)

    def strided(self, node: Any) -> None:
        """What `node` names is not sparse: it went through an operator that takes no sparse
        tensor."""
        kind = self.env.get(node.id) if isinstance(node, ast.Name) else None
        if kind is not None and kind.is_tensor:
            self.env[node.id] = replace(kind, strided=True)

    def suppose_tensor(self, kind: Any) -> Any:
        """Takes an input of a captured function to be a tensor, where that is asked for."""
        if not self._takes_inputs():
            return False
        self.suggested.add(self.current)
        if self.suppose and kind.param:
            self.proved.add(kind.param)
        return self.suppose

    def _takes_inputs(self) -> bool:
        """Whether the current function runs under capture: nothing but tensors has their methods
        there."""
        function = self.current
        return function is not None and (
            function in self.program.compiled or function.qualified in self.program.links.reached
        )

    def scramble(self) -> None:
        """Something gave a tensor another dtype, shape or memory in place: it may be any."""
        for name, kind in self.env.items():
            if kind.is_tensor:
                self.env[name] = self.tokens.tensor(optional=kind.optional)
            elif kind.parts:
                self.env[name] = replace(kind, parts=())

    def on_IfExp(self, node: ast.IfExp) -> Kind:
        self.expr(node.test)
        self.grad_modes[node] = self.grad_mode
        before = dict(self.env)
        body = self.expr(node.body)
        after, self.env = self.env, before
        orelse = self.expr(node.orelse)
        self.env = self._joined_envs([after, self.env])
        return self.join(body, orelse)

    def on_BoolOp(self, node: ast.BoolOp) -> Kind:
        result = self.expr(node.values[0])
        for value in node.values[1:]:
            before = dict(self.env)
            result = self.join(result, self.expr(value))
            self.env = self._joined_envs([before, self.env])
        return result

    def on_Yield(self, node: Any) -> Any:
        """Whoever goes on with a generator may do so under another grad mode."""
        self._other(node)
        self.enter_grad_mode()
        return ANY

    on_YieldFrom = on_Await = on_Yield

    def on_UnaryOp(self, node: ast.UnaryOp) -> Kind:
        kind = self.expr(node.operand)
        if isinstance(node.op, ast.Not):
            return replace(SIMPLE[BOOL], host=kind.is_tensor)
        if kind.is_tensor and isinstance(node.op, ast.UAdd):
            return replace(kind, optional=False)
        if kind.is_tensor:
            return self.new(replace(kind, optional=False))
        return replace(kind, const=_negated(node, kind))

    def on_BinOp(self, node: ast.BinOp) -> Kind:
        left, right = self.expr(node.left), self.expr(node.right)
        if left.is_number or right.is_number:
            kind, dense = self.binary(node.op, left, right), isinstance(node.op, (ast.Add, ast.Sub))
            if dense and kind.is_tensor:  # a number is added to no sparse tensor
                self.strided(node.left if left.is_tensor else node.right)
                return replace(kind, strided=True)
            return kind
        return self.binary(node.op, left, right)

    def binary(self, op: ast.AST, left: Kind, right: Kind) -> Kind:
        """The kind of `left op right`."""
        if left.is_tensor or right.is_tensor:
            return self._tensor_binary(op, left, right)
        if left.is_number and right.is_number:
            return self._numbers(op, left, right)
        if NDARRAY in (left.what, right.what):
            return SIMPLE[NDARRAY]
        if (left.param and right.is_number) or (right.param and left.is_number):
            return left if left.param else right  # a tensor, if what it came from is one
        if comes_of_input(left, right):
            return Kind(UNKNOWN, cls=OF_INPUT)
        same = left.what == right.what and left.what in (STR, LIST, TUPLE, TENSORS)
        return (
            replace(left, const=NO_CONST, parts=())
            if same
            else (SIMPLE[STR] if left.what == STR else ANY)
        )

    def _tensor_binary(self, op: ast.AST, left: Kind, right: Kind) -> Kind:
        tensors = [k for k in (left, right) if k.is_tensor]
        if isinstance(op, ast.MatMult):
            kind = self.tokens.tensor(fresh=True, rank=product_rank(left, right))
            return self.new(kind, strided=all(k.strided for k in tensors) and len(tensors) == 2)
        if not (left.is_tensor and right.is_tensor) and not (left.is_number or right.is_number):
            return (
                self.tokens.tensor(fresh=True)
                if isinstance(op, (ast.Add, ast.Sub, ast.Mult, ast.Div))
                else ANY
            )
        tokens = self.tokens
        shape, rank, low = tokens.broadcast(left, right)
        dtype = self._binary_dtype(op, left, right)
        device, order = tokens.device_of(left, right), tokens.order_of(left, right)
        kind = Kind(TENSOR, dtype, shape, device, rank, low, fresh=True, order=order)
        return self.new(kind, strided=all(k.strided for k in tensors))

    def _binary_dtype(self, op: Any, left: Any, right: Any) -> Any:
        """Under autocast powers, and a number divided by a tensor, are computed in float32."""
        tokens = self.tokens
        if isinstance(op, ast.Div) and left.is_number:
            return tokens.of_category(tokens.promote(left, right, True))
        if isinstance(op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
            return tokens.promote(left, right, isinstance(op, ast.Div))
        same = left.is_tensor and right.is_tensor and left.dtype == right.dtype
        return left.dtype if same and not isinstance(op, ast.Pow) else tokens.fresh()

    def _numbers(self, op: ast.AST, left: Kind, right: Kind) -> Kind:
        host = left.host or right.host
        whats = {left.what, right.what}
        if isinstance(op, ast.Div) or FLOAT in whats:
            return Kind(FLOAT, host=host)
        if SIZE in whats:
            return Kind(SIZE, host=host)
        return Kind(
            INT if whats <= {INT, BOOL} and not isinstance(op, ast.Pow) else NUMBER, host=host
        )

    def on_Compare(self, node: ast.Compare) -> Kind:
        kinds = [self.expr(node.left), *(self.expr(c) for c in node.comparators)]
        identity = any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops)
        if any(k.is_tensor for k in kinds) and not identity and len(kinds) == 2:
            ordered = isinstance(node.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE))
            return self._compared(*kinds, ordered)
        listed = kinds[-1].what in (LIST, TUPLE) and not kinds[0].host
        if listed and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            return SIMPLE[BOOL]  # what a list holds was read before
        given = OF_INPUT if comes_of_input(*kinds) and not identity else None
        sized = any(k.what == SIZE for k in kinds)
        return Kind(BOOL, host=any(k.host for k in kinds), cls=SIZE if sized else given)

    def _compared(self, left: Kind, right: Kind, ordered: bool) -> Kind:
        """Of what is no tensor, a tensor may be larger or smaller than a number alone."""
        if not all(k.is_tensor or k.is_number for k in (left, right)):
            if ordered:
                dtype = self.tokens.bool if self.suppose else self.tokens.mask
                return replace(self.tokens.tensor(), dtype=dtype)
            return (
                self.tokens.tensor() if left.is_tensor and right.what == "unknown" else SIMPLE[BOOL]
            )
        shape, rank, low = self.tokens.broadcast(left, right)
        device = self.tokens.device_of(left, right)
        order = self.tokens.order_of(left, right)
        kind = Kind(TENSOR, self.tokens.bool, shape, device, rank, low, fresh=True, order=order)
        return self.new(kind, strided=True)

    def on_Attribute(self, node: ast.Attribute) -> Kind:
        base = self.expr(node.value)
        if base.param and node.attr in tables.SUGGESTIVE_ATTRIBUTES:
            self.suppose_tensor(base)
        if base.is_tensor:
            return self._tensor_attribute(base, node.attr)
        if base.owner:
            return self._own_attribute(base.owner, node.attr)
        if base.what == TENSORS and node.attr in ("values", "indices"):  # of `x.max(dim=0)`
            return self.tokens.tensor()
        if base.what == MODULE:
            of_torch = (base.cls or "").startswith("torch.nn.") and node.attr == "weight"
            return self.tokens.tensor() if of_torch else self._own_attribute(base.cls, node.attr)
        if base.what == "finfo":
            return SIMPLE[FLOAT]
        name = self.names.resolve(node) or ""
        if name.startswith("torch.nn.") and tables.layer(name.rpartition(".")[2]):
            return Kind(LAYER_CLASS, cls=name)
        return SIMPLE[FLOAT] if name in ("math.pi", "math.inf", "math.e") else ANY

    def _tensor_attribute(self, base: Kind, attr: str) -> Kind:
        if attr in tables.TENSOR_ATTRIBUTES:
            moved = {} if attr in ("data", "grad", "real") else {"shape": self.tokens.fresh()}
            if attr in ("real", "imag") and self.tokens.category(base.dtype) != "float":
                moved["dtype"] = self.tokens.fresh()
            return replace(base, fresh=False, made=None, optional=attr == "grad", **moved)
        if attr in ("shape",):
            return Kind(SIZE, cls="shape")
        if attr == "ndim":
            return SIMPLE[INT]
        return SIMPLE[BOOL] if attr in tables.BOOL_ATTRIBUTES else ANY

    def _own_attribute(self, name: str | None, attr: str) -> Kind:
        """An attribute of an object of a class."""
        there, cls = self.class_named(name) or (None, None)
        if there is not None and there is not self:
            return self.portable(there.class_attributes(cls).get(attr, ANY), there)
        kind = self.class_attributes(cls).get(attr, ANY) if cls else ANY
        if cls is not None and self.current is cls.methods.get("__init__") and attr in self.stored:
            return self._joined(self.stored[attr])  # by the statements before
        if cls is None or kind.what != UNKNOWN or attr not in self.program.stores.own:
            return kind
        self.partly.add(self.current)
        return self.kept_tensors.get((cls.name, attr), kind) if self.any_path else kind

    def class_attributes(self, cls: Class) -> dict[str, Kind]:
        """{attribute: kind} of what the class (and its bases in this file) assigns to `self` in
        __init__."""
        if cls not in self.class_kinds:
            self.class_kinds[cls] = {}  # meanwhile
            self.class_kinds[cls] = self._gather(cls)
        return self.class_kinds[cls]

    def _gather(self, cls: Class) -> dict[str, Kind]:
        found = {}
        for there, base in self.bases(cls):
            known = there.class_attributes(base)
            found |= {n: self.portable(k, there) for n, k in known.items()}
        for field in cls.node.body:
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                found[field.target.id] = self.annotation(field.annotation)
        self.class_kinds[cls] = found
        saved, self.stored = self.stored, {}
        init = cls.methods.get("__init__")
        if init:
            self.function(init)
        stored, self.stored = self.stored, saved
        found = dict(found)
        for name, kinds in stored.items():
            inherited = [found[name]] if name in found else []
            found[name] = self._attribute(self._joined([*inherited, *kinds]))
        stores, kept = self.program.stores, self.program.kept.get(cls.name, ())
        buffers = {n: self.tokens.tensor(optional=True) for n in kept if stores.elsewhere(cls, n)}
        sure = {n: k for n, k in found.items() if not stores.elsewhere(cls, n)}
        return {**sure, **buffers} if cls.is_module else sure

    def _attribute(self, kind: Any) -> Any:
        """A tensor of a module goes with it to another device, and to another floating-point
        dtype."""
        if not kind.is_tensor:
            return kind
        dtype = {"dtype": self.tokens.of_category(kind.dtype)}
        exact = self.tokens.category(kind.dtype) in ("bool", "int")
        kind = replace(kind, device=self.tokens.fresh(), made=None, fresh=False)
        return kind if exact else replace(kind, **dtype)

    def on_Subscript(self, node: ast.Subscript) -> Kind:
        base, key = self.expr(node.value), self.expr(node.slice)
        if base.is_tensor:
            return self._tensor_item(base, node.slice, key)
        if base.what == SIZE and base.cls == "shape":
            return Kind(SIZE, cls="shape" if isinstance(node.slice, ast.Slice) else None)
        if base.what == DICT and base.item:
            return base.item
        if base.what in (TENSORS, MODULES, LIST, TUPLE):
            if isinstance(node.slice, ast.Slice):
                return replace(base, parts=())
            at = key.const if type(key.const) is int else None
            inside = at is not None and -len(base.parts) <= at < len(base.parts)
            return base.parts[at] if inside else self.element(base)
        if base.of_input and (isinstance(key.const, str) or picks_axes(node.slice)):
            return Kind(UNKNOWN, cls=OF_INPUT)  # `batch["mask"]`, `boxes[:, 2]`
        return SIMPLE[NDARRAY] if base.what == NDARRAY else ANY

    def _tensor_item(self, base: Kind, index: ast.expr, key: Kind) -> Kind:
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        rank = base.rank
        for part in parts:
            rank = self._rank_after(rank, part)
        device = base.device
        return replace(self.tokens.tensor(rank=rank), dtype=base.dtype, device=device)

    def _rank_after(self, rank: int | None, part: ast.expr) -> None:
        if rank is None or isinstance(part, ast.Slice):
            return rank
        if isinstance(part, ast.Constant) and part.value is None:
            return rank + 1
        return rank - 1 if self.kind(part).what in (INT, SIZE) and rank > 0 else None

    def on_Slice(self, node: ast.Slice) -> Kind:
        self._other(node)
        return Kind("slice")

    def on_Tuple(self, node: ast.Tuple) -> Kind:
        kinds = [self.expr(e) for e in node.elts]
        starred = any(isinstance(e, ast.Starred) for e in node.elts)
        flat = [replace(self.portable(k, self), parts=()) for k in kinds]
        return replace(self.container(TUPLE, kinds), parts=() if starred else tuple(flat))

    def on_List(self, node: ast.List) -> Kind:
        return self.container(LIST, [self.expr(e) for e in node.elts])

    def container(self, what: str, kinds: list[Kind]) -> Kind:
        if kinds and all(k.is_tensor for k in kinds):
            return Kind(TENSORS, cls=what)
        item = kinds[0] if kinds and all(k.what == kinds[0].what for k in kinds) else None
        return Kind(
            what,
            item=replace(item, const=NO_CONST) if item else None,
            host=any(k.host for k in kinds),
        )

    def on_Dict(self, node: ast.Dict) -> Kind:
        self._other(node)
        return self._dict_of([self.kinds.get(v, ANY) for v in node.values])

    def _dict_of(self, kinds: list[Kind]) -> Kind:
        """A dict; of tensors where all that it is made of are such, and no more is asked."""
        if kinds and all(k.of_input for k in kinds):
            return replace(SIMPLE[DICT], item=Kind(UNKNOWN, cls=OF_INPUT))
        tensors = self.suppose and kinds and all(k.is_tensor and not k.optional for k in kinds)
        return replace(SIMPLE[DICT], item=self.tokens.tensor()) if tensors else SIMPLE[DICT]

    def element(self, kind: Kind) -> Kind:
        """What iterating over (or indexing) something of `kind` gives."""
        if kind.is_tensor:
            rank = None if kind.rank is None else max(kind.rank - 1, 0)
            return replace(self.tokens.tensor(rank=rank), dtype=kind.dtype, device=kind.device)
        if kind.what == TENSORS:
            return self.tokens.tensor()
        if kind.what == SIZE:
            return SIMPLE[SIZE]
        return kind.item or ANY if kind.what in (LIST, TUPLE, MODULES) else ANY

    def on_ListComp(self, node: ast.expr) -> Kind:
        return self._comprehension(node, [node.elt])

    on_GeneratorExp = on_SetComp = on_ListComp

    def on_DictComp(self, node: Any) -> Any:
        self._comprehension(node, [node.key, node.value])
        return self._dict_of([self.kinds.get(node.value, ANY)])

    def _comprehension(self, node: ast.expr, parts: list[ast.expr]) -> Kind:
        saved = self._later() if isinstance(node, ast.GeneratorExp) else dict(self.env)
        for generator in node.generators:
            self.assign(generator.target, self.element(self.expr(generator.iter)), None)
            for test in generator.ifs:
                self.expr(test)
        kinds = [self.expr(part) for part in parts]
        self.env = saved
        if any(isinstance(n, (ast.NamedExpr, ast.Await)) for n in ast.walk(node)):
            self._walrus(node)
        return (
            self.container(LIST, kinds)
            if isinstance(node, (ast.ListComp, ast.GeneratorExp))
            else ANY
        )

    def _walrus(self, node: Any) -> None:
        """Names that a comprehension binds in the function around it."""
        for part in ast.walk(node):
            if isinstance(part, ast.NamedExpr):
                self.env[part.target.id] = ANY

    def on_Starred(self, node: ast.Starred) -> Kind:
        self.expr(node.value)
        return ANY


def _negated(node: ast.UnaryOp, kind: Kind) -> Any:
    number = isinstance(kind.const, (int, float)) and isinstance(node.op, ast.USub)
    return -kind.const if number else NO_CONST
