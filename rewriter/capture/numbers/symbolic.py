"""After a dynamic recording: its graphs run once on fake tensors whose moving sizes are symbols.

That gives the expression behind each number that Python read of a size, the examples with which
backends compile, and, with what compiling asked of the sizes, the condition under which the
recording stands for a call. torch's ShapeEnv keeps the expressions and the relations.
"""

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.fx
from torch._dispatch.python import enable_python_dispatcher

from ....lowering.autograd.differentiation import differentiates
from ....lowering.fake_tensor_mode import PacedFakeMode, unlogged
from ....lowering.graph import rnn
from ....lowering.graph.control_flow import Bodies, with_bodies
from ....lowering.graph.tensor_numbers import write_out_numbers
from ....runtime.guards.guard import TensorMeta
from ....runtime.programs.recipes import Recipe
from ....runtime.programs.size_functions import ITSELF, SizeFunction
from ....runtime.programs.steps import CALL_INPUT, HOST
from ....runtime.warning_filters import suppress_warnings
from ..segments import LIBRARY, READ, Segment
from ..values import Meta, Number
from .constant_shapes import masked_sizes
from .traced_sizes import LARGEST, SizeForm, SymbolicEnv

UNKNOWN = object()  # in the place of a fake tensor
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class Inconsistent(Exception):
    """The symbolic run does not agree with the recorded call: the recording stays static."""


class RecordedSymbols:
    """The symbolic sizes of one recording. `dynamic`: call input -> dims whose sizes are symbols.
    `numbers`: call inputs that are symbols themselves, with their values."""

    def __init__(self, dynamic: dict[int, frozenset[int]], numbers: dict[int, int]) -> None:
        self.dynamic = {**dynamic, **dict.fromkeys(numbers, frozenset({ITSELF}))}
        from torch.fx.experimental.symbolic_shapes import ShapeEnv  # which loads SymPy

        self.env = ShapeEnv()
        self.mode = PacedFakeMode(allow_non_fake_inputs=True, shape_env=self.env)
        self._symbols: dict[tuple[int, int], Any] = {}
        self._made: dict[tuple[int, int], Any] = {}
        self._shapes: dict[int, tuple[Any, Any]] = {}
        self._examples: list[list[Any]] = []
        self._forms: list[SizeForm] = []
        self._decided = False
        self.slipped = False  # a size was read where it cannot be followed
        self.holds: Callable[[list[Any]], bool] = _undecided

    # -- the symbolic run

    def analyse(
        self, segments: tuple[Segment, ...], outcomes: Iterable[tuple[int, Recipe, Any]]
    ) -> list[Any]:
        """Run the graphs on symbols; the outcomes that no relation between sizes covers. Raises
        Inconsistent, and what torch raises for an operator that symbols cannot pass."""
        if self.slipped:
            raise Inconsistent("a size was read in a function that torch.func transforms")
        results: list[Any] = []
        with (
            unlogged(),
            suppress_warnings(),
            torch.inference_mode(False),
            self.mode,
            torch.no_grad(),
            enable_python_dispatcher(),
        ):
            for segment in segments:
                fakes = [
                    self._fed(feed, meta, results)
                    for feed, meta in zip(segment.feeds, segment.metas, strict=True)
                ]
                self._examples.append([_same_layout(fake, False) for fake in fakes])
                results.append(self._run(segment, fakes))
            self._forms = forms_in(segments)
            drop_unused(segments)
            return [outcome for outcome in outcomes if not self._covered(*outcome[1:])]

    def _fed(self, feed: Any, meta: Meta | Number, results: list[Any]) -> Any:
        if isinstance(meta, Number):
            return self._symbol(feed.index, ITSELF, meta.seen)
        if feed.segment == CALL_INPUT:
            sizes, strides = self._input_shape(feed.index, meta)
            return torch.empty_strided(sizes, strides, dtype=meta.dtype, device=meta.device)
        if feed.segment == HOST:
            return meta.fake()
        made = results[feed.segment]
        unknown = made is None or made[feed.index] is UNKNOWN
        fake = meta.fake().detach() if unknown else made[feed.index]
        _agree((tuple(fake.shape), fake.stride(), fake.dtype), (meta.size, meta.stride, meta.dtype))
        return fake

    def _input_shape(self, index: int, meta: Meta) -> tuple[Any, Any]:
        if index not in self.dynamic:
            return meta.size, meta.stride
        if index not in self._shapes:
            self._shapes[index] = self._symbolic_shape(index, meta)
        return self._shapes[index]

    def _symbolic_shape(self, index: int, meta: Meta) -> tuple[Any, Any]:
        """Sizes and strides; a stride is an expression where the guard on the input takes it for
        one."""
        dims = self.dynamic[index]
        with torch.utils._python_dispatch._disable_current_modes():
            described = TensorMeta.of(
                torch.empty_strided(meta.size, meta.stride, device="meta"), dims
            )
        sizes = tuple(
            self._symbol(index, dim, size) if dim in dims else size
            for dim, size in enumerate(meta.size)
        )
        strides: list[Any] = list(meta.stride)
        packed = described.packed or (None,) * len(sizes)
        for dim in sorted(range(len(sizes)), key=lambda d: (meta.stride[d], -d)):
            inner = packed[dim]
            if inner is not None:
                strides[dim] = strides[inner] * sizes[inner]
        return sizes, tuple(strides)

    def _symbol(self, index: int, dim: int, size: int) -> Any:
        if (index, dim) in self._made:
            return self._made[index, dim]
        from torch._dynamo.source import ConstantSource  # which loads all of Dynamo
        from torch.fx.experimental.symbolic_shapes import DimDynamic

        source = ConstantSource(f"_input{index}_{dim}")
        symbol = self.env.create_symbol(size, source, DimDynamic.DYNAMIC)
        made = self.env.create_symintnode(symbol, hint=size, source=source)
        self._symbols[index, dim], self._made[index, dim] = symbol, made
        return made

    def _run(self, segment: Segment, fakes: list[Any]) -> Any:
        """The outputs of a segment, None for one with data-dependent shapes: what follows it stands
        for the shapes that were seen."""
        if segment.eager:
            return None
        inside = differentiates(segment.module)
        if inside:
            pairs = zip(fakes, segment.metas, strict=True)
            fakes = [_same_layout(fake, meta.requires_grad) for fake, meta in pairs]
        run = _RunOfKnown if segment.open else _Run
        with torch.set_grad_enabled(inside):
            return run(write_out_numbers(segment.module)).run(*fakes)

    def _covered(self, recipe: Recipe, expected: Any) -> bool:
        """Whether the outcome is one that relations between sizes decide: they are recorded as
        such."""
        if not recipe.sizes or not isinstance(expected, bool | int | float | tuple):
            self._decided |= not recipe.graph
            return False
        value = recipe.make(SymbolicEnv())
        self._decided |= not isinstance(value, bool | int | float)
        if not _equal(value, expected):
            raise Inconsistent(f"{value} is not {expected}")
        return True

    def check_against(self, old: tuple[Segment, ...], new: tuple[Segment, ...]) -> None:
        """An earlier recording that relied on the same things but for sizes, where no size decided
        anything: what differs came of a size that slipped into a constant through code that asks
        nobody. Raises Inconsistent."""
        if not self._decided and differ(old, new):
            raise Inconsistent("a value depends on a size in a way that was not traced")

    # -- compiling

    def examples(self, number: int, segment: Segment) -> list[Any]:
        """Fake inputs for compiling segment `number`."""
        with torch.inference_mode(False), self.mode:
            pairs = zip(self._examples[number], segment.metas, strict=True)
            return [_same_layout(fake, meta.requires_grad) for fake, meta in pairs]

    def close(self) -> None:
        """Everything has been asked of the sizes: make `holds` of it, and give the forms what later
        calls compute. Raises Inconsistent."""
        if any(self.env.deferred_runtime_asserts.values()):
            raise Inconsistent("a size that depends on data")
        conditions = [f"2 <= {symbol} < {LARGEST}" for symbol in self._first()]
        conditions += [f"{name} == {self._symbols[at]}" for name, at in self._repeated().items()]
        conditions += [_text(guard.expr) for guard in self.env.guards]
        self.condition = self.sizes(" and ".join(dict.fromkeys(conditions)) or "True")
        self.holds = self.function(self.condition)
        for form in self._forms:
            form.compute = self._lazily(form)

    def give_up(self) -> None:
        """The recording stands for one size: every form is what the recorded call had, also where
        no graph has its node any more."""
        for form in self._forms:
            form.compute = _always(form.seen)

    def _first(self) -> dict[Any, tuple[int, int]]:
        """Each symbol with the first place where it is read; equal sizes share one."""
        return {symbol: at for at, symbol in reversed(self._symbols.items())}

    def _repeated(self) -> dict[str, tuple[int, int]]:
        """Names for the further places of symbols that are read at several."""
        first = {*self._first().values()}
        return {
            f"_{i}_{max(dim, 0)}": (i, dim) for i, dim in self._symbols if (i, dim) not in first
        }

    def sizes(self, text: str) -> SizeFunction:
        """The function of a call's inputs that an expression over symbols stands for."""
        named = {str(symbol): at for symbol, at in self._first().items()}
        return SizeFunction(text, named | self._repeated())

    def function(self, sizes: SizeFunction) -> Callable[[list[Any]], Any]:
        """The same, to be called."""
        from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

        return sizes.function(SYMPY_INTERP)

    def of_form(self, form: SizeForm) -> SizeFunction:
        """What later calls compute for a form."""
        symbol = form.symbol
        moves = isinstance(symbol, SYMBOLIC)
        return self.sizes(_text(symbol.node.expr)) if moves else SizeFunction(repr(form.seen), {})

    def _lazily(self, form: SizeForm) -> Callable[[list[Any]], Any]:
        """What a later call computes for a form, made when the first asks: most are never asked
        for."""
        if not isinstance(form.symbol, SYMBOLIC):
            return _always(form.seen)
        made: list[Callable[[list[Any]], Any]] = []

        def compute(inputs: list[Any]) -> Any:
            if not made:
                made.append(self.function(self.of_form(form)))
            return made[0](inputs)

        return compute

    def settled_dims(self) -> list[tuple[int, int]]:
        """(call input, dim) of the sizes that turned out to be constants."""
        return [at for at, symbol in self._symbols.items() if self.env.simplify(symbol).is_number]


class _Run(torch.fx.Interpreter):
    """Runs a graph on fakes and notes what each form's node gave."""

    @property
    def code(self) -> str:
        return str(self.module.code)

    def __call__(self, *args: Any) -> Any:
        return self.run(*args)

    def run_node(self, node: torch.fx.Node) -> Any:
        value = super().run_node(node)
        form = node.meta.get("size")
        if form is not None:
            _agree(value, form.seen)
            form.symbol = value if form.symbol is None else form.symbol
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, Bodies):
            target = target.through(_Run)
        if target in _INDEXING:
            _fit(*args[:2])
        return super().call_function(*rnn.as_operator(target, args, kwargs))

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in _INDEXING_METHODS:
            _fit(*args[:2])
        return super().call_method(target, args, kwargs)


class _RunOfKnown(_Run):
    """Leaves out what the library is called for, and all that is made of that: nothing is relied
    upon there."""

    def run_node(self, node: torch.fx.Node) -> Any:
        if node.op == "output":
            return super().run_node(node)
        known = not any(self.env[each] is UNKNOWN for each in node.all_input_nodes)
        if known and not node.meta.get(LIBRARY):
            return super().run_node(node)
        if "size" in node.meta:
            raise Inconsistent("a size that only the data decides")
        return UNKNOWN


_INDEXING = (operator.getitem, operator.setitem, torch.index_put, torch.index_put_)
_INDEXING_METHODS = ("index_put", "index_put_", "__getitem__", "__setitem__")


def _fit(tensor: Any, key: Any = None) -> None:
    """Masks have the sizes of what they choose from, which fake tensors do not ask for."""
    if isinstance(tensor, torch.Tensor):
        for dim, size in masked_sizes(tensor, key):
            if not _equal(tensor.shape[dim], size):
                raise Inconsistent("a mask whose size is not that of what it selects from")


def _undecided(inputs: list[Any]) -> bool:
    raise AssertionError("a symbolic size is not defined by the graph's inputs")


def _same_layout(fake: Any, requires_grad: bool) -> Any:
    if not isinstance(fake, torch.Tensor):
        return fake
    made = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device)
    return made.requires_grad_(requires_grad)


def _text(expression: Any) -> str:
    from torch.utils._sympy.printers import PythonPrinter

    return f"({PythonPrinter().doprint(expression)})"


def _hint(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_hint, value))
    return value.node.hint if isinstance(value, SYMBOLIC) else value


def _agree(value: Any, seen: Any) -> None:
    if _hint(value) != seen:
        raise Inconsistent(f"{value} is {_hint(value)} where the call had {seen}")


def _equal(value: Any, expected: Any) -> bool:
    """Whether they are equal; for symbols this becomes a relation that later calls must fulfil."""
    if isinstance(expected, tuple):
        return len(value) == len(expected) and all(
            _equal(a, b) for a, b in zip(value, expected, strict=True)
        )
    return bool(value) is expected if isinstance(expected, bool) else bool(value == expected)


def _modules(segments: Iterable[Segment]) -> Iterator[torch.fx.GraphModule]:
    for segment in segments:
        yield from with_bodies(segment.module)


def forms_in(segments: Iterable[Segment]) -> list[SizeForm]:
    """The forms that the graphs have nodes for."""
    return [
        node.meta["size"]
        for module in _modules(segments)
        for node in module.graph.nodes
        if "size" in node.meta
    ]


def drop_unused(segments: Iterable[Segment]) -> None:
    """Remove the nodes of sizes that no operator takes."""
    for module in _modules(segments):
        for node in reversed(module.graph.nodes):
            if "size" in node.meta and not node.users and node.op != "placeholder":
                module.graph.erase_node(node)
        module.recompile()


def make_static(segments: Iterable[Segment]) -> None:
    """Put the numbers of the recorded call in the place of the sizes' nodes."""
    for module in _modules(segments):
        for node in list(module.graph.nodes):
            node.args = torch.fx.map_arg(node.args, _constant)
            node.kwargs = torch.fx.map_arg(node.kwargs, _constant)
    for form in forms_in(segments):
        form.compute = _always(form.seen)
    drop_unused(segments)


def _constant(node: torch.fx.Node) -> Any:
    return node.meta["size"].seen if "size" in node.meta else node


def _always(value: Any) -> Callable[[list[Any]], Any]:
    return lambda inputs: value


def differ(old: tuple[Segment, ...], new: tuple[Segment, ...]) -> bool:
    """Whether two recordings of one function differ in operators or constants, sizes aside."""
    pairs = [
        (_operators(a), _operators(b)) for a, b in zip(_modules(old), _modules(new), strict=False)
    ]
    if len(list(_modules(old))) != len(list(_modules(new))) or any(
        [_kind(n) for n in a] != [_kind(n) for n in b] for a, b in pairs
    ):
        return True
    return not all(
        _same_constants(one, other) for a, b in pairs for one, other in zip(a, b, strict=True)
    )


def _kind(node: torch.fx.Node) -> Any:
    return type(node.target) if isinstance(node.target, Bodies) else node.target


def _operators(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [
        node
        for node in module.graph.nodes
        if node.op.startswith("call") and "size" not in node.meta and READ not in node.meta
    ]


def _same_constants(old: torch.fx.Node, new: torch.fx.Node) -> bool:
    """Whether what stands as a constant in both nodes is the same; a choice takes tensors alone."""
    if isinstance(old.target, Bodies):
        return True
    leaves = [torch.utils._pytree.tree_leaves((node.args, node.kwargs)) for node in (old, new)]
    if len(leaves[0]) != len(leaves[1]):
        return False
    pairs = zip(*leaves, strict=True)
    return all(
        isinstance(a, torch.fx.Node) or isinstance(b, torch.fx.Node) or _same(a, b)
        for a, b in pairs
    )


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, slice) and isinstance(b, slice):
        ends = ((a.start, b.start), (a.stop, b.stop), (a.step, b.step))
        return all(
            isinstance(x, torch.fx.Node) or isinstance(y, torch.fx.Node) or _same(x, y)
            for x, y in ends
        )
    return type(a) is type(b) and (a is b or a == b or a != a)
