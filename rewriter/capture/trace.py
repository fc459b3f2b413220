"""The recorder: watches one real call and writes down what torch did and what Python read.

The call runs on the user's real tensors and is the eager call. Whatever is not understood stops the
recording; the call goes on.
"""

import contextlib
import dataclasses
import operator
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ...runtime.errors import GraphBreakError
from ...runtime.guard import Path, Tensor, TensorMeta
from ...runtime.options import Options
from ...runtime.replay.recipes import (
    DONE,
    Apply,
    HostCall,
    HostValue,
    Input,
    Output,
    Recipe,
    Works,
)
from .. import catalogue
from . import current, opsets, scalar_forms, scalars, traced_sizes
from .moving import Moving
from .nested import plain_in, settle_but_sizes, tensors_in
from .node_arguments import as_nodes
from .places import place_of
from .provenance import Provenance, Unguardable
from .segments import SegmentBuilder
from .values import CALL_INPUT, FLOAT, HOST, Meta, Tracker, Value, is_plain


class Stopped(Exception):
    """Raised inside the recorder alone: the recording has ended, the operator at hand runs
    plainly."""


class Recorder(TorchFunctionMode):
    """A TorchFunctionMode for one call. `sites` are its breaks; `stopped` says why the recording
    ended early, if it did."""

    def __init__(self, options: Options, rewriter: Any, moving: "Moving | None" = None) -> None:
        super().__init__()
        self.options, self.rewriter = options, rewriter
        self.active = True
        self.stopped: catalogue.Site | None = None
        self.failure: GraphBreakError | None = None
        self.sites: list[catalogue.Site] = []
        self.known = Provenance(self.origin, self._moving_number)
        self.moving = moving or Moving()
        self.dynamic_inputs: dict[int, frozenset[int]] = {}
        self.numbers: dict[int, traced_sizes.Given] = {}
        self.static_metas: dict[Path, TensorMeta] = {}
        self.tracker = Tracker()
        self.segments = [SegmentBuilder(0)]
        self.outcomes: list[tuple[int, Recipe, Any]] = []
        self.effects: list[Any] = []
        self.scalars: list[Any] = []
        self.fed: list[Recipe] = []
        self.marks: dict[str, Any] = {}
        self.name_holders: dict[int, Any] = {}
        self.inputs: dict[Path, int] = {}
        self.late_reads: set[Value] = set()
        self.open_contexts = 0
        self.grad_mode = torch.is_grad_enabled()

    def _moving_number(self, value: Any, path: Path) -> Any:
        """A number that earlier calls saw change: traced, so that it is read anew at each call.
        None: take it for a constant."""
        if path not in self.moving.numbers or current.recorder() is not self:
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
                self.numbers.setdefault(index, traced_sizes.Given(value, index)),
            )
        return scalars.traced(value, Input(index))

    # -- places

    def place(self) -> tuple[str, int, str]:
        """File, line and source line of the user's code that is running."""
        return place_of(sys._getframe(1))

    def origin(self) -> str:
        file, line, _ = self.place()
        return f"{file}:{line}"

    def call(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Call as rewritten source does."""
        return self.rewriter.call(self, function, args, kwargs)

    def safely(self, watched: Callable[[], Any], plain: Callable[[], Any]) -> Any:
        """`watched()`; if it fails before any code of the user's ran, `plain()`, what Python itself
        does. When that raises too, the error is the user's own; when it does not, the fault was the
        recorder's, and the recording ends."""
        try:
            return watched()
        except Exception as error:
            if (
                not self.active
                or isinstance(error, StopIteration | GraphBreakError)
                or self._ran_user_code(error)
            ):
                raise
            fault = error
        with self.paused():
            result = plain()
        self._fault(fault)
        return result

    def _ran_user_code(self, error: Exception) -> bool:
        """Whether the error came through a frame of rewritten code, below the operator that sees
        it."""
        trace = error.__traceback__
        while trace is not None:
            if self.rewriter.is_rewritten(trace.tb_frame.f_code):
                return True
            trace = trace.tb_next
        return False

    # -- ends

    def stop(self, reason: catalogue.Reason, detail: str) -> None:
        """End the recording; the call itself goes on in eager."""
        if not self.active:
            return
        self.active = False
        if current.recorder() is self:
            current.install(None)
        self.stopped = self.site(reason, detail)
        self._refuse(self.stopped)

    def site(self, reason: catalogue.Reason, detail: str) -> catalogue.Site:
        try:
            place = self.place()
        except Exception:  # a place that cannot be told must not hide why the recording ended
            place = ("<unknown>", 0, "")
        return catalogue.Site(reason, *place, detail)

    def breaks(self, reason: catalogue.Reason, detail: str) -> None:
        """A graph break: one more site; an error under `fullgraph=True`."""
        self.sites.append(self.site(reason, detail))
        self._refuse(self.sites[-1])

    def _refuse(self, site: catalogue.Site) -> None:
        if self.options.fullgraph and self.failure is None:
            self.active = False
            current.install(None)
            self.failure = GraphBreakError(f"fullgraph=True, but the graph breaks here:\n{site}")
            raise self.failure

    def strip(self, result: Any) -> Any:
        """The call is over: what it returns and what it stored holds plain numbers."""
        if not self.scalars:
            return result
        stripper = scalars.Stripper()
        for effect in self.effects:
            effect.strip(stripper)
        result = stripper.value(result)
        scalars.release(self.scalars)
        return result

    # -- outcomes and segments

    @property
    def segment(self) -> SegmentBuilder:
        return self.segments[-1]

    def cut(self, eager: bool = False) -> None:
        """Start a new segment, unless the current one is still empty; grad mode is carried over.
        Raises Stopped inside autocast."""
        if self.open_contexts:
            self.stop_here(catalogue.UNSUPPORTED, "a graph break inside an autocast context")
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

    def outcome(
        self, recipe: Recipe, value: Any, reason: catalogue.Reason = catalogue.HOST_READ
    ) -> Any:
        """Python depends on a value that the graph computes: later calls compare it with
        `value`."""
        if not recipe.graph:
            self.outcomes.append((recipe.after, recipe, value))
            return value
        if any(seg.ops for seg in self.segments):
            self.breaks(reason, f"the value was {value!r:.60}")
        self.cut()
        self.outcomes.append((len(self.segments) - 1, recipe, value))
        return value

    def host_call(self, call: HostCall, result: Any) -> Any:
        """A call that is made anew each time, between the outcomes before and after it. Its answer,
        traced."""
        call.after = max((after for after, _, _ in self.outcomes), default=0)
        if any(recipe.graph for recipe in (*call.arguments, *call.keywords.values())):
            self.cut()
        if not self.segment.ops:  # right after a break
            call.after = len(self.segments) - 1
        self.outcomes.append((call.after, call, DONE))
        return None if result is None else scalars.traced(result, HostValue(call))

    def must_work(self, recipe: Recipe) -> None:
        """Later calls where the recipe raises are not this recording's."""
        self.outcomes.append((recipe.after, Works(recipe), DONE))

    def value_recipe(self, value: Value) -> Recipe:
        """The recipe of a tensor's value as it is at the end of the segment that made it."""
        if value.home == CALL_INPUT:
            return Input(value.index)
        return Output(value.home, self.segments[value.home].export(value))

    # -- tensors

    def input_index(self, path: Path) -> int:
        return self.inputs.setdefault(path, len(self.inputs))

    def value(self, tensor: torch.Tensor) -> Value:
        """The value of a tensor that a recorded operator met; intake, if it comes from outside.
        Raises Stopped."""
        tracked = self.tracker.get(tensor)
        if tracked is not None:
            if self.tracker.moved(tensor):
                self.stop_here(
                    catalogue.SLIPPED,
                    "a tensor was written, or given a history, by code that is not recorded",
                )
            return tracked.value
        path = self.known.path_of(tensor)
        if path is None or not is_plain(tensor):
            self.stop_here(
                catalogue.SLIPPED,
                (
                    f"a {type(tensor).__name__} of unknown origin"
                    if path is None
                    else f"{path.source} is a {type(tensor).__name__} ({tensor.layout})"
                ),
            )
        assert path is not None
        index = self.input_index(path)
        self._guard_meta(path, index, tensor)
        return self.tracker.add(tensor, Value(CALL_INPUT, None, index, Meta.of(tensor))).value

    def _guard_meta(self, path: Path, index: int, tensor: torch.Tensor) -> None:
        dims = self.moving.dims(path, tensor, self.options.dynamic)
        if dims:
            self.dynamic_inputs[index], self.static_metas[path] = dims, TensorMeta.of(tensor)
        self.known.guard(path, Tensor(TensorMeta.of(tensor, dims) if dims else _needed(tensor)))

    def _path(self, tensor: torch.Tensor) -> Path:
        return list(self.inputs)[self.value(tensor).index]

    def stop_here(self, reason: catalogue.Reason, detail: str) -> None:
        self.stop(reason, detail)
        raise Stopped

    def node(self, tensor: torch.Tensor) -> torch.fx.Node:
        return self.segment.node(self.value(tensor), Meta.of(tensor))

    # -- operators

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.active or current.recorder() is not self:
            return func(*args, **kwargs)
        before = current.install(None)
        try:
            return self._watched(func, opsets.name_of(func), args, kwargs)
        except Stopped:
            return func(*plain_in(args), **plain_in(kwargs))
        finally:
            if self.active:
                current.install(before)

    def _watched(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if name in opsets.METADATA:
            return self._metadata(func, name, plain_in(args), plain_in(kwargs))
        if name in opsets.HOST_READS:
            return self._host_read(func, name, args, kwargs)
        if name in opsets.UNRECORDABLE:
            self.stop_here(catalogue.UNSUPPORTED, name)
        self._give_form(args)
        if scalar_forms.fits(name, args, kwargs) and scalars.live_in(self, args[1]):
            return self._with_scalar(func, name, args)
        return self.operate(func, name, *self._settled(args, kwargs))

    def _give_form(self, args: Any) -> None:
        """A float that Python makes anew at each call enters the graph as an input."""
        if len(args) == 2 and isinstance(args[1], float) and scalars.live_in(self, args[1]):
            self._feed(args[1])

    def _feed(self, number: Any) -> None:
        if number.form is None and not number.recipe.graph:
            number.form = scalar_forms.of_tensor(Value(HOST, None, len(self.fed), FLOAT))
            self.fed.append(number.recipe)

    def _metadata(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        inputs = [tensor for tensor in tensors_in(args) if self.value(tensor).home == CALL_INPUT]
        if self.dynamic_inputs or self.numbers:
            return traced_sizes.watched(self, func, name, args, kwargs)
        for tensor in inputs if name == "stride" else ():
            self.known.guard(self._path(tensor), Tensor(TensorMeta.of(tensor)))
        return func(*args, **kwargs)

    def _with_scalar(self, func: Any, name: str, args: Any) -> Any:
        """A tensor and a traced scalar: the call runs with the number, the graph gets it as a
        tensor of the operand's dtype."""
        origin = self.origin_text()
        self.node(args[0])
        scalar = self.segment.call(
            "call_method",
            "to",
            (scalar_forms.node_of(args[1].form, self.segment, origin), args[0].dtype),
            {},
            origin,
        )
        return self.operate(func, name, (args[0], scalars.plain(args[1])), {}, given={1: scalar})

    def form_of_call(self, function: Any, args: Any) -> Any:
        """The graph's form of arithmetic on traced scalars, or None."""
        return traced_sizes.of_call(function, args) or scalar_forms.of_call(function, args)

    def _settled(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Traced scalars become plain ones, their outcomes recorded; those that follow from sizes
        go into the graph."""
        current.install(self)
        try:
            return settle_but_sizes(args), settle_but_sizes(kwargs)
        finally:
            current.install(None)

    def _host_read(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        recipes = tuple(
            self._frozen(arg) if isinstance(arg, torch.Tensor) else scalars.Const(arg)
            for arg in args
        )
        result = func(*args, **kwargs)
        recipe = Apply(lambda *parts: func(*parts, **kwargs), recipes)
        if name in opsets.SCALAR_READS and type(result) in (int, float):
            current.install(self)
            return scalars.traced(result, recipe, self._form(args[0], recipes[0]))
        reason = catalogue.TENSOR_IF if name in opsets.BOOL_READS else catalogue.HOST_READ
        return self.outcome(recipe, result, reason)

    def _frozen(self, tensor: torch.Tensor) -> Recipe:
        """The recipe of a tensor as it is now, whatever is written to it later."""
        value = self.value(tensor)
        if value.home == CALL_INPUT:
            if value in self.segment.written or any(value in seg.written for seg in self.segments):
                return self.value_recipe(self._copy(tensor))
            self.late_reads.add(value)
            return Input(value.index)
        return self.value_recipe(self._copy(tensor))

    def snapshot(self, tensor: torch.Tensor) -> Recipe:
        """The recipe of a tensor as it is now, for text that is shown. Ends the recording if the
        tensor is not known."""
        try:
            with self.paused():
                return self._frozen(tensor)
        except Stopped:
            return scalars.Const(tensor)

    @contextlib.contextmanager
    def off_stack(self) -> Iterator[None]:
        """The mode itself is out of the way: torch's own compiler refuses to work under one that it
        does not know."""
        if (
            torch._C._len_torch_function_stack() == 0
            or torch._C._get_function_stack_at(torch._C._len_torch_function_stack() - 1) is not self
        ):
            yield
            return
        with torch.overrides._pop_mode_temporarily():
            yield

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Nothing is recorded inside."""
        before = current.install(None)
        try:
            yield
        finally:
            if self.active:
                current.install(before)

    def _form(self, tensor: torch.Tensor, recipe: Recipe) -> Any:
        """The graph's form of `tensor.item()`: the frozen copy, or the call input itself."""
        if isinstance(recipe, Output):
            return scalar_forms.of_tensor(self.segments[recipe.segment].outputs[recipe.index])
        return scalar_forms.of_tensor(self.value(tensor))

    def _copy(self, tensor: torch.Tensor) -> Value:
        origin = self.origin_text()
        node = self.segment.call("call_method", "clone", (self.node(tensor),), {}, origin)
        return Value(self.segment.index, node, -1, Meta.of(tensor))

    def origin_text(self) -> str:
        file, line, text = self.place()
        return f"{file}:{line}: {text}"

    def operate(
        self,
        func: Any,
        name: str,
        args: Any,
        kwargs: Any,
        given: dict[int, torch.fx.Node] | None = None,
    ) -> Any:
        """Run an operator for real and record it as a node of the current segment; `given` are
        nodes that stand for some arguments."""
        shaped = opsets.has_data_shape(name, args, kwargs)
        if shaped:
            self.breaks(catalogue.DYNAMIC_SHAPE, name)
            self.cut(eager=True)
        call = self._prepared(func, name, args, kwargs, given or {})
        args, kwargs = plain_in(args), plain_in(kwargs)
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            self.stop(catalogue.UNSUPPORTED, f"{name} raised {type(error).__name__}")
            raise
        try:
            self._record(name, call, (args, kwargs), result)
            if shaped:
                self._shape_outcomes(result)
        except (
            Exception
        ) as error:  # a fault of the recorder's own must not take the operator's result away
            self._fault(error)
        return result

    def _prepared(
        self, func: Any, name: str, args: Any, kwargs: Any, given: dict[int, torch.fx.Node]
    ) -> Any:
        """Opcode, target and arguments of the node, before the operator runs and may write to its
        arguments. Raises Stopped."""
        try:
            self._check_guardable(args, kwargs)
            kind, target, call_args = opsets.target_of(func, name, args)
            node_args = tuple(
                given.get(i, node) for i, node in enumerate(as_nodes(self, call_args))
            )
            return kind, target, node_args, as_nodes(self, kwargs)
        except (Stopped, GraphBreakError):
            raise
        except Exception as error:
            self._fault(error)
            raise Stopped from error

    def _fault(self, error: Exception) -> None:
        if isinstance(error, GraphBreakError) or self.options.strict:
            raise error
        self.stop(catalogue.UNSUPPORTED, f"an internal error, {type(error).__name__}: {error}")

    def opaque(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run a function as it is and record it as one node; its body is not looked into."""
        try:
            return self.operate(
                function, getattr(function, "__name__", "opaque"), *self._settled(args, kwargs)
            )
        except Stopped:
            return function(*plain_in(args), **plain_in(kwargs))

    def _check_guardable(self, args: Any, kwargs: Any) -> None:
        try:
            self.known.arguments(args)
            self.known.arguments(kwargs.values())
        except Unguardable as error:
            self.stop_here(catalogue.UNSUPPORTED, str(error))

    def _shape_outcomes(self, result: Any) -> None:
        self.cut()
        for tensor in tensors_in(result):
            recipe = self.value_recipe(self.value(tensor))
            self.outcomes.append(
                (len(self.segments) - 1, Apply(_shape, (recipe,)), tuple(tensor.shape))
            )

    def _record(self, name: str, call: Any, given: Any, result: Any) -> None:
        kind, target, node_args, node_kwargs = call
        node = self.segment.call(kind, target, node_args, node_kwargs, self.origin_text())
        node.meta.update(self.marks)
        self.segment.random |= opsets.draws(name)
        self._bind(result, node)
        for tensor in tensors_in(given):
            if self.tracker.restamp(tensor):
                self._written(tensor)

    def _written(self, tensor: torch.Tensor) -> None:
        for other in self.tracker.sharing(tensor):
            tracked = self.tracker.get(other)
            assert tracked is not None
            if tracked.readonly or tracked.value in self.late_reads:
                self.stop(
                    catalogue.UNSUPPORTED,
                    "a tensor is written after its value was read, or through `.data`",
                )
            if tracked.value.home not in (self.segment.index, CALL_INPUT) and other is not tensor:
                self.stop(
                    catalogue.UNSUPPORTED,
                    "a view is written whose base was made before a graph break",
                )
            self.segment.written.add(tracked.value)

    def _bind(self, result: Any, node: torch.fx.Node) -> None:
        """Track what an operator gave: a tensor, or a (nested) sequence of tensors."""
        if isinstance(result, torch.Tensor):
            self._bind_tensor(result, node)
        elif isinstance(result, list | tuple) and not isinstance(result, torch.Size):
            for index, part in enumerate(result):
                self._bind(
                    part,
                    (
                        self._item(node, index)
                        if isinstance(part, torch.Tensor | list | tuple)
                        else node
                    ),
                )
        elif result is None and getattr(node.target, "__name__", "") == "getattr":
            self.stop(catalogue.UNSUPPORTED, f"the attribute {node.args[1]} of a tensor")
        elif result is not None and not isinstance(result, torch.Size | torch.dtype | torch.device):
            self.stop(catalogue.UNSUPPORTED, f"an operator gave a {type(result).__name__}")

    def _item(self, node: torch.fx.Node, index: int) -> torch.fx.Node:
        import_origin = node.meta["origin"]
        self.segment.ops -= 1
        return self.segment.call(
            "call_function", operator.getitem, (node, index), {}, import_origin
        )

    def _bind_tensor(self, result: torch.Tensor, node: torch.fx.Node) -> None:
        if self.tracker.get(result) is not None:
            return
        if not is_plain(result):
            self.stop(
                catalogue.UNSUPPORTED,
                f"an operator gave a {type(result).__name__} ({result.layout})",
            )
            return
        self.tracker.add(result, Value(self.segment.index, node, -1, Meta.of(result)))


def _needed(tensor: torch.Tensor) -> TensorMeta:
    """What a kernel depends on. The first stride of a batch of one moves no element, and moves with
    every slice of a growing sequence; of images it tells the memory format, and stays."""
    meta = TensorMeta.of(tensor)
    if tensor.dim() not in (2, 3) or tensor.shape[0] != 1 or meta.strides is None:
        return meta
    return dataclasses.replace(meta, strides=(None, *meta.strides[1:]))


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
