"""Fused steps of optimizers: what torch's own kernels make of parameters, state and gradients."""

import dynfix
import pytest
import torch
from dynfix.lowering.loops.ir import Batch, Group

from .harness import units

TYPES = [torch.float32, torch.bfloat16]
COMMON = {"lr": 0.1, "weight_decay": 0.01, "maximize": False}
ADAM = {**COMMON, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "amsgrad": False}
SGD = {**COMMON, "momentum": 0.9, "dampening": 0.1, "nesterov": False, "is_first_step": False}
ADAGRAD = {**COMMON, "lr_decay": 0.1, "eps": 1e-8}
CASES = {
    "adam": (torch._fused_adam_, 2, ADAM),
    "adam, amsgrad": (torch._fused_adam_, 3, {**ADAM, "amsgrad": True, "maximize": True}),
    "adamw": (torch._fused_adamw_, 2, {**ADAM, "weight_decay": 0.5}),
    "sgd": (torch._fused_sgd_, 1, SGD),
    "sgd, nesterov": (torch._fused_sgd_, 1, {**SGD, "nesterov": True, "dampening": 0.0}),
    "sgd, first": (torch._fused_sgd_, 1, {**SGD, "is_first_step": True, "maximize": True}),
    "sgd, no momentum": (torch._fused_sgd_, 0, {**SGD, "momentum": 0.0}),
    "adagrad": (torch._fused_adagrad_, 1, ADAGRAD),
}


LISTS = {
    torch._fused_adam_: 3,
    torch._fused_adamw_: 3,
    torch._fused_sgd_: 1,
    torch._fused_adagrad_: 1,
}


def lists(function, states, dtype):
    """Parameters, gradients, as many lists of state, and the counts of steps."""
    made = [[torch.rand(5, 3, dtype=dtype), torch.rand(7, dtype=dtype)] for _ in range(2 + states)]
    made += [[]] * (LISTS[function] - states)
    counts = [torch.tensor(4.0), torch.tensor(4.0)]
    return made if function is torch._fused_sgd_ else [*made, counts]


@pytest.mark.covering
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_as_torchs_kernels(name, scaled):
    function, states, settings = CASES[name]
    compiled = dynfix.compile(lambda given, more: function(*given, **settings, **more))
    for dtype in TYPES:
        for found in (0.0, 1.0, 0.0):
            ours = lists(function, states, dtype)
            theirs = [[each.clone() for each in part] for part in ours]
            tensors = {"grad_scale": torch.tensor(8.0), "found_inf": torch.tensor(found)}
            more = tensors if scaled else {}
            compiled(ours, more)
            function(*theirs, **settings, **more)
            torch.testing.assert_close(ours, theirs)
    assert all(entry.hits for entry in compiled._dynfix_entry._dispatcher.entries)


def test_many_parameters_are_few_kernels(monkeypatch, tmp_path):
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path))  # no program that was stored serves
    made = units(monkeypatch)
    parameters = [torch.nn.Parameter(torch.rand(3 + k, 4)) for k in range(40)]
    optimizer = torch.optim.AdamW(parameters, fused=True)
    for each in parameters:
        each.grad = torch.rand_like(each)
    optimizer.step()
    step = dynfix.compile(optimizer.step, fullgraph=True)
    step()
    kernels = [item for unit in made for item in unit.items if isinstance(item, Group | Batch)]
    assert 0 < len(kernels) <= 4


def test_rates_and_counts_of_one_element_in_any_shape():
    given = [torch.rand(3), torch.rand(3), torch.rand(3), torch.rand(3)]
    settings = {**ADAM, "lr": torch.tensor([0.1])}
    compiled = dynfix.compile(
        lambda each: torch._fused_adam_(*([t] for t in each), [], [torch.tensor([4.0])], **settings)
    )
    plain = [each.clone() for each in given]
    for _ in range(3):
        compiled(given)
        torch._fused_adam_(*([t] for t in plain), [], [torch.tensor([4.0])], **settings)
        torch.testing.assert_close(given, plain)


MOVING = {
    "fused adam": (torch.optim.Adam, {"fused": True, "weight_decay": 0.1}),
    "fused adamw": (torch.optim.AdamW, {"fused": True}),
    "fused sgd": (torch.optim.SGD, {"fused": True, "momentum": 0.9}),
    "fused adagrad": (torch.optim.Adagrad, {"fused": True}),
    "lists of rmsprop": (torch.optim.RMSprop, {"foreach": True, "momentum": 0.0}),
    "lists of adamw": (torch.optim.AdamW, {"foreach": True}),
    "lists of sgd": (torch.optim.SGD, {"foreach": True, "momentum": 0.9, "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"foreach": False}),
    "rmsprop": (torch.optim.RMSprop, {"foreach": False, "momentum": 0.0}),
    "sgd": (torch.optim.SGD, {"foreach": False, "momentum": 0.9, "nesterov": True}),
}


@pytest.mark.covering
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", MOVING)
def test_what_a_schedule_moves_is_no_new_recording(name, dtype):
    kind, settings = MOVING[name]
    # of 16 halves and more, torch's own fused SGD on the CPU steps wrongly
    values = torch.rand(4, 3).to(dtype), torch.rand(3).to(dtype)
    sides = []
    for compiler in (dynfix.compile, lambda call: call):
        parameters = [torch.nn.Parameter(value.clone()) for value in values]
        optimizer = kind(parameters, lr=0.01, **settings)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 0.1, total_steps=20, cycle_momentum="agrad" not in name and name != "adamw"
        )
        sides.append((parameters, schedule, compiler(optimizer.step)))
    for turn in range(14):
        torch.manual_seed(turn)
        gradients = [torch.randn(value.shape).to(dtype) for value in values]
        for parameters, schedule, step in sides:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
            step()
            schedule.step()
        # halves are rounded at every step, of which rmsprop's first are large
        close = {"rtol": 2e-2, "atol": 6e-2} if dtype is torch.bfloat16 else {}
        torch.testing.assert_close(sides[0][0], sides[1][0], **close)
    assert len(sides[0][2]._dynfix_entry._dispatcher.entries) <= 4
