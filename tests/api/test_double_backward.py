"""Gradients of gradients through what was compiled: eager's values, one message, then eager."""

import warnings

import dynfix
import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def fresh():
    dynfix.reset()


class Views(nn.Module):
    """Two results that are views of one intermediate, and a written buffer."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 8)
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x):
        y = torch.tanh(self.inner(x) + self.seen)
        self.seen += y.detach().mean(0)
        return y[:, :4], y[:, 4:]


NETS = {
    "plain": lambda: nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)),
    "statistics and dropout": lambda: nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3)
    ),
    "views": Views,
}


def twice(net):
    torch.manual_seed(0)
    return net()


def penalty(net, call, x):
    """The penalty of WGAN-GP; its value and the gradients of the parameters."""
    x = x.clone().requires_grad_()
    out = call(x)
    out = torch.cat(out, 1) if isinstance(out, tuple) else out
    (grad,) = torch.autograd.grad(out, x, torch.ones_like(out), create_graph=True)
    value = ((grad.norm(dim=1) - 1) ** 2).mean() + out.mean()
    net.zero_grad()
    value.backward()
    return [value.detach(), *(p.grad.clone() for p in net.parameters()), *net.buffers()]


def step(net, call, x):
    out = call(x.clone().requires_grad_())
    out = torch.cat(out, 1) if isinstance(out, tuple) else out
    net.zero_grad()
    out.square().mean().backward()
    return [p.grad.clone() for p in net.parameters()]


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["native", "aot_eager"])
@pytest.mark.parametrize("name", NETS)
def test_penalty_after_plain_steps_is_eagers(name, backend):
    """The compiled entry has served ordinary backwards before the first differentiated one."""
    eager, net = twice(NETS[name]), twice(NETS[name])
    compiled = dynfix.compile(net, backend=backend)
    for turn in range(6):
        x = torch.randn(6, 5)
        state = torch.get_rng_state()
        run = step if turn < 3 else penalty
        wanted = run(eager, eager, x)
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = run(net, compiled, x)
        assert torch.equal(torch.get_rng_state(), after)
        for a, b in zip(wanted, found, strict=True):
            torch.testing.assert_close(b, a)
        texts = [str(w.message) for w in said if "create_graph" in str(w.message)]
        assert len(texts) == (turn == 3), turn


def test_second_derivative_of_a_function():
    @dynfix.compile
    def f(x, y):
        return (x * y).sin().sum()

    for _ in range(3):
        x = torch.randn(4, requires_grad=True)
        y = (x * 2).exp()  # an input that is made of another one
        (first,) = torch.autograd.grad(f(x, y), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        y = (x * 2).exp()
        (wanted,) = torch.autograd.grad((x * y).sin().sum(), x, create_graph=True)
        torch.testing.assert_close(first, wanted)
        torch.testing.assert_close(second, torch.autograd.grad(wanted.sum(), x)[0])


def test_an_input_written_in_between_is_an_error_as_in_eager():
    f = dynfix.compile(lambda x: (x * x * x).sum(), backend="aot_eager")
    x = torch.randn(4, requires_grad=True)
    f(x)
    out = f(x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError):
        (grad,) = torch.autograd.grad(out, x, create_graph=True)
        grad.sum().backward()


def test_a_second_run_goes_without_what_was_resized_since():
    def program(x, mask):
        seen = x.abs().masked_fill(mask, 2)
        half = x[:, 1:] * 2
        torch.gt(half * half.exp(), 3, out=mask)  # resizes it, between two graphs
        half.tanh_()  # what the first graph kept of its result is not what it was
        return half, seen

    call = dynfix.compile(program)
    for n in range(5):
        torch.manual_seed(n)
        x, found = torch.randn(3, 7, requires_grad=True), []
        for each in (program, call):
            mask = torch.ones(3, 7, dtype=torch.bool)
            out = each(x, mask)[0]
            found.append((torch.autograd.grad(out.sum(), x)[0], mask))
        torch.testing.assert_close(*found)


@pytest.mark.parametrize("made", ["leaf", "result"])
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_an_input_that_the_call_wrote(made, backend):
    def program(x):
        if made == "leaf":
            with torch.no_grad():
                x.mul_(1.5)
        else:
            x.mul_(1.5).sin_()
        return (x * x * x).sum()

    def second(each, seed):
        torch.manual_seed(seed)
        leaf = torch.randn(4, requires_grad=True)
        x = leaf if made == "leaf" else leaf * leaf
        (first,) = torch.autograd.grad(each(x), leaf, create_graph=True)
        return first, torch.autograd.grad(first.sum(), leaf)[0]

    compiled = dynfix.compile(program, backend=backend)
    for seed in range(4):
        torch.testing.assert_close(second(compiled, seed), second(program, seed))


class Heads(nn.Module):
    """The second result needs no parameter of the first, the third one its value alone."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        a = self.a(x).relu()
        b = x.clone()
        b.mul_(2)
        return a, self.b(b).tanh(), a.detach().sin() * self.b.weight[0].exp()


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_results_with_an_optimizer_each(backend):
    """The update after the first backward is no reason to refuse the second; where the result was
    made of what was updated, the gradient is refused, not wrong."""
    net = Heads()
    compiled = dynfix.compile(net, backend=backend)
    optimizer = torch.optim.SGD(net.a.parameters(), 0.1)
    for call in range(4):
        x, state = torch.randn(3, 4), {k: v.clone() for k, v in net.state_dict().items()}
        found = []
        for function in (net, compiled):
            net.load_state_dict(state)
            net.zero_grad()
            first, second, third = function(x)
            for result in (first, second):
                result.square().mean().backward()
                optimizer.step()
            found.append([p.grad.clone() for p in net.parameters()])
        torch.testing.assert_close(*found)
        if call:
            with pytest.raises(RuntimeError, match="a second time"):
                third.sum().backward()


def test_inputs_are_not_kept_after_the_backward():
    import gc
    import weakref

    f = dynfix.compile(lambda x: (x + 1).sum(), backend="aot_eager")
    for _ in range(2):
        x = torch.randn(4, requires_grad=True)
        out = f(x * 2)
    x = torch.randn(4, requires_grad=True)
    middle = x * 2
    out = f(middle)
    ref = weakref.ref(middle)
    out.backward()
    del middle
    gc.collect()
    assert ref() is None and out.requires_grad


def test_a_batch_of_gradients_at_once():
    """`is_grads_batched=True`, as `torch.autograd.functional.jacobian(vectorize=True)` asks."""
    net = twice(NETS["plain"])
    call = dynfix.compile(net)
    basis = torch.eye(3).reshape(3, 3, 1)
    for step in range(3):
        x = torch.randn(3, 5, generator=torch.Generator().manual_seed(step)).requires_grad_()
        ours, theirs = (
            torch.autograd.grad(f(x), [x, *net.parameters()], basis, is_grads_batched=True)
            for f in (call, net)
        )
        torch.testing.assert_close(ours, theirs)
        call(x).sum().backward()
