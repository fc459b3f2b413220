"""A compiled graph as a flat list of steps, run as straight-line Python that is made from them."""

import dataclasses
import itertools
import linecache
import re
from collections.abc import Callable, Iterable, Sequence
from math import prod
from types import FunctionType, ModuleType
from typing import Any

import torch

from .. import torch_headers
from ..errors import UnexpectedResult
from . import finished_programs, result_memory
from .arena import ArenaView, ArenaViews, give_back, take
from .launch import Product


@dataclasses.dataclass(frozen=True, repr=False)
class Expression:
    """An integer that each call computes: Python over the program's variables `names`. It may stand
    for any number of a step, and inside of shapes."""

    text: str
    names: tuple[str, ...]

    def __repr__(self) -> str:
        return self.text


Size = int | Expression
Shape = tuple[Size, ...]
Ints = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Name:
    """A variable of the program."""

    name: str


@dataclasses.dataclass(frozen=True)
class View:
    """A strided view of the tensor in variable `name`, `offset` elements after its first."""

    name: str
    shape: Shape
    strides: Shape
    offset: Size


@dataclasses.dataclass(frozen=True)
class InArena:
    """A byte offset in the arena, passed to kernels as an address."""

    offset: Size


@dataclasses.dataclass(frozen=True)
class Define:
    """`name` = a number."""

    name: str
    value: Expression


@dataclasses.dataclass(frozen=True)
class Alloc:
    """`name` = a new tensor, or the memory of the dead tensor `reuses`; `asks`: of an input that
    dies, if nothing else holds it."""

    name: str
    shape: Shape
    strides: Shape
    dtype: torch.dtype
    device: torch.device
    reuses: str | None = None
    asks: bool = False


@dataclasses.dataclass(frozen=True)
class Arena:
    """One block of `size` bytes for buffers that do not outlive the call; `names`: tensors in it,
    for extern calls."""

    size: Size
    names: tuple[str, ...] = ()
    views: tuple[ArenaView, ...] = ()


@dataclasses.dataclass(frozen=True)
class KernelStep:
    """Calls `launch` with tensors, addresses or numbers."""

    name: str
    launch: Callable[..., None]
    args: tuple[Name | InArena | Expression, ...]
    origins: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Extern:
    """Calls `target`. In args and kwargs `Name`, `View` and `Expression` stand for tensors and
    numbers. `results`: a name, None, or a tuple of them (nested); `layouts`: (name, shape, strides,
    dtype) of results that must have these; `pure`: the target neither writes nor returns nor keeps
    its arguments; `large`: it may make large tensors."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: Any
    layouts: tuple[tuple[str, Shape, Shape, torch.dtype], ...] = ()
    origins: tuple[str, ...] = ()
    pure: bool = False
    large: bool = True


@dataclasses.dataclass(frozen=True)
class Free:
    """The variables are not needed any more."""

    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Return:
    values: tuple[Any, ...]


Step = Define | Alloc | Arena | KernelStep | Extern | Free | Return
_numbers = itertools.count()


def expect(
    tensor: torch.Tensor | None,
    shape: Ints,
    strides: Ints,
    dtype: torch.dtype,
    may_convert: bool = True,
) -> torch.Tensor:
    """An extern call's result in the layout and dtype that its readers were compiled for: copied if
    the operator chose another one than its meta function.

    Raises UnexpectedResult if it is no tensor of that shape, nor of that dtype where that must be,
    or its elements do not share memory that should.
    """
    if tensor is None:
        raise UnexpectedResult(f"an operator gave None, a tensor of shape {shape} was expected")
    if tensor.shape != shape:
        raise UnexpectedResult(
            f"an operator returned a tensor of shape {tuple(tensor.shape)}, {shape} was expected"
        )
    if tensor.dtype is not dtype and not may_convert:
        raise UnexpectedResult(f"an operator gave {tensor.dtype}, {dtype} was expected")
    if tensor.dtype is dtype and _steps_as(tensor, strides):
        return tensor
    if any(step == 0 and size != 1 for size, step in zip(shape, strides, strict=True)):
        raise UnexpectedResult(f"an operator gave strides {tensor.stride()}, not {strides}")
    return torch.empty_strided(shape, strides, dtype=dtype, device=tensor.device).copy_(tensor)


def _steps_as(tensor: torch.Tensor, strides: Ints) -> bool:
    found = tensor.stride()
    if found == strides or tensor.numel() == 0:
        return True
    return all(n == 1 or a == b for n, a, b in zip(tensor.shape, found, strides, strict=True))


# Without the dispatcher, in half the time. An alias has a version counter of its own: it must not
# be written or returned.
_fast = torch._C._dynamo.guards
FAST: dict[str, Callable[..., Any]] = {
    "alias": result_memory.reinterpreted,
    "empty_cpu": result_memory.empty_cpu,
    "empty_large": result_memory.empty_large,
    "take_over": result_memory.take_over,
}


def gpu_empty() -> Callable[[Ints, Ints, torch.dtype], torch.Tensor] | None:
    """`torch.empty_strided` on the GPU without the parser of its arguments, where there is one GPU
    alone: it takes the current one."""
    return getattr(_fast, "_empty_strided_cuda", None) if torch.cuda.device_count() == 1 else None


_profiler_enabled = torch._C._autograd._profiler_enabled


def _named(step: KernelStep) -> Callable[..., None]:
    launch, name = step.launch, f"dynfix::{' '.join((step.name, *_lines(step.origins)))}"

    def named(*args: Any) -> None:
        with torch.profiler.record_function(name):
            launch(*args)

    return named


def _lines(origins: Iterable[str]) -> list[str]:
    """`model.py:41` for `/home/me/model.py:41: y = x.relu()`, each once, three at most."""
    found = (re.search(r"([^/\\:]+:\d+)", origin) for origin in origins)
    return list(dict.fromkeys(match.group(1) for match in found if match))[:3]


class Program:
    """Runs its steps. `program(args)` takes the inputs as one list, which it empties, and returns
    the results as a list.

    Nothing of a call is kept: threads may call at once. `source` is the code that runs.
    """

    _boxed_call = True

    def __init__(
        self,
        name: str,
        inputs: Sequence[str],
        steps: Sequence[Step],
        constants: dict[str, torch.Tensor],
    ) -> None:
        self.name = name
        self.inputs, self.steps, self.constants = tuple(inputs), tuple(steps), constants
        self.namespace: dict[str, Any] = {
            "empty": torch.empty,
            "empty_strided": torch.empty_strided,
            "view": torch.as_strided,
            "expect": expect,
            "uint8": torch.uint8,
            **FAST,
            **constants,
        }
        writer = _Writer(self.namespace)
        self.source = writer.write(inputs, steps)
        self._products = writer.products
        if self._products:
            torch_headers.give_parts(self)
        file = f"<dynfix program {name} {next(_numbers)}>"
        linecache.cache[file] = (
            len(self.source),
            None,
            self.source.splitlines(keepends=True),
            file,
        )
        exec(compile(self.source, file, "exec"), self.namespace)
        self._run: Callable[[list[Any]], list[Any]] = self.namespace["call"]
        self._calls_library = any(isinstance(step, Extern) and step.large for step in steps)
        self._watched: Callable[[list[Any]], list[Any]] | None = None

    def __call__(self, args: list[Any]) -> list[Any]:
        run = self._named_run() if _profiler_enabled() else self._run
        try:
            made = result_memory.serving(run, args) if self._calls_library else run(args)
        except BaseException:
            finished_programs.begin()  # others, which this one called, may have run to their ends
            raise
        finished_programs.note()
        return made

    def use(self, native: ModuleType) -> None:
        """Have products made natively."""
        for name, product in self._products.items():
            self.namespace[name] = product.native(native)

    def with_launches(
        self, around: Callable[[KernelStep], Callable[..., None]]
    ) -> Callable[[list[Any]], list[Any]]:
        """The same code with what `around` gives for each kernel in place of its launch."""
        made = {
            id(step.launch): around(step) for step in self.steps if isinstance(step, KernelStep)
        }
        namespace = {name: made.get(id(value), value) for name, value in self.namespace.items()}
        return FunctionType(self.namespace["call"].__code__, namespace)

    def _named_run(self) -> Callable[[list[Any]], list[Any]]:
        """The same code with a name around each kernel, for torch's profiler: `dynfix::` with the
        kernel's name and the user's lines that it computes."""
        if self._watched is None:
            self._watched = self.with_launches(_named)
        return self._watched


_PRODUCTS: dict[Any, str] = {getattr(torch, name): name for name in Product.NAMES}


def _product(step: Extern) -> tuple[Product, list[str]] | None:
    """The step as a product, and the variables of its operands; None for another call."""
    name, given = _PRODUCTS.get(step.target), [*step.args, *step.kwargs.values()]
    if name is None or not step.pure or not step.kwargs.keys() <= {"out"}:
        return None
    if not all(isinstance(each, Name) or _is_static(each) for each in given):
        return None
    layouts: Any = tuple(
        (each.shape, each.strides, each.offset) if isinstance(each, View) else None
        for each in given
    )
    return Product(name, layouts, bool(step.kwargs)), [each.name for each in given]


def _is_static(value: Any) -> bool:
    return isinstance(value, View) and all(
        type(size) is int for size in (*value.shape, *value.strides, value.offset)
    )


class _Writer:
    """Source text of a program: one method a kind of step."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self.lines: list[str] = []
        self.layouts: dict[str, tuple[Shape, Shape]] = {}
        self.only_gpu = gpu_empty()
        self.returned: set[str] = set()  # variables that are results as they are
        self.aliases = False  # whether the arguments being written may be aliases
        self.products: dict[str, Product] = {}  # by their names in the namespace
        self.block: tuple[
            str, ...
        ] = ()  # names of the functions that take a block and give it back

    def write(self, inputs: Sequence[str], steps: Sequence[Step]) -> str:
        self.lines.append("def call(args):")
        if inputs:
            self.add(f"{', '.join(inputs)}, = args")
        self.add("args.clear()")
        for step in steps:
            getattr(self, "write_" + type(step).__name__)(step)
        return "\n".join(self.lines) + "\n"

    def add(self, line: str) -> None:
        self.lines.append("    " + line)

    def origins(self, origins: Sequence[str]) -> None:
        for origin in origins:
            self.add("# " + " ".join(origin.split()))

    def constant(self, value: Any, stem: str) -> str:
        """A name in the namespace that is bound to `value`."""
        for name, known in self.namespace.items():
            if known is value:
                return name
        name = stem if stem not in self.namespace else f"{stem}_{len(self.namespace)}"
        self.namespace[name] = value
        return name

    def write_Define(self, step: Define) -> None:
        self.add(f"{step.name} = {step.value}")

    def write_Alloc(self, step: Alloc) -> None:
        if step.reuses is None:
            self.add(f"{step.name} = {self.allocation(step)}")
        elif step.asks:
            dtype = self.constant(step.dtype, str(step.dtype).split(".")[-1])
            self.add(
                f"{step.name} = take_over({step.reuses}, {step.shape}, {step.strides}, {dtype})"
            )
        elif self.layouts.get(step.reuses) == (step.shape, step.strides):
            self.add(f"{step.name} = {step.reuses}; del {step.reuses}")
        else:
            self.add(
                f"{step.name} = alias({step.reuses}, {step.shape}, {step.strides}, 0); del"
                f" {step.reuses}"
            )
        self.layouts[step.name] = step.shape, step.strides

    def allocation(self, step: Alloc) -> str:
        dtype = self.constant(step.dtype, str(step.dtype).split(".")[-1])
        if step.device.type == "cpu":
            empty = "empty_large" if _may_be_large(step) else "empty_cpu"
            return f"{empty}({step.shape}, {step.strides}, {dtype})"
        if step.device.type == "cuda" and self.only_gpu is not None:
            empty = self.constant(self.only_gpu, "empty_gpu")
            return f"{empty}({step.shape}, {step.strides}, {dtype})"
        return (
            f"empty_strided({step.shape}, {step.strides}, dtype={dtype},"
            f" device={str(step.device)!r})"
        )

    def write_Arena(self, step: Arena) -> None:
        self.block = self.constant(take, "take_block"), self.constant(give_back, "give_block_back")
        self.add(f"block = {self.block[0]}({step.size})")
        self.add("arena = block.address")
        if step.names:
            self.add(
                f"{', '.join(step.names)}, ="
                f" block.tensors({self.constant(ArenaViews(step.views), 'arena_views')})"
            )

    def write_KernelStep(self, step: KernelStep) -> None:
        self.origins(step.origins)
        self.add(
            f"{self.constant(step.launch, step.name)}({', '.join(map(self.value, step.args))})"
        )

    def write_Extern(self, step: Extern) -> None:
        self.origins(step.origins)
        product = _product(step)
        if product is not None:
            return self.product(step, *product)
        target = self.constant(step.target, _identifier(step.target))
        self.aliases = step.pure
        args = [self.value(arg) for arg in step.args]
        args += [f"{key}={self.value(arg)}" for key, arg in step.kwargs.items()]
        self.aliases = False
        self.results(step.results, f"{target}({', '.join(args)})")
        self.laid_out(step)

    def product(self, step: Extern, product: Product, operands: list[str]) -> None:
        name = f"{product.name}_{len(self.namespace)}"
        self.namespace[name] = self.products[name] = product
        if any(product.layouts):
            self.add(f"# {product}")
        self.results(step.results, f"{name}({', '.join(operands)})")
        self.laid_out(step)

    def laid_out(self, step: Extern) -> None:
        exact = "" if _is_of_torch(step.target) else ", False"
        for name, shape, strides, dtype in step.layouts:
            kind = self.constant(dtype, str(dtype).split(".")[-1])
            self.add(f"{name} = expect({name}, {shape}, {strides}, {kind}{exact})")

    def write_Free(self, step: Free) -> None:
        self.add(f"del {', '.join(step.names)}")

    def write_Return(self, step: Return) -> None:
        if self.block:
            self.add(f"{self.block[1]}(block)")
        self.returned = {value.name for value in step.values if isinstance(value, Name)}
        self.add(f"return [{', '.join(self.value(value) for value in step.values)}]")

    def results(self, results: Any, call: str) -> None:
        """The call, and its results bound to their names. One without a name is let go at once: it
        may be large."""
        named = (
            [k for k, item in enumerate(results) if _has_name(item)]
            if isinstance(results, tuple)
            else []
        )
        if not _has_name(results):
            self.add(call)
        elif not isinstance(results, tuple):
            self.add(f"{results} = {call}")
        elif len(named) == 1:
            self.results(results[named[0]], f"{call}[{named[0]}]")
        else:
            pattern = self.pattern(results)
            self.add(f"{pattern} = {call}" + "; del _" * ("_, " in pattern))

    def pattern(self, results: Any) -> str:
        if isinstance(results, tuple) and _has_name(results):
            return "(" + "".join(self.pattern(item) + ", " for item in results) + ")"
        return results if isinstance(results, str) else "_"

    def value(self, value: Any) -> str:
        """Python source of an argument."""
        if isinstance(value, Name):
            return value.name
        if isinstance(value, Expression):
            return value.text
        if isinstance(value, View) and self.aliases:
            return f"alias({value.name}, {value.shape}, {value.strides}, {value.offset})"
        if isinstance(value, View):
            # autograd would give a view the gradient of a result that it is a view of
            base = f"{value.name}.detach()" if value.name in self.returned else value.name
            return (
                f"view({base}, {value.shape}, {value.strides}, {value.name}.storage_offset()"
                f" + {value.offset})"
            )
        if isinstance(value, InArena):
            return f"arena + {value.offset}"
        if isinstance(value, list | tuple):
            inside = "".join(self.value(item) + ", " for item in value)
            return f"[{inside}]" if isinstance(value, list) else f"({inside})"
        if isinstance(value, slice):
            return (
                f"slice({self.value(value.start)}, {self.value(value.stop)},"
                f" {self.value(value.step)})"
            )
        if value is None or type(value) in (bool, int, str):
            return repr(value)
        return self.constant(value, _identifier(type(value)) + "_constant")


def _may_be_large(step: Alloc) -> bool:
    if any(isinstance(size, Expression) for size in step.shape):
        return True
    return prod(step.shape) * step.dtype.itemsize >= result_memory.MIN_POOLED_BYTES  # type: ignore[arg-type]


def _is_of_torch(target: Callable[..., Any]) -> bool:
    schema = getattr(target, "_schema", None)
    return schema is None or schema.name.partition("::")[0] in ("aten", "prims", "dynfix")


def _has_name(results: Any) -> bool:
    return any(map(_has_name, results)) if isinstance(results, tuple) else results is not None


def _identifier(target: Any) -> str:
    text = str(target) if hasattr(target, "_schema") else getattr(target, "__name__", "target")
    return "".join(c if c.isalnum() else "_" for c in text)
