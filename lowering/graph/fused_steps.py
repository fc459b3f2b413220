"""Steps of `torch.optim` with `fused=True` (`torch._fused_adam_` and its like), written out in
operators of torch: functionalisation refuses some of them, and written out they join one kernel.

The arithmetic is that of torch's own kernels (`aten/src/ATen/native/cpu/Fused*Kernel.cpp`): in
float32 for narrower types, corrections of the bias in float64; where `found_inf` is 1, nothing
changes, and gradients are kept as `grad_scale` leaves them.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from .graph_modules import graph_module

Tensors = Sequence[torch.Tensor]
Number = float | torch.Tensor


def write_out_fused_steps(gm: GraphModule, example_inputs: Sequence[Any]) -> GraphModule:
    """The graph, with functions of several operators for fused steps."""
    if not any(node.target in _FORMS for node in gm.graph.nodes if _is_call(node)):
        return gm
    graph = Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node in graph.nodes:
        if _is_call(node):
            node.target = _FORMS.get(node.target, node.target)
    return graph_module(gm, graph)


def _is_call(node: Node) -> bool:
    return node.op == "call_function" and not isinstance(node.target, str)


class _Step:
    """What a step does to the tensors of one parameter.

    number: which parameter of the list; value, gradient: in the type to compute in, the gradient
    with what the weight decay adds.
    """

    def __init__(
        self,
        number: int,
        param: torch.Tensor,
        grad: torch.Tensor,
        weight_decay: float,
        maximize: bool,
        grad_scale: torch.Tensor | None = None,
        found_inf: torch.Tensor | None = None,
    ) -> None:
        self.number, self.param, self.value = number, param, _wide(param)
        self._skipped = None if found_inf is None else found_inf.reshape(()) == 1
        gradient = _wide(grad)
        if grad_scale is not None:
            gradient = gradient / grad_scale.reshape(())
            self.store(grad, gradient)
        gradient = -gradient if maximize else gradient
        self.gradient = gradient + self.value * weight_decay if weight_decay else gradient

    def store(self, into: torch.Tensor, value: torch.Tensor) -> None:
        value = value.to(into.dtype)
        into.copy_(value if self._skipped is None else torch.where(self._skipped, into, value))

    def finish(self, change: torch.Tensor) -> None:
        self.store(self.param, self.value - change)


def _steps(params: Tensors, grads: Tensors, weight_decay: float, **how: Any) -> Iterator[_Step]:
    for number, (param, grad) in enumerate(zip(params, grads, strict=True)):
        yield _Step(number, param, grad, weight_decay, **how)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def _one(number: Number) -> Number:
    """A learning rate, of which a tensor may have one element in any shape."""
    return number.reshape(()) if isinstance(number, torch.Tensor) else number


def _like(number: Number, tensor: torch.Tensor) -> Number:
    return number.to(tensor.dtype) if isinstance(number, torch.Tensor) else number


def _count(step: torch.Tensor) -> torch.Tensor:
    return step.reshape(()).double()


def _adam(
    params: Tensors,
    grads: Tensors,
    exp_avgs: Tensors,
    exp_avg_sqs: Tensors,
    max_exp_avg_sqs: Tensors,
    state_steps: Tensors,
    *,
    lr: Number,
    beta1: Number,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    decoupled: bool = False,
    **how: Any,
) -> None:
    rate = _one(lr)
    for step in _steps(params, grads, 0.0 if decoupled else weight_decay, **how):
        k, gradient, count = step.number, step.gradient, _count(state_steps[step.number])
        if decoupled and weight_decay:
            step.value = step.value * (1 - rate * weight_decay)
        average = _wide(exp_avgs[k])
        average = average.lerp(gradient, _like(1 - beta1, average))
        square = _wide(exp_avg_sqs[k]) * beta2 + gradient * gradient * (1 - beta2)
        largest = square
        if amsgrad:
            largest = torch.maximum(_wide(max_exp_avg_sqs[k]), square)
            step.store(max_exp_avg_sqs[k], largest)
        root = largest.sqrt() / (1 - beta2**count).sqrt() + eps
        step.store(exp_avgs[k], average)
        step.store(exp_avg_sqs[k], square)
        step.finish(rate / (1 - beta1**count) * average / root)


def _adamw(*tensors: Tensors, **settings: Any) -> None:
    _adam(*tensors, decoupled=True, **settings)


def _sgd(
    params: Tensors,
    grads: Tensors,
    momentum_buffer_list: Tensors,
    *,
    weight_decay: float,
    momentum: Number,
    lr: Number,
    dampening: float,
    nesterov: bool,
    is_first_step: bool,
    **how: Any,
) -> None:
    rate = _one(lr)
    for step in _steps(params, grads, weight_decay, **how):
        gradient = step.gradient
        if momentum_buffer_list:
            held, buffer = momentum_buffer_list[step.number], gradient
            if not is_first_step:
                buffer = _wide(held) * momentum + gradient * (1 - dampening)
            step.store(held, buffer)
            gradient = gradient + buffer * momentum if nesterov else buffer
        step.finish(rate * gradient)


def _adagrad(
    params: Tensors,
    grads: Tensors,
    state_sums: Tensors,
    state_steps: Tensors,
    *,
    lr: Number,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    **how: Any,
) -> None:
    for step in _steps(params, grads, weight_decay, **how):
        held, gradient = state_sums[step.number], step.gradient
        total = _wide(held) + gradient * gradient
        rate = _one(lr) / (1 + (_count(state_steps[step.number]) - 1) * lr_decay)
        step.store(held, total)
        step.finish(rate * gradient / (total.sqrt() + eps))


def _forms() -> Iterator[tuple[Any, Callable[..., None]]]:
    """Each way to name a fused step, and the function for it."""
    named: dict[str, Callable[..., None]] = {
        "_fused_adam_": _adam,
        "_fused_adamw_": _adamw,
        "_fused_sgd_": _sgd,
        "_fused_adagrad_": _adagrad,
    }
    for name, function in named.items():
        packet = getattr(torch.ops.aten, name)
        for each in (getattr(torch, name), packet, packet.default, packet.tensor_lr):
            yield each, function


_FORMS = dict(_forms())
