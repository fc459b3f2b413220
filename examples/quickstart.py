"""compile, explain and config in one page: `python examples/quickstart.py`."""

import dynfix
import torch
from torch import nn


@dynfix.compile
def gelu_chain(x):
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.LayerNorm(32))
        self.head = nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.body(x)).log_softmax(-1)


def broken(x):
    y = x.sin()
    if y.sum().item() > 0:  # the sides differ in shape: the branch needs the value, the graph ends
        return y * 2
    return y.sum()


def main():
    torch.manual_seed(0)
    x = torch.randn(8, 16)
    torch.testing.assert_close(gelu_chain(x), nn.functional.gelu(x, approximate="tanh"))

    model = Classifier()
    compiled = dynfix.compile(model)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), model(x))
    print("module:", type(compiled).__name__, list(compiled.state_dict())[:2])

    print(dynfix.explain(broken)(x))

    with dynfix.config.patch(
        backend="eager"
    ):  # capture alone, to tell a capture problem from a kernel problem
        torch.testing.assert_close(dynfix.compile(model)(x), model(x))

    try:
        dynfix.compile(broken, fullgraph=True)(x)
    except dynfix.GraphBreakError as error:
        print("fullgraph:", error)


if __name__ == "__main__":
    main()
