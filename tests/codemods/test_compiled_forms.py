"""Forms for compiled code alone: they compute what eager computes."""

import contextlib
import io

import pytest

torch = pytest.importorskip("torch")

from . import support
from .written_programs import _called, calls, cases

_ASKED = "torch.compiler.is_compiling()"
# The input itself is given back, and written to by the caller: compiled code may give a copy.
_GIVES_A_COPY = {"caller_mutates_result", "expand_side"}
_QUICK = ("r_img_norm2", "r_pos_clip", "r_tree_pool", "r_item_then_if", "r_sum_ternary")
# There is none where somebody else may write into what eager keeps.
_NO_FORM = ("r_item_then_if", "closure_write", "default_mutable", "hook_alias")
_ALL = [c for kind in ("attack", "holders", "disguise", "real") for c in cases(kind)]
_COMPUTED = ("out", "error", "state", "buffers", "given")


def _computes(case, source, call):
    """What a call computes, with the form for compiled code taken (what is told stays eager's)."""
    plain = source.replace("@torch.compile", "@(lambda f, **_: f)")
    taken = plain.replace(f"not {_ASKED}", "not False").replace(_ASKED, "(not False)")
    with contextlib.redirect_stdout(io.StringIO()):
        found = _called(case, taken, *call)
    return {k: _without_strides(v) for k, v in found.items() if k in _COMPUTED}


def _without_strides(shown):
    """What `written_programs` shows of values, but for their order in memory: as compiled code's,
    that of such a form may be another (rows rolled by indices, sides in two orders)."""
    if isinstance(shown, dict):
        return {k: _without_strides(v) for k, v in shown.items()}
    if not isinstance(shown, list | tuple):
        return shown
    of_tensor = len(shown) > 2 and str(shown[0]).startswith("torch.")
    parts = (*shown[:2], *shown[3:]) if of_tensor else shown
    return [_without_strides(part) for part in parts]


def _same(case):
    fixed = support.fixed(case.source).source.text
    forms = _ASKED in fixed.replace(f"not {_ASKED}", "")
    for call in calls(case) if forms else ():
        before, after = (_computes(case, s, call) for s in (case.source, fixed))
        assert before == after, f"{case.name} {call}:\n{fixed}"
    return forms


@pytest.mark.parametrize(
    ("made", "side"),
    [
        ("y = x.long()", "y ** -1"),
        ("y = x.long()", "y * (1 << 70)"),
        ("y = x.long()", "y * y.mean()"),
        ("y = x > 0", "y - y"),
        ("y = x > 0", "-y"),
        ("y, k = torch.sigmoid(x), 0", "y / (1 // k)"),
        ("y, k = torch.sigmoid(x), [1]", "y * k[3]"),
    ],
)
def test_a_side_that_raises_while_it_is_traced_has_no_form(made, side):
    """`torch.cond` traces the side that is not taken, too."""
    source = (
        "import torch\n\n\n@torch.compile(backend='eager')\ndef step(x: torch.Tensor):\n"
        f"    {made}\n    if x.sum() > 100:\n        y = {side}\n    return y\n"
    )
    assert support.fixed(source).source.text == source


_TWO_ORDERS = """
import torch


def step(x: torch.Tensor, y: torch.Tensor):
    if x.sum() > 0:
        z = x + 1
    else:
        z = y + 1
    return z.view(-1)
"""


def test_sides_that_lie_in_two_orders_are_not_chosen_between():
    """What follows may ask for the order in memory: `view` raises for another."""
    fixed = support.fixed(_TWO_ORDERS.replace("def step", "@torch.compile\ndef step"))
    text = fixed.source.text.replace("@torch.compile\n", "")
    assert "x.stride() == y.stride()" in text
    plain, compiled = {}, {}
    exec(_TWO_ORDERS, plain)
    exec(text, compiled)
    torch._dynamo.reset()
    step = torch.compile(compiled["step"], backend="eager")
    for x, y in ((torch.ones(3, 2).t(), torch.ones(2, 3)), (torch.ones(2, 3), torch.ones(2, 3))):
        torch.testing.assert_close(step(-x, y), plain["step"](-x, y))


@pytest.mark.parametrize("side", ["x[given].sum()", "x.nonzero().sum()", "torch.where(x)[0].sum()"])
def test_a_side_whose_shape_depends_on_data_is_no_side_of_cond(side):
    """torch.cond does not compile then."""
    source = (
        "import torch\n\n\n@torch.compile\ndef step(x: torch.Tensor, given=None):\n"
        f"    y = {side} if x.mean() > 0 else x.long().sum()\n    return y\n"
    )
    assert "torch.cond" not in support.fixed(source, unsafe=True).source.text


def test_a_name_that_the_test_binds_is_not_asked_for_before():
    source = (
        "import torch\n\n\n@torch.compile\ndef step(x: torch.Tensor):\n"
        "    y = torch.sigmoid(x)\n    if (s := y.sum()) > 1:\n        y = y / s\n    return y\n"
    )
    assert support.fixed(source).source.text == source


_DONE = [c for c in _ALL if c.name in _QUICK + _NO_FORM]


@pytest.mark.parametrize("case", _DONE, ids=lambda c: c.name)
def test_forms_for_compiled_code_compute_the_same(case):
    assert _same(case) or case.name in _NO_FORM


@pytest.mark.slow
def test_all_forms_for_compiled_code_compute_the_same():
    assert sum(_same(c) for c in _ALL if c.name not in _GIVES_A_COPY) > 30


_CHECKED = """
import torch


def step(x: torch.Tensor, lengths: torch.LongTensor):
    rows, columns = x.size()
    assert lengths.max().item() <= columns
    torch._check_tensor_all(x > 0, lambda: "positive")
    torch._check(x.sum().item() < 100, lambda: f"{x.sum()} is too much")
    return x * 2
"""


@pytest.mark.parametrize("lengths", [torch.int64, torch.int32])
def test_checks_are_made_on_the_device(lengths):
    """Of the ints that another dtype has the read stays, and breaks."""
    made = {}
    exec(support.fixed(_CHECKED, scope="all").source.text, made)
    step = made["step"]
    whole = lengths is torch.int64
    compiled = torch.compile(step, backend="eager", fullgraph=whole)
    for x, most, right in (
        (torch.ones(2, 3), 3, True),
        (-torch.ones(2, 3), 3, False),
        (torch.ones(2, 3), 4, False),
        (torch.full((2, 3), 50.0), 3, False),
    ):
        given = x, torch.tensor([1, most], dtype=lengths)
        for call in (step, compiled):
            if right:
                assert torch.equal(call(*given), x * 2)
            else:
                with pytest.raises((RuntimeError, AssertionError)):
                    call(*given)
    torch._dynamo.reset()


_NUMBERS = """import numpy as np
import torch


@torch.compile
def step(x: torch.Tensor, n):
    y = x * (np.sqrt(0.5) * n) - np.log(x.size(0))
    return y / (n * np.log(2)) + np.exp(1)
"""


def test_numpys_numbers_are_pythons_when_compiled():
    """One graph; where there is no logarithm, and where an array is given, NumPy's as before."""
    made, plain = {}, {}
    text = support.fixed(_NUMBERS, scope="all").source.text.replace("@torch.compile", "")
    exec(text, made)
    exec(_NUMBERS.replace("@torch.compile", ""), plain)
    whole, broken = (torch.compile(made["step"], backend="eager", fullgraph=f) for f in (1, 0))
    with torch.no_grad():
        for rows, n in ((3, 2), (4, 5), (1, 0.5)):
            x = torch.rand(rows, 2)
            torch.testing.assert_close(whole(x, n), plain["step"](x, n), rtol=1e-6, atol=0)
            assert torch.equal(made["step"](x, n), plain["step"](x, n))
        for x in (torch.ones(0, 2), torch.ones(0)):
            assert torch.equal(broken(x, 2), plain["step"](x, 2))
    torch._dynamo.reset()


_SHOWING = {
    "before": "if x.sum() > 0:\n    print('large')\n    x = x * 2\nreturn x",
    "both": "if x.sum() > 0:\n    x = x * 2\n    print(x)\nelse:\n    print('no')\n    x = x - 1\nreturn x",
    "returned": "if x.sum() > 0:\n    print('large')\n    return x * 2\nreturn x - 1",
    "number": "if x.sum() > 0:\n    n = int(x.sum())\n    x = x * 2\n    print(n)\nreturn x",
    "chain": "if x.sum() > 2:\n    print(2)\n    x = x * 2\nelif x.sum() > 0:\n    x = x * 3\nelse:\n    print(0)\n    x = x + 1\nreturn x",
}


@pytest.mark.parametrize("name", _SHOWING)
def test_a_choice_beside_which_something_is_printed(name):
    """Eager prints; the form for compiled code selects."""
    rows = "".join(f"    {row}\n" for row in _SHOWING[name].splitlines())
    text = f"import torch\n\n\n@torch.compile\ndef step(x: torch.Tensor):\n{rows}"
    fixed = support.fixed(text).source.text
    assert f"if {_ASKED}" in fixed or f"if (\n        {_ASKED}" in fixed
    for values in ([2.0, 3.0], [0.5, 0.25], [-1.0, -2.0]):
        shown = []
        for source in (text, fixed, fixed.replace(_ASKED, "True")):
            space = {}
            exec(source.replace("@torch.compile\n", ""), space)
            with contextlib.redirect_stdout(io.StringIO()) as told:
                shown.append((space["step"](torch.tensor(values)).tolist(), told.getvalue()))
        (value, told), eager, (compiled, silent) = shown
        assert eager == (value, told) and compiled == value and not silent


def test_what_is_computed_for_more_than_a_print_stays():
    rows = "    if x.sum() > 0:\n        n = x * 3\n        x = x * 2\n        print(n)\n    return x, n\n"
    text = f"import torch\n\n\n@torch.compile\ndef step(x: torch.Tensor, n: torch.Tensor):\n{rows}"
    assert "n = torch.where" in support.fixed(text).source.text


_KEPT = "y = x * 2\n    {}\n    if y.max() > 5:\n        y = y.clamp(max=5.0)\n    {}\n    return y"
_STEP = "import torch\n\n\n@torch.compile(backend='eager')\ndef step(x: torch.Tensor):\n    "


@pytest.mark.parametrize(
    ("before", "after", "safe"),
    [
        ("z = x + 1", "y = helper(y) + z", True),
        ("z = [y]", "y = helper(y) + z[0]", False),
        ("helper(y)", "y = helper(y)", False),
        ("z = y[0]", "y.add_(1)\n    y = y + z", False),
        ("z = torch.zeros_like(y)", "y.add_(1)\n    y = y + z", True),
    ],
)
def test_a_tensor_that_one_name_alone_holds_may_be_chosen_anew(before, after, safe):
    """Whatever writes into it later: nobody has the one that eager would keep."""
    source = _STEP + _KEPT.format(before, after)
    assert (_ASKED in support.fixed(source).source.text) == safe


_SIDES = {
    "y / y.sum(1, keepdim=True)": "y.dim() > 1",
    "y * (5 / y.abs().max())": "",
    "(y - y.mean()) / (y.std() + EPS)": "isinstance(EPS, float)",
    "torch.where(y > 0, y, torch.zeros_like(y))": "",
}


@pytest.mark.parametrize("side", _SIDES)
def test_a_side_that_cannot_raise_has_a_form(side):
    source = f"{_STEP}y = x * 2\n    if y.abs().max() > 5:\n        y = {side}\n    return y\n"
    made, plain = {"EPS": 0.1}, {"EPS": 0.1}
    text = support.fixed(source).source.text
    assert _ASKED in text and _SIDES[side] in text
    exec(source.replace("@torch.compile(backend='eager')", ""), plain)
    exec(text, made)
    torch._dynamo.reset()
    for scale in (0.1, 9.0, 1.0):
        given = [torch.arange(6.0).view(2, 3).mul(scale).requires_grad_() for _ in range(2)]
        results = [m["step"](x) for m, x in zip((made, plain), given, strict=True)]
        torch.testing.assert_close(*results)
        torch.testing.assert_close(
            *(torch.autograd.grad(r.sum(), x) for r, x in zip(results, given, strict=True))
        )


_EARLY = """
    n = (mask > 0).sum().item()
    if {}:
        return x.sum() * 0.0
    err = (x - 1).abs() * mask
    total = err.sum()
    return total / n
"""


@pytest.mark.parametrize(
    ("test", "sides"),
    [
        ("n == 0", "(mask > 0).sum() == 0, lambda: x.sum() * 0.0, otherwise"),
        ("not n != 0", "(mask > 0).sum() != 0, otherwise, lambda: x.sum() * 0.0"),
    ],
)
def test_an_early_return_before_straight_computing(test, sides):
    head = _STEP.replace("Tensor):", "Tensor, mask: torch.Tensor):").rstrip() + _EARLY.format(test)
    text = support.fixed(head).source.text
    assert f"torch.cond({sides})" in text
    plain, made = {}, {}
    exec(head.replace("@torch.compile(backend='eager')", ""), plain)
    exec(text, made)
    torch._dynamo.reset()
    for mask in (torch.ones(3), torch.zeros(3), torch.tensor([0.0, 1.0, 1.0])):
        x = torch.randn(3)
        torch.testing.assert_close(made["step"](x, mask), plain["step"](x, mask))
    written = head.replace("    if", "    mask.zero_()\n    if")
    assert "torch.cond" not in support.fixed(written).source.text


def test_a_test_of_one_tensor_reduced_twice_is_evaluated_whole():
    body = (
        "if x.min() < 0 or {}.max() > 1:\n        raise ValueError(f'{{x.min()}}')\n    return x\n"
    )
    assert "_assert_async" in support.fixed(_STEP + body.format("x")).source.text
    assert "_assert_async" not in support.fixed(_STEP + body.format("x[0]")).source.text
