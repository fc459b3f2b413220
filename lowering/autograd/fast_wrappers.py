"""Functions around compiled programs that do of AOTAutograd's wrappers what these graphs need.

torch's wrappers serve tensor subclasses, states of generators, tokens and written inputs as well,
which costs a call tens of microseconds. A graph that has none of these gets a function here; in
whatever is unusual at run time (a gradient that is to be differentiated, a backward that is not
compiled yet) that hands over to torch's own.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from ...runtime.errors import LoweringError
from ..loops.sizes import contiguous_strides
from . import missing_gradients
from .aot_calls import RuntimeWrapper, Wrapped, post_compile
from .aot_parts import runtime_wrappers, schemas
from .detached_aliases import has_wrong_twins
from .direct_calls import plain_call, program_in

OWN = ("non_alias", "unsafe_view_alias", "custom_function_view")  # kinds of outputs
UNUSUAL = (
    "tokens",
    "num_backward_tokens",
    "is_rng_op_functionalized",
    "num_graphsafe_rng_states",
    "num_opaque_objects_saved_for_bw",
    "num_mutated_inp_runtime_indices",
    "indices_of_inputs_that_requires_grad_with_mutations_in_bw",
)
_interpreters: Any = torch._C._functorch.peek_interpreter_stack
_deterministic: Any = torch._C._get_deterministic_algorithms
_PLAIN = frozenset((torch.Tensor,))
_keeps_graph: Any = torch._C._autograd._get_current_graph_task_keep_graph
_CONTIGUOUS = torch.Tensor.contiguous


def lean(
    wrapped: Sequence[Wrapped], compiled: Callable[..., Any], module: torch.nn.Module
) -> Callable[..., Any]:
    """`compiled`, which AOTAutograd gave for `module`, or a function `(*inputs) -> results` that
    does the same with less around."""
    if len(wrapped) != 1 or getattr(compiled, "__wrapped__", None) is not wrapped[0].call:
        return compiled
    if any(True for _ in (*module.parameters(), *module.buffers())):  # arguments before the inputs
        return compiled
    return lean_call(wrapped[0]) or compiled


def lean_call(one: Wrapped) -> Callable[..., Any] | None:
    """The function for one wrapper of AOTAutograd's; None where that does what is not done here."""
    facts = one.metadata
    _refuse_wrong_twins(facts)
    if any(getattr(facts, name, 0) for name in UNUSUAL) or facts.grad_enabled_mutation is not None:
        return None
    wrapped = (*facts.subclass_inp_meta, *facts.subclass_fw_graph_out_meta)
    if not all(type(meta) is schemas.PlainTensorMeta for meta in wrapped):
        return None
    if one.differentiates:
        return _differentiable(one)
    written, program = plain_writes(one), program_in(one.made_of)
    if written is None or not getattr(program, "_boxed_call", False):
        return None
    return plain_call(program, written, one.without_autocast)


def plain_writes(one: Wrapped) -> list[int] | None:
    """Where a program's results are the function's: the inputs whose version it raises."""
    facts = one.metadata
    moved = facts.num_mutated_inp_runtime_indices or facts.num_outputs_aliased
    more = one.detached or facts.grad_enabled_mutation is not None
    if one.differentiates or moved or more or facts.num_intermediate_bases:
        return None
    return list(facts.mutated_graph_handled_indices_seen_by_autograd)


def _refuse_wrong_twins(facts: Any) -> None:
    """Raises LoweringError for results that torch would make again as others."""
    if has_wrong_twins(facts):
        what = "a view is returned beside one of the same memory in another dtype"
        raise LoweringError(f"{what}: return a copy of the second (.clone())")


def _differentiable(one: Wrapped) -> Callable[..., Any] | None:
    facts, torchs = one.metadata, getattr(one.made_of, "__self__", None)
    if torchs is None or getattr(torchs, "maybe_subclass_metadata", None) is not None:
        return None
    if not all(type(meta) is schemas.PlainTensorMeta for meta in facts.subclass_tangent_meta):
        return None
    function = _function(torchs, facts, one.without_autocast)
    # past `Function.apply`, which looks for transforms of functions: guards saw to that
    apply: Any = super(torch.autograd.Function, function).apply
    if facts.num_outputs_aliased:
        outer = RuntimeWrapper(one.detached, trace_joint=True, disable_amp=one.without_autocast)
        config: Any = SimpleNamespace(keep_inference_input_mutations=True)
        call = post_compile(outer, apply, config, runtime_metadata=facts)
        return lambda *inputs: call(list(inputs))
    call = _with_history(apply, one)
    if function.node_facts is None:
        return call
    call.node_facts = {  # type: ignore[attr-defined]
        **function.node_facts,
        "cut": tuple(one.detached),
        "written": tuple(facts.mutated_graph_handled_indices_seen_by_autograd),
    }
    return call


def _with_history(apply: Callable[..., Any], one: Wrapped) -> Callable[..., Any]:
    """The autograd function's call: inputs without a gradient get no edge, and autograd is told of
    those that the program writes."""
    detached = frozenset(one.detached)
    written = list(one.metadata.mutated_graph_handled_indices_seen_by_autograd)

    def call(*inputs: Any) -> Any:
        if written:
            torch.autograd.graph.increment_version([inputs[index] for index in written])
        if detached:
            inputs = tuple(
                arg.detach() if index in detached and isinstance(arg, torch.Tensor) else arg
                for index, arg in enumerate(inputs)
            )
        if torch.is_grad_enabled():
            return apply(*inputs)
        with torch.enable_grad():  # the graph may turn it on inside
            return apply(*inputs)

    return call


def _function(torchs: Any, facts: Any, without_autocast: bool) -> Any:
    """The autograd function: torch's own, with a forward and a backward that know beforehand what
    there is to do."""
    forward, own = program_in(torchs.compiled_fw), slice(0, facts.num_forward_returns)
    checked = facts.tensors_saved_for_backwards_with_vc_check_slice
    unchecked = facts.tensors_saved_for_backwards_no_vc_check_slice
    numbers = facts.symints_saved_for_backwards_slice
    unsafe, aliased = _no_views(facts), tuple(facts.aliased_out_indices)
    constant = [k for k, info in enumerate(facts.output_info) if not info.requires_grad]
    gradients = _gradients(facts)
    positions, layouts = tuple(k for k, _ in gradients), [laid_out for _, laid_out in gradients]
    autocast: Any = torch._C._DisableAutocast if without_autocast else nullcontext
    lend = getattr(forward, "lend", None)  # of a CUDA graph
    told = None
    if lend is None:
        told = _node_facts(facts, forward, gradients, constant, without_autocast)

    class CompiledFunction(torchs):  # type: ignore[misc]
        taken = positions  # of the outputs whose gradients the backward takes
        laid_out = tuple(layouts)  # what gives each of these the layout that it is compiled for
        node_facts = told

        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            # users' hooks, which could keep what is saved, are not met here: guards saw to that
            call = forward if lend is None else partial(_lent, lend, ctx)
            if without_autocast:
                with autocast():
                    made = call(list(inputs))
            else:
                made = call(list(inputs))
            # no views, whose history would be kept along
            ctx.save_for_backward(*[t.detach() if t._is_view() else t for t in made[checked]])
            free = made[unchecked]
            ctx._tensors_no_vc_check = [t.detach() if t._is_view() else t for t in free]
            ctx.symints, ctx.opaque_objects = made[numbers], ()
            returned = made[own]
            for k in unsafe:
                returned[k] = _not_view(returned[k])
            for k in aliased:
                returned[k] = schemas.TensorAlias(returned[k])
            if constant:
                tensors = (returned[k] for k in constant)
                ctx.mark_non_differentiable(*(t for t in tensors if isinstance(t, torch.Tensor)))
            ctx._materialize_non_diff_grads = False
            return tuple(returned)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            program = torchs.compiled_bw
            given = grads[0] if len(grads) == 1 and isinstance(grads[0], list) else list(grads)
            wanted = [given[k] for k in positions]
            if program is None or _is_unusual(facts, wanted):
                return torchs.backward(ctx, *grads)
            args = [*ctx.symints, *ctx.saved_tensors, *ctx._tensors_no_vc_check]
            absent = missing_gradients.unread(program)
            pairs = zip(layouts, wanted, strict=True)
            args += [
                grad if k in absent else laid_out(grad) for k, (laid_out, grad) in enumerate(pairs)
            ]
            wanted.clear()
            given.clear()
            ctx.maybe_clear_saved_tensors()
            if without_autocast:
                with autocast():
                    found = tuple(program(args))
            else:
                found = tuple(program(args))
            if lend is not None and not _keeps_graph():
                ctx.dynfix_loan, ctx._tensors_no_vc_check = None, ()
            return found

    return CompiledFunction


def _lent(lend: Callable[..., Any], ctx: Any, inputs: list[Any]) -> list[Any]:
    """The program's results; what is saved of them is lent to the context."""
    made: list[Any]
    made, ctx.dynfix_loan = lend(inputs)
    return made


def _node_facts(
    facts: Any,
    forward: Any,
    gradients: Sequence[tuple[int, Callable[..., Any]]],
    constant: Sequence[int],
    without_autocast: bool,
) -> dict[str, Any]:
    """What the native node has to know of the function (`runtime/native/autograd_node.h`)."""
    return {
        "forward": forward,
        "own": facts.num_forward_returns,
        "checked": facts.tensors_saved_for_backwards_with_vc_check_slice,
        "unchecked": facts.tensors_saved_for_backwards_no_vc_check_slice,
        "numbers": facts.symints_saved_for_backwards_slice,
        "unsafe": _no_views(facts),
        "constant": tuple(constant),
        "taken": tuple(k for k, _ in gradients),
        "layouts": tuple(None if each is _CONTIGUOUS else each for _, each in gradients),
        "without_autocast": without_autocast,
        "asks_deterministic": facts.deterministic is False,
    }


def differentiated(facts: Any) -> list[int]:
    """The results of their own whose gradients the backward takes."""
    return [
        k
        for k, info in enumerate(facts.output_info)
        if info.output_type.name in OWN
        and issubclass(info.raw_type, torch.Tensor)
        and getattr(info, "requires_grad_for_backward", info.requires_grad)
    ]


def _gradients(facts: Any) -> list[tuple[int, Callable[[torch.Tensor], torch.Tensor]]]:
    """The outputs whose gradients the backward takes, each with what gives one the layout that it
    was compiled for."""
    wanted = differentiated(facts)
    bases = range(facts.num_outputs, facts.num_outputs + facts.num_intermediate_bases)
    layouts = [_layout(meta.memory_format) for meta in facts.subclass_tangent_meta]
    return list(zip((*wanted, *bases), layouts, strict=True))


def _no_views(facts: Any) -> tuple[int, ...]:
    """The outputs that autograd must not take for views: those that are views in the graph alone,
    those with a gradient that share memory with no other, and those that others are views of,
    whichever the program makes first."""
    found, aliased = [*facts.unsafe_view_out_indices], facts.num_outputs_aliased > 0
    for k, info in enumerate(facts.output_info):
        if info.output_type.name == "non_alias" and (aliased or info.requires_grad):
            found.append(k)
    if aliased:
        found += range(facts.num_outputs, facts.num_outputs + facts.num_intermediate_bases)
    return tuple(found)


def _layout(form: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    if form.memory_format is None and tuple(form.stride) == contiguous_strides(tuple(form.size)):
        return _CONTIGUOUS
    return partial(runtime_wrappers.coerce_to_expected_memory_format, memory_format=form)


def _not_view(given: Any) -> Any:
    is_view = isinstance(given, torch.Tensor) and given._is_view()
    return torch.ops.aten._unsafe_view(given, given.shape) if is_view else given


def _is_unusual(facts: Any, grads: list[Any]) -> bool:
    """Whether torch's own backward is needed: to be differentiated, to raise, or for gradients that
    are no plain tensors."""
    return (
        (facts.deterministic is False and _deterministic())
        or torch.is_grad_enabled()
        or _interpreters() is not None
        or not _PLAIN.issuperset(map(type, grads))
    )
