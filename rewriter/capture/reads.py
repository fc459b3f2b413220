"""What a recorded call reads: tensors from outside, values that Python depends on, and the segments
that these cut."""

import dataclasses
import functools
import sys
import weakref
from typing import Any

import torch

from ...runtime.guards.guard import AsTensor, Path, Tensor, TensorMeta, TypeIs
from ...runtime.options import Options
from ...runtime.programs.recipes import (
    DONE,
    Apply,
    ConstRecipe,
    HostCall,
    HostValue,
    Input,
    Output,
    Recipe,
    Works,
)
from ...runtime.programs.steps import CALL_INPUT, HOST
from .. import catalogue
from . import current, gradient_buckets, made_histories, opaque_tensors, opsets
from .dynamic_inputs import DynamicInputs
from .nested import settle_but_sizes, tensors_in
from .numbers import (
    assumptions,
    constant_values,
    drawn_numbers,
    memory_lists,
    open_shapes,
    scalar_forms,
    scalars,
    traced_sizes,
)
from .provenance import Provenance
from .rewrites import raising_checks
from .segments import READ, SegmentBuilder
from .stops import Decision, RecordingStopped, StoppableMode
from .values import FLOAT, Meta, TracedTensor, Tracker, is_opaque, is_plain

DRAWN = "a random number decides a branch: every call would recompile"
SIZE = "a size that changes decides a branch: every size would recompile"
VALUE = "values of tensors decide branches: every call would recompile"

SHAPE = "a shape depends on data: every shape would recompile"
HISTORY = "a tensor that needs gradients is written before its value is read"


class ReadRecorder(StoppableMode):
    """The recording's inputs, guards, outcomes and segments."""

    def __init__(
        self, options: Options, rewriter: Any, moving: DynamicInputs | None = None
    ) -> None:
        super().__init__(options, rewriter)
        me: Any = weakref.proxy(self)  # no cycle: what the call was given is let go with it
        self.known = Provenance(lambda: me.origin(), lambda *read: me._moving_number(*read))
        self.known.live = self.arrays
        self.moving = moving or DynamicInputs()
        self.dynamic_inputs: dict[int, frozenset[int]] = {}
        self.numbers: dict[int, traced_sizes.InputNumber] = {}
        self.static_metas: dict[Path, TensorMeta] = {}
        self.tracker = Tracker()
        self.segments = [SegmentBuilder(0)]
        self.bodies: list[SegmentBuilder] = []  # of functions that torch.func transforms
        self._bodies = 0
        self.pullbacks: dict[int, tuple[Any, TracedTensor]] = {}
        self.sizes_inside = False  # one of them read a size: it is a constant there
        self.outcomes: list[tuple[int, Recipe, Any]] = []
        self.decisions: dict[str, Decision] = {}  # the first one of each kind
        self.shaped: list[Decision] = []  # by the data that operators were given
        self.histories: dict[int, Decision] = {}  # by segment, its first write to one
        self.scalars: list[Any] = []
        self.fed: list[Recipe] = []
        self.assumed: dict[str, int] = {}
        self.inputs: dict[Path, int] = {}
        self.late_reads: set[TracedTensor] = set()  # inputs that are shown when the graphs have run
        self.early_reads: dict[
            TracedTensor, list[Recipe]
        ] = {}  # what was read of inputs on the host
        self.overwritten: list[Path] = []  # inputs that were written after such a read
        self.pinned: dict[TracedTensor, Any] = {}
        self.constants: set[TracedTensor] = set()
        self.open_contexts = 0
        self.entered: list[tuple[Any, Any]] = []  # contexts, by calls, and what stands for them
        self.variables: list[tuple[Any, ...]] = []  # context variables that the call has set
        self.has_opaque = False  # tensors that only the library takes
        self.symbols_of: list[tuple[Any, TracedTensor, int]] = []  # sizes of nested tensors
        self.has_classes = False  # tensors of a subclass, which may answer torch's functions
        self.bucket = gradient_buckets.capacity()
        self.bucket_full = self.parted = False
        self.grad_mode = torch.is_grad_enabled()

    def has_symbols(self) -> bool:
        """Whether sizes or integers are symbols, so that later calls may have others."""
        return bool(self.dynamic_inputs or self.numbers)

    # -- segments and outcomes

    def next_body(self) -> int:
        """The index of one more function that is transformed, below those of all inputs."""
        self._bodies += 1
        return HOST - self._bodies

    def is_open(self, home: int) -> bool:
        """Whether a value made at `home`, that is no tensor, can be used here."""
        return home in (self.segments[-1].index, *(body.index for body in self.bodies))

    @property
    def segment(self) -> SegmentBuilder:
        return self.bodies[-1] if self.bodies else self.segments[-1]

    def next_graph(self) -> int:
        last = self.segments[-1]
        return last.index + (last.ops > 0)

    def cut(self, eager: bool = False) -> None:
        """Start a new segment, unless the current one is still empty; grad mode is carried over.
        Raises Stopped inside autocast."""
        if self.open_contexts:
            self.stop_here(catalogue.UNSUPPORTED, "a graph break inside an autocast context")
        if self.bodies:
            self.stop_here(
                catalogue.UNSUPPORTED, "a graph break in a function that torch.func transforms"
            )
        if self.segment.ops == 0:
            self.segment.eager = eager
            return
        changed = torch.is_grad_enabled() != self.grad_mode
        if changed:
            self.segment.call(
                "call_function", torch._C._set_grad_enabled, (self.grad_mode,), {}, self.origin()
            )
        self.segments.append(SegmentBuilder(len(self.segments), eager))
        if changed:
            self.segment.call(
                "call_function",
                torch._C._set_grad_enabled,
                (not self.grad_mode,),
                {},
                self.origin(),
            )

    def module_done(self, module: torch.nn.Module) -> None:
        """The next operator begins a new segment, if gradients of this one fill a bucket; behind a
        module within a block, two: less is handed over at the end of a block."""
        if self.bucket is not None and not self.open_contexts and not self.bodies:
            buckets = 1 if any(True for _ in module.children()) else 2
            self.bucket_full = (
                gradient_buckets.gradient_bytes(self.segment) >= buckets * self.bucket
            )

    def part(self) -> None:
        """Cut where a bucket is full."""
        self.bucket_full = False
        if not self.open_contexts and not self.bodies:
            self.parted = True
            self.cut()

    def outcome(
        self, recipe: Recipe, value: Any, reason: catalogue.Reason = catalogue.HOST_READ
    ) -> Any:
        """Python depends on a value that the graph computes: later calls compare it with
        `value`."""
        if recipe.drawn or (recipe.sizes and type(value) is int):
            self._note_decision(DRAWN if recipe.drawn else SIZE)
        if not recipe.graph:
            self.outcomes.append((recipe.after, recipe, value))
            return value
        if any(seg.ops for seg in self.segments):
            if raising_checks.decides_only_that(sys._getframe(), self.rewriter.is_rewritten):
                self.outcomes.append((recipe.after, recipe, value))
                return value
            detail = f"the value was {value!r:.60}"
            if not self.decided(
                reason, detail, assumed=lambda: assumptions.holds(self, recipe, value)
            ):
                self.outcomes.append((recipe.after, recipe, value))
                return value
            self._note_decision(VALUE)
        self.cut()
        self.outcomes.append((len(self.segments) - 1, recipe, value))
        return value

    def _note_decision(self, kind: str) -> None:
        if kind not in self.decisions:
            self.decisions[kind] = self.decision(kind)

    def host_call(self, call: HostCall, result: Any) -> Any:
        """A call that is made anew each time, between the outcomes before and after it. Its answer,
        traced."""
        call.after = max((after for after, _, _ in self.outcomes), default=0)
        if any(recipe.graph for recipe in (*call.arguments, *call.keywords.values())):
            try:
                self.cut()
            except RecordingStopped:  # the call was made, and is not made twice
                return result
        if not self.segment.ops:  # right after a break
            call.after = len(self.segments) - 1
        self.outcomes.append((call.after, call, DONE))
        return None if result is None else scalars.traced(result, HostValue(call))

    def must_work(self, recipe: Recipe) -> None:
        """Later calls where the recipe raises are not this recording's."""
        self.outcomes.append((recipe.after, Works(recipe), DONE))

    def value_recipe(self, value: TracedTensor) -> Recipe:
        """The recipe of a tensor's value as it is at the end of the segment that made it."""
        if value.home == CALL_INPUT:
            return Input(value.index)
        if value.home < HOST:
            self.stop_here(catalogue.UNSUPPORTED, "Python asks for a value of a vmap or a gradient")
        return Output(value.home, self.segments[value.home].export(value))

    # -- what comes from outside

    def _moving_number(self, value: Any, path: Path) -> Any:
        """A number that earlier calls saw change: traced, so that it is read anew at each call.
        None: take it for a constant."""
        if not self.moving.moves(path, value) or current.recorder() is not self:
            return None
        index = self.input_index(path)
        if (
            type(value) is int
            and value > 1
            and self.options.dynamic is not False
            and (path, -1) not in self.moving.fixed
        ):
            return scalars.traced(
                value,
                Input(index),
                self.numbers.setdefault(index, traced_sizes.InputNumber(value, index)),
            )
        return scalars.traced(value, Input(index))

    def input_index(self, path: Path) -> int:
        return self.inputs.setdefault(path, len(self.inputs))

    def path_at(self, index: int) -> Path:
        return list(self.inputs)[index]

    def value(self, tensor: torch.Tensor) -> TracedTensor:
        """The value of a tensor that a recorded operator met; intake, if it comes from outside.
        Raises Stopped."""
        tracked = self.tracker.get(tensor)
        if tracked is not None:
            if self.tracker.moved(tensor):
                self.stop_here(
                    catalogue.SLIPPED,
                    "a tensor was written, or got a gradient history, in code that is not traced",
                )
            if tracked.content is not None and not _learns(tensor):
                return tracked.content
            if tracked.moved_away:
                why = "a tensor is read after a store to its `.data`"
                self.stop_here(catalogue.UNSUPPORTED, why)
            return tracked.value
        path = self.known.path_of(tensor)
        kind = type(tensor).__name__
        if path is None:
            self.stop_here(catalogue.SLIPPED, f"a {kind} of unknown origin")
        assert path is not None
        if is_opaque(tensor):
            return self._opaque_input(tensor, path)
        if not is_plain(tensor):
            self.known.guard(path, TypeIs(type(tensor)))
            path, self.has_classes = AsTensor(path), True
        index = self.input_index(path)
        self._guard_meta(path, index, tensor)
        return self.tracker.add(
            tensor, TracedTensor(CALL_INPUT, None, index, Meta.of(tensor))
        ).value

    def _opaque_input(self, tensor: torch.Tensor, path: Path) -> TracedTensor:
        """One that calls of the library take. Raises Stopped where the backend makes none."""
        self.takes_opaque(f"{path.source} is a {type(tensor).__name__} ({tensor.layout})")
        self.known.guard(path, Tensor(TensorMeta.of(tensor)))
        value = TracedTensor(CALL_INPUT, None, self.input_index(path), Meta.of(tensor))
        return self.tracker.add(tensor, value).value

    def takes_opaque(self, what: str) -> None:
        """Raises Stopped where a graph cannot hold tensors that no kernel takes."""
        if not open_shapes.may_stay(self):
            self.stop_here(catalogue.UNSUPPORTED, what)
        self.has_opaque = self.segment.open = True

    def _guard_meta(self, path: Path, index: int, tensor: torch.Tensor) -> None:
        if isinstance(path, AsTensor):
            tensor = path.fetch(tensor)
        dims = self.moving.dims(path, tensor, self.options.dynamic)
        if dims:
            self.dynamic_inputs[index], self.static_metas[path] = dims, TensorMeta.of(tensor)
        self.known.guard(path, Tensor(TensorMeta.of(tensor, dims) if dims else _needed(tensor)))

    def _path(self, tensor: torch.Tensor) -> Path:
        return self.path_at(self.value(tensor).index)

    def node(self, tensor: torch.Tensor) -> torch.fx.Node:
        value = self.value(tensor)
        if self.open_shapes:
            open_shapes.imported(self, value, tensor)
        here = value.home in (self.segment.index, CALL_INPUT, HOST)
        here = here or self.options.backend == "eager" or not torch.is_grad_enabled()
        if not here and made_histories.is_cut_off(self, tensor):
            self.stop_if_cut(
                catalogue.UNSUPPORTED,
                "a view that was made under no_grad is used after a graph break",
            )
        return self.segment.node(value, Meta.of(tensor))

    # -- values that Python asks for

    def metadata(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if self.open_shapes:
            answer = open_shapes.asked(self, name, args, kwargs)
            if answer is not None:
                return answer
            open_shapes.settle_sizes(self, name, args, kwargs)
        if self.has_opaque and any(map(is_opaque, tensors_in(args))):
            return opaque_tensors.described(self, func, name, args, kwargs)
        inputs = [tensor for tensor in tensors_in(args) if self.value(tensor).home == CALL_INPUT]
        if name == "storage_offset":
            self._pin_places(args[0], inputs)
        if self.has_symbols() and not all(body.plain for body in self.bodies):
            self.sizes_inside |= name in opsets.SIZED
            return func(*args, **kwargs)
        if self.has_symbols():
            return traced_sizes.watched(self, func, name, args, kwargs)
        for tensor in inputs if name in ("stride", "dim_order") else ():
            self.known.guard(self._path(tensor), Tensor(TensorMeta.of(tensor)))
        return func(*args, **kwargs)

    def _pin_places(self, tensor: torch.Tensor, inputs: list[torch.Tensor]) -> None:
        """Later calls have the inputs in whose memory the tensor lies at the same places of it."""
        if not inputs and self.has_symbols():  # of which the place of a part may be made
            self.stop(catalogue.UNSUPPORTED, "the place in memory of a part")
        for other in self.tracker.sharing(tensor):
            value = self.value(other)
            if value.home == CALL_INPUT:
                place = Apply(torch.Tensor.storage_offset, (Input(value.index),))
                self.outcomes.append((0, place, other.storage_offset()))

    def host_read(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if constant_values.are(self, args) or drawn_numbers.on_drawn_branch(self, args):
            return func(*args, **kwargs)
        recipes = tuple(
            self._frozen(arg) if isinstance(arg, torch.Tensor) else ConstRecipe(arg) for arg in args
        )
        result = func(*args, **kwargs)
        read = functools.partial(func, **kwargs) if kwargs else func
        read = memory_lists.listed if name == "tolist" else read
        recipe = Apply(read, recipes)
        for arg, part in zip(args, recipes, strict=True):
            if isinstance(part, Input):
                self.early_reads.setdefault(self.value(arg), []).append(recipe)
        if name in opsets.SCALAR_READS and type(result) in (int, float):
            current.install(self)
            return scalars.traced(result, recipe, self._form(args[0], recipes[0]))
        reason = catalogue.TENSOR_IF if name in opsets.BOOL_READS else catalogue.HOST_READ
        return self.outcome(recipe, result, reason)

    def keep_reads(self, value: TracedTensor) -> None:
        """An input is written now: later calls make what was read of it before ahead of the graphs,
        in which it is that number no more."""
        reads = self.early_reads.pop(value, ())
        self.overwritten += [self.path_at(value.index)] if reads else []
        for recipe in reads:
            self.must_work(recipe)
        for number in self.scalars if reads else ():
            if scalar_forms.mentions(number.form, value):
                number.form = None

    def _frozen(self, tensor: torch.Tensor, shown: bool = False) -> Recipe:
        """The recipe of a tensor as it is now, whatever is written to it later; with its history if
        it is to be shown."""
        value = self.value(tensor)
        if value.home == CALL_INPUT:
            if value in self.segment.written or any(value in seg.written for seg in self.segments):
                return self.value_recipe(self._copy(tensor, shown))
            if shown:
                self.late_reads.add(value)
            return Input(value.index)
        return self.value_recipe(self._copy(tensor, shown))

    def snapshot(self, tensor: torch.Tensor) -> Recipe:
        """The recipe of a tensor as it is now, for text that is shown. Ends the recording if the
        tensor is not known."""
        try:
            with self.paused():
                return self._frozen(tensor, shown=True)
        except RecordingStopped:
            return ConstRecipe(tensor)

    def _form(self, tensor: torch.Tensor, recipe: Recipe) -> Any:
        """The graph's form of `tensor.item()`: the frozen copy, or the call input itself."""
        if isinstance(recipe, Output):
            return scalar_forms.of_tensor(self.segments[recipe.segment].outputs[recipe.index])
        return scalar_forms.of_tensor(self.value(tensor))

    def _copy(self, tensor: torch.Tensor, shown: bool) -> TracedTensor:
        origin = self.origin_text()
        node = self.node(tensor)
        if tensor.requires_grad and not shown:  # a number that Python reads has no history
            node = self.segment.call("call_method", "detach", (node,), {}, origin)
            node.meta[READ] = True
        node = self.segment.call("call_method", "clone", (node,), {}, origin)
        node.meta[READ] = True
        return TracedTensor(
            self.segment.index, node, -1, Meta.of(tensor if shown else tensor.detach())
        )

    def give_form(self, number: Any) -> None:
        """A float that Python makes anew at each call enters the graph as an input."""
        if type(number) is scalars.TracedFloat and scalars.live_in(self, number):
            self._feed(number)

    def _feed(self, number: Any) -> None:
        """Made before the segment runs: what an earlier part of it gives cuts it there."""
        if number.form is not None:
            return
        if number.recipe.graph and number.recipe.after > self.segment.index:
            if self.bodies:
                return
            self.breaks(catalogue.HOST_READ, "a number that Python computes from a tensor's value")
            self.cut()
        number.form = scalar_forms.of_tensor(TracedTensor(HOST, None, len(self.fed), FLOAT))
        self.fed.append(number.recipe)

    def settled(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Traced scalars become plain ones, their outcomes recorded; those that follow from sizes
        go into the graph."""
        current.install(self)
        try:
            return settle_but_sizes(args), settle_but_sizes(kwargs)
        finally:
            current.install(None)


def _needed(tensor: torch.Tensor) -> TensorMeta:
    """What a kernel depends on. The first stride of a batch of one moves no element, and moves with
    every slice of a growing sequence; of images it tells the memory format, and stays."""
    meta = TensorMeta.of(tensor)
    if tensor.dim() not in (2, 3) or tensor.shape[0] != 1 or meta.strides is None:
        return meta
    return dataclasses.replace(meta, strides=(None, *meta.strides[1:]))


def _learns(tensor: torch.Tensor) -> bool:
    """Whether an operator now would give what it makes of the tensor a history."""
    return tensor.requires_grad and torch.is_grad_enabled()
