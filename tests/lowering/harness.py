"""Compiles functions through the whole CPU line and compares them with eager."""

import torch
from dynfix.lowering import pipeline
from dynfix.lowering.joint import compile_graph
from dynfix.runtime.options import Options
from torch.fx import symbolic_trace

CHECKED = Options(verify_ir=True)
UNFUSED = Options(verify_ir=True, fusion=False)


def compiled(fn, *args, options=CHECKED):
    """fn compiled for tensors like args; fn takes tensors alone."""
    return compile_graph(symbolic_trace(fn), list(args), options)


def as_list(result):
    return list(result) if isinstance(result, list | tuple) else [result]


def assert_same(found, expected, rtol=None, atol=None, names=None):
    found, expected = as_list(found), as_list(expected)
    assert len(found) == len(expected)
    for number, (one, two) in enumerate(zip(found, expected, strict=True)):
        label = names[number] if names else f"result {number}"
        if not isinstance(two, torch.Tensor):
            assert one == two, label
            continue
        assert one.dtype == two.dtype, (label, one.dtype, two.dtype)
        assert one.shape == two.shape, (label, one.shape, two.shape)
        assert one.stride() == two.stride() or one.numel() <= 1, (label, one.stride(), two.stride())
        torch.testing.assert_close(
            one, two, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, n=label: f"{n}: {m}"
        )


def exact(fn, args):
    """What eager gives in float64, rounded to the types of its own result: the judge where eager's
    fast path is off."""
    doubles = [a.double() if a.is_floating_point() else a for a in args]
    return [d.to(e.dtype) for d, e in zip(as_list(fn(*doubles)), as_list(fn(*args)), strict=True)]


def closer_of(expected, ideal, found):
    """Eager's elements, or the exact ones where the found ones agree with those."""
    picked = []
    for e, i, f in zip(as_list(expected), ideal, as_list(found), strict=True):
        agrees = torch.isclose(
            f.double(),
            i.double(),
            rtol=3e-3 if f.dtype.itemsize == 2 else 2e-6,
            atol=1e-38,
            equal_nan=True,
        )
        picked.append(
            torch.empty_strided(e.shape, e.stride(), dtype=e.dtype).copy_(torch.where(agrees, f, e))
        )
    return picked


def check_elements(fn, *args, options=CHECKED, names=None):
    """Each element equals eager's, or what eager's float64 arithmetic gives."""
    found = compiled(fn, *args, options=options)(*args)
    assert_same(found, closer_of(fn(*args), exact(fn, args), found), names=names)


def check(fn, *args, options=CHECKED, rtol=None, atol=None, names=None):
    """Three calls, each on fresh data of the same kind, give what eager gives."""
    call = compiled(fn, *args, options=options)
    for _ in range(3):
        assert_same(call(*args), fn(*args), rtol, atol, names)
        args = tuple(a.flip(0) if a.dim() and a.is_contiguous() else a for a in args)
    return call


def check_gradients(fn, *args, options=CHECKED, rtol=1e-4, atol=1e-5):
    """Outputs and gradients of all floating-point inputs, three times."""
    ours = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in args]
    theirs = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in args]
    call = compiled(fn, *ours, options=options)
    for turn in range(3):
        torch.manual_seed(turn)
        found = as_list(call(*ours))
        torch.manual_seed(turn)
        expected = as_list(fn(*theirs))
        assert_same([f.detach() for f in found], [e.detach() for e in expected], rtol, atol)
        used = [i for i, e in enumerate(expected) if e.requires_grad]
        seeds = [torch.randn_like(expected[i]) for i in used]
        for results, inputs in ((found, ours), (expected, theirs)):
            torch.autograd.backward([results[i] for i in used], seeds)
            del inputs
        for one, two in zip(ours, theirs, strict=True):
            assert (one.grad is None) == (two.grad is None)
            if two.grad is not None:
                torch.testing.assert_close(one.grad, two.grad, rtol=rtol, atol=atol)
                assert one.grad.stride() == two.grad.stride() or one.grad.numel() <= 1
    return call


def units(monkeypatch):
    """The units of the programs that are made from now on, as they are printed."""
    found = []

    def finish(unit, target, options):
        found.append(unit)
        return original(unit, target, options)

    original = pipeline.finish
    monkeypatch.setattr(pipeline, "finish", finish)
    return found


def at_threads(call, *args, threads=(1, 2, 3)):
    """The results of the call with each number of threads."""
    before = torch.get_num_threads()
    try:
        return [(torch.set_num_threads(number), call(*args))[1] for number in threads]
    finally:
        torch.set_num_threads(before)
