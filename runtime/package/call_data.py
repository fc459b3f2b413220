"""Guards, and how a call's output is made of what its graphs give, as plain data, and back.

What the model itself was asked is no part of it: a package holds the model as it was. Guards are
those on the arguments of a call.
"""

import base64
import collections
import dataclasses
import functools
import math
import operator
import sys
from collections.abc import Callable
from typing import Any

import torch

from ..cache.plain_data import Damaged, Decoder, Encoder, Unstorable, checked, identifier
from ..guards import access_paths, guard_checks
from ..guards.guard import Check, Path, TensorMeta
from ..programs import containers, recipes
from ..programs.recipes import Apply, Build, ConstRecipe, Input, Output, Recipe, Table
from ..programs.size_functions import SizeFunction, SizeRecipe

_PATHS = {
    cls.__name__: cls
    for cls in (
        *(access_paths.Arg, access_paths.Kwarg, access_paths.Attr, access_paths.InstDict),
        *(access_paths.Item, access_paths.Stored, access_paths.DictKey, access_paths.TypeOf),
        *(access_paths.OnArray, access_paths.AsTensor),
    )
}
_PLAIN_PATHS = (  # that only their base tells apart
    *(access_paths.InstDict, access_paths.TypeOf),
    *(access_paths.OnArray, access_paths.AsTensor),
)
_CHECKS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        *(guard_checks.Equals, guard_checks.Length, guard_checks.Keys, guard_checks.Members),
        *(guard_checks.HasKey, guard_checks.HasIndex, guard_checks.Missing),
        guard_checks.ArrayContent,
    )
}
_CLASSES: dict[str, Any] = {
    f"{cls.__module__}:{cls.__qualname__}": cls
    for cls in (
        *(object, list, dict, set, tuple, frozenset, int, float, str, bool, bytes, complex),
        *(slice, range),
        *(collections.OrderedDict, collections.defaultdict, collections.deque),
        *(torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, torch.Size, type(None)),
    )
}
_FunctionState: Any = getattr(torch._C, "_TorchFunctionState", None)
_RETURN_TYPES = "torch.return_types"
_META = [field for field in TensorMeta.__dataclass_fields__ if field != "cls"]


class TypeNamed(Check):
    """The value's exact type by its name: its class is loaded by whoever makes such values."""

    __slots__ = ()

    def passes(self, value: Any) -> bool:
        return bool(class_name(type(value)) == self.arg)

    def difference(self, value: Any) -> str:
        return f"was of type {self.arg}, is of type {class_name(type(value))}"


def class_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


# ---- the functions that recipes call


def _arithmetic() -> dict[str, Callable[..., Any]]:
    numbers = (
        "add sub mul truediv floordiv mod pow neg pos abs invert and_ or_ xor lshift rshift"
        " eq ne lt le gt ge not_ truth is_ is_not getitem contains"
    )
    floats = "floor ceil trunc sqrt exp log log2 log10 sin cos tan prod isnan isinf isfinite"
    named = {f"operator:{name}": getattr(operator, name) for name in numbers.split()}
    named |= {f"math:{name}": getattr(math, name) for name in floats.split()}
    plain = (int, float, bool, str, complex, round, len, min, max, divmod, sum)
    return named | {f"builtins:{function.__name__}": function for function in plain}


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_arithmetic(),
    **{f"containers:{one.__name__}": one for one in containers.MAKERS},
    "recipes:itself": recipes.itself,
    "containers:Fields": containers.Fields,
    "torch:item": torch.Tensor.item,
    "torch:tolist": torch.Tensor.tolist,
}
_FUNCTION_NAMES = {function: name for name, function in _FUNCTIONS.items()}


# ---- to data


class CallEncoder(Encoder):
    """`size_of(recipe)`: the function of sizes that a recipe of another kind stands for, or None;
    `placed(index)`: the new index of an input that a recipe asks for; `before`: how many arguments
    of a recorded call come before its own. Each recipe is written once, into `recipes`, and named
    by its number."""

    def __init__(
        self,
        size_of: Callable[[Recipe], SizeFunction | None],
        placed: Callable[[int], int],
        before: int,
    ) -> None:
        super().__init__(_no_launch)
        self._size_of, self._placed, self._before = size_of, placed, before
        self.recipes: list[Any] = []
        self._numbers: dict[int, int] = {}

    def _other(self, value: Any) -> Any:
        if isinstance(value, Path):
            return self._path(value)
        if isinstance(value, Check):
            return self._check(value)
        if isinstance(value, TensorMeta):
            fields = (self.encode(getattr(value, name)) for name in _META)
            return ["meta", self._class(value.cls), *fields]
        if isinstance(value, Recipe):
            return ["recipe", self._recipe(value)]
        if isinstance(value, SizeFunction):
            reads = [[name, self._placed(i), dim] for name, (i, dim) in value.reads.items()]
            return ["sizes", checked(value.text), *reads]
        if isinstance(value, type):
            return self._class(value)
        if value is Ellipsis:
            return ["ellipsis"]
        if isinstance(value, range):
            return ["range", value.start, value.stop, value.step]
        if isinstance(value, bytes):
            return ["bytes", base64.b85encode(value).decode()]
        if isinstance(value, functools.partial) and not value.keywords:
            return ["partial", self.encode(value.func), *map(self.encode, value.args)]
        if callable(value) and value in _FUNCTION_NAMES:
            return ["function", _FUNCTION_NAMES[value]]
        if type(value) is _FunctionState:
            return ["function_state", int(value)]
        if callable(value):
            raise Unstorable(f"the function {getattr(value, '__qualname__', value)}")
        return super()._other(value)

    def _path(self, path: Path) -> list[Any]:
        name = type(path).__name__
        if _PATHS.get(name) is not type(path):
            raise Unstorable(f"what is read as {path.source}")
        if isinstance(path, access_paths.Arg):
            return [name, path.arg - self._before]
        base = [] if path.base is None else [self._path(path.base)]
        return [name, *base, *([] if isinstance(path, _PLAIN_PATHS) else [self.encode(path.arg)])]

    def _check(self, check: Check) -> list[Any]:
        if isinstance(check, guard_checks.Is) and guard_checks.Equals.supports(check.arg):
            check = guard_checks.Equals(check.arg)
        if isinstance(check, guard_checks.TypeIs):
            return ["TypeIs", class_name(check.arg)]
        if isinstance(check, guard_checks.Tensor):
            return ["Tensor", self.encode(check.arg)]
        if _CHECKS.get(type(check).__name__) is not type(check):
            raise Unstorable(f"the guard {check!r}")
        present = [check.present] if isinstance(check, guard_checks.HasKey) else []
        return [type(check).__name__, self.encode(check.arg), *present]

    def _class(self, cls: type) -> list[Any]:
        """With what is needed to make one like it where it cannot be found."""
        name, base = class_name(cls), containers.c_base(cls)
        if _CLASSES.get(name) is cls or cls.__module__ == _RETURN_TYPES:
            return ["class", name]
        if "<locals>" in name or _CLASSES.get(class_name(base)) is not base:
            raise Unstorable(f"an object of class {name}")
        if base is object and not hasattr(cls, "__dataclass_fields__"):
            raise Unstorable(f"an object of class {name}, which is no data class")
        return ["class", name, class_name(base), *getattr(cls, "_fields", ())]

    def _recipe(self, recipe: Recipe) -> int:
        number = self._numbers.get(id(recipe))
        if number is None:
            number = self._numbers[id(recipe)] = len(self.recipes)
            self.recipes.append(None)  # its parts may hold it
            self.recipes[number] = self._recipe_parts(recipe)
        return number

    def _recipe_parts(self, recipe: Recipe) -> list[Any]:
        every = functools.partial(map, self._recipe)
        if isinstance(recipe, ConstRecipe):
            return ["const", self.encode(recipe.value)]
        if isinstance(recipe, Input):
            return ["input", self._placed(recipe.index)]
        if isinstance(recipe, Output):
            return ["output", recipe.segment, recipe.index]
        if isinstance(recipe, Table):
            return ["table", [*map(self.encode, recipe.names)], *every(recipe.arguments)]
        if isinstance(recipe, Apply):
            return ["apply", self.encode(recipe.function), *every(recipe.arguments)]
        if isinstance(recipe, Build):
            state = None if recipe.state is None else self._recipe(recipe.state)
            base = None if recipe.base is None else class_name(recipe.base)
            pairs = [[*every(pair)] for pair in recipe.pairs]
            held = [*every(recipe.arguments)], state, [*every(recipe.items)], pairs, base
            return ["build", self.encode(recipe.create), *held]
        sizes = self._size_of(recipe)
        if sizes is None:
            function = getattr(recipe, "function", type(recipe))
            name = getattr(function, "__qualname__", function)
            raise Unstorable(f"what {name}() answers, which is another thing at each call")
        return ["size", self.encode(sizes)]


def _no_launch(data: Any) -> Any:
    raise Damaged("a kernel outside of a program")


# ---- back


class CallDecoder(Decoder):
    """`recipes`: as the encoder wrote them."""

    def __init__(self, recipes: list[Any]) -> None:
        super().__init__(_no_launch)
        self._recipes, self._made = recipes, dict[int, Recipe]()

    def decode(self, data: Any) -> Any:
        if isinstance(data, list) and data and data[0] in _PATHS:
            parts = map(self.decode, data[1:])
            return _PATHS[data[0]](*parts)
        if isinstance(data, list) and data and data[0] in _CHECKS:
            cls, (arg, *present) = _CHECKS[data[0]], data[1:]
            return cls(self.decode(arg), *present)
        return super().decode(data)

    def _TypeIs(self, name: str) -> Check:
        known = _CLASSES.get(name)
        return TypeNamed(name) if known is None else guard_checks.TypeIs(known)

    def _Tensor(self, meta: Any) -> Check:
        return AnyModeTensor(self.decode(meta))

    def _meta(self, cls: Any, *fields: Any) -> TensorMeta:
        named = dict(zip(_META, map(self.decode, fields), strict=True))
        return TensorMeta(cls=self.decode(cls), **named)

    def _ellipsis(self) -> Any:
        return ...

    def _range(self, *bounds: int) -> range:
        return range(*bounds)

    def _bytes(self, text: str) -> bytes:
        return base64.b85decode(text)

    def _class(self, name: str, base: str = "", *fields: str) -> Any:
        if name.startswith(_RETURN_TYPES):
            return getattr(torch.return_types, name.rpartition(":")[2])
        return _CLASSES[name] if not base else found_class(name, _CLASSES[base], fields)

    def _function(self, name: str) -> Any:
        return _FUNCTIONS[name]

    def _function_state(self, number: int) -> Any:
        return _FunctionState(number)

    def _partial(self, function: Any, *args: Any) -> Any:
        return functools.partial(self.decode(function), *map(self.decode, args))

    def _sizes(self, text: str, *reads: list[Any]) -> SizeFunction:
        places = {identifier(name): (int(index), int(dim)) for name, index, dim in reads}
        return SizeFunction(checked(text), places)

    def _recipe(self, number: int) -> Recipe:
        if number not in self._made:
            tag, *parts = self._recipes[number]
            if tag == "build":
                return self._build(number, *parts)
            self._made[number] = getattr(self, f"_recipe_{tag}")(*parts)
        return self._made[number]

    def _all(self, numbers: list[int]) -> tuple[Recipe, ...]:
        return tuple(map(self._recipe, numbers))

    def _recipe_const(self, value: Any) -> Recipe:
        return ConstRecipe(self.decode(value))

    def _recipe_input(self, index: int) -> Recipe:
        return Input(index)

    def _recipe_output(self, segment: int, index: int) -> Recipe:
        return Output(segment, index)

    def _recipe_table(self, names: list[Any], *values: int) -> Recipe:
        return Table(tuple(map(self.decode, names)), self._all([*values]))

    def _recipe_apply(self, function: Any, *arguments: int) -> Recipe:
        return Apply(self.decode(function), self._all([*arguments]))

    def _recipe_size(self, sizes: Any) -> Recipe:
        return SizeRecipe(self.decode(sizes))

    def _build(
        self,
        number: int,
        create: Any,
        arguments: Any,
        state: Any,
        items: Any,
        pairs: Any,
        base: Any,
    ) -> Recipe:
        kind = None if base is None else _CLASSES[base]
        made = self._made[number] = Build(self.decode(create), base=kind)  # its parts may hold it
        made.arguments, made.items = self._all(arguments), self._all(items)
        made.pairs = tuple((self._recipe(key), self._recipe(value)) for key, value in pairs)
        made.state = None if state is None else self._recipe(state)
        return made


class AnyModeTensor(guard_checks.Tensor):
    """What was recorded of a plain tensor; one that inference mode made serves as well."""

    __slots__ = ("_of_modes",)
    _of_modes: tuple[TensorMeta, ...]

    def __init__(self, meta: TensorMeta) -> None:
        super().__init__(meta)
        keys, modes = _plain_keys(), (False, True)
        made = [dataclasses.replace(meta, inference=mode, keys=keys[mode]) for mode in modes]
        object.__setattr__(self, "_of_modes", tuple(made if meta.keys in keys else [meta, meta]))

    def passes(self, value: Any) -> bool:
        return bool(self._of_mode(value).matches(value))

    def difference(self, value: Any) -> str:
        return "has " + ", ".join(self._of_mode(value).differences(value))

    def _of_mode(self, value: Any) -> TensorMeta:
        return self._of_modes[isinstance(value, torch.Tensor) and value.is_inference()]


@functools.cache
def _plain_keys() -> tuple[int, int]:
    """The dispatch keys of plain tensors of the CPU, and of those that inference mode makes."""
    found = []
    for mode in (False, True):
        with torch.inference_mode(mode):
            found.append(torch._C._dispatch_keys(torch.empty(0, device="cpu")).raw_repr())
    return found[0], found[1]


# ---- classes


def found_class(name: str, base: type, fields: tuple[str, ...]) -> type:
    """The class of this name, if its module is loaded; else one like it, with the same name, items
    and attributes, and none of its methods. Nothing is imported."""
    module, _, qualified = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, "__dict__", {}).get(part)  # some modules import what they are asked
    if isinstance(found, type) and containers.c_base(found) is base:
        return found
    return _stand_in(module, qualified, base, fields)


@functools.cache
def _stand_in(module: str, name: str, base: Any, fields: tuple[str, ...]) -> type:
    short = name.rpartition(".")[2]
    if base is tuple and fields:
        return collections.namedtuple(short, fields, module=module)
    like = _Mapping if issubclass(base, dict) else _Record
    return type(short, (like, base), {"__module__": module, "__qualname__": name})


class _Record:
    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"


class _Mapping(dict[Any, Any]):
    """A dict that gives values by position, too, as the outputs of transformers do."""

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int | slice) and key not in self.keys():
            return self.to_tuple()[key]
        return super().__getitem__(key)

    def to_tuple(self) -> tuple[Any, ...]:
        """The values."""
        return tuple(self.values())
