"""Forward hooks that every module has (`register_module_forward_hook`) are recorded."""

import dynfix
import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules

CALLED = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.two(torch.relu(self.one(x)))


def after(module, given, result):
    CALLED.append(type(module).__name__)
    return result + 1 if isinstance(module, nn.Linear) else None


def before(module, given):
    return (given[0] * 2,)


def named(module, given, keywords, result):
    return result * (3 if keywords else 2)


def raises(module, given, result):
    raise ValueError("a bad module")


@pytest.fixture
def hooks():
    """What is registered goes when the test is over."""
    made = []
    yield made
    for hook in made:
        hook.remove()
    modules._global_forward_hooks_with_kwargs.clear()  # torch forgets to


def check(net, call):
    for _ in range(3):
        x = torch.randn(2, 3)
        CALLED.clear()
        expected, seen = net(x), list(CALLED)
        CALLED.clear()
        torch.testing.assert_close(call(x), expected)
        assert seen == CALLED


def test_as_they_come_and_go(hooks):
    net = Net()
    call = dynfix.compile(net, fullgraph=True)
    check(net, call)
    hooks.append(modules.register_module_forward_hook(after))
    check(net, call)
    hooks.append(modules.register_module_forward_pre_hook(before))
    hooks.append(net.one.register_forward_pre_hook(before))
    check(net, call)
    hooks.append(modules.register_module_forward_hook(named, with_kwargs=True))
    check(net, call)
    for hook in hooks:
        hook.remove()
        check(net, call)


def test_another_one_in_its_place(hooks):
    net = Net()
    call = dynfix.compile(net, fullgraph=True)
    for factor in (3, 4, 5):
        hook = modules.register_module_forward_hook(lambda m, given, out, by=factor: out * by)
        hooks.append(hook)
        check(net, call)
        hook.remove()


def test_those_that_are_always_called(hooks):
    net = Net()
    call = dynfix.compile(net)
    hooks.append(modules.register_module_forward_hook(raises))
    hooks.append(modules.register_module_forward_hook(after, always_call=True))
    for _ in range(3):
        seen = []
        for each in (net, call):
            CALLED.clear()
            with pytest.raises(ValueError, match="a bad module"):
                each(torch.randn(2, 3))
            seen.append(list(CALLED))
        assert seen[0] == seen[1] and seen[0]
