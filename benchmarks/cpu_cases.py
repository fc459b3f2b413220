"""What `benchmarks/cpu.py` times: kernels where fusion, memory order or vector code decide, and
tiny models, forward and training."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


@dataclasses.dataclass(frozen=True)
class Case:
    """`make()` gives (function or module, inputs). train: the step calls backward on the sum of the
    result, or on the result if it is one number."""

    make: Callable[[], tuple[Any, tuple[torch.Tensor, ...]]]
    train: bool = False


def _inputs(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    return tuple(torch.randn(shape, dtype=dtype) for shape in shapes)


def transposed_add() -> Any:
    return (lambda a, b: a + b.t()), _inputs((2048, 2048), (2048, 2048))


def upsample_nearest() -> Any:
    return (lambda x: F.interpolate(x, scale_factor=2, mode="nearest") + 1), _inputs(
        (8, 32, 64, 64)
    )


def upsample_bilinear() -> Any:
    return (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False) * 2
    ), _inputs((8, 32, 64, 64))


def to_channels_last() -> Any:
    return (lambda x: x.permute(0, 2, 3, 1).contiguous() + 1), _inputs((16, 64, 56, 56))


def gelu_chain(dtype: torch.dtype) -> Any:
    return (lambda x, y: F.gelu(x * 1.5 + y) * y + x), _inputs(
        (1024, 2048), (1024, 2048), dtype=dtype
    )


def swiglu(dtype: torch.dtype) -> Any:
    return (lambda x, y: F.silu(x) * y), _inputs((1024, 4096), (1024, 4096), dtype=dtype)


def group_norm_silu() -> Any:
    norm = nn.GroupNorm(32, 128)
    return (lambda x: F.silu(norm(x))), _inputs((8, 128, 32, 32))


def softmax(dtype: torch.dtype) -> Any:
    return (lambda x: torch.softmax(x, -1)), _inputs((4096, 512), dtype=dtype)


def argmax() -> Any:
    return (lambda x: x.argmax(-1)), _inputs((1024, 4096))


def layer_norm() -> Any:
    return nn.LayerNorm(768), _inputs((4096, 768))


def rms_norm() -> Any:
    return nn.RMSNorm(768), _inputs((4096, 768))


def batch_norm() -> Any:
    model = nn.Sequential(nn.BatchNorm2d(64), nn.ReLU())
    (x,) = _inputs((16, 64, 32, 32))
    return model, (x.contiguous(memory_format=torch.channels_last),)


def column_sum() -> Any:
    return (lambda x: (x * x).sum(0)), _inputs((8192, 512))


def full_sum() -> Any:
    return (lambda x: (x * x).sum()), _inputs((4096, 1024))


def cross_entropy() -> Any:
    return F.cross_entropy, (torch.randn(512, 8192), torch.randint(8192, (512,)))


def bert() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=1024,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return _Logits(BertForMaskedLM(config)), (torch.randint(1024, (8, 64)),)


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=384,
        use_cache=False,
    )
    return _Logits(LlamaForCausalLM(config)), (torch.randint(1024, (8, 64)),)


class _Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(ids).logits
        return logits


class Block(nn.Module):
    """The basic block of a ResNet."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.short = (
            nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )
            if stride != 1 or inside != outside
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(made + self.short(x))


def resnet() -> Any:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Block(16, 16, 1),
        Block(16, 32, 2),
        Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    return model, (torch.randn(16, 3, 32, 32),)


class Vit(nn.Module):
    """Patches, a transformer encoder, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 128, 4, 4)
        self.place = nn.Parameter(torch.zeros(1, 64, 128))
        layer = nn.TransformerEncoderLayer(
            128, 4, 512, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.place
        logits: torch.Tensor = self.head(self.layers(tokens).mean(1))
        return logits


def vit() -> Any:
    return Vit(), (torch.randn(8, 3, 32, 32),)


HALF = torch.bfloat16
FLOAT = torch.float32
CASES: dict[str, Case] = {
    "transposed add": Case(transposed_add),
    "NCHW to NHWC + 1": Case(to_channels_last),
    "upsample nearest": Case(upsample_nearest),
    "upsample bilinear": Case(upsample_bilinear),
    "GELU chain": Case(lambda: gelu_chain(FLOAT)),
    "GELU chain bf16": Case(lambda: gelu_chain(HALF)),
    "SwiGLU bf16": Case(lambda: swiglu(HALF)),
    "GroupNorm + SiLU": Case(group_norm_silu),
    "softmax bf16": Case(lambda: softmax(HALF)),
    "argmax": Case(argmax),
    "LayerNorm": Case(layer_norm),
    "LayerNorm training": Case(layer_norm, train=True),
    "RMSNorm training": Case(rms_norm, train=True),
    "BatchNorm + ReLU training": Case(batch_norm, train=True),
    "column sum": Case(column_sum),
    "full sum": Case(full_sum),
    "cross entropy training": Case(cross_entropy, train=True),
    "BERT": Case(bert),
    "BERT training": Case(bert, train=True),
    "Llama": Case(llama),
    "Llama training": Case(llama, train=True),
    "ResNet": Case(resnet),
    "ResNet training": Case(resnet, train=True),
    "ViT": Case(vit),
    "ViT training": Case(vit, train=True),
}
