"""Gradients that the user's own code takes: autograd.Function, transforms, hooks, training steps."""

import dynfix
import pytest
import torch
from helpers import Case, X, Y, one_graph, same, tensor

THREE = [(X,), (Y,), (X,)]


class Square(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x, k=1.0):
        Square.calls += 1
        ctx.save_for_backward(x)
        ctx.k = k
        return x * x * k

    @staticmethod
    def backward(ctx, g):
        return g * 3 * ctx.saved_tensors[0] * ctx.k, None


def test_autograd_function():
    def make():
        Square.calls = 0
        state = Case(k=2.0)
        return Case(fn=lambda x: Square.apply(x * 2, state.k) + Square.apply(x), s=state)

    values = [(tensor(1, 2, 3, grad=True),), (tensor(3, 2, 1, grad=True),)]
    same(make, *values, lambda c: setattr(c.s, "k", 5.0), *values)


def test_autograd_function_that_reads_state():
    state = Case(k=2.0)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            print("forward", state.k)
            return x * state.k

        @staticmethod
        def backward(ctx, g):
            return g * 7

    def make():
        state.k = 2.0
        return Case(fn=lambda x: Scaled.apply(x) + 1)

    values = [(tensor(1, 2, 3, grad=True),), (X,)]
    same(make, *values, *values, lambda c: setattr(state, "k", 5.0), *values)


@pytest.mark.parametrize(
    "kind",
    [
        "vmap",
        "vmap made outside",
        "grad",
        "grad outside",
        "jacrev",
        "hessian",
        "vjp",
        "jvp",
        "cond",
        "checkpoint",
        "while_loop",
        "functional_call",
    ],
)
def test_transforms_by_the_user(kind):
    def make():
        s = Case(k=2.0)

        def inner(v):
            return (v * v * s.k).sum()

        def body(v):
            return v * s.k

        outside_vmap, outside_grad = torch.vmap(body), torch.func.grad(inner)
        lin = torch.nn.Linear(3, 3)
        torch.nn.init.ones_(lin.weight), torch.nn.init.zeros_(lin.bias)

        class Net(torch.nn.Module):
            def forward(self, x):
                return lin(x) * s.k

        net = Net()
        bodies = {
            "vmap": lambda x: torch.vmap(body)(x),
            "vmap made outside": lambda x: outside_vmap(x) + 1,
            "grad": lambda x: torch.func.grad(inner)(x),
            "grad outside": lambda x: outside_grad(x) * 2,
            "jacrev": lambda x: torch.func.jacrev(body)(x),
            "hessian": lambda x: torch.func.hessian(inner)(x),
            "vjp": lambda x: torch.func.vjp(body, x)[1](x),
            "jvp": lambda x: torch.func.jvp(body, (x,), (x,)),
            "cond": lambda x: torch.cond(x.sum() > 0, lambda v: v + s.k, lambda v: v - s.k, (x,)),
            "checkpoint": lambda x: torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False),
            "while_loop": lambda x: torch._higher_order_ops.while_loop(
                lambda v: v.sum() < 100, lambda v: (v + 10,), (x,)
            )[0].clone(),  # torch's is a slice of what all turns gave
            "functional_call": lambda x: torch.func.functional_call(
                net, dict(net.named_parameters()), (x,)
            ),
        }
        return Case(fn=bodies[kind], s=s)

    same(
        make,
        (X,),
        (Y,),
        (X,),
        lambda c: setattr(c.s, "k", 3.0),
        (X,),
        (Y,),
        (tensor(1, 2, 3, grad=True),),
    )


def test_user_hooks_and_backward_inside():
    def make():
        seen = []

        def f(x):
            y = x * 2
            y.register_hook(lambda g: seen.append(g.sum().item()))
            return (y * y).sum()

        return Case(fn=f, watch=lambda: seen)

    same(make, *[(tensor(1, 2, 3, grad=True),)] * 3)

    def step():
        w = tensor(1, 2, 3, grad=True)

        def f(x):
            loss = (w * x).sum()
            loss.backward()
            with torch.no_grad():
                w.sub_(0.1 * w.grad)
                w.grad.zero_()
            return loss.detach()

        return Case(fn=f, watch=lambda: w)

    same(step, *THREE)


def test_training_step_with_optimizer():
    def make():
        torch.manual_seed(0)
        net = torch.nn.Linear(3, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step(x):
            opt.zero_grad()
            loss = net(x).pow(2).mean()
            loss.backward()
            opt.step()
            return loss.item()

        return Case(fn=step, watch=lambda: list(net.parameters()))

    same(make, *THREE)


def scaled_by_helper(x):
    return x * scaled_by_helper.factor


class ReadsItsClass(torch.autograd.Function):
    factor = 2.0

    @staticmethod
    def forward(ctx, x, name):
        ctx.name, ctx.save_for_backward = name, None
        return scaled_by_helper(x) * ReadsItsClass.factor + scaled_by_helper.factor

    @staticmethod
    def backward(ctx, g):
        return g * ReadsItsClass.factor * len(ctx.name), None


def test_autograd_function_that_reads_attributes_of_functions_and_its_own():
    def make():
        scaled_by_helper.factor, ReadsItsClass.factor = 2.0, 2.0
        return lambda x, name: ReadsItsClass.apply(x, name)

    def change(helper, own):
        def step(_):
            scaled_by_helper.factor, ReadsItsClass.factor = helper, own

        return step

    first, second = (tensor(1, 2, 3, grad=True), "a"), (tensor(3, 2, 1, grad=True), "bb")
    fn = same(make, first, second, change(3.0, 2.0), first, change(3.0, 4.0), second, first)
    one_graph(fn)


class _Numbers(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, n):
        ctx.n = n
        return x * n, None, x.shape[0], n + 1, "text"

    @staticmethod
    def backward(ctx, grad, *_):
        return grad * ctx.n, None


def test_autograd_function_that_gives_numbers_too():
    def program(x, n):
        y, none, size, more, text = _Numbers.apply(x * 2, n)
        return y * size, none, more, text, size

    compiled = dynfix.compile(program, fullgraph=True)
    for size, n in ((3, 2), (3, 3), (4, 3), (6, 3), (6, 5)):
        found = []
        for function in (program, compiled):
            x = torch.linspace(0, 1, size, requires_grad=True)
            result = function(x, n)
            result[0].sum().backward()
            found.append((*result, x.grad))
        (expected, *others), (got, *rest) = found
        torch.testing.assert_close((got, rest[-1]), (expected, others[-1]))
        assert rest[:-1] == others[:-1]
