"""Steps of torch's optimizers inside a captured function."""

import functools
import math
import types

import dynfix
import pytest
import torch
import torch.nn.functional as F
from differentiated import BACKENDS, batch, check, net, state_of
from dynfix.rewriter.frontend import compiled_function
from dynfix.rewriter.tracing_ops import c_calls
from helpers import recordings
from torch import nn
from torch.optim import lr_scheduler as schedules


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


@pytest.mark.covering
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


def trained_in_one_cycle(make, wrap, foreach):
    """The losses and the parameters of a model; what was compiled."""
    torch.manual_seed(0)
    model = net()
    optimizer = make(model.parameters(), lr=0.1, foreach=foreach)
    schedule = schedules.OneCycleLR(optimizer, 0.1, total_steps=20)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    compiled, losses = wrap(step), []
    for i in range(6):
        losses.append(compiled(*batch(i)).detach())
        schedule.step()
    return [*losses, *model.parameters()], compiled


@pytest.mark.covering
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    "make", [functools.partial(torch.optim.SGD, momentum=0.9), torch.optim.AdamW]
)
def test_a_momentum_that_changes_is_an_input(make, foreach, backend):
    compiled = functools.partial(dynfix.compile, backend=backend, fullgraph=True)
    found, step = trained_in_one_cycle(make, compiled, foreach)
    assert len(recordings(step)) == 2
    expected, _ = trained_in_one_cycle(make, lambda step: step, foreach)
    torch.testing.assert_close(found, expected)


SCHEDULES = {
    "lambda": lambda optimizer: schedules.LambdaLR(
        optimizer, lambda k: k / 3 if k < 3 else 0.5 * (1 + math.cos(math.pi * (k - 3) / 20))
    ),
    "cosine": lambda optimizer: schedules.CosineAnnealingLR(optimizer, 20),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_scheduler_steps_inside(name):
    """What it computes of its own counts is computed at each call, not recorded."""

    def told(backend):
        torch.manual_seed(0)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        schedule = SCHEDULES[name](optimizer)

        def step(x, y):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss.detach()

        fn = dynfix.compile(step, backend=backend, fullgraph=True) if backend else step
        found = [(float(fn(*batch(n))), schedule.get_last_lr()) for n in range(10)]
        return found, fn

    (found, compiled), (wanted, _) = told("eager"), told(None)
    assert found == wanted
    assert len(recordings(compiled)) <= 6


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


def test_a_step_where_dynamo_has_been_at_work():
    """From its first use on, torch keeps methods of its optimizers from Dynamo."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    check(OPTIMIZERS["sgd"], "eager")


def test_what_a_first_step_leaves_behind_is_compiled_alone(monkeypatch):
    """A recording that its own call outlives is compiled when a call asks for it."""
    made = []
    compiled = compiled_function.compile_segment
    monkeypatch.setattr(
        compiled_function, "compile_segment", lambda *given: made.append(given) or compiled(*given)
    )
    holder = types.SimpleNamespace(on=False)

    def fn(x):
        holder.on = not holder.on
        return x * 2 if holder.on else x - 1

    call = dynfix.compile(fn)
    counts = []
    for turn in range(6):
        x = torch.full((3,), float(turn))
        torch.testing.assert_close(call(x), x * 2 if turn % 2 == 0 else x - 1)
        counts.append(len(made))
    assert counts[0] == 0 and counts[-1] == counts[-2] == 2


def test_lists_of_parameters_are_not_looked_through_at_each_append(monkeypatch):
    looks = []
    is_constant = c_calls.is_constant
    monkeypatch.setattr(c_calls, "is_constant", lambda obj: looks.append(1) or is_constant(obj))

    def counted(layers):
        model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(layers)])
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

        def step(x):
            loss = model(x).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        looks.clear()
        dynfix.compile(step, backend="eager")(torch.randn(2, 4))
        return len(looks)

    assert counted(20) < 5 * counted(5)


def _decides(p):
    return p.sin() * 2 if float(p.sum()) > 0 else p.cos() * 3


def _fused(p, g, m, v, s):
    how = {"weight_decay": 0.01, "eps": 1e-8, "amsgrad": False, "maximize": False}
    torch._fused_adamw_([p], [g], [m], [v], [], [s], lr=0.1, beta1=0.9, beta2=0.9, **how)
    return _decides(p)


def _fused_by_its_overload(p, g, m, v, s):
    how = {"momentum": 0.9, "weight_decay": 0.01, "lr": 0.1, "dampening": 0.0, "nesterov": False}
    update = torch.ops.aten._fused_sgd_.default
    update([p], [g], [m], **how, maximize=False, is_first_step=False)
    return _decides(p)


def _by_library(p, *others):
    torch.ops.dynfix_written.add_one([p])
    return _decides(p)


def _into_what_is_there(p, *others):
    torch.ops.dynfix_written.twice(torch.ones(5), out=p)
    return _decides(p)


@pytest.fixture
def library():
    """Operators whose writes no version counter knows of."""
    made = torch.library.Library("dynfix_written", "FRAGMENT")
    made.define("add_one(Tensor(a!)[] grads) -> ()")
    made.define("twice(Tensor x) -> Tensor")
    made.define("twice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")

    def add_one(grads):
        for each in grads:
            each.numpy()[...] += 1

    def into(x, *, out):
        out.numpy()[...] += x.numpy() * 2
        return out

    made.impl("add_one", add_one, "CPU")
    made.impl("twice", lambda x: x * 2, "CPU")
    made.impl("twice.out", into, "CPU")
    torch.library.register_fake("dynfix_written::add_one", lambda grads: None, lib=made)
    torch.library.register_fake("dynfix_written::twice", torch.empty_like, lib=made)
    return made


@pytest.mark.parametrize("fn", [_fused, _fused_by_its_overload, _by_library, _into_what_is_there])
def test_writes_that_nobody_counts_are_undone_where_a_decision_turns(fn, library):
    torch.manual_seed(0)
    compiled = dynfix.compile(fn)
    for turn in range(8):
        p, g = (5 + torch.rand(5)) * (1 if turn < 4 else -1), torch.randn(5)
        ours = [p, g, torch.zeros(5), torch.zeros(5), torch.tensor(1.0)]
        theirs = [each.clone() for each in ours]
        torch.testing.assert_close(compiled(*ours), fn(*theirs))
        torch.testing.assert_close(ours, theirs)
