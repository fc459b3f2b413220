"""Grad mode, inference mode, autocast, default dtype and device: inside a call, around it, and
changed between two calls."""

import contextlib

import dynfix
import pytest
import torch
from dynfix.lowering.fake_tensor_mode import PacedFakeMode
from helpers import Case, Fresh, X, Y, call, one_graph, same, tensor

G = tensor(1, 2, 3, grad=True)
LIN = [(torch.ones(2, 3),), (torch.arange(6.0).view(2, 3),)]


def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))


def _no_grad(x):
    y = x * 2
    with torch.no_grad():
        z = y * 3
    return y + z, z


def _enable(x):
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            z = x * 3
        w = z + y
    return y, z, w


def _set_grad(x):
    torch.set_grad_enabled(False)
    y = x * 2
    torch.set_grad_enabled(True)
    return y, x * 3


@torch.no_grad()
def _decorated(x):
    return x * 2, torch.is_grad_enabled()


def _inner_decorated(x):
    return _decorated(x)[0] + x, torch.is_grad_enabled()


@torch.inference_mode()
def _inference_inner(x):
    return x * 2


def _inference(x):
    with torch.inference_mode():
        y = x * 2
    return y, y.is_inference()


def _autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = x @ x
        b = a.sum() * 2
        with torch.autocast("cpu", enabled=False):
            c = a.float() @ x
    return a, b, c, x @ x


def _autocast_entered(x):
    context = torch.autocast("cpu", dtype=torch.bfloat16)
    context.__enter__()
    try:
        a = x @ x
    finally:
        context.__exit__(None, None, None)
    return a, x @ x


def _autocast_stack(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
        stack.enter_context(torch.no_grad())
        a = x @ x
    return a, x @ x


def _autocast_set(x):
    torch.set_autocast_enabled("cpu", True)
    try:
        a = x @ x
    finally:
        torch.set_autocast_enabled("cpu", False)
    return a, x @ x


@torch.autocast("cpu", dtype=torch.bfloat16)
def _autocast_decorated(x):
    return x @ x


def _autocast_break(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = x @ x
        if a.sum() > 3:
            a = a + x @ x
    return a @ a


def _no_grad_break(x):
    with torch.no_grad():
        a = x @ x
        if a.sum() > 3:
            a = a + x @ x
        b = x * 2
    return a @ x, b


def _early_exit(x):
    for _ in range(2):
        with torch.no_grad():
            if x.shape[0] == 2:
                return x * 2
    return x


def _raise_in_context(x):
    try:
        with torch.no_grad():
            raise KeyError("out")
    except KeyError:
        y = x * 2
    return y, torch.is_grad_enabled()


def _default_dtype(x):
    torch.set_default_dtype(torch.float64)
    try:
        return x + torch.ones(2), torch.ones(2)
    finally:
        torch.set_default_dtype(torch.float32)


def _device_context(x):
    with torch.device("meta"):
        y = torch.ones(2)
    return y.device, x


def _saved(x):
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (seen.append(1), t * 2)[1], lambda t: t
    ):
        y = x * x
    return y, len(seen)


def _state(x):
    return (
        x + 1,
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.tensor(1.0),
        torch.arange(2.0).dtype,
    )


def _detect(x):
    with (
        torch.autograd.detect_anomaly(check_nan=False),
        torch.autograd.profiler.record_function("mine"),
    ):
        return x * x


def _sdpa(x):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        q = x.view(1, 1, *x.shape)
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)


BODIES = [
    _no_grad,
    _enable,
    _set_grad,
    _decorated,
    _inner_decorated,
    _inference_inner,
    _inference,
    _autocast,
    _autocast_entered,
    _autocast_stack,
    _autocast_set,
    _autocast_decorated,
    _autocast_break,
    _no_grad_break,
    _early_exit,
    _raise_in_context,
    _default_dtype,
    _device_context,
    _saved,
    _state,
    _detect,
    _sdpa,
]
MATRICES = [torch.ones(2, 2), torch.eye(2) - 2, torch.ones(2, 2), torch.arange(4.0).view(2, 2)]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
def test_inside(body, grad):
    same(lambda: lambda x: body(x), *[(m.clone().requires_grad_(grad),) for m in MATRICES])


@contextlib.contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


AROUND = [
    torch.no_grad,
    torch.inference_mode,
    lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    lambda: torch.autocast("cpu", dtype=torch.float16),
    lambda: default_dtype(torch.float64),
    deterministic,
    lambda: torch.device("meta"),
    torch.enable_grad,
]


@pytest.mark.parametrize("first", range(len(AROUND) + 1))
def test_around(first):
    """The state at a call is not that of the call that was recorded."""
    orders = [None, *AROUND]
    contexts = [orders[first], *orders, orders[first]]

    def make():
        model = net()

        def body(x):
            y = model(x)
            return y + torch.ones(2, device="cpu"), torch.is_grad_enabled(), torch.zeros(1).dtype

        return Case(fn=body, model=model)

    import dynfix
    from helpers import Describer

    eager, other = make(), make()
    compiled = dynfix.compile(other.fn, backend="eager")
    for context in [*contexts, *contexts]:
        for args in LIN:
            with (context or contextlib.nullcontext)():
                expected, got = eager.fn(*args), compiled(*args)
            assert Describer()(got) == Describer()(expected), context


def test_compiled_under_no_grad_then_trained():
    fn = same(net, *[LIN[0]] * 2)
    with torch.no_grad():
        assert not fn(*LIN[0]).requires_grad
    assert fn(*LIN[0]).requires_grad
    one_graph(fn)


def test_tensor_subclass():
    class Tagged(torch.Tensor):
        count = 0

        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            cls.count += 1
            return super().__torch_function__(func, types, args, kwargs)

    def make():
        return lambda x: (x * 2 + 1, type(x).__name__, isinstance(x, torch.nn.Parameter))

    same(
        make,
        (X,),
        (Fresh(lambda: X.clone().as_subclass(Tagged)),),
        (X,),
        (torch.nn.Parameter(X),),
        (torch.nn.Parameter(X, requires_grad=False),),
        (Fresh(lambda: X.clone().as_subclass(Tagged)),),
    )
    same(make, (Fresh(lambda: X.clone().as_subclass(Tagged)),), (X,), (Y,))


def test_strange_tensors():
    def make():
        return lambda x: (x + x, x.shape, x.dtype)

    strange = [
        X.to_sparse(),
        torch.empty(3, device="meta"),
        X.to(torch.complex64),
        X.to(torch.complex64).conj(),
        torch.quantize_per_tensor(X, 0.1, 0, torch.qint8).dequantize(),
        torch.ones(3, dtype=torch.bool),
        X.half(),
        X.to(torch.bfloat16),
        torch.zeros(0),
        X[None].expand(4, 3),
        torch.tensor(3.0),
    ]
    same(make, (X,), *[(s,) for s in strange], (X,))
    for s in strange:
        same(make, (s,), (s,), (X,))
    same(
        lambda: lambda x: (x.shape, x.to_dense().sum() if x.is_sparse else x.sum()),
        (X,),
        (X.to_sparse(),),
        (X,),
        call(X.to_sparse()),
    )


def test_modules_made_in_a_call_once_torch_compile_was_used():
    """torch.compile puts a wrapper of its own around `Module.__init__`, for the whole process."""
    torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.rand(2, 2))
    same(lambda: lambda x: torch.nn.ReLU()(x) * 2, (X,), (Y,), (X,), fullgraph=True)


@pytest.mark.parametrize("backend", ("eager", "native"))
@pytest.mark.parametrize("first", (False, True))
def test_hooks_for_saved_tensors_around(backend, first):
    """They see what eager saves, and may change it."""
    seen = []

    def hooks():
        return torch.autograd.graph.saved_tensors_hooks(
            lambda t: seen.append(t.tolist()) or t * 2, lambda t: t
        )

    def run(fn):
        seen.clear()
        for turn in range(6):
            x, w = (torch.full((3,), value, requires_grad=True) for value in (1.0, 2.0))
            with hooks() if (turn < 2) == first else contextlib.nullcontext():
                y = fn(x, w)
            y.sum().backward()
            seen.append(x.grad.tolist() + w.grad.tolist())
        return list(seen)

    def f(x, w):
        return (x * 3).sin() * w

    expected = [pytest.approx(each) for each in run(f)]
    assert run(dynfix.compile(f, backend=backend)) == expected


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_draws_that_nothing_needs_advance_the_generator(backend):
    def program(x):
        torch.rand(3), torch.nn.functional.dropout(x, 0.5)
        for turn in range(2):
            made = x + torch.randn_like(x) + turn
        return made

    steps = ((X,), (tensor(1, 2, 3, grad=True),), (X,), (tensor(3, 2, 3, grad=True),))
    one_graph(same(lambda: program, *steps, backend=backend, tolerance=(1e-6, 1e-6)))


@torch.inference_mode()
def _without_tracking(x):
    return x.t() * 2, x[0]


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_inference_mode_inside(backend):
    """What is made there are inference tensors, with their aliases; views of others are not."""

    def program(x):
        made, view = _without_tracking(x)
        after = made + 1
        with torch.inference_mode():
            again = made.add_(1)
            row = again[0]
        return made, view, after, again, row, x * 2

    compiled = dynfix.compile(program, backend=backend, fullgraph=True)
    for grad in (False, True, False, True):
        x = torch.randn(2, 3, requires_grad=grad)
        found = compiled(x)
        for a, b in zip(found, program(x), strict=True):
            assert a.is_inference() == b.is_inference() and a.requires_grad == b.requires_grad
            assert a.stride() == b.stride() and torch.equal(a, b)
        assert found[0] is found[3] and found[4].data_ptr() == found[0].data_ptr()


def test_the_recording_is_no_mode_of_the_users():
    def body(x):
        asked = torch.overrides.has_torch_function((x,)), torch._C._len_torch_function_stack()
        return x + 1, asked, torch.overrides.has_torch_function_unary(x)

    one_graph(same(lambda: body, (X,), (X,)))


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("called", [False, True])
def test_torch_jit_trace_sees_operators(backend, called):
    fn = dynfix.compile(lambda x: (x + 1) * x, backend=backend)
    for _ in range(3 * called):
        fn(torch.ones(3))
    traced = torch.jit.trace(fn, torch.ones(3))
    for x in (torch.ones(3), torch.arange(4.0)):
        assert torch.equal(traced(x), (x + 1) * x)


def _inverse(x):
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        return torch.linalg.inv((x @ x).float())


@pytest.mark.parametrize("backend", ["native", "eager", lambda gm, inputs: gm])
def test_a_graph_that_raises_leaves_its_modes(backend):
    call = dynfix.compile(_inverse, backend=backend)
    for _ in range(2):
        call(torch.eye(3))
    with pytest.raises(RuntimeError, match="singular"):
        call(torch.zeros(3, 3))
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")


def test_a_run_on_fakes_that_fails_leaves_autocast():
    with pytest.raises(ZeroDivisionError), PacedFakeMode():
        torch.amp.autocast_mode._enter_autocast("cpu", torch.float16, True, True)
        raise ZeroDivisionError
    assert not torch.is_autocast_enabled("cpu")
    assert torch.get_autocast_dtype("cpu") is torch.bfloat16
    with torch.autocast("cpu"):  # is the outermost one, which clears the cache
        assert torch.autocast_increment_nesting() == 2
        torch.autocast_decrement_nesting()
