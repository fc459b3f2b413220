"""The models of the GPU's benchmarks, with random weights, and the inputs of a step."""

from __future__ import annotations

from collections.abc import Callable

import torch

Made = tuple[torch.nn.Module, tuple, dict]


def _text(name: str, batch: int, length: int) -> Made:
    import transformers as t

    made = {
        "bert": lambda: t.BertForMaskedLM(t.BertConfig()),
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(use_cache=False)),
        "llama": lambda: t.LlamaForCausalLM(
            t.LlamaConfig(
                hidden_size=1024,
                intermediate_size=2816,
                num_hidden_layers=12,
                num_attention_heads=16,
                num_key_value_heads=16,
                use_cache=False,
            )
        ),
        "qwen3": lambda: t.Qwen3ForCausalLM(
            t.Qwen3Config(
                vocab_size=32000,
                hidden_size=1024,
                intermediate_size=3072,
                num_hidden_layers=12,
                num_attention_heads=16,
                num_key_value_heads=8,
                use_cache=False,
            )
        ),
        "t5": lambda: t.T5ForConditionalGeneration(t.T5Config(use_cache=False)),
    }[name]()
    vocabulary = made.config.vocab_size
    ids = torch.randint(vocabulary, (batch, length), device="cuda")
    named = {"input_ids": ids, "labels": ids}
    if name == "t5":
        named["decoder_input_ids"] = ids
    return made, (), named


def _image(name: str) -> Made:
    if name == "vit":
        import transformers as t

        x = torch.randn(32, 3, 224, 224, device="cuda")
        return t.ViTForImageClassification(t.ViTConfig()), (), {"pixel_values": x}
    if name == "mixer":
        import timm

        mixer = timm.create_model("mixer_b16_224")
        return mixer, (torch.randn(32, 3, 224, 224, device="cuda"),), {}
    import torchvision

    made = {
        "resnet50": torchvision.models.resnet50,
        "convnext": torchvision.models.convnext_tiny,
        "swin": torchvision.models.swin_t,
        "efficientnet": torchvision.models.efficientnet_b0,
        "mobilenet": torchvision.models.mobilenet_v3_large,
        "regnet": torchvision.models.regnet_y_3_2gf,
        "densenet": torchvision.models.densenet121,
    }[name]()
    return made, (torch.randn(32, 3, 224, 224, device="cuda"),), {}


def _whisper() -> Made:
    import transformers as t

    made = t.WhisperForConditionalGeneration(t.WhisperConfig(use_cache=False))
    ids = torch.randint(made.config.vocab_size, (8, 256), device="cuda")
    sound = torch.randn(8, made.config.num_mel_bins, 3000, device="cuda")
    return made, (), {"input_features": sound, "decoder_input_ids": ids, "labels": ids}


def _clip() -> Made:
    import transformers as t

    made = t.CLIPModel(t.CLIPConfig())
    ids = torch.randint(made.config.text_config.vocab_size - 1, (64, 77), device="cuda")
    images = torch.randn(64, 3, 224, 224, device="cuda")
    return made, (), {"input_ids": ids, "pixel_values": images, "return_loss": True}


MODELS: dict[str, Callable[[], Made]] = {
    "bert": lambda: _text("bert", 16, 512),
    "gpt2": lambda: _text("gpt2", 8, 512),
    "llama": lambda: _text("llama", 4, 1024),
    "t5": lambda: _text("t5", 8, 512),
    "vit": lambda: _image("vit"),
    "resnet50": lambda: _image("resnet50"),
    "convnext": lambda: _image("convnext"),
    "swin": lambda: _image("swin"),
    "efficientnet": lambda: _image("efficientnet"),
    "mixer": lambda: _image("mixer"),
    "qwen3": lambda: _text("qwen3", 4, 1024),
    "whisper": _whisper,
    "clip": _clip,
    "mobilenet": lambda: _image("mobilenet"),
    "regnet": lambda: _image("regnet"),
    "densenet": lambda: _image("densenet"),
}
