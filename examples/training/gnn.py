"""A graph network on three communities: index_add, and edges that change in number."""

import torch
from torch import nn

torch.manual_seed(0)
n = 300
community = torch.arange(n) % 3
p = torch.where(community[:, None] == community[None], 0.06, 0.005)
edges = (torch.rand(n, n) < p).triu(1).nonzero().t()
edges = torch.cat([edges, edges.flip(0)], 1)
features = torch.randn(n, 16) + nn.functional.one_hot(community, 16) * 0.5


class SAGE(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.own, self.others = nn.Linear(i, o), nn.Linear(i, o, bias=False)

    def forward(self, x, edges):
        source, target = edges
        summed = torch.zeros(x.size(0), x.size(1)).index_add(0, target, x[source])
        degree = (
            torch.zeros(x.size(0)).index_add(0, target, torch.ones(source.numel())).clamp(min=1)
        )
        return self.own(x) + self.others(summed / degree[:, None])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = SAGE(16, 32), SAGE(32, 3)

    def forward(self, x, edges):
        return self.two(torch.relu(self.one(x, edges)), edges)


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=0.01, weight_decay=5e-4)
train = torch.rand(n) < 0.3
for epoch in range(30):
    kept = edges[:, torch.rand(edges.size(1)) < 0.8]
    net.train()
    out = net(features, kept)
    loss = nn.functional.cross_entropy(out[train], community[train])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if epoch % 5 == 4:
        net.eval()
        with torch.no_grad():
            right = (net(features, edges).argmax(1) == community)[~train].float().mean()
        print(epoch, f"{loss.item():.4f} {right.item():.3f}")
