"""Sampling from a small GPT-2 of transformers, with its cache and in turns of several prompts."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

set_seed(42)
config = GPT2Config(
    vocab_size=2000,
    n_positions=256,
    n_embd=192,
    n_layer=4,
    n_head=4,
    bos_token_id=1,
    eos_token_id=2,
)
model = GPT2LMHeadModel(config).eval()
for turn in range(4):
    prompt = torch.randint(5, 2000, (2, 12 + 3 * turn))
    mask = torch.ones_like(prompt)
    greedy = model.generate(
        prompt, attention_mask=mask, max_new_tokens=60, do_sample=False, pad_token_id=0
    )
    print("greedy", greedy[0, -8:].tolist())
    sampled = model.generate(
        prompt, attention_mask=mask, max_new_tokens=60, do_sample=True, top_k=50, top_p=0.95,
        temperature=0.8, pad_token_id=0,
    )  # fmt: skip
    print("sampled", sampled[1, -8:].tolist())
