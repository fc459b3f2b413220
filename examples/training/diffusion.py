"""A toy diffusion model on a two-dimensional ring: training, then sampling."""

import math

import torch
from torch import nn

torch.manual_seed(0)
T = 50
beta = torch.linspace(1e-4, 0.05, T)
alpha_bar = torch.cumprod(1 - beta, 0)


class Denoiser(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.frequencies = torch.exp(-math.log(1000.0) * torch.arange(16) / 16)
        self.net = nn.Sequential(
            nn.Linear(2 + 32, width),
            nn.SiLU(),
            nn.Linear(width, width),
            nn.SiLU(),
            nn.Linear(width, 2),
        )

    def forward(self, x, t):
        angle = t[:, None].float() * self.frequencies
        return self.net(torch.cat([x, angle.sin(), angle.cos()], 1))


model = Denoiser()
ema = {k: v.clone() for k, v in model.state_dict().items()}
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
for step in range(60):
    angle = torch.rand(128) * 2 * math.pi
    x0 = torch.stack([angle.cos(), angle.sin()], 1)
    t = torch.randint(0, T, (128,))
    noise = torch.randn_like(x0)
    a = alpha_bar[t][:, None]
    predicted = model(a.sqrt() * x0 + (1 - a).sqrt() * noise, t)
    loss = ((predicted - noise) ** 2).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for k, v in model.state_dict().items():
            ema[k].lerp_(v, 0.05)
    if step % 10 == 9:
        print(step, f"{loss.item():.4f}")
model.load_state_dict(ema)
model.eval()
with torch.no_grad():
    x = torch.randn(64, 2)
    for t in reversed(range(T)):
        eps = model(x, torch.full((64,), t))
        x = (x - beta[t] / (1 - alpha_bar[t]).sqrt() * eps) / (1 - beta[t]).sqrt()
        if t > 0:
            x += beta[t].sqrt() * torch.randn_like(x)
    print(f"radius {x.norm(dim=1).mean():.3f}")
