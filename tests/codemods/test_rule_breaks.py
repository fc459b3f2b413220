"""Each fix is proved to help: the graph breaks of the rules' examples, as measured, are true with
the installed torch, and no fix leaves or adds a break."""

import importlib.util
from pathlib import Path

import pytest
from dynfix.codemods.rules import BY_CODE, RULES, measured

torch = pytest.importorskip("torch")

from . import support

# What these find costs something else than a graph break.
OTHER_COSTS = {
    "DYN104": "a copy to the host, in the middle of the graph",
    "DYN205": "an unrolled loop",
    "DYN210": "an unrolled loop",
    "DYN307": "recompiles",
    "DYN308": "recompiles",
    "DYN405": "recompiles",
    "DYN409": "an exception that eager catches",
    "DYN508": "an unrolled loop",
    "DYN803": "a deprecated name",
    "DYN804": "memory and kernels",
    "DYN805": "memory",
}
TABLE = measured._table()
HERE = ".".join(torch.__version__.split(".")[:2])


def version(text):
    return tuple(map(int, text.split(".")))


@pytest.mark.parametrize("each", TABLE)
def test_no_fix_leaves_or_adds_a_break(each):
    for code, (before, after) in TABLE[each].items():
        assert after is None or not after, f"{code}: {after} breaks after the fix"
        silent = BY_CODE[code].whole_since
        if before == 0 and not (silent and version(silent) <= version(each)):
            assert code in OTHER_COSTS, f"{code} breaks nothing with torch {each}: whole_since"


@pytest.mark.parametrize("each", TABLE)
def test_every_rule_is_measured(each):
    assert TABLE[each].keys() == BY_CODE.keys(), "run benchmarks/rule_breaks.py"


def script():
    path = Path(measured.__file__).parents[2] / "benchmarks" / "rule_breaks.py"
    if not path.exists():
        pytest.skip("the benchmarks are not there")
    spec = importlib.util.spec_from_file_location("rule_breaks", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FIRST = ["DYN202", "DYN301", "DYN501", "DYN804"]
CASES = sorted(BY_CODE, key=lambda code: code not in FIRST)


@pytest.mark.parametrize("code", support.few(CASES, 4))
def test_the_table_is_true_here(code):
    if HERE not in TABLE:
        pytest.skip(f"torch {HERE} is not in the table")
    assert script().row(BY_CODE[code]) == TABLE[HERE][code]


def test_rules_that_break_nothing_are_silent_but_for_an_older_torch():
    for rule in RULES:
        if rule.whole_since:
            assert rule.code not in support.codes(rule.before, target_torch="")
            assert rule.code in support.codes(rule.before, target_torch="2.11")
    text = "import torch\n\n\n@torch.compile\ndef f(x: torch.Tensor):\n    return max(x.sum(), x.min())\n"
    assert "DYN207" not in support.codes(text, target_torch="2.13")
    assert "DYN207" in support.codes(text, target_torch="2.12")


def test_a_page_tells_what_was_measured():
    assert (
        "Graph breaks of the example: 1 before, 0 after (torch 2.13" in BY_CODE["DYN202"].document()
    )
