"""Gradients where a call writes an input, keeps state, or looks behind a tensor's first element."""

import dynfix
import pytest
import torch
from helpers import same, tensor

BACKENDS = ("eager", "native")


def both(make, backend, turns=3):
    """What `make(compile)` gives with the plain function, and with the compiled one."""
    torch.manual_seed(0)
    expected = make(lambda fn: fn)
    torch.manual_seed(0)
    assert make(lambda fn: dynfix.compile(fn, backend=backend)) == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_written_view_reaches_its_base(backend):
    def make(compiled):
        fn, seen = compiled(lambda v: v.mul_(3)), []
        for _ in range(3):
            leaf = torch.ones(4, requires_grad=True)
            base = leaf * 1
            fn(base[:2])
            base.sum().backward()
            seen.append(leaf.grad.tolist())
        return seen

    both(make, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_written_base_reaches_its_views(backend):
    def make(compiled):
        def f(b, y):
            b.mul_(y)
            return b[1:]

        fn, seen = compiled(f), []
        for _ in range(3):
            leaf = torch.ones(4, requires_grad=True)
            base = leaf * 1
            view = base[:2]
            fn(base, torch.full((4,), 5.0, requires_grad=True))
            view.sum().backward()
            seen.append(leaf.grad.tolist())
        return seen

    both(make, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_leaf_is_not_written(backend):
    def make(compiled):
        fn, seen = compiled(lambda x: x.add_(1).detach()), []
        for leaf in (False, False, True, False):
            x = torch.zeros(2, requires_grad=True)
            x = x if leaf else x * 1
            try:
                seen.append(fn(x).tolist())
            except RuntimeError as error:
                seen.append(str(error)[:30])
            seen.append(x.detach().tolist())
        return seen

    both(make, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_detached_state_trains(backend):
    class State:
        h = torch.zeros(2)

    def make(compiled):
        state = State()

        def f(x, w):
            state.h = torch.tanh(state.h.detach() + x * w)
            return state.h.sum()

        fn, w, seen = compiled(f), torch.ones(2, requires_grad=True), []
        for _ in range(4):
            w.grad = None
            fn(torch.ones(2), w).backward()
            seen.append([round(value, 4) for value in w.grad.tolist()])
        return seen

    both(make, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_of_what_has_no_gradient_keeps_its_history(backend):
    """The output shares the input's memory: its gradient goes to the input all the same."""

    def make(compiled):
        fn, seen = compiled(lambda x, w: (x.detach() * w, x[1:])), []
        for _ in range(3):
            x, w = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
            out, view = fn(x, w)
            (out.sum() + view.sum()).backward()
            seen.append((x.grad.tolist(), w.grad.tolist()))
        return seen

    both(make, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_as_strided_counts_from_the_start_of_the_storage(backend):
    def make(compiled):
        fn = compiled(lambda x: torch.as_strided(x, (2,), (1,), 0) + 1)
        base = torch.arange(10.0)
        parts = (base[:3], base[2:5], base[4:7], base[:3])
        return [fn(part).tolist() for part in parts]

    both(make, backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_as_strided_writes_between_the_elements(backend):
    def make(compiled):
        fn, seen = compiled(lambda x: x.as_strided((2, 3), (5, 1)).mul_(2)), []
        for turn in range(3):
            base = torch.arange(24.0).view(4, 6) + turn
            seen.append((fn(base[:, ::2]).tolist(), base.tolist()))
        return seen

    both(make, backend)


@pytest.mark.parametrize("written", ["inside", "between two graphs", "by the caller"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_buffer_that_was_read_is_written_before_the_backward(written, backend):
    """Eager saves `1 + seen`, never `seen` itself, which may change."""

    def make(compiled):
        layer, count, grads = torch.nn.Linear(4, 4), torch.zeros(4), []

        def step(x):
            y = torch.tanh(layer(x)) * (1 + count.view(2, 2).flatten())
            if written == "inside" or (written == "between two graphs" and y.sum() > -1e9):
                count.add_(1)
            return y

        fn = compiled(step)
        for _ in range(3):
            loss = fn(torch.ones(64, 4)).sum() + fn(torch.full((64, 4), 0.5)).sum()
            if written == "by the caller":
                count.add_(1)
            loss.backward()
            grads += [loss.item(), *layer.weight.grad.flatten().tolist()]
        return pytest.approx(grads, rel=1e-4, abs=1e-4)

    torch.manual_seed(0)
    expected = make(lambda fn: fn)
    torch.manual_seed(0)
    found = make(lambda fn: dynfix.compile(fn, backend=backend))
    assert found.expected == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_leads_to_nothing_that_was_differentiated_has_no_gradient(backend):
    def make(compiled):
        fn, seen = compiled(lambda a, b, c: (a * b, (b * c).floor(), c.exp().int())), []
        for turn in range(4):
            a, b, c = (torch.full((2,), value, requires_grad=True) for value in (1.0, 2.0, 3.0))
            first, second, _ = fn(a, b, c)
            sum((first, second, first + second)[turn % 3]).backward(retain_graph=turn == 3)
            if turn == 3:
                second.sum().backward()
            seen.append([None if each.grad is None else each.grad.tolist() for each in (a, b, c)])
        return seen

    both(make, backend)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_backward_runs_again_if_its_graph_is_retained(dynamic):
    weight = torch.randn(5, 5)

    def f(x):
        h = (x @ weight).tanh()
        return ((h @ weight).relu() @ weight).sum() + h.sum()

    fn = dynfix.compile(f, dynamic=dynamic)
    for _ in range(3):
        x = torch.randn(4, 5, requires_grad=True)
        loss = fn(x)
        loss.backward(retain_graph=True)
        loss.backward()
        torch.testing.assert_close(x.grad, 2 * torch.autograd.grad(f(x), x)[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_are_written_before_the_backward(backend):
    """Eager saves what is made of them."""

    def make(compiled):
        def f(x, bias):
            return ((x * 2).sin() + (bias + 1).exp()).tanh() * 3

        fn, seen = compiled(f), []
        for _ in range(3):
            leaf = torch.linspace(0, 1, 4, requires_grad=True)
            x, bias = leaf * 1, torch.zeros(4, requires_grad=True)
            y = fn(x, bias)
            with torch.no_grad():
                x.mul_(2), bias.add_(1)
            y.sum().backward()
            seen += [*leaf.grad.tolist(), *bias.grad.tolist()]
        return pytest.approx(seen, rel=1e-5)

    expected = make(lambda fn: fn)
    assert make(lambda fn: dynfix.compile(fn, backend=backend)).expected == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_arrive_in_eagers_order(backend):
    def make(compiled):
        torch.manual_seed(0)
        layers, seen = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(4))), []
        for name, parameter in layers.named_parameters():
            parameter.register_hook(lambda grad, name=name: seen.append(name))
            parameter.register_post_accumulate_grad_hook(
                lambda p, name=name: seen.append("-" + name)
            )
        fn, x = compiled(lambda x: torch.relu(layers(x)) + layers[0].bias), torch.ones(2, 3)
        x.requires_grad_().register_hook(lambda grad: seen.append("x"))
        for _ in range(3):
            fn(x).sum().backward()
        return seen

    both(make, backend)


@pytest.mark.covering
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ("saves nothing", "not yet differentiated", "differentiated"))
def test_state_that_is_carried_with_its_history(kind, backend):
    """Eager goes a second time through what saved nothing, and once through what did."""

    def make(compiled):
        class State:
            h = torch.zeros(3)

        def f(x, w):
            out = x * w + State.h.mean()
            kept = {"saves nothing": w + 0, "not yet differentiated": w.exp()}
            State.h = kept.get(kind, out.sin())
            return out

        fn, seen = compiled(f), []
        for turn in range(6):
            if turn == 2:
                State.h = torch.zeros(3, requires_grad=True) + 0
            w = torch.linspace(0, 1, 3, requires_grad=True)
            before = seen[-1][0] if seen else None
            try:
                fn(torch.full((3,), 3.0), w).sum().backward()
            except RuntimeError as error:
                before = str(error)[:40]
            seen.append((w, before))
        return [(w.grad.tolist() if w.grad is not None else w.grad, str(b)) for w, b in seen]

    both(make, backend)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_result_is_written_after_a_graph_break(backend):
    def program(x):
        w, y = x.exp(), (x * 2).tanh()
        if y.max().item() < 5:
            z = x.sin()
        y.clamp_(-0.5, 0.5)
        return w + z, y.detach()

    x = [tensor(1, -2, 3, grad=True) for _ in range(4)]
    same(lambda: program, *((each,) for each in x), backend=backend, tolerance=(1e-6, 1e-6))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_result_is_written_after_the_call(backend):
    def step(fn, x, w):
        y, z = fn(x, w)
        with torch.no_grad():
            y.add_(1)
        z.sum().backward()
        return y, z, x.grad, w.grad

    def program(x, w):
        y = (x * w).tanh()
        return y, x.sin() * 2 + w

    compiled = dynfix.compile(program, backend=backend)
    for _ in range(3):
        found, wanted = (
            step(fn, tensor(1, -2, 3, grad=True), tensor(1, 1, 2, grad=True))
            for fn in (compiled, program)
        )
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_written_result_that_eager_keeps_too_is_an_error_as_in_eager(backend):
    w = tensor(1, 2, 3, grad=True)
    compiled = dynfix.compile(lambda x: (x * w).exp(), backend=backend)
    for step in range(3):
        y = compiled(torch.randn(3))
        with torch.no_grad():
            y.mul_(step + 2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_views_made_without_gradients_are_leaves(backend):
    weight = torch.nn.Parameter(torch.ones(2, 2))

    def program(x):
        with torch.no_grad():
            views = weight.view(-1), weight.t(), x[1:]
        return (*views, weight.view(4))

    compiled = dynfix.compile(program, backend=backend)
    for x in (tensor(1, 2, 3), tensor(3, -1, 2), tensor(1, 2, grad=True), tensor(5, 6, grad=True)):
        for made, wanted in zip(compiled(x), program(x), strict=True):
            assert (made.is_leaf, made.requires_grad) == (wanted.is_leaf, wanted.requires_grad)
            assert made.data_ptr() == wanted.data_ptr() and torch.equal(made, wanted)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_that_is_given_to_a_result(backend):
    def make(compiled):
        kept = {}

        def gives(x, inner):
            made = x * 2
            made.grad = made + 1 if inner else x
            kept["made"] = made
            return made, made.sum()

        fn, seen = compiled(gives), []
        for turn in range(6):
            x = torch.ones(2) * turn
            made, _ = fn(x, turn % 2)
            seen.append((made.grad.tolist(), made.grad is x, kept["made"] is made))
        return seen

    both(make, backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kept", [False, True])
def test_a_leaf_made_by_a_factory(backend, kept):
    def make(compiled):
        def leads(x):
            leaf = torch.ones(2, requires_grad=True)
            return (leaf, leaf * x) if kept else (None, leaf * x)

        fn, seen = compiled(leads), []
        for turn in range(4):
            leaf, made = fn(torch.ones(2) * turn)
            made.sum().backward()
            seen.append((made.requires_grad, made.is_leaf, leaf is None or leaf.grad.tolist()))
        return seen

    both(make, backend)


VIEWS = {
    "slice": lambda y: y[1:],
    "one element thrice": lambda y: y[:1].expand(3, 4),
    "of what was cut off": lambda y: y.detach()[0],
    "cut off": lambda y: y.detach(),
    "of a product": lambda y: (y[None] @ y.t())[0],
    "real parts": lambda y: torch.complex(y, y).real,
    "part of a product": lambda y: (y[None] @ y.t())[0, 1:],
    "a layer": lambda y: torch.nn.functional.linear(y[None], y),
}


@pytest.mark.covering
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside gradients"])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("view", VIEWS)
def test_views_that_leave_a_call_are_written_with_gradients(view, gradients, beside):
    def f(x, leaf):
        y = x * 2
        return y, VIEWS[view](y), leaf * (3 if beside else 1)

    def make(compiled):
        fn, seen = compiled(f), []
        for turn in range(6):
            x = torch.arange(12.0).view(3, 4).add(turn).requires_grad_(gradients)
            leaf = torch.ones(2, requires_grad=beside)
            factor = torch.tensor(1.5 + turn, requires_grad=True)
            y, z, other = fn(x, leaf)
            try:
                z[:1].mul_(factor)
            except RuntimeError as error:
                seen.append(str(error))
                continue
            (y.sum() + z.sum() + other.sum()).backward()
            grads = [each.grad.tolist() for each in (x, factor) if each.requires_grad]
            seen.append((y.tolist(), z.tolist(), grads))
        return seen

    both(make, "native")


@pytest.mark.parametrize("part", [slice(None), slice(1, None)])
def test_a_differentiated_write_through_what_autograd_takes_for_no_view(part):
    def fn(x, weight):
        y = x.view(x.dtype)
        y[part].add_(weight)
        return y

    call = dynfix.compile(fn)
    for _ in range(4):
        x, weight = torch.randn(3, 4), torch.randn(4, requires_grad=True)
        made = [(each, given, each(given, weight)) for each in (call, fn) for given in [x.clone()]]
        (_, x1, found), (_, x2, expected) = made
        assert (found.requires_grad, found.is_leaf) == (expected.requires_grad, expected.is_leaf)
        assert x1.requires_grad == x2.requires_grad
        torch.testing.assert_close((found, x1), (expected, x2))
        ours, theirs = (torch.autograd.grad(each.sum(), weight) for each in (found, expected))
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_view_without_gradients_beside_an_input_with_a_history(backend):
    """The nodes behind the inputs are told from others, however many there were meanwhile."""

    def f(x, *parts):
        with torch.no_grad():
            view = x.view_as(x)
        return view.movedim(0, -1), torch.hstack([view, view]), sum(parts)

    compiled = dynfix.compile(f, backend=backend)
    for _ in range(4):
        given = []
        for call in (compiled, f):
            x, y = torch.ones(1, 3, requires_grad=True), torch.ones(4, requires_grad=True)
            made = call(x, *(y[:k] * k for k in (3, 3, 3)))
            given.append(torch.autograd.grad([m.sum() for m in made], (x, y), allow_unused=True))
        assert given[0][0] is given[1][0] is None
        assert torch.equal(given[0][1], given[1][1])


def _view(x):
    return x.view_as(x)


@pytest.mark.parametrize("given", [lambda x: x, lambda x: x * 1], ids=["input", "result"])
@pytest.mark.parametrize("two", [lambda x: x[:, None], lambda x: torch.no_grad()(_view)(x[:2])])
def test_a_view_of_a_view_without_gradients_is_used_behind_a_break(given, two):
    def f(x, y):
        whole = given(x)
        with torch.no_grad():
            one = _view(whole)
        part = two(one)[:1]
        y[y > 0].sum()
        return part * 2 + x.sum(), part

    compiled = dynfix.compile(f)
    for _ in range(4):
        x, y = torch.randn(3, requires_grad=True), torch.randn(5)
        for ours, theirs in zip(compiled(x, y), f(x, y), strict=True):
            found, expected = (
                torch.autograd.grad(each.sum(), x, allow_unused=True)[0] for each in (ours, theirs)
            )
            assert (found is None) == (expected is None)
            assert found is None or torch.equal(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("again", [False, True])
def test_an_input_loses_its_history(backend, again):
    def f(state, x):
        state.detach_()
        if again:
            state.requires_grad_()
        return state * x

    def make(compiled):
        fn, seen = compiled(f), []
        for needs in (True, True, False, True, False):
            leaf, x = torch.ones(3, requires_grad=needs), torch.ones(3, requires_grad=True)
            state = leaf * 2
            fn(state, x).sum().backward()
            grads = (None if each.grad is None else each.grad.tolist() for each in (leaf, x))
            seen.append((state.requires_grad, state.is_leaf, *grads))
        return seen

    both(make, backend)
