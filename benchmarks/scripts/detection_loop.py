"""A small detector over images of random noise: a backbone, boxes by anchors, and a loop over the
images with the graph breaks that detection code has."""

import torch
from torch import nn

torch.manual_seed(0)


def box_iou(a, b):
    area_a = (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])
    area_b = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    size = (high - low).clamp(min=0)
    both = size[..., 0] * size[..., 1]
    return both / (area_a[:, None] + area_b[None, :] - both)


class Detector(nn.Module):
    def __init__(self, classes=4, top=24):
        super().__init__()
        self.top = top
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, 2, 1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
        )
        self.scores = nn.Conv2d(32, classes, 1)
        self.boxes = nn.Conv2d(32, 4, 1)

    def decode(self, deltas):
        side = deltas.shape[-1]
        grid = torch.arange(side, dtype=torch.float32) * 8 + 4
        y, x = torch.meshgrid(grid, grid, indexing="ij")
        centre = torch.stack([x, y], 0)
        size = deltas[:, 2:].clamp(-2, 2).exp() * 24
        middle = centre + deltas[:, :2].tanh() * 8
        return torch.cat([middle - size / 2, middle + size / 2], 1).flatten(2).transpose(1, 2)

    def suppress(self, boxes, scores):
        order = scores.argsort(descending=True)[: self.top]
        boxes = boxes[order]
        overlap = box_iou(boxes, boxes)
        keep = torch.ones(len(order), dtype=torch.bool)
        for i in range(len(order)):
            if keep[i].item():
                later = torch.arange(len(order)) > i
                keep = keep & ~((overlap[i] > 0.3) & later)
        return order[keep]

    def forward(self, images):
        features = self.backbone(images)
        scores = self.scores(features).flatten(2).transpose(1, 2).sigmoid()
        boxes = self.decode(self.boxes(features))
        results = []
        for image in range(images.shape[0]):
            best, label = scores[image].max(-1)
            sure = best > 0.5
            if sure.sum().item() == 0:
                results.append((boxes[image][:0], best[:0], label[:0]))
                continue
            kept = self.suppress(boxes[image][sure], best[sure])
            results.append((boxes[image][sure][kept], best[sure][kept], label[sure][kept]))
        return results


def main(steps=60):
    model = Detector().eval()
    found = 0
    with torch.no_grad():
        for _ in range(steps):
            images = torch.randn(4, 3, 96, 96)
            for boxes, _, _ in model(images):
                found += len(boxes)
    print("boxes", found)


if __name__ == "__main__":
    main()
