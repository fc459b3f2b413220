"""Forward hooks of modules that the call itself registers, and takes away again."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from helpers import Case, X, Y, one_graph, recordings, same

FOUR = [(X,), (Y,), (X,), (Y,)]


def layers():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 3))


def removed(net, x):
    seen = []
    handle = net[0].register_forward_hook(lambda module, given, result: seen.append(result))
    y = net(x.sin())
    handle.remove()
    return y * 2, seen, net(x)


def in_a_with(net, x):
    seen = []
    with net[2].register_forward_pre_hook(lambda module, given: (given[0] * 2,)):
        y = net(x)
    return y, seen, net(x)


def of_every_layer(net, x):
    seen = {}

    def keeper(name):
        def keep(module, given, result):
            seen[name] = result.detach()

        return keep

    handles = [layer.register_forward_hook(keeper(name)) for name, layer in net.named_children()]
    try:
        y = net(x)
    finally:
        for handle in handles:
            handle.remove()
    return y, seen


def before_others(net, x):
    def doubled(module, given, result):
        return result * 2

    first = net[0].register_forward_hook(lambda module, given, result: result + 1)
    second = net[0].register_forward_hook(doubled, prepend=True)
    y = net(x)
    first.remove()
    z = net(x)
    second.remove()
    return y, z


@pytest.mark.parametrize("program", [removed, in_a_with, of_every_layer, before_others])
def test_one_graph(program):
    def make():
        net = layers()
        return Case(fn=lambda x: program(net, x), net=net)

    change = lambda case: case.net[0].register_forward_hook(lambda m, g, r: r * 3)  # noqa: E731
    one_graph(same(make, *FOUR), 1)
    same(make, *FOUR, change, *FOUR)


def test_one_that_stays():
    def make():
        net = layers()

        def f(x):
            if not net[0]._forward_hooks:
                net[0].register_forward_hook(lambda module, given, result: result * 2)
            return net(x)

        return Case(fn=f, net=net)

    fn = same(make, *FOUR, lambda case: case.net[0]._forward_hooks.clear(), *FOUR)
    assert len(recordings(fn)) <= 3


def test_an_error_before_it_is_removed():
    def make():
        net = layers()

        def f(x):
            with net[0].register_forward_hook(lambda module, given, result: result * 2):
                if x.dim() > 1:
                    raise ValueError("no rows")
                y = net(x)
            return y, len(net[0]._forward_hooks)

        return f

    same(make, *FOUR, (X[None],), (X,), (Y,))


class Through:
    def __init__(self, function, *before):
        self.function, self.before = function, before

    def __call__(self, *args):
        return self.function(*self.before, *args)


@pytest.mark.parametrize("of", [torch.nn.Linear.forward, F.relu, math.sqrt])
@pytest.mark.parametrize("kind", [functools.partial, Through])
def test_what_goes_by_the_name_of_a_librarys_function_is_the_users(of, kind):
    """As accelerate has forward hooks: a partial that says it is the forward of the layer."""

    def make():
        net = torch.nn.Sequential(torch.nn.Tanh())
        seen = []
        net.watch = lambda: list(seen)

        def forward(module, x):
            seen.append(len(seen))
            return type(module).forward(module, x) * 2

        net[0].forward = functools.update_wrapper(kind(forward, net[0]), of)
        return net

    one_graph(same(make, *FOUR))
