"""Products of odd sizes, made wider for the library."""

import dynfix
import pytest
import torch
from dynfix.lowering import pipeline, stored_graphs
from dynfix.lowering.loops.kernel_graph import ExternCall
from dynfix.lowering.lowerings import lower_products


@pytest.fixture(autouse=True)
def calls(monkeypatch):
    """Shapes of the operands and the result of each library call."""
    monkeypatch.setattr(lower_products, "DEVICES", frozenset({"cpu"}))
    monkeypatch.setattr(lower_products, "_WORTH", 4)
    found = []

    def watch(unit, launches):
        for item in unit.items:
            if isinstance(item, ExternCall):
                found.append([each.shape for each in (*item.args, item.result)])
        return launches

    for module in (pipeline, stored_graphs):  # the latter: nothing is taken from earlier runs
        monkeypatch.setattr(module, "watchers", [watch])
    return found


def half(*shape):
    return torch.randn(*shape).to(torch.bfloat16)


def check(fn, *tensors):
    call = dynfix.compile(fn, fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(call(*tensors), fn(*tensors), rtol=2e-2, atol=2e-2)
        tensors = tuple(t.neg() for t in tensors)


@pytest.mark.parametrize("m, k, n", [(16, 8, 13), (5, 8, 24), (16, 13, 8), (7, 9, 11)])
@pytest.mark.parametrize("orders", ["rr", "rc", "cr", "cc"])
def test_every_order_of_rows_and_columns(m, k, n, orders):
    a = half(m, k) if orders[0] == "r" else half(k, m).t()
    b = half(k, n) if orders[1] == "r" else half(n, k).t()
    check(lambda a, b: a @ b, a, b)


def test_only_what_lies_apart_is_made_wider(calls):
    check(lambda a, b: a @ b, half(7, 16), half(13, 16).t())
    assert calls == [[(7, 16), (16, 16), (7, 16)]]


def test_a_head_with_bias_and_what_reads_it(calls):
    def fn(x, w, bias):
        logits = torch.nn.functional.linear(x, w, bias)
        return logits, torch.log_softmax(logits.float(), -1)

    check(fn, half(12, 16), half(29, 16), half(29))
    assert calls == [[(32,), (12, 16), (16, 32), (12, 32)]]


def test_gradients():
    call = dynfix.compile(lambda x, w: (x @ w.t()).float().square().sum(), fullgraph=True)
    for _ in range(3):
        x, w = (half(*s).requires_grad_() for s in ((10, 18), (21, 18)))
        found = torch.autograd.grad(call(x, w), (x, w))
        expected = torch.autograd.grad((x @ w.t()).float().square().sum(), (x, w))
        for one, two in zip(found, expected, strict=True):
            torch.testing.assert_close(one, two, rtol=3e-2, atol=0.5)


@pytest.mark.parametrize("order", ["r", "c"])
def test_a_result_of_the_graph_is_made_some_rows_at_a_time(calls, monkeypatch, order):
    """The wide product and the copy that the caller gets do not stand side by side."""
    monkeypatch.setattr(lower_products, "_PART", 3 * 16 * 2)
    monkeypatch.setattr(lower_products, "_TILE", 3)
    x, w, bias = half(8, 16), half(16, 13) if order == "r" else half(13, 16).t(), half(13)

    def fn(x, w, bias):
        return torch.addmm(bias, x, w).view(2, 4, 13)

    check(fn, x, w, bias)
    last, width = ([], 16) if order == "r" else ([(8, 5)], 8)
    assert [each[-1] for each in calls] == [*last, (3, width), (3, width), (2, width)]


def test_what_the_graph_reads_itself_is_made_at_once(calls, monkeypatch):
    monkeypatch.setattr(lower_products, "_PART", 3 * 16 * 2)
    monkeypatch.setattr(lower_products, "_TILE", 3)
    check(lambda x, w: (lambda y: (y, y.float().sum()))(x @ w.t()), half(8, 16), half(13, 16))
    assert [each[-1] for each in calls] == [(8, 16)]


@pytest.mark.parametrize("reads", [False, True])
def test_rows_that_only_a_call_counts(calls, monkeypatch, reads):
    """Known sizes alone are made wider; a result is made in as many parts as in the recorded call."""
    monkeypatch.setattr(lower_products, "_PART", 3 * 16 * 2)
    monkeypatch.setattr(lower_products, "_TILE", 3)
    layer = torch.nn.Linear(16, 13, dtype=torch.bfloat16)

    def fn(x):
        made = layer(x)
        return (made, made.float().sum(-1)) if reads else made

    call = dynfix.compile(fn, fullgraph=True)
    for rows in (8, 9, 1, 40, 2, 17):
        x = half(2, rows, 16).requires_grad_()
        found, expected = call(x), fn(x)
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)
        total = [
            sum(y.float().square().sum() for y in (y if reads else [y])) for y in (found, expected)
        ]
        inputs = (x, *layer.parameters())
        for one, two in zip(*(torch.autograd.grad(each, inputs) for each in total), strict=True):
            assert one.stride() == two.stride()
            torch.testing.assert_close(one, two, rtol=3e-2, atol=0.5)
    wide = [call[-1] for call in calls if len(call) == 4 and not isinstance(call[-1][0], int)]
    assert len(wide) == (1 if reads else 7)  # the columns that are too many, and six parts
    assert wide[0][1] == (16 if reads else 5)


def attention_backward(p, g, q):
    """Products over rows, whose first operand a loop makes."""
    made = (p.float() * 2).to(p.dtype)
    return (made.transpose(1, 2) @ g).float() + 1, (made @ q).float(), p.float().sum(-1)


def test_batched_products_get_room_where_it_costs_nothing(calls):
    p, g, q = half(3, 49, 49), half(3, 49, 32), half(3, 49, 32)
    check(attention_backward, p, g, q)
    assert calls == [
        [(3, 56, 49), (3, 49, 32), (3, 56, 32)],
        [(3, 49, 49), (3, 49, 32), (3, 49, 32)],  # the room would be summed over
    ]


def test_what_is_given_or_leaves_as_it_is_gets_no_room(calls):
    def given(p, g):
        return (p.transpose(1, 2) @ g).float()

    def leaves(p, g):
        return (p * 2).transpose(1, 2) @ g

    def read_by_a_product(p, g, h):
        return (((p * 2).transpose(1, 2) @ g) @ h).float()

    for fn, more in ((given, ()), (leaves, ()), (read_by_a_product, (half(3, 32, 16),))):
        check(fn, half(3, 49, 49), half(3, 49, 32), *more)
    assert all(call[0] == (3, 49, 49) for call in calls if call[0][2] == 49)


def test_room_on_the_side_of_columns(calls):
    def scores(q, k):
        return ((q * 2) @ (k * 3).transpose(1, 2)).float().softmax(-1)

    def plain(q, v):
        return ((q * 2) @ (v * 3)).float().exp()

    check(scores, half(5, 49, 32), half(5, 49, 32))
    check(plain, half(5, 49, 32) * 0.1, half(5, 32, 61) * 0.1)
    assert [call[1] for call in calls] == [(5, 32, 56), (5, 32, 64)]
