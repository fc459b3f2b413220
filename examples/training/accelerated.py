"""A classifier trained with accelerate: prepare, accumulate, clip, gather."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

set_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
g = torch.Generator().manual_seed(0)
x = torch.randint(1, 200, (640, 24), generator=g)
y = (x[:, :4].sum(1) > 400).long()
model = nn.Sequential(
    nn.Embedding(200, 48),
    nn.Flatten(),
    nn.Linear(48 * 24, 96),
    nn.GELU(),
    nn.LayerNorm(96),
    nn.Linear(96, 2),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
loader = DataLoader(TensorDataset(x[:512], y[:512]), batch_size=32, shuffle=True)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 60)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
for epoch in range(4):
    model.train()
    total = 0.0
    for ids, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(ids), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        total += loss.item()
    model.eval()
    with torch.no_grad():
        right = (model(x[512:]).argmax(-1) == y[512:]).sum().item()
    accelerator.print(f"epoch {epoch} loss {total / len(loader):.4f} right {right}")
