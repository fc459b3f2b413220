"""The autograd node of a compiled function, natively and in Python: as eager's, whatever is done
to it."""

import gc
import random
import sys
import threading
import types
import weakref

import dynfix
import pytest
import torch
from dynfix.lowering.autograd import double_backward, native_nodes
from dynfix.runtime import torch_headers
from torch.utils.checkpoint import checkpoint

F = torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore::dynfix.DynfixWarning")


@pytest.fixture(params=["native", "python"])
def made(request, monkeypatch):
    """How many native functions were made, as a list; none in Python."""
    found = []
    if request.param == "python":
        monkeypatch.setattr(double_backward, "torch_parts", lambda: None)
        yield found
        return
    torch_headers.load()
    if torch_headers.torch_parts() is None:
        pytest.skip("no native nodes here")
    with_node = double_backward.with_node

    def counted(*args):
        found.append(with_node(*args))
        return found[-1]

    monkeypatch.setattr(double_backward, "with_node", counted)
    yield found
    assert found


def layer(x, weight, bias):
    return torch.tanh(x @ weight + bias).sin()


def given(seed=0):
    torch.manual_seed(seed)
    shapes = (4, 6), (6, 5), (5,)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


@pytest.fixture
def both(made):
    """The compiled function, called often enough for a native node, and eager's."""
    call = dynfix.compile(layer)
    for _ in range(3):
        call(*given()).sum().backward()
    return call, layer


def same(results):
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two)


def messages(*calls):
    """The errors of the calls: their types and first lines."""
    found = []
    for call in calls:
        with pytest.raises(RuntimeError) as caught:
            call()
        found.append((type(caught.value), str(caught.value).split(":")[0]))
    return found


TANGENTS = {
    "expanded": lambda out: torch.ones(()).expand(out.shape),
    "turned": lambda out: torch.randn(out.shape[::-1]).t(),
    "sliced": lambda out: torch.randn(out.shape[0], 2 * out.shape[1])[:, ::2],
    "shifted": lambda out: torch.randn(out.numel() + 3)[3:].view(out.shape),
    "another dtype": lambda out: torch.ones(out.shape, dtype=torch.float64).float(),
}


@pytest.mark.parametrize("tangent", TANGENTS)
def test_gradients_of_any_layout(both, tangent):
    for seed in range(3):
        results = []
        for call in both:
            inputs = given(seed)
            out = call(*inputs)
            torch.manual_seed(seed)
            results.append(torch.autograd.grad(out, inputs, TANGENTS[tangent](out)))
        same(results)


def test_parts_retained_graphs_and_accumulated_gradients(both):
    for seed in range(3):
        results = []
        for call in both:
            x, weight, bias = given(seed)
            out = call(x, weight, bias)
            (part,) = torch.autograd.grad(out.sum(), weight, retain_graph=True)
            out.sum().backward(retain_graph=True)
            out.square().sum().backward(inputs=[x, bias])
            call(x, weight, bias).sum().backward()
            results.append((part, x.grad, weight.grad, bias.grad))
        same(results)


def test_saved_tensors_are_freed_with_the_backward(both):
    for call in both:
        inputs = given()
        given_in = (inputs[0] * 2).requires_grad_()
        seen = weakref.ref(given_in)
        out = call(given_in, *inputs[1:])
        del given_in
        gc.collect()
        assert seen() is not None
        out.sum().backward(retain_graph=True)
        assert seen() is not None
        out.sum().backward()
        assert seen() is None
        assert out.grad_fn is not None
        other = (inputs[0] * 2).requires_grad_()
        seen = weakref.ref(other)
        out = call(other, *inputs[1:])
        del other, out
        assert seen() is None


def test_calls_leave_no_references(both, made):
    call, _ = both
    inputs = given()
    held = [sys.getrefcount(one) for one in (*inputs, *made)]
    for _ in range(50):
        call(*inputs)
        call(*inputs).sum().backward()
        torch.autograd.grad(call(*inputs).sum(), inputs, create_graph=True)
    gc.collect()
    assert [sys.getrefcount(one) for one in (*inputs, *made)] == held


def test_a_second_backward_raises_as_eagers(both):
    results = []
    for call in both:
        out = call(*given()).sum()
        out.backward()
        results.append(out)
    first, second = messages(*(out.backward for out in results))
    assert first == second


def test_a_saved_input_written_before_the_backward_raises_as_eagers(both):
    calls = []
    for call in both:
        inputs = given()
        out = call(*inputs).sum()
        with torch.no_grad():
            inputs[1].add_(1)
        calls.append(out.backward)
    first, second = messages(*calls)
    assert first == second


def test_what_eager_does_not_keep_may_be_written(both):
    results = []
    for call in both:
        inputs = given()
        out = call(*inputs)
        with torch.no_grad():
            inputs[2].add_(1)
        out.sum().backward()
        results.append([one.grad for one in inputs])
    same(results)


def test_hooks_see_what_they_see_in_eager(both):
    results = []
    for call in both:
        inputs, seen = given(), []
        inputs[0].register_hook(lambda grad, seen=seen: seen.append(grad) or grad * 2)
        inputs[1].register_post_accumulate_grad_hook(lambda one, seen=seen: seen.append(one.grad))
        out = call(*inputs)
        out.register_hook(lambda grad, seen=seen: seen.append(grad) or grad + 1)
        out.grad_fn.register_prehook(lambda grads, seen=seen: seen.append(grads[0]))
        out.retain_grad()
        out.sum().backward()
        results.append([*seen, out.grad, *(one.grad for one in inputs)])
        assert len(seen) == 4
    same(results)


def test_hooks_of_the_node(both):
    call, _ = both
    seen = []
    out = call(*given())
    out.grad_fn.register_hook(lambda into, outof: seen.append((len(into), len(outof))))
    assert "CompiledFunctionBackward" in repr(out)
    out.sum().backward()
    assert seen == [(3, 1)]


def test_a_hook_that_raises_leaves_the_next_call_alone(both):
    results = []
    for call in both:
        inputs = given()
        out = call(*inputs)

        def refuse(grad):
            raise ValueError("no")

        out.register_hook(refuse)
        with pytest.raises(ValueError, match="no"):
            out.sum().backward()
        call(*inputs).sum().backward()
        results.append([one.grad for one in inputs])
    same(results)


@pytest.mark.parametrize("batched", [False, True])
def test_gradients_of_gradients(both, batched):
    for seed in range(3):
        results = []
        for call in both:
            inputs = given(seed)
            out = call(*inputs)
            if batched:
                tangents = torch.stack([torch.ones(out.shape), torch.full(out.shape, 0.5)])
                found = torch.autograd.grad(out, inputs, tangents, is_grads_batched=True)
                results.append(found)
                continue
            (grad,) = torch.autograd.grad(out.sum(), inputs[0], create_graph=True)
            grad.square().sum().backward()
            results.append([one.grad for one in inputs])
        same(results)


def test_threads_run_backward_at_once(both):
    failed = []

    def work(inputs):
        try:
            for _ in range(20):
                results = []
                for call in both:
                    mine = [one.detach().clone().requires_grad_() for one in inputs]
                    call(*mine).sum().backward()
                    results.append([one.grad for one in mine])
                same(results)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(given(seed),)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


@pytest.mark.parametrize("reentrant", [False, True])
def test_within_a_checkpoint(both, reentrant):
    results = []
    for call in both:
        inputs = given()
        out = checkpoint(
            lambda *args, call=call: call(*args).exp(), *inputs, use_reentrant=reentrant
        )
        out.sum().backward()
        results.append([one.grad for one in inputs])
    same(results)


def test_anomaly_mode(both):
    results = []
    with pytest.warns(UserWarning), torch.autograd.detect_anomaly(check_nan=True):
        for call in both:
            inputs = given()
            out = call(*inputs)
            out.sum().backward(retain_graph=True)
            results.append([one.grad for one in inputs])
            bad = torch.full(out.shape, float("nan"))
            with pytest.raises(RuntimeError, match="returned nan values"):
                out.backward(bad)
    same(results)


def several(x, weight):
    made = x @ weight
    return made.sin(), made.argmax(1), x, made.detach() * 2, made.view(-1), made.t()


def test_outputs_of_every_kind():
    call = dynfix.compile(several)
    for seed in range(4):
        for chosen in (0, 2, 4, 5):
            results = []
            for each in (call, several):
                inputs = given(seed)[:2]
                outs = each(*inputs)
                outs[chosen].sum().backward()
                results.append([*(one.detach() for one in outs), inputs[0].grad])
                assert [one.requires_grad for one in outs] == [True, False, True, False, True, True]
                assert (inputs[1].grad is None) == (chosen == 2)
            same(results)


def two(x, weight):
    made = x @ weight
    return made.sin(), made.detach() * 2, weight.exp()


def test_gradients_that_are_missing(made):
    call = dynfix.compile(two)
    for seed in range(4):
        for chosen in (0, 2):
            results = []
            for each in (call, two):
                inputs = given(seed)[:2]
                each(*inputs)[chosen].sum().backward()
                assert (inputs[0].grad is None) == (chosen == 2)
                results.append([inputs[1].grad])
            same(results)


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.norm = torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5)

    def forward(self, x):
        return F.dropout(self.norm(self.inner(x)), 0.5, self.training)


def test_written_buffers_and_random_numbers(made):
    results = []
    for wrap in (dynfix.compile, lambda module: module):
        torch.manual_seed(0)
        module = Normed().double()
        call = wrap(module)
        for seed in range(4):
            x = torch.randn(4, 6, dtype=torch.float64)
            torch.manual_seed(seed)
            call(x).square().sum().backward()
        out = call(torch.randn(4, 6, dtype=torch.float64))
        (grad,) = torch.autograd.grad(out.square().sum(), module.norm.weight, create_graph=True)
        grad.sum().backward()
        results.append([*module.state_dict().values(), *(p.grad for p in module.parameters())])
    same(results)


def test_under_autocast_and_without_gradients(made):
    module = torch.nn.Linear(6, 5)
    call = dynfix.compile(module)
    for _ in range(4):
        x, grads = torch.randn(4, 6), []
        for each in (call, module):
            with torch.autocast("cpu", torch.bfloat16):
                out = each(x)
            grads.append(torch.autograd.grad(out.float().sum(), module.parameters()))
            with torch.no_grad():
                assert not each(x).requires_grad
            with torch.inference_mode():
                assert each(x).is_inference()
        same(grads)


def test_sizes_that_change(made):
    call = dynfix.compile(layer)
    for rows in (4, 6, 7, 9, 7):
        results = []
        for each in (call, layer):
            _, weight, bias = given(rows)
            x = torch.ones(rows, 6, requires_grad=True)
            each(x, weight, bias).square().sum().backward()
            results.append((x.grad, weight.grad, bias.grad))
        same(results)


def test_python_serves_where_nothing_can_be_built(monkeypatch):
    monkeypatch.setenv("DYNFIX_NATIVE_NODES", "0")
    for name, value in (("native", None), ("patience", None)):
        monkeypatch.setattr(torch_headers._Parts, name, value)
    torch_headers.load()
    assert torch_headers.torch_parts() is None
    call, results = dynfix.compile(layer), []
    for each in (call, call, layer):
        inputs = given()
        each(*inputs).sum().backward()
        results.append([one.grad for one in inputs])
    same(results[1:])


@pytest.mark.gpu
def test_on_a_gpu(made):
    module = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 4)
    ).cuda()
    call = dynfix.compile(module)
    for seed in range(4):
        torch.manual_seed(seed)
        x, results = torch.randn(5, 8, device="cuda", requires_grad=True), []
        for each in (call, module):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                found = torch.autograd.grad(each(x).sum(), (x, *module.parameters()))
            torch.cuda.current_stream().wait_stream(side)
            out = each(x)
            (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
            results.append((*found, out, *torch.autograd.grad(grad.sum(), module[0].weight)))
        same(results)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_calls_before_the_first_backward(made, device):
    call, results = dynfix.compile(layer), []
    for _ in range(4):
        call(*(t.to(device) for t in given()))
    for each in (call, layer):
        inputs = [t.detach().to(device).requires_grad_() for t in given(1)]
        results.append(torch.autograd.grad(each(*inputs).sum(), inputs))
    same(results)


@pytest.mark.parametrize("boxed", [True, False, None])
def test_gradients_come_as_torchs_function_takes_them(boxed):
    """In one list, or, where torch knows of no such thing, one by one."""

    class Native:
        Function = staticmethod(lambda facts: types.SimpleNamespace(**facts, backward=None))

    class Torchs:
        dynfix_built, dynfix_unbuilt = False, False

    if boxed is not None:
        Torchs.boxed_grads_call = boxed
    seen, saved = [], types.SimpleNamespace(free=None)
    made = native_nodes.with_node(Native, {}, Torchs, lambda ctx, *each: seen.append(each), None)
    one, two = torch.ones(2), torch.zeros(2)
    made.unusual(saved, [one, two])
    assert seen == [([one, two],) if boxed else (one, two)]


def test_under_compiled_autograd(made):
    from torch._dynamo import compiled_autograd

    factor = random.uniform(0.5, 1)  # torch's serves nothing that was stored

    def scaled(x, weight, bias):
        return torch.tanh(x @ weight + bias) * factor

    results, compiled = [], dynfix.compile(scaled)
    for call in (compiled, compiled, scaled):
        found = []
        for seed in range(3):
            inputs = given(seed)
            out = call(*inputs).square().sum()
            with compiled_autograd._enable(torch.compile(backend="eager")):
                out.backward()
            found += [one.grad for one in inputs]
        results.append(found)
    same(results[1:])
