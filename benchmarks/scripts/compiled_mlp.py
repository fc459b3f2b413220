"""A script with torch.compile in it: a tabular MLP and a compiled loss."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Residual(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.Linear(2 * d, d)

    def forward(self, x):
        return x + self.b(F.gelu(self.a(self.norm(x))))


model = nn.Sequential(
    nn.Linear(32, 128), *[Residual(128) for _ in range(4)], nn.LayerNorm(128), nn.Linear(128, 1)
)
compiled = torch.compile(model)


@torch.compile
def loss_fn(pred, target):
    d = (pred - target).abs()
    return torch.where(d < 1.0, 0.5 * d * d, d - 0.5).mean()


x = torch.randn(8192, 32)
y = x[:, :4].prod(1, keepdim=True) + x[:, 5:6].sin()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(5):
    total = 0.0
    for index in torch.randperm(8192).split(128):
        loss = loss_fn(compiled(x[index]), y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / 64:.4f}")
