"""Programs of today's practice, each one graph of our own compiler: modules in torch.func,
exported programs, policies of checkpoints, contexts, text without a file, overlapping inputs."""

import contextlib
import contextvars
import functools
import threading
import weakref

import dynfix
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
W = torch.randn(3, 3, requires_grad=True)
lock = threading.RLock()
counted: list[int] = []
scale = contextvars.ContextVar("scale", default=2.0)
first = weakref.ref(net[0])
held = weakref.WeakKeyDictionary({net[0]: 2.0})


def derivatives(x):
    rows = torch.vmap(net)(x)
    return torch.func.jacrev(net)(x[0]), rows.sum(0)


def product_with_the_hessian(x):
    return torch.func.jvp(torch.func.grad(lambda y: net(y).sum()), (x,), (x * 2,))[1] + 1


def saves_products(context, operator, *args, **kwargs):
    saved = operator is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


def by_policy(x):
    how = functools.partial(create_selective_checkpoint_contexts, saves_products)
    inner = lambda y: torch.tanh(y @ W).sin() @ W  # noqa: E731
    return checkpoint(inner, x, use_reentrant=False, context_fn=how) * 2


def chosen_kernels(x):
    q = x.expand(2, 2, *x.shape)
    with sdpa_kernel(SDPBackend.MATH):
        y = F.scaled_dot_product_attention(q, q, q)
    return y + 1


def under_a_lock(x):
    with lock:
        counted.append(1)
        y = x * torch.get_num_threads()
    return y + 1


def contexts_by_calls(x):
    x = x.t() @ x
    with contextlib.ExitStack() as entered:
        entered.enter_context(torch.autocast("cpu", torch.bfloat16))
        entered.enter_context(lock)
        y = x @ x
        entered.enter_context(torch.autocast("cpu", enabled=False))
        z = x @ x
    manager = torch.autocast("cpu", torch.bfloat16)
    manager.__enter__()
    try:
        y = y * (x @ x)
    finally:
        manager.__exit__(None, None, None)
    lock.acquire()
    try:
        return y.float() + z + x @ x
    finally:
        lock.release()


def scaled(x):
    return x * scale.get()


def context_variables(x):
    outer = scale.set(scale.get() + 1.0)
    inner = scale.set(x.mean())
    y = scaled(x)
    scale.reset(inner)
    try:
        return y + scaled(x)
    finally:
        scale.reset(outer)


def weak_keys(x):
    weights = held.get(first(), 3.0) if first() in held else 5.0
    return net(x) * weights + held[net[0]]


TEXT = """
def wrapped(*args, **kwargs):
    if not isinstance(args[0], Tensor):
        raise TypeError("no tensor")
    return inner(*args, **kwargs)
"""
names = {"Tensor": torch.Tensor, "inner": lambda x: x.sin() + 1}
exec(TEXT, names)
from_text = names["wrapped"]
by_eval = eval("lambda x: torch.cos(x) * 3")
PROGRAMS = [
    derivatives,
    product_with_the_hessian,
    by_policy,
    chosen_kernels,
    under_a_lock,
    from_text,
    by_eval,
    contexts_by_calls,
    context_variables,
    weak_keys,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph(program):
    compiled = dynfix.compile(program, fullgraph=True)
    for _ in range(3):
        x = torch.randn(4, 3)
        results = []
        for fn in (program, compiled):
            counted.clear()
            W.grad, given = None, x.clone().requires_grad_()
            result = fn(given)
            leaves = torch.utils._pytree.tree_leaves(result)
            sum(each.sum() for each in leaves).backward()
            results.append((result, given.grad, W.grad, len(counted)))
        torch.testing.assert_close(*results)


def test_an_exported_program():
    model = torch.export.export(net, (torch.randn(2, 3),)).module()
    compiled = dynfix.compile(model, fullgraph=True)
    for _ in range(3):
        x = torch.randn(2, 3)
        torch.testing.assert_close(compiled(x), model(x))


def shifts(a, b):
    a.add_(1)
    b.mul_(2)
    return a + b


def stretched(a, b):
    wide = a[:1].expand(4)
    wide[-1] = 3
    return wide + b


def test_what_weak_keys_and_context_variables_hold_is_guarded():
    compiled = dynfix.compile(lambda x: (scaled(x), weak_keys(x)), fullgraph=True)
    with contextlib.ExitStack() as undo:
        for step in range(5):
            x = torch.randn(2, 3)
            with torch.no_grad():
                torch.testing.assert_close(compiled(x), (scaled(x), weak_keys(x)))
            if step == 1:
                undo.callback(held.__setitem__, net[0], held[net[0]])
                held[net[0]] = 4.0
            if step == 2:
                undo.callback(scale.reset, scale.set(7.0))


@pytest.mark.parametrize("program", [shifts, stretched])
def test_writes_to_memory_that_is_shared(program):
    compiled = dynfix.compile(program, fullgraph=True)
    for start in (2, 2, 0, 1, 4):
        memory = torch.arange(8.0)
        other = memory.clone()
        expected = program(memory[:4], memory[start : start + 4])
        torch.testing.assert_close(compiled(other[:4], other[start : start + 4]), expected)
        torch.testing.assert_close(other, memory)


def test_marked_sizes():
    compiled = dynfix.compile(lambda x: (x * 2).sum(0), fullgraph=True)
    graphs = []
    for size in (4, 5, 6):
        x = torch.randn(size, 3)
        dynfix.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), (x * 2).sum(0))
    compiled = dynfix.compile(
        lambda x: x * 2, fullgraph=True, backend=lambda gm, _: graphs.append(gm) or gm.forward
    )
    for size in (4, 5, 6):
        x = torch.randn(size)
        dynfix.mark_static(x, 0)
        compiled(x)
    assert len(graphs) == 3
