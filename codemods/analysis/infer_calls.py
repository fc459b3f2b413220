"""The kind of a call: torch's functions and methods, layers, builtins, functions of the same
file."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...rewriter.analysis import torch_facts as tables
from ...rewriter.analysis.kinds import (
    ANY,
    BOOL,
    DICT,
    FLOAT,
    INT,
    LIST,
    LOGGER,
    MODULE,
    MODULES,
    NDARRAY,
    NUMBER,
    SIMPLE,
    SIZE,
    STR,
    TENSOR,
    TENSORS,
    Kind,
    instance,
)
from .assumed_tensors import may_be_tensor
from .file_summary import is_super
from .grad_modes import switches
from .infer_expressions import LAYER_CLASS
from .infer_operators import Operators

if TYPE_CHECKING:
    from .definitions import Class

_EINOPS = ("einops.rearrange", "einops.repeat", "einops.reduce", "einops.einsum")
_BUILTINS = {
    "len": SIZE,
    "int": INT,
    "float": FLOAT,
    "bool": BOOL,
    "str": STR,
    "range": LIST,
    "repr": STR,
    "isinstance": BOOL,
}

_OF_TENSORS = tables.SUGGESTIVE - frozenset("sort repeat cpu cuda float half item tolist".split())
_SHOWS_TENSOR = tables.ONLY_TENSOR_METHODS & tables.METHOD.keys()


class Calls(Operators):
    """Calls of every sort."""

    def on_Call(self, node: ast.Call) -> Kind:
        kind = self._call(node)
        if self.current is not None and any(self.kind(a).param for a in node.args):
            self._learn_from_callee(node)
        return kind

    def _learn_from_callee(self, node: ast.Call) -> None:
        """An input that is given to a function of the project for a tensor is one."""
        there, function = self._callee(node) or (None, None)
        if function is None or not self._takes_inputs():
            return
        if function in there.suggested:
            self.suggested.add(self.current)  # what it suggests of its inputs holds of these
        args = function.node.args
        taken = [*args.posonlyargs, *args.args][bool(function.self_name) :]
        for value, arg in zip(node.args, taken, strict=False):
            kind = self.kind(value)
            stated = arg.annotation is not None and there.annotation(arg.annotation).is_tensor
            if kind.param and (stated or arg.arg in there.proved_of.get(function, ())):
                self.suppose_tensor(kind)

    def _callee(self, node: ast.Call) -> tuple[Any, Any] | None:
        """(what is known of its file, the Function) that a call runs, by its name or its object."""
        if isinstance(node.func, ast.Attribute):
            base = self.kind(node.func.value)
            of = base.owner or (base.cls if base.what == MODULE else None)
            there, cls = self.class_named(of) or (None, None)
            return (there, cls.methods.get(node.func.attr)) if cls is not None else None
        name = self._name_of(node.func)
        if name is None and isinstance(node.func, ast.Name):
            return self, self.program.top.get(node.func.id)
        there, qualified = self.beyond(name) or (None, "")
        return (there, there.program.by_name.get(qualified)) if there is not None else None

    def _call(self, node: ast.Call) -> Kind:
        if self.names.resolve(node.func) == "torch.cond":  # calls its functions at once
            self.at_once.update(a for a in node.args if isinstance(a, ast.Lambda))
        for arg in node.args:
            self.expr(arg)
        for keyword in node.keywords:
            self.expr(keyword.value)
        if isinstance(node.func, ast.Attribute):
            return self._attribute_call(node)
        callee = self.expr(node.func)
        if switches(node) or _last_name(node) in self.switching:
            self.enter_grad_mode()
        if callee.what == MODULE:
            return self._layer_call(node, callee)
        if callee.what == LAYER_CLASS and callee.cls:
            return self._construct(node, callee.cls, callee.cls.rpartition(".")[2])
        return self._named_call(node, self._name_of(node.func))

    def _name_of(self, func: ast.expr) -> str | None:
        """The dotted name of what is called; None where a local variable hides it."""
        root = func
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in self.env and root.id not in self.module_env:
            return None
        return self.names.resolve(func)

    def _attribute_call(self, node: ast.Call) -> Kind:
        base = self.expr(node.func.value)
        method = node.func.attr
        if is_super(node.func):
            return self.method_above(self.current.owner if self.current else None, method)
        if switches(node) or method in self.switching:
            self.enter_grad_mode()
        if base.is_tensor:
            kind = self._method(node, base, method)
            if method in tables.STRIDED:
                self.strided(node.func.value)
            if method in tables.SCRAMBLES:
                self.scramble()
                return self.tokens.tensor()
            return kind
        suggests = may_be_tensor(base) and _suggests(node)
        if suggests and self.suppose_tensor(base) and not base.param:
            return self._method(node, self.tokens.tensor(), method)
        if base.owner:
            return self._own_call(node, base, method)
        if base.what in (MODULE, MODULES, SIZE, LOGGER, STR):
            return self._known_base(base, method)
        if base.item and base.what == DICT and method in ("items", "values"):
            parts = (ANY, base.item)
            return Kind("rows", item=Kind("row", parts=parts) if method == "items" else base.item)
        if base.param and method in tables.ONLY_TENSOR_METHODS and method in tables.METHOD:
            self.proved.add(base.param)
        name = self._name_of(node.func)
        if name is None and base == ANY and method in _OF_TENSORS and self._takes_inputs():
            self.partly.add(self.current)
            base = self._shown_tensor(node.func.value) if self.any_path else base
            return self._method(node, base, method) if self.any_path else ANY
        unknown = name is None and (base == ANY or (base.of_input and not base.param))
        if unknown and method in ("item", "tolist"):
            self.suppose_tensor(base)  # or an array, or a NumPy scalar
        shows = unknown and method in _SHOWS_TENSOR
        if shows and self.suppose_tensor(base):
            return self._method(node, self._shown_tensor(node.func.value), method)
        return self._named_call(node, name)

    def _shown_tensor(self, node: ast.expr) -> Kind:
        """What has a method that nothing but a tensor has; so it is from here on."""
        kind = self.kinds[node] = self.tokens.tensor()
        if isinstance(node, ast.Name) and node.id not in self.module_env:
            self.env[node.id] = kind
        return kind

    def _known_base(self, base: Kind, method: str) -> Kind:
        there, cls = self.class_named(base.cls) or (None, None)
        if base.what == MODULE and there is not None:
            return self.portable(there.method_returns(cls, method), there)
        if base.what == MODULES and method == "children":
            return base
        return SIMPLE[SIZE] if base.what == SIZE and method == "numel" else ANY

    def _named_call(self, node: ast.Call, name: str | None) -> Kind:
        if isinstance(node.func, ast.Name) and node.func.id in self.program.top and name is None:
            known = self._is_top(node.func.id)
            return self.returns(self.program.top[node.func.id]) if known else ANY
        if (
            isinstance(node.func, ast.Name)
            and node.func.id in self.program.classes
            and name is None
        ):
            cls = self.program.classes[node.func.id]
            if not self._is_top(node.func.id):
                return ANY
            if cls.item_lookup:
                return Kind(
                    "dict with attributes",
                    cls=f"{cls.name}.{cls.item_lookup}:{','.join(sorted(cls.bound_names))}",
                )
            return Kind(MODULE, cls=cls.name) if cls.is_module else instance(cls.name)
        if name is None:
            return ANY
        if name.startswith("torch."):
            return self._torch_call(node, name)
        return self._foreign(node, name)

    def _is_top(self, name: str) -> bool:
        """Whether a name is surely what the file's top level binds it to."""
        around = self.current
        while around is not None:
            if name in self.scope_of(around.node).places:
                return False
            around = around.outer
        return name not in self.program.rebound and name not in self.env

    def _of_project(self, name: str) -> Kind:
        """What a call of something in another file gives."""
        there, qualified = self.beyond(name) or (None, "")
        if there is None:
            return ANY
        function = there.program.by_name.get(qualified)
        if function is not None:
            return self.portable(there.returns(function), there)
        return self._object(name)

    def _foreign(self, node: ast.Call, name: str) -> Kind:
        if name in self.program.links.targets:
            return self._of_project(name)
        if name in _BUILTINS:
            return self._builtin(node, name)
        if name.endswith(("logging.getLogger", "logging.get_logger")):
            return SIMPLE[LOGGER]
        if name in _EINOPS and node.args:
            given = self.kind(node.args[0])
            return self.tokens.tensor() if given.is_tensor or given.what == TENSORS else ANY
        if name.startswith("numpy."):
            return self._numpy(node, name[6:])
        if name.startswith("math."):
            return Kind(FLOAT, host=any(self.kind(a).host for a in node.args))
        if name in ("list", "tuple") and len(node.args) == 1:
            kind = self.kind(node.args[0])
            return (
                Kind(TENSORS)
                if kind.is_tensor or kind.what == TENSORS
                else (kind if kind.what == MODULES else SIMPLE[LIST])
            )
        return self._iterators(node, name)

    def _numpy(self, node: ast.Call, name: str) -> Kind:
        """A scalar where that is sure: an elementwise function of numbers, a whole reduction of a
        Python list."""
        if name.startswith("random.") and not any(k.arg == "size" for k in node.keywords):
            return ANY  # of what is drawn, most are numbers
        kinds = [self.kind(a) for a in node.args]
        numbers = kinds and all(k.is_number and not k.host for k in kinds) and not node.keywords
        listed = len(kinds) == 1 and not kinds[0].host and not node.keywords
        listed = listed and kinds[0].what in (LIST, "tuple", "unknown", SIZE)
        scalar = (numbers and name in tables.NUMPY_ELEMENTWISE) or (
            listed and name in tables.NUMPY_REDUCTIONS
        )
        return Kind("numpy scalar") if scalar else SIMPLE[NDARRAY]

    def _builtin(self, node: ast.Call, name: str) -> Kind:
        args = [self.kind(a) for a in node.args]
        if name == "len":
            return SIMPLE[SIZE if args and args[0].is_tensor else INT]
        if name == "range":
            sized = any(a.what == SIZE for a in args)
            return Kind(
                LIST,
                item=SIMPLE[SIZE if sized else INT],
                host=any(a.host or a.is_tensor for a in args),
            )
        host = name in ("int", "float", "bool") and any(a.is_tensor or a.host for a in args)
        what = SIZE if name == "int" and any(a.what == SIZE for a in args) else _BUILTINS[name]
        return Kind(what, host=host)

    def _iterators(self, node: ast.Call, name: str) -> Kind:
        if name in ("enumerate", "zip"):
            kinds = [self.element(self.kind(a)) for a in node.args]
            return Kind(
                "rows",
                item=Kind("row", parts=(*([SIMPLE[INT]] if name == "enumerate" else []), *kinds)),
            )
        if name in ("reversed", "sorted") and node.args:
            return self.kind(node.args[0])
        if name in ("max", "min", "abs", "sum", "round"):
            kinds = [self.kind(a) for a in node.args]
            if any(k.is_tensor for k in kinds):
                return self.tokens.tensor(optional=False)
            return (
                Kind(NUMBER, host=any(k.host for k in kinds))
                if kinds and all(k.is_number for k in kinds)
                else ANY
            )
        return ANY

    def element(self, kind: Kind) -> Kind:
        return kind.item if kind.what == "rows" else super().element(kind)

    # Modules

    def _own_call(self, node: ast.Call, base: Kind, method: str) -> Kind:
        attribute = self.learnt(node.func, self._own_attribute(base.owner, method))
        self.kinds[node.func] = attribute
        if attribute.what == MODULE:
            return self._layer_call(node, attribute)
        if attribute.what == LAYER_CLASS and attribute.cls:
            return self._construct(node, attribute.cls, attribute.cls.rpartition(".")[2])
        if (
            method == "register_buffer"
            and len(node.args) > 1
            and isinstance(node.args[0], ast.Constant)
        ):
            name = node.args[0].value
            self.stored.setdefault(name, []).append(self.kind(node.args[1]))
            self.program.kept.setdefault(base.owner, set()).add(name)
        there, cls = self.class_named(base.owner) or (None, None)
        return ANY if there is None else self.portable(there.method_returns(cls, method), there)

    def method_above(self, cls: Class | None, method: str) -> Kind:
        """What `super().method()` gives in a class, where one class alone is above."""
        if cls is None or len(cls.bases) != 1 or self.program.stores.mixed_below(cls):
            return ANY
        for there, base in self.bases(cls):
            own = base.methods.get(method)
            kind = there.returns(own) if own else there.method_above(base, method)
            return self.portable(kind, there)
        return ANY

    def method_returns(self, cls: Class, method: str, depth: int = 0) -> Kind:
        """What a method of a class, or of those above it, gives; not where one below has
        another."""
        if self.program.stores.overridden(cls, method) or depth > 20:
            return ANY
        if method in cls.methods:
            return self.returns(cls.methods[method])
        for there, base in reversed(list(self.bases(cls))):
            kind = there.method_returns(base, method, depth + 1)
            if kind != ANY:
                return self.portable(kind, there)
        return ANY

    def _layer_call(self, node: ast.Call, module: Kind) -> Kind:
        """Calling a module: a known layer proves that its first argument is a tensor."""
        name = module.cls or ""
        there, cls = self.class_named(name) or (None, None)
        if there is not None:
            return self.portable(there.method_returns(cls, "forward"), there)
        known = tables.layer(name.rpartition(".")[2]) if name.startswith("torch.nn.") else None
        if known is None or known[0] == "container":
            return ANY
        if name not in ("torch.nn.Sequential", "torch.nn.Identity"):
            self._prove(node)
        if known[0] == "tuple":
            return Kind(TENSORS)
        if self.program.hooked:
            return self.tokens.tensor()
        kinds = [self.kind(a) for a in node.args if self.kind(a).is_tensor]
        device = {"device": kinds[0].device} if kinds else {}
        last, inplace = name.rpartition(".")[2], bool(module.const is True)
        dtype = self._layer_dtype(last, kinds)
        kind = replace(self.tokens.tensor(low=known[1], fresh=True), **device, **dtype)
        if last not in tables.NEW_LAYERS or inplace:
            return kind
        strided = last in tables.FLOATING_LAYERS and last not in ("ELU", "SELU", "CELU")
        return self.new(kind, strided=strided or any(k.strided for k in kinds[:1]))

    def _layer_dtype(self, last: Any, kinds: list[Kind]) -> dict[str, int]:
        """Some layers work in floating point; others give what they are given, some integers."""
        floats = bool(kinds) and self.tokens.category(kinds[0].dtype) == "float"
        known = last in tables.FLOATING_LAYERS or (floats and last != "Sequential")
        return {"dtype": self.tokens.some("float")} if known else {}

    def _prove(self, node: ast.Call) -> None:
        """The first argument is a tensor from here on."""
        if not node.args:
            return
        first = node.args[0]
        kind = self.kind(first)
        if kind.param:
            self.proved.add(kind.param)
        if isinstance(first, ast.Name) and kind.what == "unknown":
            self.env[first.id] = self.tokens.tensor()

    # torch

    def _torch_call(self, node: ast.Call, name: str) -> Kind:
        last = name.rpartition(".")[2]
        if name == "torch.finfo":
            return Kind("finfo")
        if name.startswith("torch.nn.functional."):
            return self._function(node, last, tables.FUNCTIONAL_)
        if name.startswith("torch.nn."):
            return self._construct(node, name, last)
        if name.startswith(("torch.linalg.", "torch.fft.", "torch.special.")):
            if last in ("eigh", "qr", "svd", "slogdet", "eig"):
                return Kind(TENSORS)
            given = self.kind(node.args[0]) if node.args else ANY
            along = name.startswith("torch.fft.") and not last.endswith(("freq", "2", "n"))
            rank = given.rank if along else None
            return self.tokens.tensor(fresh=True, rank=rank)
        if name == "torch.where" and len(node.args) + len(node.keywords) == 1:
            return Kind(TENSORS)  # one for each dimension
        if name == "torch.cond" and len(node.args) == 3:
            sides = [self.kind(a.body) if isinstance(a, ast.Lambda) else ANY for a in node.args[1:]]
            return self.tokens.join(*sides)
        if name == "torch.autograd.Variable":
            kind = self.kind(node.args[0]) if node.args else ANY
            return (
                replace(kind, fresh=False, optional=False)
                if kind.is_tensor
                else self.tokens.tensor()
            )
        if name.count(".") == 1:
            return self._legacy_or_function(node, last)
        return ANY

    def _legacy(self, last: str) -> Kind:
        if last in tables.LEGACY_TENSORS:
            default = last == "Tensor"
            dtype = (
                self.tokens.default
                if default
                else self.tokens.known(last, tables.LEGACY_TENSORS[last])
            )
            return replace(self.tokens.tensor(), dtype=dtype)
        return ANY

    def _legacy_or_function(self, node: ast.Call, last: str) -> Kind:
        legacy = self._legacy(last)
        if not legacy.is_tensor:
            return self._function(node, last, tables.FUNCTION)
        listed = node.args[0] if len(node.args) == 1 else None
        flat = isinstance(listed, ast.List) and all(self.kind(e).is_number for e in listed.elts)
        return replace(legacy, rank=1) if flat else legacy

    def _construct(self, node: ast.Call, name: str, last: str) -> Kind:
        if last in ("Parameter", "Buffer"):
            kind = self.kind(node.args[0]) if node.args else ANY
            return kind if kind.is_tensor else self.tokens.tensor()
        if tables.layer(last) is None:
            return ANY
        if last == "ModuleList":
            first = self.kind(node.args[0]) if node.args else ANY
            return Kind(MODULES, item=first.item)
        inplace = any(
            k.arg in (None, "inplace") and not is_false(k.value) for k in node.keywords
        ) or (last in _INPLACE_LAST and bool(node.args) and not is_false(node.args[-1]))
        if any(k.arg in ("dtype", "return_indices", None) for k in node.keywords):
            return Kind(MODULE, cls="torch.nn")
        if "MaxPool" in last and len(node.args) > 1 + ("Adaptive" not in last) * 3:
            return Kind(MODULE, cls="torch.nn")
        return Kind(MODULE, cls=f"torch.nn.{last}", const=inplace)

    def _function(self, node: ast.Call, last: str, table: dict[str, str]) -> Kind:
        """A function of torch: its first argument is a tensor if its stub says so, and it acts as
        the method would."""
        letters = table.get(last)
        if letters is None:
            return ANY
        if letters.endswith("!") and last not in ("as_tensor", "tensor"):
            self._prove(node)
        if last in tables.FACTORIES:
            return self._factory(node, last)
        first = self.kind(node.args[0]) if node.args else ANY
        if last in tables.SCRAMBLES:
            self.scramble()
        if last in tables.STRIDED and node.args:
            self.strided(node.args[0])
        if last == "where" and len(node.args) == 3:
            return self._where(*(self.kind(a) for a in node.args))
        return self.result(last, letters.rstrip("!"), first, node.args[1:], node)

    def _where(self, condition: Kind, left: Kind, right: Kind) -> Kind:
        if not (left.is_tensor or right.is_tensor):
            return self.tokens.tensor(fresh=True)
        shape, rank, low = self.tokens.broadcast(left, right)
        dtype = self.tokens.promote(left, right)
        device, order = self.tokens.device_of(left, right), self.tokens.order_of(left, right)
        full = Kind(TENSOR, dtype, shape, device, rank, low, fresh=True, order=order)
        full = self.new(full, strided=True)
        if not condition.is_tensor or condition.rank == 0 or condition.shape == shape:
            return full
        shape, rank, low = self.tokens.broadcast(condition, full)
        return replace(full, shape=shape, rank=rank, low=low)

    def _factory(self, node: ast.Call, last: str) -> Kind:
        tokens = self.tokens
        named = {k.arg: k.value for k in node.keywords}
        rank = self._factory_rank(node, last)
        shape = (
            tokens.of("shape", tuple(ast.dump(a) for a in node.args))
            if self._literal_sizes(node, last)
            else tokens.fresh()
        )
        device = (
            tokens.default_device
            if "device" not in named
            else tokens.of("device", ast.dump(named["device"]))
        )
        shape = tokens.scalar_shape if rank == 0 else shape
        dtype, order = self._dtype_of(node, last, named), tokens.of("order", "contiguous")
        kind = Kind(TENSOR, dtype, shape, device, rank, fresh=True, order=order)
        leaf = named.get("requires_grad", ast.Constant(False))
        plain = is_false(leaf) and not {"out", "layout", None} & set(named)
        return self.new(kind, strided=True) if plain else kind

    def _literal_sizes(self, node: ast.Call, last: str) -> bool:
        return last in ("rand", "randn", "zeros", "ones", "empty") and all(
            isinstance(a, ast.Constant) for a in node.args
        )

    def _factory_rank(self, node: ast.Call, last: str) -> int | None:
        if last in ("arange", "linspace", "randperm"):
            return 1
        if last == "eye":
            return 2
        if last == "tensor" and node.args:
            kind = self.kind(node.args[0])
            return 0 if kind.is_number else None
        if last == "randint":
            sizes = [a for a in [*node.args, *(k.value for k in node.keywords)] if _is_row(a)]
            return len(sizes[0].elts) if sizes else None
        if last in ("rand", "randn", "zeros", "ones", "empty") and node.args:
            if len(node.args) == 1 and isinstance(node.args[0], (ast.Tuple, ast.List)):
                sizes = node.args[0].elts
                return None if any(isinstance(s, ast.Starred) for s in sizes) else len(sizes)
            counted = all(
                self.kind(a).what in (INT, SIZE) and self.kind(a).cls != "shape" for a in node.args
            )
            return (
                len(node.args)
                if counted and not any(isinstance(a, ast.Starred) for a in node.args)
                else None
            )
        return None

    def _dtype_of(self, node: ast.Call, last: str, named: dict[str, ast.expr]) -> int:
        if "dtype" in named:
            name = (self.names.resolve(named["dtype"]) or "").removeprefix("torch.")
            return self._dtype_token(name)
        if last in ("rand", "randn", "zeros", "ones", "empty", "eye", "linspace", "normal"):
            return self.tokens.default
        if last in ("randint", "randperm"):
            return self.tokens.int64
        kind = self.kind(node.args[0]) if last == "tensor" and node.args else ANY
        return {INT: self.tokens.int64, FLOAT: self.tokens.default, BOOL: self.tokens.bool}.get(
            kind.what, self.tokens.fresh()
        )

    def _dtype_token(self, name: str) -> int:
        name = tables.DTYPE_NAMES.get(name, name)
        return (
            self.tokens.known(name, tables.DTYPES[name])
            if name in tables.DTYPES
            else self.tokens.fresh()
        )


def _is_row(node: ast.expr) -> bool:
    row = isinstance(node, (ast.Tuple, ast.List))
    return row and not any(isinstance(e, ast.Starred) for e in node.elts)


def _suggests(node: ast.Call) -> bool:
    """Whether a call of a method is one that tensors have: by its name, or by an axis that no other
    library calls so."""
    method = node.func.attr
    by_axis = method in tables.METHOD and any(k.arg in ("dim", "keepdim") for k in node.keywords)
    return by_axis or method in tables.SUGGESTIVE


def is_false(node: Any) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def _last_name(node: Any) -> Any:
    return getattr(node.func, "attr", None) or getattr(node.func, "id", "")


_INPLACE_LAST = frozenset(
    """
    ReLU ReLU6 RReLU LeakyReLU ELU SELU CELU SiLU Mish Hardtanh Hardswish Hardsigmoid Threshold
    Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout
    """.split()
)
