"""Extern calls: results that are None, numbers, or of a layout of their own."""

import re

import dynfix
import pytest
import torch
from dynfix.lowering.pipeline import compile_unit
from dynfix.runtime.programs.program import Extern, Name, Program, Return, expect
from torch.fx.experimental.proxy_tensor import make_fx

from .harness import CHECKED, assert_same, check, compiled

LIBRARY = torch.library.Library("dynfix_extern_tests", "DEF")
F = torch.nn.functional
OPS, aten = torch.ops.dynfix_extern_tests, torch.ops.aten


def define(schema, real, fake):
    name = LIBRARY.define(schema)
    LIBRARY.impl(name, real, "CompositeExplicitAutograd")
    torch.library.register_fake(f"dynfix_extern_tests::{name}", fake, lib=LIBRARY)


# As attention on a GPU: the logsumexp may be left out, the mask is optional, the random state is a
# number or 0-dim.
define(
    "attention(Tensor q, bool lse) -> (Tensor, Tensor, Tensor?, int, Tensor)",
    lambda q, lse: (q * 2, q.sum(-1) if lse else None, None, 7, torch.tensor(3)),
    lambda q, lse: (
        torch.empty_like(q),
        q.new_empty(q.shape[:-1]),
        None,
        7,
        q.new_empty((), dtype=torch.int64),
    ),
)
define(
    "use(Tensor a, Tensor? b, int n) -> Tensor",
    lambda a, b, n: a + n + (0 if b is None else b.sum()),
    lambda a, b, n: torch.empty_like(a),
)
define(
    "turned(Tensor a) -> Tensor",
    lambda a: (a + 1).t().contiguous().t(),
    lambda a: a.new_empty(a.shape),
)


@pytest.mark.parametrize("lse", [True, False])
def test_results_that_are_none_numbers_or_single(lse):
    def fn(q):
        out, _, none, number, seed = OPS.attention(q + 1, lse)
        return OPS.use(out * 2, none, number) + seed

    check(fn, torch.randn(3, 4, 5))


def test_a_result_that_its_meta_function_promised_but_that_is_none_goes_on_to_extern_calls():
    def fn(q):
        out, lse, _, number, _ = OPS.attention(q + 1, False)
        return OPS.use(out * 2, lse, number) * 3

    check(fn, torch.randn(3, 4, 5))


def test_a_promised_result_that_a_kernel_reads_has_a_message():
    def fn(q):
        return OPS.attention(q, False)[1] * 2

    q = torch.randn(3, 4)
    call = compiled(fn, q)
    for _ in range(3):
        with pytest.raises(
            RuntimeError, match=r"an operator gave None, a tensor of shape \(3,\) was expected"
        ):
            call(q)


def test_none_and_numbers_as_results_of_the_graph():
    graph = make_fx(lambda q: OPS.attention(q, True), tracing_mode="fake")(torch.randn(2, 3))
    program = compile_unit(graph, "graph", CHECKED)
    q = torch.randn(2, 3)
    for _ in range(3):
        assert_same(program([q]), [q * 2, q.sum(-1), None, 7, torch.tensor(3)])


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda a: OPS.turned(a) * 2, lambda a: a * 2 + 2),
        (lambda a: OPS.turned(OPS.turned(a).view(6, 4)), lambda a: a.view(6, 4) + 2),
        (lambda a: OPS.turned(OPS.turned(a)), lambda a: a + 2),
    ],
    ids=["kernel", "view", "call"],
)
def test_operators_that_choose_another_layout_are_copied_where_it_matters(fn, expected):
    a = torch.randn(4, 6)
    call = compiled(fn, a)
    for _ in range(3):
        found = call(a)
        assert torch.allclose(found, expected(a))
        assert found.is_contiguous()
        a = a * 2


def test_results_that_nobody_reads_are_let_go():
    graph = make_fx(lambda q: [OPS.attention(q, True)[0] * 2], tracing_mode="fake")(
        torch.randn(2, 3)
    )
    source = compile_unit(graph, "graph", CHECKED).source
    assert "attention_default(arg0, True)[0]\n" in source
    assert source.count(" = expect(") == 1


def test_results_of_another_dtype_than_their_meta_function_says():
    """Running statistics of a half-precision batch norm, on the CPU."""

    def fn(x, scale, mean, var):
        normed = aten._batch_norm_with_update_functional(x, scale, scale, mean, var, 0.5, 1e-5)
        return normed[4] * 2, normed[5] + 1

    args = [torch.randn(4, 3, 5), *(torch.rand(3) + 1 for _ in range(3))]
    args = [arg.bfloat16() for arg in args]
    for found, expected in zip(compiled(fn, *args)(*args), fn(*args), strict=True):
        torch.testing.assert_close(found, expected, check_dtype=False, rtol=0.02, atol=0.02)


def test_a_call_for_its_effect_alone_stays():
    def fn(x, y):
        x.copy_(y + 1)
        return y * 2

    x, y = torch.zeros(3), torch.randn(3)
    call = compiled(fn, x, y)
    for _ in range(3):
        call(x, y)
        assert torch.equal(x, y + 1)
        y = y * 2


@pytest.mark.parametrize(
    ("results", "text"),
    [
        (None, "    call_it(x)\n"),
        ((None, (None,)), "    call_it(x)\n"),
        ("a", "    a = call_it(x)\n"),
        (("a", None), "    a = call_it(x)[0]\n"),
        ((None, ("a", None)), "    a = call_it(x)[1][0]\n"),
        (("a", None, "b"), "    (a, _, b, ) = call_it(x); del _\n"),
        (("a", (None, "b")), "    (a, (_, b, ), ) = call_it(x); del _\n"),
        (("a", ()), "    a = call_it(x)[0]\n"),
    ],
)
def test_how_results_are_bound(results, text):
    def call_it(x):
        return None

    program = Program("test", ["x"], [Extern(call_it, (Name("x"),), {}, results), Return(())], {})
    assert text in program.source


def test_expect():
    t = torch.randn(3, 4)
    kind = t.dtype
    assert expect(t, (3, 4), (4, 1), kind) is t
    assert expect(t[:1], (1, 4), (99, 1), kind).stride() == (4, 1)
    turned = expect(t.t(), (4, 3), (3, 1), kind)
    assert turned.stride() == (3, 1)
    assert torch.equal(turned, t.t())
    assert torch.equal(expect(t, (3, 4), (4, 1), torch.float64), t.double())
    with pytest.raises(RuntimeError, match=r"float32, torch.float64 was expected"):
        expect(t, (3, 4), (4, 1), torch.float64, False)
    with pytest.raises(RuntimeError, match=r"shape \(3, 4\), \(4, 3\) was expected"):
        expect(t, (4, 3), (3, 1), kind)
    with pytest.raises(RuntimeError, match="None"):
        expect(None, (4, 3), (3, 1), kind)
    with pytest.raises(RuntimeError, match=r"strides \(4, 1\), not \(0, 1\)"):
        expect(t, (3, 4), (0, 1), kind)


def source(fn, *args):
    return compile_unit(make_fx(fn, tracing_mode="fake")(*args), "graph", CHECKED).source


def test_a_kernel_allocates_what_extern_calls_take():
    x, w = torch.randn(2, 3, 4), torch.randn(5, 4)

    def fn(x, w):
        return [torch.addmm(w[0, :3], (x * 2).view(6, 4), w.t()[:, :3]) + 1]

    text = source(fn, x, w)
    assert re.search(r"addmm_\d+\(.*, placed\d+\)", text) and text.count("empty") == 1
    assert "view(" not in text
    assert "expect(" not in text
    check(fn, x, w)


def test_products_are_contiguous_whatever_their_operands():
    for fn in (
        torch.mm,
        lambda a, b: torch.bmm(a[None], b[None])[0],
        lambda a, b: torch.addmm(a[:, :1], a, b),
    ):
        for a in (torch.randn(5, 7), torch.randn(7, 5).t(), torch.randn(10, 14)[::2, ::2]):
            for b in (torch.randn(7, 6), torch.randn(6, 7).t()):
                assert fn(a, b).is_contiguous()


def test_writing_calls_and_results_get_views_that_autograd_knows():
    def fn(x, y):
        x.t().copy_(y + 1)
        return torch.sort(x.t())[0], y.t()

    x, y = torch.randn(3, 4), torch.randn(4, 3)
    version = x._version
    found, turned = compiled(fn, x, y)(x, y)
    assert torch.equal(x, (y + 1).t())
    assert x._version > version
    assert torch.equal(found, torch.sort(y + 1)[0])
    y.add_(1)
    assert torch.equal(turned, y.t())


def test_the_default_device_does_not_matter():
    x = torch.randn(300, 40)

    def fn(x):
        return (x.softmax(-1) @ x.t()).softmax(0).sum(1)

    call = compiled(fn, x)
    with torch.device("meta"):
        found = call(x)
    torch.testing.assert_close(found, fn(x))


SOLVED = {
    "inv": lambda x: torch.linalg.inv(x) * 2,
    "solve": lambda x: torch.linalg.solve(x, x + 1).sin(),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.mT) + 1,
    "two": lambda x: torch.linalg.inv(torch.linalg.inv(x) + torch.linalg.cholesky(x @ x.mT)),
    "eigenvalues": lambda x: torch.linalg.eigvals(x).abs(),
}


@pytest.mark.covering
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", SOLVED)
def test_what_cannot_be_solved_is_an_error_of_the_program(name, grad):
    x = torch.randn(4, 4) + 4 * torch.eye(4)
    call = compiled(SOLVED[name], x.clone().requires_grad_(grad))
    for _ in range(2):
        given, other = (x.clone().requires_grad_(grad) for _ in range(2))
        ours, theirs = call(given), SOLVED[name](other)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        if grad:
            ours.sum().backward()
            theirs.sum().backward()
            torch.testing.assert_close(given.grad, other.grad, rtol=1e-3, atol=1e-3)
    if name != "eigenvalues":
        with pytest.raises(torch.linalg.LinAlgError):
            call(torch.zeros(4, 4, requires_grad=grad))


def checked(x):
    torch._assert_async((x < 1).all())
    return x * 2


CHECKS = {
    "assert": checked,
    "cross entropy": lambda x: F.binary_cross_entropy(x, torch.ones_like(x)) + 1,
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", CHECKS)
def test_values_out_of_range_are_an_error_of_the_program(name, grad):
    x = torch.tensor([0.25, 0.5])
    call = compiled(CHECKS[name], x.clone().requires_grad_(grad))
    for _ in range(2):
        torch.testing.assert_close(call(x.clone().requires_grad_(grad)), CHECKS[name](x))
        with pytest.raises(RuntimeError):
            call((x + 2).requires_grad_(grad))


def _made(x):
    return torch.empty(10, 3, device="meta").sin() + 1, x * 2


def _moved(x):
    on_meta = x.to("meta")
    return (on_meta @ on_meta).relu().softmax(-1), x.sum()


def _given(x):
    return torch.cat([x.sin() + 1, x]).sum(0), torch.zeros(x.shape, device=x.device)


@pytest.mark.covering
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn, device", [(_made, "cpu"), (_moved, "cpu"), (_given, "meta")])
def test_tensors_without_memory(fn, device, grad):
    call = dynfix.compile(fn, fullgraph=True)
    for n in (3, 3, 4, 5):
        x = torch.ones(n, n, device=device, requires_grad=grad)
        for found, wanted in zip(call(x), fn(x), strict=True):
            assert (found.device, found.shape, found.stride(), found.requires_grad) == (
                wanted.device,
                wanted.shape,
                wanted.stride(),
                wanted.requires_grad,
            )
            if wanted.device.type == "cpu":
                torch.testing.assert_close(found, wanted)
