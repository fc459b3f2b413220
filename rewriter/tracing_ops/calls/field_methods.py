"""Special methods of the user's that C code calls unseen: harmless are those that only read fields,
as the ones that `dataclass` writes do. The fields are guarded with the object."""

import ast
import types
from typing import Any

import torch

from ....runtime.guards.guard import Attr, Obj
from ...capture.guarded_kinds import is_constant, slots
from ...capture.trace import Recorder
from ...source.live_source import NotRewritable
from ..lookup import MISSING, guard_classes, is_stable, on_class, own_attributes
from .effect_free_code import ConstantReads, NotEffectFree, lookup

_CALLED = frozenset(
    "isinstance issubclass hash len type repr str int float bool tuple frozenset sorted min max sum"
    " abs round any all id format zip enumerate range super map filter list dict set reversed"
    " NotImplemented True False None TypeError ValueError AssertionError".split()
)
TEXTS = ("__str__", "__repr__", "__format__")
_ANSWERING = ("__getattribute__", "__getattr__", "__torch_function__")
_IN_PYTHON: Any = (types.FunctionType, classmethod, staticmethod)
_OF_CLASSES = frozenset("__class__ __name__ __qualname__".split())
_OF_VALUES = frozenset(
    name for kind in (str, bytes, tuple, int, float) for name in dir(kind) if name[0] != "_"
) | frozenset("keys values items get".split())
_CHANGING = (
    *(ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await, ast.Import, ast.ImportFrom),
    *(ast.FunctionDef, ast.ClassDef, ast.Delete, ast.With, ast.AugAssign),
)
_IN_C = types.MemberDescriptorType | types.WrapperDescriptorType | types.MethodDescriptorType


def fields_of(obj: Any) -> list[Any]:
    """What lies in the attributes of an object."""
    held = (getattr(obj, name, None) for name in slots(type(obj)))
    return [*own_attributes(obj).values(), *held]


def reads_fields(rec: Recorder, cls: type, name: str, classes: frozenset[type]) -> bool:
    """Whether a method of `cls` only reads fields, of objects of `classes`; what else it reads is
    guarded."""
    if issubclass(cls, torch.nn.Module | torch.Tensor):
        return False  # whose fields are not guarded together
    if any(isinstance(on_class(cls, each), _IN_PYTHON) for each in _ANSWERING):
        return False
    reads = _FieldReads(classes | {cls}, name in TEXTS)
    try:
        reads.of_attribute(cls, name)
    except (NotEffectFree, NotRewritable, SyntaxError):
        return False
    reads.guard(rec)
    for owner, attribute in reads.resolved:
        guard_classes(rec, owner, attribute)
    return True


class _FieldReads(ConstantReads):
    """What methods read besides the fields of the objects that they are given. `resolved`: the
    attributes that were looked for on classes. `texts`: whether text may be made of fields."""

    def __init__(self, classes: frozenset[type], texts: bool) -> None:
        super().__init__()
        self.classes, self.texts = classes, texts
        self.resolved: set[tuple[type, str]] = set()

    def of_attribute(self, cls: type, name: str) -> None:
        """Whatever the class and its bases have there: a function, a property, a constant."""
        if (cls, name) in self.resolved:
            return
        self.resolved.add((cls, name))
        for base in cls.__mro__:
            found = base.__dict__.get(name, MISSING)
            function = found.fget if isinstance(found, property) else found
            if isinstance(function, types.FunctionType):
                self.of_function(function)
            elif is_constant(found) and not is_stable(base):
                self.found.append((Attr(Obj(base, base.__qualname__), name), found))
            elif found is not MISSING and not (is_stable(base) or isinstance(found, _IN_C)):
                raise NotEffectFree(f"{base.__name__}.{name} is a {type(found).__name__}")

    def of_function(self, fn: types.FunctionType) -> None:
        if not is_stable(fn):
            super().of_function(fn)

    def outside(self, fn: types.FunctionType, name: str) -> None:
        path, value = lookup(fn, name)
        if path is None and name in _CALLED:
            return
        if isinstance(value, type):
            self.found.append((path, value))
        else:
            super().outside(fn, name)

    def attribute(self, fn: types.FunctionType, name: str, attribute: str) -> None:
        if isinstance(lookup(fn, name)[1], types.FunctionType | type):
            super().attribute(fn, name, attribute)

    def check(self, node: ast.AST, first: str | None, fn: types.FunctionType) -> None:
        """Refuses what is more than a read of fields."""
        places = isinstance(node, ast.Attribute | ast.Subscript)
        stored = places and not isinstance(getattr(node, "ctx", None), ast.Load)
        if isinstance(node, _CHANGING) or stored:
            raise NotEffectFree(f"{fn.__qualname__} does more than read")
        if not self.texts and _makes_text(node):
            raise NotEffectFree(f"{fn.__qualname__} makes text")
        if isinstance(node, ast.Call):
            self._called(node.func, fn)
        elif isinstance(node, ast.Attribute) and node.attr not in _OF_CLASSES | _OF_VALUES:
            self._read(node, fn)

    def _called(self, function: ast.expr, fn: types.FunctionType) -> None:
        if isinstance(function, ast.Name) and _is_outside(fn, function.id):
            value = lookup(fn, function.id)[1]
            if isinstance(value, types.FunctionType) or function.id in _CALLED:
                return
        if isinstance(function, ast.Attribute):
            known = any(on_class(cls, function.attr) is not MISSING for cls in self.classes)
            if known or (function.attr in _OF_VALUES and not _is_argument(function.value, fn)):
                return
        raise NotEffectFree(f"{fn.__qualname__} calls {ast.unparse(function)}")

    def _read(self, node: ast.Attribute, fn: types.FunctionType) -> None:
        base = node.value
        of_base = isinstance(base, ast.Call) and ast.unparse(base.func) == "super"
        of_outside = isinstance(base, ast.Name) and _is_outside(fn, base.id)
        if not (of_base or of_outside or _is_argument(base, fn)):
            raise NotEffectFree(f"{fn.__qualname__} reads {ast.unparse(node)}")
        for cls in self.classes:
            self.of_attribute(cls, node.attr)


def _makes_text(node: ast.AST) -> bool:
    """Whether it may take the digits of a number without asking."""
    named = getattr(node, "attr", getattr(node, "id", "")) == "format"
    return named or isinstance(node, ast.JoinedStr | ast.Mod)


def _is_argument(node: ast.expr, fn: types.FunctionType) -> bool:
    code = fn.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    return isinstance(node, ast.Name) and node.id in code.co_varnames[:count]


def _is_outside(fn: types.FunctionType, name: str) -> bool:
    return name not in fn.__code__.co_varnames and name not in fn.__code__.co_cellvars
