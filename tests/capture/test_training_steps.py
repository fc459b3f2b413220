"""Differentiation inside a compiled function: `autograd.grad`, `backward()`, `.grad`, and whole
training steps with the optimizers of torch.optim."""

import types

import dynfix
import pytest
import torch
import torch.nn.functional as F
from torch import nn

BACKENDS = ("eager", "native")


def seen(value):
    """What can be seen of a result: tensors with their description and gradient."""
    if isinstance(value, list | tuple):
        return [seen(part) for part in value]
    if not isinstance(value, torch.Tensor):
        return value
    facts = value.shape, value.stride(), value.dtype, value.requires_grad, value.is_leaf
    gradient = seen(value.grad) if value.is_leaf and value.grad is not None else None
    return types.SimpleNamespace(facts=facts, values=value.detach().clone(), gradient=gradient)


def assert_same(got, want):
    if isinstance(want, list):
        assert len(got) == len(want)
        for pair in zip(got, want, strict=True):
            assert_same(*pair)
    elif isinstance(want, types.SimpleNamespace):
        assert got.facts == want.facts
        torch.testing.assert_close(got.values, want.values, rtol=1e-4, atol=1e-5)
        assert (got.gradient is None) == (want.gradient is None)
        if want.gradient is not None:
            assert_same(got.gradient, want.gradient)
    elif isinstance(want, float):
        assert got == pytest.approx(want, rel=1e-4)
    else:
        assert got == want


def trace_of(make, compiled, calls):
    """Results, and what is watched, of each call. `make()` gives the function, what to watch and
    the arguments of call number i."""
    torch.manual_seed(0)
    fn, watched, arguments = make()
    fn, found = compiled(fn), []
    for i in range(calls):
        result = fn(*arguments(i))
        found.append([seen(result), seen(list(watched()))])
    return found


def check(make, backend, calls=4, fullgraph=True):
    want = trace_of(make, lambda fn: fn, calls)
    got = trace_of(make, lambda fn: dynfix.compile(fn, backend=backend, fullgraph=fullgraph), calls)
    assert_same(got, want)


def batch(i):
    return torch.arange(20.0).view(5, 4) / (i + 2), torch.arange(5) % 3


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def state_of(model, *optimizers):
    def watched():
        kept = (each.values() for optimizer in optimizers for each in optimizer.state.values())
        held = [value for values in kept for value in values if isinstance(value, torch.Tensor)]
        return [*model.parameters(), *model.buffers(), *held]

    return watched


# -- torch.autograd.grad


def gradient_penalty():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def penalty(x):
        x = x.clone()
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return ((slope.norm(dim=1) - 1) ** 2).mean()

    return penalty, state_of(model), lambda i: (batch(i)[0].requires_grad_(),)


def attack():
    model = net()

    def perturbed(x, y):
        x = x.clone().requires_grad_(True)
        for _ in range(2):
            (slope,) = torch.autograd.grad(F.cross_entropy(model(x), y), x)
            x = (x + 0.1 * slope.sign()).detach().requires_grad_(True)
        return x.detach()

    return perturbed, state_of(model), batch


def second_derivative():
    w = torch.randn(3, requires_grad=True)

    def curvature(x):
        (slope,) = torch.autograd.grad((w**3 * x).sum(), w, create_graph=True)
        (curve,) = torch.autograd.grad(slope.sum(), w)
        return curve

    return curvature, lambda: [w], lambda i: (torch.ones(3) * i,)


def sign_of_its_own_leaf():
    def stepped(x):
        x = x.detach().requires_grad_(True)
        (slope,) = torch.autograd.grad((x**3).sum(), x)
        return x + slope.sign()

    return stepped, list, lambda i: (torch.ones(3) + i,)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "make", [gradient_penalty, attack, second_derivative, sign_of_its_own_leaf]
)
def test_gradients_are_taken_inside_one_graph(make, backend):
    check(make, backend)


# -- backward() and .grad


def accumulating():
    model = net()

    def fn(x, y):
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    return fn, state_of(model), batch


def passed_through():
    p, q = nn.Parameter(torch.randn(3)), nn.Parameter(torch.randn(3))

    def fn(v):
        (p + q).backward(v)

    return fn, lambda: [p, q], lambda i: (torch.ones(3) * (i + 1),)


def read_and_cleared():
    w = torch.randn(4, requires_grad=True)

    def fn(x):
        y = (x * w).sum()
        y.backward()
        slope = w.grad
        w.grad = None
        with torch.no_grad():
            w.sub_(slope * 0.1)
        return slope

    return fn, lambda: [w], lambda i: (torch.ones(4) * (i + 1),)


def tied():
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)
    b.weight = a.weight

    def fn(x, y):
        (a(x).sum() + b(x).relu().sum()).backward()

    return fn, lambda: [a.weight, a.bias, b.bias], batch


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [accumulating, passed_through, read_and_cleared, tied])
def test_backward_leaves_what_it_leaves_in_eager(make, backend):
    check(make, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_that_is_replaced_between_calls(backend):
    def make():
        p = nn.Parameter(torch.randn(3))

        def fn(v):
            (p * v).sum().backward()
            return p.grad + 1

        def arguments(i):
            if i in (2, 4):
                p.grad = torch.ones(3) if i == 2 else None
            return (torch.ones(3) * (i + 1),)

        return fn, lambda: [p], arguments

    check(make, backend, calls=6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_that_are_frozen_and_thawed(backend):
    def make():
        model = net()

        def fn(x, y):
            F.cross_entropy(model(x), y).backward()

        def arguments(i):
            for p in model[0].parameters():
                p.requires_grad_(i % 2 == 0)
            return batch(i)

        return fn, state_of(model), arguments

    check(make, backend, calls=6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_no_gradient_of_this_graph_alone_stays_eager(backend):
    """Hooks that come later, inputs with a history, sparse gradients."""

    def hooked():
        model, called = net(), []

        def fn(x, y):
            F.cross_entropy(model(x), y).backward()
            return len(called)

        def arguments(i):
            if i == 2:
                model[0].weight.register_hook(lambda slope: called.append(1))
            if i == 3:
                model[2].weight.register_post_accumulate_grad_hook(lambda p: called.append(1))
            return batch(i)

        return fn, state_of(model), arguments

    def with_history():
        model, w = net(), torch.randn(4, requires_grad=True)

        def fn(x, y):
            F.cross_entropy(model(x), y).backward()

        return fn, state_of(model), lambda i: (batch(i)[0] * (w if i != 1 else 1), batch(i)[1])

    def sparse():
        table = nn.Embedding(10, 4, sparse=True)

        def fn(x):
            table(x).sum().backward()

        return fn, lambda: [table.weight.grad.to_dense()], lambda i: (torch.tensor([i, i + 1]),)

    for make in (hooked, with_history, sparse):
        check(make, backend, calls=5, fullgraph=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_whose_history_was_used(backend):
    p, kept = nn.Parameter(torch.randn(3)), []

    def fn(v):
        loss = (p * p * v).sum()
        loss.backward()
        kept.append(loss)
        return loss

    compiled = dynfix.compile(fn, backend=backend, fullgraph=True)
    for _ in range(4):
        loss = compiled(torch.ones(3))
        assert loss is kept[-1] and loss.requires_grad and loss.grad_fn is not None
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_backward_twice(backend):
    def make():
        p = nn.Parameter(torch.randn(3))

        def fn(v):
            loss = (p * p * v).sum()
            loss.backward(retain_graph=True)
            loss.backward()
            try:
                loss.backward()
            except RuntimeError:
                return 1
            return 0

        return fn, lambda: [p], lambda i: (torch.ones(3) * i,)

    check(make, backend, fullgraph=False)


# -- whole steps


def step_with(optimizer, **settings):
    def make():
        model = net()
        chosen = optimizer(model.parameters(), **settings)

        def fn(x, y):
            chosen.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            chosen.step()
            return loss.detach()

        return fn, state_of(model, chosen), batch

    return make


OPTIMIZERS = {
    "sgd": step_with(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "adam": step_with(torch.optim.Adam),
    "adamw-foreach": step_with(torch.optim.AdamW, foreach=True),
    "rmsprop": step_with(torch.optim.RMSprop, momentum=0.1, centered=True),
    "adagrad": step_with(torch.optim.Adagrad),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_with_every_kind_of_update(name):
    check(OPTIMIZERS[name], "eager")


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw-foreach"])
def test_a_step_in_kernels(name):
    check(OPTIMIZERS[name], "native")


def clipped():
    model = nn.Sequential(
        nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fn(x, y):
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss.item(), norm

    return fn, state_of(model, optimizer), batch


def every_second():
    model = net()
    optimizer, taken = torch.optim.SGD(model.parameters(), lr=0.1), {"n": 0}

    def fn(x, y):
        (F.cross_entropy(model(x), y) / 2).backward()
        taken["n"] += 1
        if taken["n"] % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()

    return fn, state_of(model, optimizer), batch


def scheduled():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def fn(x, y):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    def arguments(i):
        if i:
            schedule.step()
        return batch(i)

    return fn, state_of(model, optimizer), arguments


def adversarial():
    maker, judge = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 1))
    first, second = (torch.optim.Adam(each.parameters()) for each in (maker, judge))

    def fn(x, y):
        second.zero_grad()
        made = maker(x)
        told = F.softplus(-judge(x)).mean() + F.softplus(judge(made.detach())).mean()
        told.backward()
        second.step()
        first.zero_grad()
        fooled = F.softplus(-judge(made)).mean()
        fooled.backward()
        first.step()
        return told.detach(), fooled.detach()

    return fn, state_of(nn.ModuleList([maker, judge]), first, second), batch


def by_closure():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def fn(x, y):
        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure).detach()

    return fn, state_of(model, optimizer), batch


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [clipped, every_second, scheduled, adversarial, by_closure])
def test_steps_as_scripts_write_them(make, backend):
    check(make, backend, calls=6)


def test_a_step_is_one_program_that_later_calls_use():
    """Parameters that the model and the optimizer both hold are one input, not two that overlap."""
    built = []

    def backend(graph, inputs):
        built.append(graph)
        return graph.forward

    model = net()
    optimizer = torch.optim.AdamW(model.parameters())

    def fn(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    compiled = dynfix.compile(fn, backend=backend, fullgraph=True)
    for i in range(3):
        compiled(*batch(i))
    after = len(built)
    for i in range(4):
        compiled(*batch(i))
    assert len(built) == after


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_a_learning_rate_that_changes_is_an_input(make):
    model = net()
    optimizer = make(model.parameters(), lr=0.1)

    def step(x, y):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    step(*batch(0))
    compiled = dynfix.compile(step, backend="eager", recompile_limit=2, fullgraph=True)
    for n in range(5):
        optimizer.param_groups[0]["lr"] = 0.1 / (n + 1)
        compiled(*batch(n))


def test_an_optimizer_that_is_replaced_gets_nothing_of_the_old_one():
    """Its state is a defaultdict, which stores whatever it is asked for."""
    made = {}

    def renew():
        made["net"] = nn.Linear(4, 3)
        made["optimizer"] = torch.optim.Adam(made["net"].parameters())

    @dynfix.compile(backend="eager")
    def step(x, y):
        made["optimizer"].zero_grad()
        F.cross_entropy(made["net"](x), y).backward()
        made["optimizer"].step()

    for n in range(6):
        if n % 3 == 0:
            renew()
        step(*batch(n))
        assert made["optimizer"].state.keys() == set(made["net"].parameters())


def test_a_step_with_scaled_gradients():
    """Its parts bind a name again that the parts before have bound."""

    def make():
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")

        def fn(x, y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.item()

        return fn, state_of(model), batch

    check(make, "eager", calls=5, fullgraph=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_printed_tensors_show_their_history(backend, capsys):
    w = torch.ones(3, requires_grad=True)

    def fn(x):
        y = (x * w).sum()
        print(y)
        return y * 2

    compiled = dynfix.compile(fn, backend=backend)
    for i in range(3):
        compiled(torch.full((3,), float(i)))
    texts = capsys.readouterr().out.splitlines()
    assert texts == [f"tensor({3 * i}., grad_fn=<SumBackward0>)" for i in range(3)]


def test_a_step_where_dynamo_has_been_at_work():
    """From its first use on, torch keeps methods of its optimizers from Dynamo."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    check(OPTIMIZERS["sgd"], "eager")
