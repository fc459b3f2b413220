"""`torch.cond` and `torch.while_loop`: nodes of one graph, equal to eager's."""

import dynfix
import pytest
import torch
from dynfix.lowering.graph.control_flow import CompiledBody
from helpers import one_graph

linear = torch.nn.Linear(3, 3)
scale = torch.tensor([1.0, 2.0, 3.0])


def chosen(x, y):
    h = torch.cond(x.sum() > 0, lambda x, y: linear(x) + y, lambda x, y: x * y - scale, (x, y))
    return h.relu() + 1


def nested(x, y):
    def inner(x):
        return torch.cond(x.max() > 1, lambda x: x * 3, lambda x: (x * 4).clone(), (x,))

    return torch.cond(y.sum() > 0, inner, lambda x: x - scale, (x,)) * 2


def run(fn, signs):
    """Results and gradients where the first, then the other branch is taken."""
    found = []
    torch.manual_seed(0)
    for sign in signs:
        x, y = (sign * torch.rand(2, 3) for _ in range(2))
        x.requires_grad_()
        result = fn(x, y)
        given = torch.autograd.grad(result.sum(), (x, *linear.parameters()), allow_unused=True)
        found += [result, *given]
    return found


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", [chosen, nested])
def test_a_choice_is_part_of_the_graph(program, backend):
    signs = (1, -1, 1, -1)
    compiled = dynfix.compile(program, backend=backend, fullgraph=True)
    for a, b in zip(run(compiled, signs), run(program, signs), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b)
    one_graph(compiled, 1)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_loop_is_part_of_the_graph(backend):
    def program(x):
        def more(n, x):
            return x.sum() < 10

        def body(n, x):
            return n + 1, x * 0.5 + scale.relu() * 4

        n, y = torch.while_loop(more, body, (torch.tensor(0), x))
        return n * 2, y - 1

    compiled = dynfix.compile(program, backend=backend, fullgraph=True)
    for start in (0.0, 3.0, -40.0, 100.0):
        x = torch.full((3,), start)
        n, y = torch.tensor(0), x
        while y.sum() < 10:
            n, y = n + 1, y * 0.5 + scale * 4
        for a, b in zip(compiled(x), (n * 2, y - 1), strict=True):
            torch.testing.assert_close(a, b)
        assert torch.equal(x, torch.full((3,), start))
    one_graph(compiled, 1)


def test_draws_of_the_branch_that_is_taken_alone():
    def program(x):
        y = torch.cond(x.sum() > 0, lambda x: x + torch.rand(3), lambda x: x - 1, (x,))
        return y + torch.rand(3)

    def plainly(x):
        y = x + torch.rand(3) if x.sum() > 0 else x - 1
        return y + torch.rand(3)

    compiled = dynfix.compile(program, backend="eager")
    found = []
    for fn in (compiled, plainly):
        torch.manual_seed(0)
        found.append([fn(torch.full((3,), sign)) for sign in (1.0, -1.0, 1.0)])
    assert all(map(torch.equal, *found))


def test_what_is_no_tensor_is_left_to_torch():
    def program(x):
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x.sum(0), (x,))

    x = torch.ones(2, 3)
    with pytest.raises(dynfix.GraphBreakError, match="branches"):
        dynfix.compile(program, backend="eager", fullgraph=True)(x)


def test_branches_of_known_sizes_are_compiled(monkeypatch):
    ran, forward = [], CompiledBody.forward
    monkeypatch.setattr(
        CompiledBody, "forward", lambda self, *given: ran.append(self) or forward(self, *given)
    )
    compiled = dynfix.compile(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))
    for sign in (1.0, -1.0, 1.0, -1.0):
        x = torch.full((3,), sign)
        torch.testing.assert_close(compiled(x), x.sin() if sign > 0 else x.cos())
    assert len(ran) >= 3 and len(set(map(id, ran))) == 2


def sized(x):
    y = linear(x).relu()
    n = y.shape[0]

    def one(y):
        return y @ linear.weight + y.shape[0]

    return torch.cond(x.sum() > 0, one, lambda y: linear(y).view(y.size(0), 3) - n, (y,)) * 2


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_sizes_inside_of_branches_are_symbols(backend):
    compiled = dynfix.compile(sized, backend=backend, fullgraph=True)
    for rows in (2, 3, 4, 5):
        for sign in (1.0, -1.0):
            x = torch.rand(rows, 3) * sign
            x.requires_grad_()
            found = [(y, *torch.autograd.grad(y.sum(), x)) for y in (compiled(x), sized(x))]
            torch.testing.assert_close(*found)
    one_graph(compiled, 2)


def in_truth(x):
    return x * 2 if x.shape[0] > 3 else x * 3


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_branch_on_a_size_inside_of_a_branch(backend):
    compiled = dynfix.compile(
        lambda x: torch.cond(x.sum() > 0, in_truth, torch.sin, (x,)), backend=backend
    )
    for rows in (2, 3, 5, 6, 2, 7):
        x = torch.ones(rows)
        assert torch.equal(compiled(x), in_truth(x))


def cut(x):
    y = x * 2
    open(__file__).close()
    z = torch.cond(y.sum() > 0, lambda y: y + x, lambda y: (y - x).relu(), (y,))
    n, z = torch.while_loop(lambda n, z: n < 3, lambda n, z: (n + 1, z * 2), (torch.tensor(0), z))
    return z + 1, n, torch.cond(z.sum() > 0, lambda t: t["a"] * 2, lambda t: t["a"], ({"a": z},))


def test_between_graphs_a_choice_is_pythons(monkeypatch):
    """torch's own would have Dynamo trace the branches."""
    monkeypatch.setattr(torch, "compile", None)
    compiled = dynfix.compile(cut, backend="eager")
    for sign in (1.0, -1.0, 1.0, -1.0):
        x = torch.full((3,), sign)
        y = (x * 3 if sign > 0 else torch.zeros(3)) * 8
        result = compiled(x)
        assert torch.equal(result[0], y + 1) and result[1] == 3
        assert torch.equal(result[2], y * 2 if sign > 0 else y)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_structures_that_branches_take_and_give(backend):
    def program(x):
        given = ({"a": x, "b": [x + 1]},)
        y = torch.cond(
            x.sum() > 0,
            lambda each: {"p": each["a"].sin(), "q": [each["b"][0] * 3]},
            lambda each: {"p": each["a"].cos(), "q": [each["a"] * 2]},
            given,
        )
        plain = torch.ops.higher_order.cond(x[0] > 0, lambda: (x + 1,), lambda: (x - 1,), ())
        return y, torch.cond(x.sum() > 0, lambda a: [a + 1], lambda a: [a - 1], (x,)), plain

    for fullgraph in (True, False):
        compiled = dynfix.compile(program, backend=backend, fullgraph=fullgraph)
        for x in (torch.randn(3), torch.ones(3), -torch.ones(3)):
            torch.testing.assert_close(compiled(x), program(x))


def mapped(x, y):
    scale = y.sum()
    rows = torch._higher_order_ops.map(
        lambda pair, w: (pair[0] * w, pair[1] + scale), [x, y], y.mean(0)
    )
    return rows, torch._higher_order_ops.map(lambda row: row.sin(), x)


def scanned(x, y):
    def step(carry, row):
        return [carry[0] + row * y.mean(), carry[1] * 2], (carry[0] * row, row + 1)

    init = [torch.zeros(4), torch.ones(())]
    return torch._higher_order_ops.scan(step, init, x, dim=1, reverse=True)


@pytest.mark.covering
@pytest.mark.parametrize("program", [mapped, scanned])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_functions_mapped_over_rows(program, backend):
    compiled = dynfix.compile(program, backend=backend, fullgraph=True)
    for _ in range(3):
        x, y = torch.randn(4, 3), torch.randn(4, 3)
        torch.testing.assert_close(compiled(x, y), program(x, y))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_loop_whose_functions_share_tensors(backend):
    def newton(a):
        start = torch.zeros((), dtype=torch.long), torch.ones_like(a)
        return torch.while_loop(
            lambda i, x: ((x * x - a).abs().max() > 1e-4) & (i < 20),
            lambda i, x: (i + 1, 0.5 * (x + a / x)),
            start,
        )

    def twice(a):
        return torch.while_loop(
            lambda i, x, y: (i < 3) & (a.sum() < 99),
            lambda i, x, y: (i + 1, y + a, x * 2),
            (torch.tensor(0), a, a),
        )

    for program in (newton, twice):
        compiled = dynfix.compile(program, fullgraph=True, backend=backend)
        for scale in (1, 5, 30):
            a = torch.rand(3) + scale
            torch.testing.assert_close(compiled(a), _looped(program, a))


def _looped(program, a):
    """What the loop gives by Python's `while`."""

    def loop(test, body, carried):
        while test(*carried):
            carried = body(*carried)
        return carried

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "while_loop", loop)
        return program(a)
