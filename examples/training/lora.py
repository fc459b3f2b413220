"""LoRA with peft on a tiny Llama of transformers."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

set_seed(0)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
)
model = get_peft_model(
    model,
    LoraConfig(
        r=4,
        lora_alpha=8,
        lora_dropout=0.05,
        target_modules=["q_proj", "v_proj"],
        task_type="CAUSAL_LM",
    ),
)
model.print_trainable_parameters()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
model.train()
for step in range(16):
    ids = (torch.arange(32)[None] * 7 + torch.randint(0, 50, (4, 1))) % 300
    loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 3 == 0:
        print(step, f"{loss.item():.4f}")
model.eval()
with torch.no_grad():
    print(
        model.merge_and_unload()
        .generate(ids[:1, :8], max_new_tokens=6, do_sample=False, pad_token_id=0)
        .tolist()
    )
