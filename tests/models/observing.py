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
