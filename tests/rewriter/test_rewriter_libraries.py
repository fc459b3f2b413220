"""Every function of torch.nn, and of five model files of transformers, can be rewritten."""

import importlib
import pkgutil
import types

import pytest
import torch
from dynfix.rewriter.instrument import emit
from plain_forms import Forms

MODELS = ["bert", "llama", "gpt2", "t5", "vit"]


def functions(module):
    for value in vars(module).values():
        if isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
            yield value
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for member in vars(value).values():
                parts = (
                    (member.fget, member.fset)
                    if isinstance(member, property)
                    else (getattr(member, "__func__", member),)
                )
                yield from (part for part in parts if isinstance(part, types.FunctionType))


def refusals(module):
    found = list(functions(module))
    refused = []
    for fn in found:
        try:
            new = emit.rewrite(fn, Forms)
        except emit.NotRewritable as refusal:
            refused.append(refusal)
        else:
            assert new.__code__.co_flags & ~0x10 == fn.__code__.co_flags & ~0x10
    return len(found), [r for r in refused if not r.file.startswith("<")]


def test_torch_nn():
    names = [info.name for info in pkgutil.iter_modules(torch.nn.modules.__path__)]
    total, refused = refusals(torch.nn.functional)
    for name in names:
        count, more = refusals(importlib.import_module(f"torch.nn.modules.{name}"))
        total, refused = total + count, refused + more
    wrong = [each for each in refused if "torch.compile" not in each.reason]  # `Module.compile`
    assert total > 700 and not wrong


@pytest.mark.parametrize("name", MODELS)
def test_transformers(name):
    pytest.importorskip("transformers")
    total, refused = refusals(
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    )
    assert total >= 20 and not refused
