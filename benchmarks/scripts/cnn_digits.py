"""PyTorch's digits example, on synthetic digits; --epochs for longer runs."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, 1), nn.Conv2d(32, 64, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = torch.flatten(self.dropout1(F.max_pool2d(x, 2)), 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


def train(model, loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        output = model(data)
        loss = F.nll_loss(output, target)
        loss.backward()
        optimizer.step()
        if batch_idx % 10 == 0:
            print(f"epoch {epoch} batch {batch_idx} loss {loss.item():.4f}")


def test(model, data, target):
    model.eval()
    with torch.no_grad():
        output = model(data)
        right = output.argmax(1).eq(target).sum().item()
    print(f"test loss {F.nll_loss(output, target).item():.4f}, {right} of {len(target)} right")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    shapes, labels = torch.randn(10, 1, 28, 28), torch.randint(0, 10, (1408,))
    images = shapes[labels] + torch.randn(1408, 1, 28, 28)
    images, labels = images.to(arguments.device), labels.to(arguments.device)
    model = Net().to(arguments.device)
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, arguments.epochs + 1):
        loader = list(zip(images[:1280].split(64), labels[:1280].split(64), strict=True))
        train(model, loader, optimizer, epoch)
        test(model, images[1280:], labels[1280:])
        scheduler.step()


if __name__ == "__main__":
    main()
