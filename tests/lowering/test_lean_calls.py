"""What stands around a compiled forward and backward: as AOTAutograd's wrappers, with less."""

import sys

import dynfix
import pytest
import torch
from dynfix.lowering.autograd import double_backward
from dynfix.runtime import torch_headers
from dynfix.runtime.guards import guard_native

from .harness import compiled


def _aliased(x, w):
    made = (x @ w).tanh()
    return made.view(-1), made.t(), x, made.sum()


def _with_integers(x, w):
    made = x @ w
    return made.argmax(1), made.relu(), made.detach() * 2


def _nested(x, w):
    with torch.no_grad():
        scale = w.abs().amax()
    return ((x * scale) @ w).exp()


PROGRAMS = (_aliased, _with_integers, _nested)
GRADIENTS = {
    "dense": torch.randn_like,
    "expanded": lambda out: torch.ones((), dtype=out.dtype).expand(out.shape),
    "turned": lambda out: torch.randn(out.shape[::-1]).permute(tuple(range(out.dim()))[::-1]),
}


def _outputs(results):
    return list(results) if isinstance(results, list | tuple) else [results]


def _backward(results, gradient, chosen):
    torch.manual_seed(0)
    outs = [out for out in _outputs(results) if out.requires_grad and not out.is_leaf][chosen]
    torch.autograd.backward(outs, [gradient(out) for out in outs])


@pytest.mark.covering
@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__.strip("_"))
def test_outputs_and_gradients_are_those_of_eager(program, gradient):
    made = [torch.randn(6, 5), torch.randn(5, 4)]
    ours, theirs = ([t.clone().requires_grad_() for t in made] for _ in range(2))
    call = dynfix.compile(program)
    for chosen in (slice(None), slice(None), slice(0, 1), slice(-1, None)):
        found, expected = call(*ours), program(*theirs)
        for one, two in zip(_outputs(found), _outputs(expected), strict=True):
            torch.testing.assert_close(one, two)
            assert one.requires_grad == two.requires_grad
        _backward(found, GRADIENTS[gradient], chosen)
        _backward(expected, GRADIENTS[gradient], chosen)
        for one, two in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.grad, two.grad)


def test_under_autocast_and_with_sizes_that_change():
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
    call = dynfix.compile(layer)
    for size in (4, 6, 7, 9):
        x = torch.randn(size, 8)
        grads = []
        for module in (layer, call):
            with torch.autocast("cpu", torch.bfloat16):
                out = module(x)
            assert out.dtype == torch.bfloat16
            grads.append(torch.autograd.grad(out.float().square().sum(), layer.parameters()))
        for one, two in zip(*grads, strict=True):
            torch.testing.assert_close(one, two, rtol=3e-2, atol=3e-2)


def test_a_backward_that_may_not_be_repeated_raises_as_eagers():
    call = compiled(lambda x: x.exp().tanh(), torch.randn(4, requires_grad=True))
    x = torch.randn(4, requires_grad=True)
    for _ in range(2):
        out = call(x)
        out.sum().backward(retain_graph=True)
        out.sum().backward()
        with pytest.raises(RuntimeError, match="second time"):
            out.sum().backward()


def test_a_backward_heeds_that_algorithms_are_to_be_deterministic_by_now():
    x = torch.randn(4, requires_grad=True)
    call = compiled(lambda x: x.exp().tanh(), x)
    call(x).sum().backward()
    out = call(x)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="deterministic"):
            out.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_later_training_call_runs_few_functions():
    """Of this package, guards apart; AOTAutograd's wrappers alone are more than fifty more."""
    torch_headers.load()
    if torch_headers.torch_parts() is None:
        pytest.skip("no native nodes here")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    call, x, grad = dynfix.compile(model), torch.randn(2, 8), torch.ones(2, 8)
    for _ in range(3):
        call(x).backward(grad)
    if guard_native.wait() is None:
        pytest.skip("guards are checked in Python here")
    ran = []

    def note(frame, event, arg):
        code, own = frame.f_code, frame.f_globals.get("__name__", "").startswith("dynfix.")
        if event == "call" and own and "guard" not in code.co_filename:
            ran.append(code.co_name)

    sys.setprofile(note)
    try:
        call(x).backward(grad)
    finally:
        sys.setprofile(None)
    assert len([name for name in ran if not name.startswith("<")]) < 33, ran


def test_a_result_without_any_gradient_has_a_history_as_in_eager():
    def zeroth(x):
        return torch.linalg.vector_norm(x, 0)

    call = dynfix.compile(zeroth)
    for _ in range(3):
        x = torch.randn(5, requires_grad=True)
        found, expected = call(x), zeroth(x)
        assert (found.requires_grad, found.is_leaf) == (expected.requires_grad, expected.is_leaf)
        assert torch.autograd.grad(found, x, allow_unused=True) == (None,)


def _to_channels_last(x):
    return (x * 2).contiguous(memory_format=torch.channels_last)


def _to_rows(x):
    return (x.permute(0, 2, 3, 1) * 3).contiguous()


def _spectrum(x):
    return torch.fft.irfft(x, dim=1)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("program", [_to_channels_last, _to_rows, _spectrum])
def test_gradients_in_another_order_than_results_lead_to_those_of_eager(
    program, native, monkeypatch
):
    if not native:
        monkeypatch.setattr(double_backward, "torch_parts", lambda: None)
    call = dynfix.compile(program)
    for turn in range(4):
        x = torch.randn(2, 3, 4, 5, requires_grad=True)
        found, expected = call(x), program(x)
        assert found.stride() == expected.stride()
        order = torch.channels_last if turn % 2 else torch.contiguous_format
        seed = torch.randn(expected.shape).contiguous(memory_format=order)
        one, two = (torch.autograd.grad(each, x, seed)[0] for each in (found, expected))
        torch.testing.assert_close(one, two)
        assert one.stride() == two.stride()


RELATED = {
    "view, base": lambda y: (y.view(-1), y),
    "base, view": lambda y: (y, y.view(-1)),
    "two views, base": lambda y: (y.t(), y.view(-1), y),
    "parts": lambda y: (y[0], y[1]),
    "part, base, another": lambda y: (y[1:], y, y.sum(0)),
    "view of a part, part": lambda y: (y[0].view(1, -1), y[0]),
    "view, base, count": lambda y: (y.view(-1), y, (y > 0).sum()),
}


@pytest.mark.covering
@pytest.mark.parametrize("related", RELATED)
@pytest.mark.parametrize("which", [0, 1])
def test_results_that_share_memory_are_written_afterwards(related, which):
    def fn(x):
        return RELATED[related](x.mul(2))

    compiled, given = dynfix.compile(fn), torch.randn(3, 2, 4)
    for x in given:
        sides = []
        for call in (compiled, fn):
            leaf = x.clone().requires_grad_()
            made = call(leaf)
            made[which].mul_(3)
            sum(each.square().sum() for each in made if each.requires_grad).backward()
            sides.append((*made, leaf.grad))
        for found, expected in zip(*sides, strict=True):
            torch.testing.assert_close(found, expected)
            assert found._is_view() == expected._is_view()


@pytest.mark.parametrize("detach", [torch.detach, lambda x: x.view(x.dtype)])
def test_a_view_beside_itself_detached_and_a_written_input(detach):
    """What torch cannot make again once the program has run is not run: the write would be done
    twice."""

    def program(a, b, c):
        c.mul_(2)
        part = a.sum(1)[-1]
        return a * b, detach(part), part

    compiled = dynfix.compile(program)
    for _ in range(4):
        a, b = torch.randn(3, 4, requires_grad=True), torch.randn(4)
        ours, theirs = torch.ones(5), torch.ones(5)
        for one, two in zip(compiled(a, b, ours), program(a, b, theirs), strict=True):
            torch.testing.assert_close(one, two)
            assert one.requires_grad == two.requires_grad
        assert torch.equal(ours, theirs)
