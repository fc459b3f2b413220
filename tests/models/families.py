"""Five families of transformers, tiny, with random weights; and batches for them."""

import torch
import transformers

VOCABULARY, LENGTH, IMAGE, CLASSES = 64, 16, 32, 5


def _bert():
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            max_position_embeddings=64,
        )
    )


def _llama():
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=64,
            max_position_embeddings=64,
            attention_dropout=0.1,
        )
    )


def _gpt2():
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    ends = {"bos_token_id": 1, "eos_token_id": 1}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=VOCABULARY, **sizes, **ends)
    )


def _t5():
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=VOCABULARY, **sizes, decoder_start_token_id=0)
    )


def _vit():
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            image_size=IMAGE,
            patch_size=8,
            num_labels=CLASSES,
            hidden_dropout_prob=0.1,
            attention_probs_dropout_prob=0.1,
        )
    )


FAMILIES = {"bert": _bert, "llama": _llama, "gpt2": _gpt2, "t5": _t5, "vit": _vit}


def model(name):
    """A fresh model with the same weights every time."""
    torch.manual_seed(0)
    return FAMILIES[name]()


def batch(name, seed, padded=False, size=2, length=LENGTH):
    """Keyword arguments of one training call, of `size` sequences or images. `padded`: the last
    sequence ends early; its tail is masked and not predicted."""
    make = torch.Generator().manual_seed(seed)
    if name == "vit":
        images = torch.randn(size, 3, IMAGE, IMAGE, generator=make)
        return {"pixel_values": images, "labels": torch.randint(CLASSES, (size,), generator=make)}
    ids, labels = torch.randint(VOCABULARY, (2, size, length), generator=make)
    if name != "bert" and not padded:
        return {"input_ids": ids, "labels": labels}
    mask = torch.ones_like(ids)
    if padded:
        cut = LENGTH - 1 - seed % 5
        mask[-1, cut:], labels[-1, cut:] = 0, -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
