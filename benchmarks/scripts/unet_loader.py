"""Segmenting circles with a small UNet: loader processes, gradient accumulation, a schedule by
updates, and a checkpoint."""

import math
import os
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

ACCUMULATE, EPOCHS = 2, 3


class Circles(Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        y, x, r = torch.rand(3, generator=g) * torch.tensor([48, 48, 12]) + torch.tensor([8, 8, 4])
        grid = torch.arange(64.0)
        mask = ((grid[:, None] - y) ** 2 + (grid[None] - x) ** 2 < r**2).float()
        return (mask + 0.4 * torch.randn(64, 64, generator=g))[None], mask[None]


def double(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
        nn.Conv2d(o, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, base=8):
        super().__init__()
        self.inc = double(1, base)
        self.down1, self.down2 = double(base, 2 * base), double(2 * base, 4 * base)
        self.up1 = nn.ConvTranspose2d(4 * base, 2 * base, 2, stride=2)
        self.conv1 = double(4 * base, 2 * base)
        self.up2 = nn.ConvTranspose2d(2 * base, base, 2, stride=2)
        self.conv2 = double(2 * base, base)
        self.out = nn.Conv2d(base, 1, 1)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(F.max_pool2d(x1, 2))
        x3 = self.down2(F.max_pool2d(x2, 2))
        y = self.conv1(torch.cat([x2, self.up1(x3)], dim=1))
        return self.out(self.conv2(torch.cat([x1, self.up2(y)], dim=1)))


def dice_loss(logits, target):
    p = logits.sigmoid()
    inter = (p * target).sum((1, 2, 3))
    return (1 - (2 * inter + 1) / (p.sum((1, 2, 3)) + target.sum((1, 2, 3)) + 1)).mean()


def main():
    torch.manual_seed(0)
    loader = DataLoader(Circles(256), batch_size=8, num_workers=2, shuffle=True)
    model = UNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    updates = EPOCHS * len(loader) // ACCUMULATE
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda n: 0.5 * (1 + math.cos(math.pi * n / updates))
    )
    for epoch in range(EPOCHS):
        running = 0.0
        for i, (image, mask) in enumerate(loader):
            logits = model(image)
            loss = F.binary_cross_entropy_with_logits(logits, mask) + dice_loss(logits, mask)
            (loss / ACCUMULATE).backward()
            if (i + 1) % ACCUMULATE == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            running += loss.item()
        print(f"epoch {epoch} loss {running / len(loader):.4f} lr {scheduler.get_last_lr()[0]:.6f}")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "unet.pt")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        again = UNet()
        again.load_state_dict(torch.load(path)["model"])
    model.eval(), again.eval()
    image, mask = Circles(4)[2]
    with torch.no_grad():
        print("same", torch.equal(model(image[None]), again(image[None])))


if __name__ == "__main__":
    main()
