"""The fused kernels that `benchmarks.gpu` times: functions on tensors, their inputs, and the bytes
that each must move."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F


def gelu_chain(x, b):
    """Pointwise, bound by instructions: two erf an element."""
    return F.gelu(F.gelu(x + b) * 1.5) + x


def rms_norm(x, w):
    return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def exact_rms_norm(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


def add_layer_norm(x, r, w, b):
    """The sum is a result as well, as in a pre-norm transformer."""
    z = x + r
    return F.layer_norm(z, (z.shape[-1],), w, b, 1e-5), z


def masked_softmax(scores, mask):
    return torch.softmax(scores * 0.125 + mask, -1)


def swiglu(gate, up):
    return F.silu(gate) * up


@dataclasses.dataclass(frozen=True)
class Case:
    """`shapes(tiny)` gives the inputs' shapes; `moved(sizes)` counts the elements that pass through
    memory once.

    exact: what `fn` computes, without conversions, so that float64 inputs give float64 results.
    """

    fn: Callable
    shapes: Callable[[bool], list[tuple[int, ...]]]
    moved: Callable[[list[int]], int]
    exact: Callable | None = None

    @property
    def name(self) -> str:
        return self.fn.__name__

    def inputs(self, dtype: torch.dtype, device: torch.device, tiny: bool) -> list[torch.Tensor]:
        generator = torch.Generator(device).manual_seed(0)
        shapes = self.shapes(tiny)
        return [
            torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)
            for shape in shapes
        ]

    def bytes(self, inputs: list[torch.Tensor]) -> int:
        return self.moved([tensor.numel() for tensor in inputs]) * inputs[0].element_size()


def _rows(rows: int, cols: int, *more: tuple[int, ...]) -> Callable[[bool], list[tuple[int, ...]]]:
    def shapes(tiny: bool) -> list[tuple[int, ...]]:
        small = (6, 40) if tiny else (rows, cols)
        return [small, *(tuple(small[d] for d in which) for which in more)]

    return shapes


def _scores(tiny: bool) -> list[tuple[int, ...]]:
    return [(2, 2, 5, 24), (2, 1, 1, 24)] if tiny else [(32, 12, 512, 512), (32, 1, 1, 512)]


CASES = {
    case.name: case
    for case in (
        Case(gelu_chain, _rows(16384, 4096, (1,)), lambda n: 2 * n[0] + n[1]),
        Case(rms_norm, _rows(16384, 4096, (1,)), lambda n: 2 * n[0] + n[1], exact_rms_norm),
        Case(add_layer_norm, _rows(16384, 4096, (0, 1), (1,), (1,)), lambda n: 4 * n[0] + 2 * n[2]),
        Case(masked_softmax, _scores, lambda n: 2 * n[0] + n[1]),
        Case(swiglu, _rows(16384, 11008 // 2, (0, 1)), lambda n: 3 * n[0]),
    )
}


def bert(attention: str, tiny: bool, dtype: torch.dtype, device: torch.device):
    """A BertModel of BERT-base's size with random weights, and its inputs: ids, attention mask.

    attention: "sdpa" calls the library's kernel, "eager" spells it out as products and a softmax.
    """
    from transformers import BertConfig, BertModel

    small = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "vocab_size": 100,
    }
    config = BertConfig(**(small if tiny else {}), attn_implementation=attention)
    torch.manual_seed(0)
    model = BertModel(config, add_pooling_layer=False).to(device=device, dtype=dtype).eval()
    batch, length = (2, 8) if tiny else (32, 512)
    ids = torch.randint(0, config.vocab_size, (batch, length), device=device)
    mask = torch.ones_like(ids)
    mask[::2, length - length // 4 :] = 0
    return model, ids, mask


class LastHidden(torch.nn.Module):
    """The model's last hidden state as a plain tensor."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state
