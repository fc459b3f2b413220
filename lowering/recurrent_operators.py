"""`torch.lstm`, `gru`, `rnn_tanh` and `rnn_relu` as one operator each way: the library beats what
AOTAutograd decomposes them to, the more the longer the sequence is.

`dynfix::rnn` runs torch's function. Where gradients are wanted it becomes `dynfix::rnn_training`,
which records eager's own autograd graph and hands on a token that owns it, and
`dynfix::rnn_backward`, which goes through that graph. The token dies with what AOTAutograd saved.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..runtime.cache.named_functions import register
from .recurrent_functions import KINDS

_FUNCTIONS: dict[str, Any] = {kind: getattr(torch._VF, kind) for kind in KINDS}
_RESULTS = 3  # output, hidden state, cell state (empty where the kind has none)
_SETTINGS = (
    "str kind, Tensor input, Tensor? batch_sizes, Tensor[] state, Tensor[] weights,"
    " bool has_biases, int num_layers, float dropout, bool train, bool bidirectional,"
    " bool batch_first"
)
_LIBRARY: Any = torch.library.Library("dynfix", "FRAGMENT")  # type: ignore[no-untyped-call]
_RANDOM = (torch.Tag.nondeterministic_seeded,)
_LIBRARY.define(f"rnn({_SETTINGS}) -> (Tensor, Tensor, Tensor)", tags=_RANDOM)
_LIBRARY.define(
    f"rnn_training({_SETTINGS}, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor)", tags=_RANDOM
)
_LIBRARY.define("rnn_backward(Tensor token, Tensor?[] grads, Tensor[] inputs) -> Tensor[]")


# -- the operators


def _call(kind: str, input: Any, batch_sizes: Any, state: Any, weights: Any, *settings: Any) -> Any:
    """Torch's function; three results for each kind."""
    given = tuple(state) if kind == "lstm" else state[0]
    function = _FUNCTIONS[kind]
    if batch_sizes is None:
        made = function(input, given, weights, *settings)
    else:
        made = function(input, batch_sizes, given, weights, *settings[:-1])
    return made if kind == "lstm" else (*made, input.new_empty(0))


class _State:
    """What the backward needs of one call: eager's graph, from its results to the inputs that want
    a gradient."""

    __slots__ = ("results", "wanted")

    def __init__(self, results: list[torch.Tensor], wanted: list[torch.Tensor | None]) -> None:
        self.results, self.wanted = results, wanted


def _training(
    kind: str, input: Any, batch_sizes: Any, state: Any, weights: Any, *settings: Any
) -> Any:
    *settings_, wanted = settings
    leaves = [
        tensor.detach().requires_grad_(want)
        for tensor, want in zip((input, *state, *weights), wanted, strict=True)
    ]
    ends = 1 + len(state)
    with torch.enable_grad():
        made = _call(kind, leaves[0], batch_sizes, leaves[1:ends], leaves[ends:], *settings_)
    token = torch.empty(0)
    asked = [leaf if want else None for leaf, want in zip(leaves, wanted, strict=True)]
    token.dynfix_state = _State(list(made), asked)  # type: ignore[attr-defined]
    return (*(result.detach() for result in made), token)


def _backward(token: torch.Tensor, grads: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """The gradients of the inputs that want one, which are `inputs`: given for their shapes."""
    state = getattr(token, "dynfix_state", None)
    if state is None:
        raise RuntimeError(
            "the backward of a compiled recurrent layer has lost its state: a hook on saved tensors"
            " copied them (torch.autograd.graph.save_on_cpu); call the layer outside compile()"
        )
    pairs = [
        (result, grad)
        for result, grad in zip(state.results, grads, strict=True)
        if grad is not None and result.requires_grad
    ]
    results, given = zip(*pairs, strict=True)
    wanted = [leaf for leaf in state.wanted if leaf is not None]
    kept = torch._C._autograd._get_current_graph_task_keep_graph()
    found = torch.autograd.grad(results, wanted, given, retain_graph=kept, allow_unused=True)
    return [
        torch.zeros_like(like) if grad is None else grad
        for grad, like in zip(found, wanted, strict=True)
    ]


RNN = torch.ops.dynfix.rnn.default
# What a program calls, past the dispatcher.
CALLED: dict[Any, Callable[..., Any]] = {
    RNN: _call,
    torch.ops.dynfix.rnn_training.default: _training,
    torch.ops.dynfix.rnn_backward.default: _backward,
}
register(*CALLED.values())
# Its token owns its arguments: nothing else may take their memory while it lives.
KEEPING = frozenset((torch.ops.dynfix.rnn_training.default,))
# Each call is of a token of its own, which a replay of kernels would not make.
NEVER_REPLAYED = frozenset((_training, _backward))


# -- their shapes


def _results(
    kind: str,
    input: Any,
    batch_sizes: Any,
    state: Any,
    weights: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, ...]:
    width = state[0].shape[-1] * (2 if bidirectional else 1)
    hidden = state[0].new_empty(state[0].shape)
    cell = state[1].new_empty(state[1].shape) if kind == "lstm" else input.new_empty(0)
    if not batch_first:
        return input.new_empty((*input.shape[:-1], width)), hidden, cell
    output = input.new_empty((input.shape[1], input.shape[0], width)).transpose(0, 1)
    return output, hidden, cell


def _training_results(*args: Any) -> tuple[Any, ...]:
    return (*_results(*args[:-1]), torch.empty(0))


def _gradients(token: Any, grads: Any, inputs: Any) -> list[Any]:
    return [tensor.new_empty(tensor.shape) for tensor in inputs]


torch.library.register_fake("dynfix::rnn", _results, lib=_LIBRARY)
torch.library.register_fake("dynfix::rnn_training", _training_results, lib=_LIBRARY)
torch.library.register_fake("dynfix::rnn_backward", _gradients, lib=_LIBRARY)


# -- their gradients


class _Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, settings: tuple[Any, ...], states: int, *tensors: Any) -> Any:
        kind, batch_sizes, *rest = settings
        wanted = list(ctx.needs_input_grad[2:])
        ctx.set_materialize_grads(False)
        ctx.wanted, ctx.cells = wanted, kind == "lstm"
        input, state, weights = tensors[0], tensors[1 : 1 + states], tensors[1 + states :]
        given = (kind, input, batch_sizes, list(state), list(weights), *rest)
        with torch._C._AutoDispatchBelowAutograd():
            *made, token = torch.ops.dynfix.rnn_training.default(*given, wanted)
        if kind != "lstm":
            ctx.mark_non_differentiable(made[2])
        ctx.save_for_backward(
            token, *(tensor for tensor, want in zip(tensors, wanted, strict=True) if want)
        )
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        token, *inputs = ctx.saved_tensors
        found = iter(torch.ops.dynfix.rnn_backward.default(token, list(grads), inputs))
        return (None, None, *(next(found) if want else None for want in ctx.wanted))


def _with_gradient(
    kind: str, input: Any, batch_sizes: Any, state: Any, weights: Any, *settings: Any
) -> Any:
    tensors = (input, *state, *weights)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        apply: Any = _Recurrent.apply
        return apply((kind, batch_sizes, *settings), len(state), *tensors)
    with torch._C._AutoDispatchBelowAutograd():
        return RNN(kind, input, batch_sizes, state, weights, *settings)


_LIBRARY.impl("rnn", _with_gradient, "Autograd")
_LIBRARY.impl("rnn", _call, "CompositeExplicitAutograd")
_LIBRARY.impl("rnn_training", _training, "CompositeExplicitAutograd")
_LIBRARY.impl("rnn_backward", _backward, "CompositeExplicitAutograd")
