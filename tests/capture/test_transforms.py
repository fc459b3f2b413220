"""`torch.func` in captured code: the function that is transformed is Python as any other, and the
call is part of the graph."""

import dynfix
import pytest
import torch
from helpers import Case, X, Y, one_graph, recordings, same, tensor
from torch.autograd import forward_ad
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)

M = torch.arange(9.0).view(3, 3) / 4
N = M.flip(0) - 1
GRAD = M.clone().requires_grad_()
TALL = torch.linspace(-1, 2, 12).view(4, 3)
CLOSE = (1e-5, 1e-6)
W = torch.eye(3) * 2 + 0.5


def scaled(x):
    return vmap(lambda row: row * row.sum())(x)


def dims(x):
    return vmap(lambda a, b: (a * b.sum(), a + 1), in_dims=(1, None), out_dims=(1, 0))(x, x[0])


def nested(x):
    return vmap(vmap(lambda a, b: a * b + 1, in_dims=(0, None)))(x, x[:, 0])


def of_dicts(x):
    return vmap(lambda d: {"s": d["a"].sum(), "p": d["b"] * 2})({"a": x, "b": x * 2})


def around(x):
    w = x.t() @ x
    return vmap(lambda row: (w @ row).relu() + W[0])(x)


def in_chunks(x):
    return vmap(lambda row: row.softmax(0) * row.shape[0], chunk_size=2)(x)


def different_numbers(x):
    return vmap(lambda row: row + torch.rand(3), randomness="different")(x)


def same_numbers(x):
    return vmap(lambda row: torch.dropout(row, 0.5, True), randomness="same")(x)


def gradient(x):
    return grad(lambda t: (t.sin() * W).sum())(x)


def second(x):
    return grad(grad(lambda t: (t**3).sum()))(x.sum())


def with_value(x):
    return grad_and_value(lambda t, k: (((t * k) ** 2).sum(), {"y": t * 2}), has_aux=True)(x, 2.0)


def per_sample(x):
    def loss(w, row):
        return ((w @ row) ** 2).sum()

    return vmap(grad(loss), in_dims=(None, 0))(W, x)


def backwards(x):
    return jacrev(lambda t: t.sin() @ W)(x[0])


def pulled(x):
    out, pull = vjp(lambda t: t.sin(), x[0])
    return out, pull(torch.ones(3))[0], vmap(pull)(torch.eye(3))[0]


def inner_writes(x):
    def body(row):
        made = row * 2
        return made * row.detach()

    return grad(lambda t: vmap(body)(t).sum())(x)


REVERSE = (
    scaled,
    dims,
    nested,
    of_dicts,
    around,
    in_chunks,
    different_numbers,
    same_numbers,
    gradient,
    second,
    with_value,
    per_sample,
    backwards,
    pulled,
    inner_writes,
)


@pytest.mark.parametrize("program", REVERSE, ids=lambda program: program.__name__)
def test_a_transform_is_part_of_the_graph(program):
    steps = ((M,), (N,), (GRAD,), (N,), (TALL,), (TALL + 1,))
    one_graph(same(lambda: program, *steps, backend="eager", tolerance=CLOSE))


@pytest.mark.parametrize("program", [nested, per_sample, same_numbers, pulled])
def test_a_transform_is_compiled(program):
    one_graph(
        same(lambda: program, (M,), (N,), (GRAD,), (GRAD,), backend="native", tolerance=CLOSE)
    )


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_forward_mode(backend):
    def program(x):
        pushed = jvp(grad(lambda t: (t**3).sum()), (x,), (torch.ones_like(x),))[1]
        return jacfwd(lambda t: t.sin() * 2)(x[0]), vmap(hessian(lambda t: (t**4).sum()))(x), pushed

    one_graph(same(lambda: program, (M,), (N,), (M,), backend=backend, tolerance=CLOSE))


def test_a_gradient_through_forward_mode_is_eagers():
    def program(x):
        return vmap(hessian(lambda t: (t**4).sum()))(x)

    same(lambda: program, (GRAD,), (GRAD,), (GRAD,), backend="native", tolerance=CLOSE)


def test_what_the_function_reads_is_guarded():
    def make():
        state = {"k": 2.0}

        def program(x):
            return vmap(lambda row: row * state["k"])(x), grad(lambda t: (t * state["k"]).sum())(x)

        return Case(fn=program, state=state)

    change = lambda case: case.state.update(k=3.0)  # noqa: E731
    same(make, (M,), (N,), change, (M,), (N,), (M,))


def test_what_the_function_does_is_done_once_a_call():
    def make():
        seen = []

        def program(x):
            def body(row):
                seen.append(len(seen))
                print("mapped")
                return row * 2

            return vmap(body, chunk_size=2)(x)

        return Case(fn=program, watch=lambda: seen)

    same(make, (M,), (N,), (M,))


def test_a_mapped_function_from_outside():
    mapped = vmap(lambda row: row * 2 + 1, in_dims=1)
    one_graph(same(lambda: lambda x: mapped(x), (M,), (N,), (M,)))


def test_what_eager_refuses_is_refused():
    def branches(x):
        return vmap(lambda row: row if row.sum() > 0 else -row)(x)

    def draws(x):
        return vmap(lambda row: row + torch.rand(3))(x)

    for program in (branches, draws):
        same(lambda program=program: program, (M,), (N,), (M,))


def test_a_value_read_inside_ends_the_recording():
    def program(x):
        return grad(lambda t: t.sum() if t.sum() > 0 else (t * t).sum())(x)

    same(lambda: program, (M,), (-M,), (N,))


def test_an_argument_that_is_written():
    def program(x):
        def body(row):
            row.add_(1)
            return row * 2

        y = x.clone()
        return vmap(body)(y), y

    same(lambda: program, (M,), (N,), (M,))


def test_the_second_result_of_a_vjp_may_leave():
    def program(x):
        return vjp(lambda t: t.sin(), x)[1]

    compiled = dynfix.compile(program, backend="eager")
    for x in (X, Y, X):
        assert torch.equal(compiled(x)(torch.ones_like(x))[0], x.cos())


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.lin = torch.nn.Linear(3, 3)
        self.k = 1.0

    def forward(self, x):
        return self.lin(x).relu() * self.k


class TestFunctionalCall:
    def test_other_parameters(self):
        def make():
            net = Net()

            def program(x, k):
                given = {name: p.detach() * k for name, p in net.named_parameters()}
                return functional_call(net, given, (x,)), net(x), net.lin.weight

            return Case(fn=program, net=net)

        change = lambda case: setattr(case.net, "k", 2.0)  # noqa: E731
        one_graph(same(make, (M, 1), (N, 1), (M, 2), change, (M, 1), (N, 2), backend="eager"))

    def test_gradients_of_each_row(self):
        def make():
            net = Net()

            def loss(parameters, row):
                return functional_call(net, parameters, (row,)).square().sum()

            def program(x):
                given = {name: p.detach() for name, p in net.named_parameters()}
                return vmap(grad(loss), in_dims=(None, 0))(given, x)

            return program

        one_graph(same(make, (M,), (N,), (M,), backend="native", tolerance=CLOSE))

    def test_a_buffer_that_the_module_stores(self):
        class Counts(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("n", torch.zeros(()))

            def forward(self, x):
                self.n = self.n + 1
                return x * self.n

        def make():
            net, given = Counts(), {"n": torch.ones(())}

            def program(x):
                return functional_call(net, given, (x,)), functional_call(net, {}, (x,))

            return Case(fn=program, watch=lambda: (given, net.n))

        same(make, (M,), (N,), (M,), (N,))


def test_a_function_that_torch_calls_is_seen():
    def make():
        state = {"k": 2.0}

        def program(x):
            distance = lambda a, b: (a - b).abs().sum(-1) * state["k"]  # noqa: E731
            loss = torch.nn.functional.triplet_margin_with_distance_loss
            return loss(x, x + 1, x - 2, distance_function=distance), torch.autograd.functional.vjp(
                lambda t: t * state["k"], x, torch.ones_like(x)
            )

        return Case(fn=program, state=state)

    change = lambda case: case.state.update(k=3.0)  # noqa: E731
    same(make, (M,), (N,), change, (M,), (N,))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_masks_indexed_by_tensors(backend):
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    def program(kept, window):
        def mask(b, q, k):
            return kept[b, k] & (k <= q) & (k > q - window)

        over = torch.arange(kept.shape[1])
        for dims in ((None, None, 0), (None, 0, None), (0, None, None)):
            mask = vmap(mask, in_dims=dims)
        with TransformGetItemToIndex():
            return mask(torch.arange(kept.shape[0]), over, over)

    def kept(length):
        return torch.arange(2 * length).view(2, length) % 3 > 0

    fn = same(lambda: program, *((kept(n), 3) for n in (5, 5, 6, 8, 9)), backend=backend)
    assert len(recordings(fn)) == 2


def test_a_closure_that_torch_makes_is_made_anew():
    def program(x, k):
        return vmap(lambda row: row * k)

    compiled = dynfix.compile(program, backend="eager")
    for k in (2, 3, 2):
        assert torch.equal(compiled(X, k)(tensor(1, 2)), tensor(1, 2) * k)


def test_modules_are_made_where_dynamo_has_been_at_work():
    torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.rand(2, 2))
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Tanh())
    one_graph(same(lambda: lambda x: net[:2](x), (M,), (N,), (M,), backend="eager"))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_scan_with_a_function_of_the_users_is_captured(backend):
    from torch._higher_order_ops.associative_scan import associative_scan

    def combine(left, right):
        return left[0] * right[0], right[0] * left[1] + right[1]

    def body(x):
        return associative_scan(combine, (x.sigmoid(), x * 2), dim=0, combine_mode="generic")[1]

    steps = [(torch.randn(n, 3).requires_grad_(),) for n in (6, 6, 6)]
    one_graph(same(lambda: body, *steps, backend=backend, tolerance=(1e-5, 1e-6)))


@pytest.mark.parametrize("program", [torch.Tensor.acos_, lambda row: row.clone().mul_(2)])
def test_a_mapped_write(program):
    """What torch's own tensors of a transform refuse to tell is not asked of them."""
    same(lambda: lambda x: (vmap(program)(x), x), (M.clone(),), (N.clone(),))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_around_a_compiled_call_tangents_go_along(backend):
    def program(x):
        return x.sin() * x

    compiled = dynfix.compile(program, backend=backend)
    for _ in range(3):
        x, along = torch.randn(3), torch.randn(3)
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, along)
            found, wanted = (forward_ad.unpack_dual(fn(dual)) for fn in (compiled, program))
            torch.testing.assert_close(found.tangent, wanted.tangent)
        found, wanted = (torch.func.jvp(fn, (x,), (along,)) for fn in (compiled, program))
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(torch.vmap(compiled)(x), program(x))
        compiled(x)
    assert len(recordings(compiled)) == 1


def writes_an_input(x):
    def body(row):
        row.add_(1)
        return row * 2

    return vmap(body)(x), x.sum()


def writes_what_was_made(x):
    made = x.sin()
    tail = made[1:]

    def body(row, other):
        row[0] = 5.0
        row.mul_(other)
        return row.sum()

    return vmap(body)(tail, x[1:]), made, tail


def writes_in_two_mapped_functions(x):
    y = x * 1

    def inner(value):
        value.mul_(2)
        return value + 1

    return vmap(vmap(inner))(y), vmap(inner, in_dims=1, out_dims=1)(y), y


def writes_in_chunks(x):
    y = x * 1
    return vmap(lambda row: row.sub_(1) * 2, chunk_size=2)(y), y


def writes_around(x):
    kept = torch.zeros(3)

    def body(row):
        kept.add_(1)
        return row + kept

    return vmap(body)(x), kept


WRITING = (
    writes_an_input,
    writes_what_was_made,
    writes_in_two_mapped_functions,
    writes_in_chunks,
    writes_around,
)


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", WRITING, ids=lambda program: program.__name__)
def test_a_mapped_function_writes(program, backend):
    steps = ((M,), (N,), (M,), (TALL,), (TALL + 1,))
    one_graph(same(lambda: program, *steps, backend=backend, tolerance=CLOSE))


def test_a_mapped_function_writes_a_history():
    same(lambda: writes_what_was_made, (GRAD,), (GRAD,), (GRAD,), tolerance=CLOSE)


def test_a_mapped_function_writes_behind_a_break():
    def program(x):
        made = x.sin()
        tail = made[1:]
        print(made.sum().item() > 0)
        mapped = vmap(lambda row: row.mul_(2))(tail)
        return mapped if made.sum() > 0 else mapped - 1, made, tail

    same(lambda: program, (M,), (N,), (M,), (-N,), (-M,), tolerance=CLOSE)


def test_a_function_that_is_differentiated_writes():
    """Eager refuses to write what is differentiated from outside of the gradient."""

    def make():
        kept = torch.zeros(3)

        def program(x):
            def loss(t):
                kept.add_(t.detach())
                return (t * kept).sum()

            try:
                return grad(loss)(x)
            except RuntimeError as error:
                return x, str(error)[:20]

        return Case(fn=program, watch=lambda: kept)

    same(make, (M[0],), (N[0],), (M[0],), tolerance=CLOSE)
