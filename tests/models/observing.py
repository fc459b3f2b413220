"""What a call of a model gave, flattened: the structure with exact types, and the tensors by where
they stand."""

import torch


def flattened(obj, where="output"):
    """(path, exact type or plain value, tensor or None) of every part of an output: containers,
    caches and their layers."""
    if isinstance(obj, torch.Tensor):
        yield where, (type(obj), obj.dtype, tuple(obj.shape), obj.requires_grad), obj
    elif obj is None or isinstance(
        obj, bool | int | float | str | torch.dtype | torch.device | type
    ):
        yield where, obj, None
    else:
        yield where, type(obj), None
        for key, part in _parts(obj):
            yield from flattened(part, f"{where}.{key}")


def _parts(obj):
    if isinstance(obj, dict):
        return list(obj.items())
    if isinstance(obj, list | tuple):
        return list(enumerate(obj))
    return list(getattr(obj, "__dict__", {}).items())


def assert_outputs(got, expected, rtol=1e-4, atol=1e-5):
    """The same structure, the same types, and equal tensors."""
    got, expected = list(flattened(got)), list(flattened(expected))
    assert [part[:2] for part in got] == [part[:2] for part in expected]
    for (where, _, one), (_, _, two) in zip(got, expected, strict=True):
        if two is not None:
            torch.testing.assert_close(
                one, two, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, w=where: f"{w}: {m}"
            )


def objective(output):
    """The loss, and a little of every other output that has a history: nothing of the backward is
    left out."""
    parts = [
        tensor
        for _, _, tensor in flattened(output)
        if tensor is not None and tensor.grad_fn is not None
    ]
    assert parts, "the output has no history"
    return sum(
        (part * torch.linspace(0.5, 1.5, part.numel()).view(part.shape)).mean() for part in parts
    )


def assert_gradients(got, expected, rtol=1e-4, atol=1e-5):
    """The same gradient of every parameter, absent ones included."""
    wanted = dict(expected.named_parameters())
    for name, parameter in got.named_parameters():
        one, two = parameter.grad, wanted.pop(name).grad
        assert (one is None) == (two is None), name
        if two is not None:
            torch.testing.assert_close(
                one, two, rtol=rtol, atol=atol, msg=lambda m, n=name: f"gradient of {n}: {m}"
            )
    assert not wanted


def assert_states(got, expected, rtol=1e-4, atol=1e-5):
    """The same parameters and buffers, and the same plain attributes of every module."""
    torch.testing.assert_close(got.state_dict(), expected.state_dict(), rtol=rtol, atol=atol)
    for (name, one), (_, two) in zip(got.named_modules(), expected.named_modules(), strict=True):
        assert plain(one) == plain(two), name


def plain(module):
    return {
        k: v for k, v in module.__dict__.items() if isinstance(v, bool | int | float | str | None)
    }


class Counting:
    """A backend that counts builds and calls. `compiler`: what builds the graph's callable;
    without, the graph runs as it is."""

    def __init__(self, compiler=None):
        self.compiler = compiler
        self.built = self.calls = 0

    def __call__(self, graph_module, example_inputs):
        self.built += 1
        program = self.compiler(graph_module, example_inputs) if self.compiler else graph_module

        def run(*args):
            self.calls += 1
            with torch.profiler.record_function("CAPTURED"):
                return program(*args)

        return run


# Handing buffers on, or reading a value: no work that was missed.
PLUMBING = {
    "aten::" + name
    for name in """item _local_scalar_dense is_nonzero detach alias view_as as_strided empty empty_like empty_strided clone copy_
    _to_copy to lift_fresh resize_ set_ size stride result_type equal""".split()
}


def outside(fn):
    """(result of fn(), names of the operators that ran outside every captured graph)."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = fn()
    return result, [event.name for event in profile.events() if _is_outside(event)]


def _is_outside(event):
    if not event.name.startswith("aten::") or event.name in PLUMBING:
        return False
    parent = event.cpu_parent
    while parent is not None:
        if parent.name == "CAPTURED" or parent.name.startswith("aten::"):
            return False
        parent = parent.cpu_parent
    return True
