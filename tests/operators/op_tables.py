"""torch's own tables of operators, modules and optimizers with sample inputs."""

import functools
import itertools
import sys
import types
import unittest
import warnings

import torch

# torch's test helpers subclass one class of this package, which is on no runtime's list
sys.modules.setdefault(
    "expecttest", types.SimpleNamespace(TestCase=unittest.TestCase, __spec__=None)
)

# What these give is not a function of their inputs.
UNDEFINED = ("empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "resize_")
UNDEFINED += ("empty_permuted", "resize_as_", "_native_batch_norm_legit")
UNDEFINED += (
    "torch.ops.aten._efficient_attention_forward",
    "torch.ops.aten._flash_attention_forward",
)


@functools.cache
def operators():
    """Name (with its variant) -> OpInfo."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal import common_methods_invocations as table
    table.wrapper_set_seed = _called  # a comparison seeds the generators itself
    # the import forbids that flags of backends are set, in this process for good
    backends = torch.backends.flags_frozen.__globals__
    backends["__allow_nonbracketed_mutation_flag"] = True
    named = {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in table.op_db}
    return {name: op for name, op in named.items() if op.name not in UNDEFINED}


def _called(op, *args, **kwargs):
    return op(*args, **kwargs)


def samples(op, dtype, most, requires_grad=False, device="cpu"):
    torch.manual_seed(0)
    found = op.sample_inputs(device, dtype, requires_grad=requires_grad)
    return list(itertools.islice(found, most))
