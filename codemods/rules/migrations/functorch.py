"""DYN803: functorch, whose transforms torch.func has."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from ....rewriter.source.spans import Safety
from .renames import Change, New, RenameRule

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext


_SAME = "vmap grad grad_and_value vjp jvp jacrev jacfwd hessian functionalize"
_STATELESS = (
    "its result is another: `params = dict(model.named_parameters())` and"
    " `torch.func.functional_call(model, params, args)` take its place, with the buffers beside"
)
_ENSEMBLE = (
    "its result is another: `params, buffers = torch.func.stack_module_state(models)` and"
    " `torch.func.functional_call` of one of them take its place"
)


class Functorch(RenameRule):
    """
    functorch has been part of torch since 2.0, as `torch.func`; the old names are wrappers that
    warn. Those with the same arguments and results are renamed. `make_functional` and
    `combine_state_for_ensemble` have successors of another form, which are explained.
    `functorch.compile`, `functorch.dim` and `functorch.einops` stay what they are.
    """

    code = "DYN803"
    safety = Safety.SAFE
    roots = ("functorch",)
    table = {  # noqa: RUF012
        **{f"functorch.{name}": New(f"torch.func.{name}", "2.0") for name in _SAME.split()},
        **{
            f"functorch.experimental.{name}": New(f"torch.func.{name}", "2.0")
            for name in "jvp jacfwd hessian functionalize replace_all_batch_norm_modules_".split()
        },
        "functorch.make_fx": New("torch.fx.experimental.proxy_tensor.make_fx", "2.0"),
    }
    explained = {  # noqa: RUF012
        "functorch.make_functional": _STATELESS,
        "functorch.make_functional_with_buffers": _STATELESS,
        "functorch.combine_state_for_ensemble": _ENSEMBLE,
    }
    before = """
import torch
from functorch import grad, vmap


def slopes(x: torch.Tensor):
    return vmap(grad(torch.sin))(x)
"""
    after = """
import torch
from torch.func import grad, vmap


def slopes(x: torch.Tensor):
    return vmap(grad(torch.sin))(x)
"""

    def change(self, node: Any, new: New, context: FileContext) -> Change:
        """`torch.func` is there with torch; another module has to be imported."""
        module = new.name.rpartition(".")[0]
        loaded = isinstance(node, ast.Name) or module == "torch.func"
        return Change(imports=() if loaded else (module,))
