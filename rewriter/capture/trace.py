"""The recorder: watches one real call and writes down what torch did and what Python read.

The call runs on the user's real tensors and is the eager call. Whatever is not understood stops the
recording; the call goes on.
"""

import contextlib
import dataclasses
import functools
import operator
from collections.abc import Mapping
from typing import Any

import torch

from ...lowering.graph.func_transforms import Indexed
from ...runtime.errors import GraphBreakError
from ...runtime.options import Options
from ...runtime.programs import undifferentiable
from ...runtime.programs.recipes import Apply, Input
from ...runtime.programs.steps import CALL_INPUT
from .. import catalogue
from . import (
    current,
    custom_operators,
    histories,
    library_flags,
    opsets,
    patched_functions,
    substituted_nodes,
    tensor_classes,
)
from .attention_masks import ATTENTION, AttentionMasks, UnderKernels, attention_kernels
from .dynamic_inputs import DynamicInputs
from .made_histories import next_node
from .nested import plain_in, tensors_in
from .node_arguments import as_nodes
from .numbers import (
    assumptions,
    constant_shapes,
    constant_values,
    open_shapes,
    scalar_forms,
    scalars,
    traced_arrays,
    traced_sizes,
)
from .provenance import Unguardable
from .reads import HISTORY, SHAPE, ReadRecorder
from .segments import LIBRARY, is_detach
from .stops import RecordingStopped
from .values import Meta, TracedTensor, is_opaque, storage_of, takes_history


class Recorder(ReadRecorder):
    """A TorchFunctionMode for one call: the operators that run, and what they did."""

    def __init__(
        self, options: Options, rewriter: Any, moving: DynamicInputs | None = None
    ) -> None:
        super().__init__(options, rewriter, moving)
        self.effects: list[Any] = []
        self.gradient_stores: dict[int, Any] = {}  # of them, by the identity of the tensor
        self.dressed: list[Any] = []  # stores to attributes of tensors that the call made
        self.kernels = attention_kernels()
        self.flags_before: dict[library_flags.Question, Any] | None = None  # once one is set
        self.flags_read: set[library_flags.Question] = set()
        self.index_mode: Any = None  # how vmap wants tensors to be indexed
        self.versions: dict[TracedTensor, Any] = {}  # of inputs that Python asked for
        self.class_scopes: set[str] = set()  # how names of classes begin that the call makes
        self.made_parameters: list[TracedTensor] = []
        self.hooks: list[Any] = []  # that the graph registers
        self.name_holders: dict[int, Any] = {}
        self.only_here = ""  # why what is recorded stands for no call of another process
        self.reshaped: dict[
            TracedTensor, TracedTensor
        ] = {}  # inputs in another shape, and as they were given
        self.raised: list[Any] = []  # effects: versions of inputs of which views got another
        self.remade: dict[TracedTensor, Any] = {}  # what leaves the call with a history of its own
        self.first_node = next_node()  # that autograd makes in the call
        self.detached: set[TracedTensor] = set()  # inputs with a history that must not be used
        self.differentiates = False  # gradients are taken, or leaves made, inside
        self._opens = False  # the operator at hand takes a size that data decides
        self.overlapping = False  # inputs that are written, in memory that others share
        self.masks = AttentionMasks()

    def is_only_detached(self, value: TracedTensor) -> bool:
        """Whether the graphs do nothing with an input, but detach it."""
        return all(is_detach(user) for each in self.segments for user in each.users(value))

    def strip(self, result: Any) -> Any:
        """The call is over: what it returns and what it stored holds plain numbers."""
        self.tracker.forget()
        if not self.scalars:
            return result
        stripper = scalars.Stripper()
        for effect in (*self.effects, *self.dressed):
            effect.strip(stripper)
        result = stripper.value(result)
        scalars.release(self.scalars)
        return result

    # -- operators

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.active or current.recorder() is not self:
            return func(*args, **kwargs)
        before = current.install(None)
        try:
            func = patched_functions.original(func)
            answering = tensor_classes.overriding(kinds)
            if answering:
                return self._answered(answering, func, args, kwargs)
            with _without_classes() if self.has_classes else _AS_IT_IS:
                return self._watched(func, opsets.name_of(func), args, kwargs)
        except Exception as error:
            if not self._is_fault(error):
                raise
            return self._plainly(lambda: func(*plain_in(args), **plain_in(kwargs)), error)
        finally:
            if self.active:
                current.install(before)

    def _answered(self, classes: list[type], func: Any, args: Any, kwargs: Any) -> Any:
        """What the classes of its tensors, in Python, give for a function."""
        self.has_classes = True
        torch.overrides._push_mode(self)  # type: ignore[no-untyped-call]
        try:
            with self.resumed():
                return self.call(self.rewriter.answered, (func, tuple(classes), args, kwargs), {})
        finally:
            torch.overrides._pop_mode()  # type: ignore[no-untyped-call]

    def _watched(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        if opsets.only_asks(name, args, kwargs) or name == "storage_offset":
            return self.metadata(func, name, plain_in(args), plain_in(kwargs))
        if name in opsets.HOST_READS:
            return self.host_read(func, name, args, kwargs)
        if opsets.takes_numbers_alone(name, args, kwargs):
            return func(*args, **kwargs)
        if name == "numpy" and constant_values.are(self, args, given=True):
            return constant_values.as_array(self, func, args, kwargs)
        captures = name == "numpy" and self.options.capture_numpy
        if captures and traced_arrays.takes(args, kwargs):
            return traced_arrays.of_tensor(self, args[0])
        if name in ("requires_grad_", "detach_") and self._needs_no_change(name, args, kwargs):
            return func(*args, **kwargs)
        if name == "get:grad_fn" and histories.stays_leaf(self, args[0]):
            return None  # asked by torch's own Python, of a parameter that a module is given, say
        if name == "__deepcopy__":
            copied = substituted_nodes.deep_copied(self, *args)
            if copied is not None:
                return copied
        if self.in_form:
            kwargs = traced_arrays.with_dtype(name, func, args, kwargs)
        if name in opsets.UNRECORDABLE and not self._becomes_leaf(name, args):
            self.stop_here(catalogue.UNSUPPORTED, name)
        if kwargs.get("requires_grad") and self.options.backend != "eager":
            self.differentiates = True  # a leaf that the compiled graph would take for a constant
        args, kwargs = opsets.with_numbers(name, args, kwargs, functools.partial(self._size, name))
        if self.index_mode is not None and name == "__getitem__" and not _has_mask(args[1]):
            func, name = Indexed(type(self.index_mode)), "indexed"
        if name == "__setitem__":
            args = constant_shapes.at_places(self, args)
        places = scalar_forms.places_in(name, args, kwargs)
        numbers = [kwargs[at] if isinstance(at, str) else args[at] for at in places]
        for number in numbers or (_operand(args),):
            self.give_form(number)
        if args and substituted_nodes.reshapes(self, name, args[0]):
            return substituted_nodes.reshape(self, func, name, *self.settled(args, kwargs))
        sizes = open_shapes.numbers(self, name, args)
        if sizes:
            return self._with_sizes(func, name, args, kwargs, sizes)
        live = [number for number in numbers if scalars.live_in(self, number)]
        if live and all(map(scalar_forms.has_form, live)):
            as_nodes(self, tensors_in(args))
            given = scalar_forms.operands(self, name, args, kwargs, places)
            return self.operate(func, name, *given)
        return self.operate(func, name, *self.settled(args, kwargs))

    def with_class(self, tensor: torch.Tensor, cls: type) -> Any:
        """`tensor.as_subclass(cls)`, of which no mode is told: to the graph, an alias."""
        with self.paused():
            node, self.has_classes = self.node(tensor), True
            result = tensor_classes.with_class(tensor, cls)
            alias = torch.ops.aten.alias.default
            made = self.segment.call("call_function", alias, (node,), {}, self.origin_text())
            made.meta.update(self.marks, called="alias")
            with _without_classes():
                self._bind(result, made)
        return result

    def with_memory(self, tensor: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """`own`, which holds the same, in the place of `tensor`: to the graph, an alias."""
        alias = torch.ops.aten.alias.default
        node = self.segment.call(
            "call_function", alias, (self.node(tensor),), {}, self.origin_text()
        )
        self._bind(own, node)
        return own

    def _is_given(self, tensor: torch.Tensor) -> bool:
        return self.reshaped.get(value := self.value(tensor), value).home == CALL_INPUT

    def _size(self, name: str, tensor: torch.Tensor) -> Any:
        """The value of a tensor that stands for a size, read on the host; itself, if graphs may."""
        if name == "narrow" and (tensor.dim() or tensor.is_floating_point()):  # torch may refuse it
            self.stop_here(catalogue.UNSUPPORTED, "narrow() from what may be no number")
        if open_shapes.may_take_size(self, name, tensor):
            self._opens = True
            return tensor
        try:
            return self.host_read(torch.Tensor.item, "item", (tensor,), {})
        finally:
            current.install(None)

    def _needs_no_change(self, name: str, args: Any, kwargs: Any) -> bool:
        """Whether the call asks for what the tensor has; guarded with its input. A view that was
        made without gradients says what its base says, until it is asked itself."""
        wanted = kwargs.get("requires_grad", args[1] if len(args) > 1 else name != "detach_")
        tensor: torch.Tensor = args[0]
        self.value(tensor)
        own = tensor._base is None or not (tensor.is_leaf and tensor._base.requires_grad)
        return own and type(wanted) is bool and tensor.requires_grad == wanted

    def _becomes_leaf(self, name: str, args: Any) -> bool:
        """Whether this is `requires_grad_()` of what the segment at hand made without a history."""
        if name != "requires_grad_":
            return False
        value = self.value(args[0])
        if value.home != self.segment.index or self._is_given(args[0]) or not args[0].is_leaf:
            return False
        assert isinstance(value.meta, Meta)
        value.meta = dataclasses.replace(value.meta, requires_grad=True)
        self.differentiates = True
        return True

    def _with_sizes(
        self, func: Any, name: str, args: Any, kwargs: Any, places: frozenset[int]
    ) -> Any:
        """The call runs with the numbers, the graph gets the sizes as tensors."""
        given: dict[int | str, Any] = {i: open_shapes.nodes(self, args[i]) for i in places}
        args = tuple(plain_in(arg) if i in places else arg for i, arg in enumerate(args))
        args, kwargs = self.settled(args, kwargs)
        self._opens = True
        return self.operate(func, name, args, kwargs, given)

    def form_of_call(self, function: Any, args: Any, recipe: Any, result: Any) -> Any:
        """The graph's form of arithmetic on traced scalars, or None."""
        form = traced_sizes.of_call(function, args)
        return form or scalar_forms.checked(self, function, args, recipe, result)

    def operate(
        self,
        func: Any,
        name: str,
        args: Any,
        kwargs: Any,
        given: Mapping[int | str, Any] | None = None,
    ) -> Any:
        """Run an operator for real and record it as a node of the current segment; `given` are
        nodes that stand for some arguments, by place or name."""
        if substituted_nodes.is_uncounted(name, args, kwargs):
            return substituted_nodes.write_by_copies(self, name, args, kwargs, given)
        if self.bucket_full:
            self.part()
        apart = self._refused(name) or opsets.draws_by_layout(name, args)
        apart = apart or custom_operators.why_between_graphs(func, args, kwargs)
        shaped = bool(apart) or opsets.has_data_shape(name, args, kwargs)
        shaped = shaped and not constant_shapes.settled(self, name, args)
        known = constant_shapes.call(self, func, name, args, kwargs) if shaped else None
        if known is not None:
            return known[0]
        opened, self._opens = self._opens, False
        if shaped:
            made = assumptions.sized(self, func, name, args, kwargs)
            if made is not None:
                return made
            shaped = self.decided(*_why_shaped(name, apart), open_shapes.may_stay(self))
            opened = not shaped
        if shaped:
            self.cut(eager=True)
        if shaped or (opened and self.options.backend == "native"):
            func = undifferentiable.watched(func, args, kwargs)
        if shaped:
            pass
        elif self.open_shapes:
            open_shapes.settle_sizes(self, name, args, kwargs)
        self.check_length(self.segment.ops)
        if name in opsets.FROM_START:
            self._pin_offsets(args[0], opsets.takes_of_itself(name, args, kwargs))
        if opsets.leaves_no_value(name, args, self._is_given):
            if not (opsets.writes_shared(name, args) and open_shapes.may_stay(self)):
                self.stop_here(catalogue.UNSUPPORTED, name)
            self.segment.open = True
        chosen = attention_kernels() if name == ATTENTION else self.kernels
        if chosen != self.kernels:
            if not open_shapes.may_stay(self):
                self.stop_here(catalogue.UNSUPPORTED, "sdpa_kernel() around attention")
            func = UnderKernels(chosen)
        if self.flags_before is not None and library_flags.counts_now(self.flags_before):
            self.stop_here(catalogue.UNSUPPORTED, f"{name} under a flag that the call has set")
        if name == "lstm" and self.options.backend != "eager" and _trains_in_autocast(args):
            self.stop_here(catalogue.UNSUPPORTED, "an LSTM that trains under autocast on the CPU")
        call = self._prepared(func, name, args, kwargs, given or {})
        args, kwargs = plain_in(args), plain_in(kwargs)
        statistics = [(each, each.clone()) for each in opsets.statistics(name, args, kwargs)]
        outs = [(each, each.shape) for each in tensors_in(kwargs.get("out")) if self._counts(each)]
        run = self.masks.as_eager_runs(self, args, kwargs) if name == ATTENTION else (args, kwargs)
        result = self.performed(func, name, *run)
        if any(each.shape != was for each, was in outs):
            self.stop(catalogue.UNSUPPORTED, f"{name} gives what it is to write another shape")
        try:
            node = self._record(name, call, (args, kwargs), result)
            if chosen != self.kernels:
                self.segment.call_library(func)
            custom_operators.record_effects(self, func, args, kwargs, result)
            substituted_nodes.count_reshaped_view(self, name, args[0] if args else None)
            if any(not torch.equal(*pair) for pair in statistics):
                for tensor, _ in statistics:
                    self._written_by(node, tensor)
            if self.open_shapes or opened:
                open_shapes.spread(self, node, (args, kwargs), result, opened)
            if shaped:
                self._shape_outcomes(result)
        except Exception as error:  # a fault must not take the operator's result away
            self.fault(error)
        return result

    def _counts(self, out: torch.Tensor) -> bool:
        """Whether it matters that the tensor gets another shape by what is written to it."""
        alone = out._base is None and len(self.tracker.sharing(out)) < 2
        return bool(out.numel()) or not alone or self._is_from_outside(out)

    def _refused(self, name: str) -> str:
        """Why the operator runs between graphs, if an earlier recording of it was not compiled."""
        if not self.moving.apart or (name, self.origin_text()) not in self.moving.apart:
            return ""
        return f"what {name} gives, or its gradient, is known when it has run"

    def _prepared(
        self, func: Any, name: str, args: Any, kwargs: Any, given: Mapping[int | str, Any]
    ) -> Any:
        """Opcode, target and arguments of the node, before the operator runs and may write to its
        arguments. Raises Stopped."""
        try:
            self._check_guardable(args, kwargs)
            kind, target, call_args = opsets.target_of(func, name, args)
            if name == "__getitem__" and target is torch.select:
                given = {2: given[1]} if 1 in given else given  # the index
            node_args = tuple(
                given.get(i, node) for i, node in enumerate(as_nodes(self, call_args))
            )
            named = as_nodes(self, kwargs)
            named = {key: given.get(key, node) for key, node in named.items()} if given else named
            return kind, target, node_args, named
        except (RecordingStopped, GraphBreakError):
            raise
        except Exception as error:
            self.fault(error)
            raise RecordingStopped from error

    def _pin_offsets(self, tensor: torch.Tensor, of_itself: bool) -> None:
        """The operator counts from the start of the storage, where a graph has its inputs start,
        and may reach what lies between elements, of which a graph knows nothing."""
        self.value(tensor)
        sharing = self.tracker.sharing(tensor)
        for other in () if of_itself and len(sharing) < 2 else sharing:
            value = self.value(other)
            part = other.storage_offset() or opsets.has_gaps(other)
            if value.home != self.segment.index and part:
                self.stop_here(catalogue.UNSUPPORTED, "as_strided of a part of a storage")
            if value.home == CALL_INPUT:
                offset = Apply(torch.Tensor.storage_offset, (Input(value.index),))
                self.outcomes.append((0, offset, 0))

    def opaque(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run a function as it is and record it as one node; its body is not looked into."""
        try:
            return self.operate(
                function, getattr(function, "__name__", "opaque"), *self.settled(args, kwargs)
            )
        except RecordingStopped:
            return function(*plain_in(args), **plain_in(kwargs))

    def _check_guardable(self, args: Any, kwargs: Any) -> None:
        try:
            self.known.arguments(args)
            self.known.arguments(kwargs.values())
        except Unguardable as error:
            self.stop_here(catalogue.UNSUPPORTED, str(error))

    def _shape_outcomes(self, result: Any) -> None:
        self.cut()
        shapes = [tuple(tensor.shape) for tensor in tensors_in(result)]
        self.shaped.append(self.decision(SHAPE, shapes))
        for tensor in tensors_in(result):
            asked = Apply(open_shapes.shape, (self.value_recipe(self.value(tensor)),))
            self.outcomes.append((len(self.segments) - 1, asked, tuple(tensor.shape)))

    # -- results

    def _record(self, name: str, call: Any, given: Any, result: Any) -> torch.fx.Node:
        kind, target, node_args, node_kwargs = call
        node = self.segment.call(kind, target, node_args, node_kwargs, self.origin_text())
        node.meta.update(self.marks, called=name)
        if self.marks:
            self.marks.update(self.recomputed)
        if name in opsets.GIVES_COPIES and storage_of(result) != storage_of(given[0][0]):
            how = {"memory_format": torch.contiguous_format}
            node = self.segment.call("call_method", "clone", (node,), how, self.origin_text())
        self._bind(result, node)
        if self.has_opaque and any(map(is_opaque, tensors_in((given, result)))):
            node.meta[LIBRARY] = True
        if self.rewritings is not None:
            for tensor in tensors_in(result):
                self.rewritings.choices.note(tensor, node.meta["origin"])
        named = (given[1].get("out"), given)  # of several in one memory, the one that is written
        written = [tensor for tensor in tensors_in(named) if self.tracker.restamp(tensor)]
        # a dropout that is off gives back what it was given
        off = opsets.drops_nothing(name, node_args, node_kwargs)
        kept = not written and any(result is t for t in tensors_in(given))
        if opsets.draws(name) and not kept and not off:
            self.segment.random = True
            node.meta["draws"] = "tensor" if isinstance(result, torch.Tensor) else "tensors"
            for tensor in tensors_in(given):  # on the host, by the order of its elements
                if tensor.device.type == "cpu" and (tracked := self.tracker.get(tensor)):
                    self.segment.note_strides(tracked.value)
        uncounted = opsets.written_unversioned(name, target, *given)
        for tensor in (*written, *(t for t in uncounted if all(t is not w for w in written))):
            self._written_by(node, tensor)
            substituted_nodes.start_from_whole(self, tensor)
        return node

    def decided(self, *site: Any, **how: Any) -> bool:
        made = super().decided(*site, **how)
        if made and self.rewritings is not None:
            kept = self.rewritings.choices.kept
            with self.paused():
                self.rewritings.choices.inputs |= any(map(self._is_from_outside, kept))
        return made

    def _is_from_outside(self, tensor: torch.Tensor) -> bool:
        known = [self.tracker.get(each) for each in (tensor, *self.tracker.sharing(tensor))]
        values = (each.value for each in known if each is not None)
        given = (self.reshaped.get(value, value).home == CALL_INPUT for value in values)
        return None in known or any(given)

    def _written_by(self, node: torch.fx.Node, tensor: torch.Tensor) -> None:
        """In a graph with calls of the library, a write is one of these."""
        node.meta[LIBRARY] = True
        self._written(tensor, by_library=True)
        if self.active:
            self.segment.library_writes(self.value(tensor))

    def _written(self, tensor: torch.Tensor, by_library: bool = False) -> None:
        self.segment.writes_inside |= not by_library
        if self.rewritings is not None:
            self.rewritings.choices.wrote(tensor)
        if self.segment.writes_are_lost(tensor, self.tracker.get(tensor)):
            if open_shapes.may_stay(self):
                self.segment.open = True
            else:
                self.stop(catalogue.UNSUPPORTED, "a tensor whose elements share memory is written")
        sharing = self.tracker.sharing(tensor)
        values = [tracked.value for other in sharing if (tracked := self.tracker.get(other))]
        apart = not self.bodies  # else the node that a body becomes writes what is around it
        if apart and len(self.segments) > 1 and len(self.segment.origins(values)) > 1:
            self.stop_if_cut(
                catalogue.UNSUPPORTED,
                "a tensor is written that has an alias used across a graph break",
            )
        for other in sharing:
            tracked = self.tracker.get(other)
            assert tracked is not None
            if tracked.readonly or tracked.value in self.late_reads:
                detail = "a tensor is written after its value was read, or through `.data`"
                self.stop(catalogue.UNSUPPORTED, detail)
            self.keep_reads(tracked.value)
            near = tracked.value.home in (self.segment.index, CALL_INPUT) or other is tensor
            if apart and not near:
                self.stop_if_cut(
                    catalogue.UNSUPPORTED,
                    "a view is written, and its base was made before a graph break",
                )
            outside = tracked.value.home != self.segment.index and opsets.overlaps_itself(other)
            if outside and not self.segment.open:
                self.stop(
                    catalogue.UNSUPPORTED,
                    "a tensor from outside of the graph, whose elements share memory, is written",
                )
            self.segment.written.add(tracked.value)
            if tracked.value in self.reshaped:
                self._reshaped_is_written(tracked.value)
            if tensor.requires_grad and takes_history(other, tensor) and torch.is_grad_enabled():
                self.segment.historied.add(tracked.value)
                if tracked.value.home != self.segment.index:
                    self.histories.setdefault(self.segment.index, self.decision(HISTORY))

    def _reshaped_is_written(self, value: TracedTensor) -> None:
        if value.home != self.segment.index:  # which has a copy, for its backward
            self.stop(
                catalogue.UNSUPPORTED, "an input is written in another shape after a graph break"
            )
        self.segment.written.add(self.reshaped[value])

    def _bind(self, result: Any, node: torch.fx.Node) -> None:
        """Track what an operator gave: a tensor, or (nested) sequences and dicts of tensors."""
        if isinstance(result, torch.Tensor):
            self._bind_tensor(result, node)
        elif isinstance(result, list | tuple | dict) and not isinstance(result, torch.Size):
            parts: Any = result.items() if isinstance(result, dict) else enumerate(result)
            for key, part in parts:
                holds = isinstance(part, torch.Tensor | list | tuple | dict)
                self._bind(part, self._item(node, key) if holds else node)
        elif result is None and getattr(node.target, "__name__", "") == "getattr":
            self.stop(catalogue.UNSUPPORTED, f"the attribute {node.args[1]} of a tensor")
        elif result is not None and not isinstance(result, torch.Size | torch.dtype | torch.device):
            self.stop(catalogue.UNSUPPORTED, f"an operator returned a {type(result).__name__}")

    def _item(self, node: torch.fx.Node, index: Any) -> torch.fx.Node:
        import_origin = node.meta["origin"]
        self.segment.ops -= 1
        return self.segment.call(
            "call_function", operator.getitem, (node, index), {}, import_origin
        )

    def _bind_tensor(self, result: torch.Tensor, node: torch.fx.Node) -> None:
        known = self.tracker.get(result)
        if known is not None and not (
            node.target is _WAIT and known.value.home == self.segment.index
        ):
            return
        if is_opaque(result):
            try:
                self.takes_opaque(
                    f"an operator returned a {type(result).__name__} ({result.layout})"
                )
            except RecordingStopped:
                return
        self.segment.made[node] = self.tracker.made(result, self.segment.index, node)


_without_classes: Any = torch._C.DisableTorchFunctionSubclass
_AS_IT_IS = contextlib.nullcontext()


def _operand(args: tuple[Any, ...]) -> Any:
    """The last of the few arguments of arithmetic."""
    return args[-1] if len(args) in (2, 3) else None


# It gives the tensor that it was given, whose data are there from now on.
_WAIT = torch.ops._c10d_functional.wait_tensor if torch.distributed.is_available() else None


def _trains_in_autocast(args: Any) -> bool:
    """Whether autograd would need what an operator of torch's keeps, which AOTAutograd calls as for
    inference: then there is nothing."""
    if not (torch.is_autocast_enabled("cpu") and torch.is_grad_enabled()):
        return False
    return any(each.requires_grad and each.device.type == "cpu" for each in tensors_in(args))


def _has_mask(index: Any) -> bool:
    return any(map(opsets.is_mask, index if isinstance(index, tuple | list) else (index,)))


def _why_shaped(name: str, apart: str) -> tuple[catalogue.Reason, str]:
    """Why the operator runs between graphs."""
    if apart:
        return catalogue.UNSUPPORTED, apart
    if name in opsets.READING:
        return catalogue.UNSUPPORTED, f"{name} asks what its data is"
    return catalogue.DYNAMIC_SHAPE, name
