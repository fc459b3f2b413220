"""The kind of an expression: operators, attributes, items, displays."""

import ast
from dataclasses import replace

from ...rewriter.patterns import torch_facts as tables
from ...rewriter.patterns.kinds import (
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
    NUMBER,
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
)


class Expressions:
    """State of one file's inference, and the expression half of it."""

    def __init__(self, program, names, facts=None):
        self.program, self.names, self.tokens, self.facts = program, names, Tokens(), facts
        self.kinds, self.done, self.return_kinds, self.final_env = {}, set(), {}, {}
        self.stored, self.class_kinds, self.proved, self.at_branch = {}, {}, set(), {}
        self.env, self.returned, self.current = {}, [], None
        self.module_env = {}
        self._module_level()

    def _module_level(self):
        """Kinds of the names that the module binds once, by plain assignment."""
        seen = {}
        for node in self.program.tree.body:
            if (
                isinstance(node, ast.Assign)
                and len(node.targets) == 1
                and isinstance(node.targets[0], ast.Name)
            ):
                seen.setdefault(node.targets[0].id, []).append(node.value)
        for name, values in seen.items():
            if len(values) == 1:
                self.env[name] = self.expr(values[0])
        self.module_env = self.env

    def kind(self, node):
        """The kind that inference gave to `node`."""
        return self.kinds.get(node, ANY)

    def expr(self, node):
        handler = getattr(self, f"on_{type(node).__name__}", None)
        kind = handler(node) if handler else self._other(node)
        kind = self.learnt(node, kind)
        self.kinds[node] = kind
        return kind

    def learnt(self, node, kind):
        """What inference does not know, the traced run may."""
        fact = self.facts.of(self.current.qualified, node) if self.facts and self.current else None
        seen = fact.kind(self.tokens) if fact else None
        if seen is None:
            return kind
        if kind.what == UNKNOWN or (kind.what == NDARRAY and not seen.is_tensor):
            return seen
        if not (kind.is_tensor and seen.is_tensor):
            return kind
        rank = {"rank": seen.rank} if kind.rank is None and seen.rank is not None else {}
        unknown = self.tokens.category(kind.dtype) is None and self.tokens.category(seen.dtype)
        return replace(
            kind,
            optional=kind.optional and seen.optional,
            **rank,
            **({"dtype": seen.dtype} if unknown else {}),
        )

    def _other(self, node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.expr(child)
        return ANY

    def on_Constant(self, node):
        return constant(node.value)

    def on_Name(self, node):
        return self.env.get(node.id, ANY)

    def on_JoinedStr(self, node):
        self._other(node)
        return SIMPLE[STR]

    def on_FormattedValue(self, node):
        self._other(node)
        return SIMPLE[STR]

    def on_NamedExpr(self, node):
        kind = self.expr(node.value)
        self.env[node.target.id] = kind
        return kind

    def on_Lambda(self, node):
        saved = dict(self.env)
        for arg in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
            self.env[arg.arg] = ANY
        self.expr(node.body)
        self.env = saved
        return SIMPLE[FUNCTION]

    def on_IfExp(self, node):
        self.expr(node.test)
        body, orelse = self.expr(node.body), self.expr(node.orelse)
        return self.tokens.join(body, orelse)

    def on_BoolOp(self, node):
        kinds = [self.expr(v) for v in node.values]
        result = kinds[0]
        for kind in kinds[1:]:
            result = self.tokens.join(result, kind)
        return result

    def on_UnaryOp(self, node):
        kind = self.expr(node.operand)
        if isinstance(node.op, ast.Not):
            return replace(SIMPLE[BOOL], host=kind.is_tensor)
        if kind.is_tensor:
            return replace(kind, fresh=True, optional=False)
        return replace(kind, const=_negated(node, kind))

    def on_BinOp(self, node):
        return self.binary(node.op, self.expr(node.left), self.expr(node.right))

    def binary(self, op, left, right):
        """The kind of `left op right`."""
        if left.is_tensor or right.is_tensor:
            return self._tensor_binary(op, left, right)
        if left.is_number and right.is_number:
            return self._numbers(op, left, right)
        if NDARRAY in (left.what, right.what):
            return SIMPLE[NDARRAY]
        if (left.param and right.is_number) or (right.param and left.is_number):
            return left if left.param else right  # a tensor, if what it came from is one
        same = left.what == right.what and left.what in (STR, LIST, TUPLE, TENSORS)
        return replace(left, const=NO_CONST) if same else (SIMPLE[STR] if left.what == STR else ANY)

    def _tensor_binary(self, op, left, right):
        if isinstance(op, ast.MatMult):
            return self.tokens.tensor(fresh=True)
        if not (left.is_tensor and right.is_tensor) and not (left.is_number or right.is_number):
            return (
                self.tokens.tensor(fresh=True)
                if isinstance(op, (ast.Add, ast.Sub, ast.Mult, ast.Div))
                else ANY
            )
        tokens = self.tokens
        shape, rank, low = tokens.broadcast(left, right)
        if isinstance(op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
            dtype = tokens.promote(left, right, isinstance(op, ast.Div))
        else:
            same = left.is_tensor and right.is_tensor and left.dtype == right.dtype
            dtype = left.dtype if same else tokens.fresh()
        return Kind(TENSOR, dtype, shape, tokens.device_of(left, right), rank, low, fresh=True)

    def _numbers(self, op, left, right):
        host = left.host or right.host
        whats = {left.what, right.what}
        if isinstance(op, ast.Div) or FLOAT in whats:
            return Kind(FLOAT, host=host)
        if SIZE in whats:
            return Kind(SIZE, host=host)
        return Kind(
            INT if whats <= {INT, BOOL} and not isinstance(op, ast.Pow) else NUMBER, host=host
        )

    def on_Compare(self, node):
        kinds = [self.expr(node.left), *(self.expr(c) for c in node.comparators)]
        identity = any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops)
        if any(k.is_tensor for k in kinds) and not identity and len(kinds) == 2:
            return self._compared(*kinds)
        return Kind(
            BOOL,
            host=any(k.host for k in kinds),
            cls=SIZE if any(k.what == SIZE for k in kinds) else None,
        )

    def _compared(self, left, right):
        if not all(k.is_tensor or k.is_number for k in (left, right)):
            return (
                self.tokens.tensor() if left.is_tensor and right.what == "unknown" else SIMPLE[BOOL]
            )
        shape, rank, low = self.tokens.broadcast(left, right)
        return Kind(
            TENSOR,
            self.tokens.bool,
            shape,
            self.tokens.device_of(left, right),
            rank,
            low,
            fresh=True,
        )

    def on_Attribute(self, node):
        base = self.expr(node.value)
        if base.is_tensor:
            return self._tensor_attribute(base, node.attr)
        if base.what == "self":
            return self._own_attribute(base, node.attr)
        if base.what == MODULE and node.attr in ("weight", "bias"):
            return (
                self.tokens.tensor()
                if (base.cls or "").startswith("torch.nn.") and node.attr == "weight"
                else ANY
            )
        if base.what == "finfo":
            return SIMPLE[FLOAT]
        name = self.names.resolve(node) or ""
        if name.startswith("torch.nn.") and tables.layer(name.rpartition(".")[2]):
            return Kind("layer class", cls=name)
        return SIMPLE[FLOAT] if name in ("math.pi", "math.inf", "math.e") else ANY

    def _tensor_attribute(self, base, attr):
        if attr in tables.TENSOR_ATTRIBUTES:
            moved = {} if attr in ("data", "grad", "real") else {"shape": self.tokens.fresh()}
            return replace(base, fresh=False, optional=attr == "grad", **moved)
        if attr in ("shape",):
            return Kind(SIZE, cls="shape")
        if attr == "ndim":
            return SIMPLE[INT]
        return SIMPLE[BOOL] if attr in tables.BOOL_ATTRIBUTES else ANY

    def _own_attribute(self, base, attr):
        cls = self.program.classes.get(base.cls)
        return self.class_attributes(cls).get(attr, ANY) if cls else ANY

    def class_attributes(self, cls):
        """{attribute: kind} of what the class (and its bases in this file) assigns to `self` in
        __init__."""
        if cls not in self.class_kinds:
            self.class_kinds[cls] = {}
            self.class_kinds[cls] = self._gather(cls)
        return self.class_kinds[cls]

    def _gather(self, cls):
        found = {}
        for base in cls.bases:
            if base in self.program.classes:
                found.update(self.class_attributes(self.program.classes[base]))
        saved, self.stored = self.stored, {}
        init = cls.methods.get("__init__")
        if init:
            self.function(init)
        stored, self.stored = self.stored, saved
        others = _assigned_elsewhere(cls)
        found.update({n: self._joined(kinds) for n, kinds in stored.items() if n not in others})
        for name in others:
            found.pop(name, None)
        return found

    def on_Subscript(self, node):
        base, key = self.expr(node.value), self.expr(node.slice)
        if base.is_tensor:
            return self._tensor_item(base, node.slice, key)
        if base.what == SIZE and base.cls == "shape":
            return Kind(SIZE, cls="shape" if isinstance(node.slice, ast.Slice) else None)
        if base.what in (TENSORS, MODULES, LIST, TUPLE):
            return base if isinstance(node.slice, ast.Slice) else self.element(base)
        return SIMPLE[NDARRAY] if base.what == NDARRAY else ANY

    def _tensor_item(self, base, index, key):
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        rank = base.rank
        for part in parts:
            rank = self._rank_after(rank, part)
        device = base.device
        return replace(self.tokens.tensor(rank=rank), dtype=base.dtype, device=device)

    def _rank_after(self, rank, part):
        if rank is None or isinstance(part, ast.Slice):
            return rank
        if isinstance(part, ast.Constant) and part.value is None:
            return rank + 1
        return rank - 1 if self.kind(part).what in (INT, SIZE) and rank > 0 else None

    def on_Slice(self, node):
        self._other(node)
        return Kind("slice")

    def on_Tuple(self, node):
        kinds = [self.expr(e) for e in node.elts]
        return self.container(TUPLE, kinds)

    def on_List(self, node):
        return self.container(LIST, [self.expr(e) for e in node.elts])

    def container(self, what, kinds):
        if kinds and all(k.is_tensor for k in kinds):
            return Kind(TENSORS, cls=what)
        item = kinds[0] if kinds and all(k.what == kinds[0].what for k in kinds) else None
        return Kind(
            what,
            item=replace(item, const=NO_CONST) if item else None,
            host=any(k.host for k in kinds),
        )

    def on_Dict(self, node):
        self._other(node)
        return SIMPLE[DICT]

    def element(self, kind):
        """What iterating over (or indexing) something of `kind` gives."""
        if kind.is_tensor:
            rank = None if kind.rank is None else max(kind.rank - 1, 0)
            return replace(self.tokens.tensor(rank=rank), dtype=kind.dtype, device=kind.device)
        if kind.what == TENSORS:
            return self.tokens.tensor()
        if kind.what == SIZE:
            return SIMPLE[SIZE]
        return kind.item or ANY if kind.what in (LIST, TUPLE, MODULES) else ANY

    def on_ListComp(self, node):
        return self._comprehension(node, [node.elt])

    on_GeneratorExp = on_SetComp = on_ListComp

    def on_DictComp(self, node):
        self._comprehension(node, [node.key, node.value])
        return SIMPLE[DICT]

    def _comprehension(self, node, parts):
        saved = dict(self.env)
        for generator in node.generators:
            self.assign(generator.target, self.element(self.expr(generator.iter)), None)
            for test in generator.ifs:
                self.expr(test)
        kinds = [self.expr(part) for part in parts]
        self.env = saved
        return (
            self.container(LIST, kinds)
            if isinstance(node, (ast.ListComp, ast.GeneratorExp))
            else ANY
        )

    def on_Starred(self, node):
        self.expr(node.value)
        return ANY


def _negated(node, kind):
    number = isinstance(kind.const, (int, float)) and isinstance(node.op, ast.USub)
    return -kind.const if number else NO_CONST


def _assigned_elsewhere(cls):
    """Attributes of `self` that methods other than __init__ store."""
    found = set()
    for name, method in cls.methods.items():
        if name == "__init__":
            continue
        for node in ast.walk(method.node):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
            ):
                found.add(node.attr)
    return found
