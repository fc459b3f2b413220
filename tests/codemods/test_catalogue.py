"""One catalogue: what rules, reports and pages say of a reason stands there and nowhere else."""

import ast
import inspect

import pytest
from dynfix.codemods.rules import BY_CODE, RULES
from dynfix.codemods.rules.misuse import compile_misuse
from dynfix.rewriter import catalogue, rule_reasons
from importgraph import sources, syntax

from . import support


def test_each_reason_has_its_rule_or_says_why_not():
    without = {code for code, reason in catalogue.REASONS.items() if reason.no_rule}
    assert catalogue.REASONS.keys() == BY_CODE.keys() | without
    assert not BY_CODE.keys() & without
    assert all(catalogue.REASONS[code].about for code in without)


@pytest.mark.parametrize("reason", catalogue.REASONS.values(), ids=lambda r: r.code)
def test_a_reason_is_complete_and_has_a_page(reason):
    assert all([reason.name, reason.message, reason.help])
    code, out, _ = support.command("rule", reason.code)
    assert code == 0
    assert out.startswith(f"## {reason.code} {reason.name}\n\n")
    assert all(gb in out for gb in reason.dynamo)


def test_names_and_codes_are_used_once():
    reasons = catalogue.REASONS.values()
    assert len({r.name for r in reasons}) == len({r.code for r in reasons}) == len(reasons)


def test_rules_say_nothing_that_the_catalogue_says():
    said = {"name", "message", "help", "dynamo"}
    assert not [r for r in RULES if said & vars(type(r)).keys()]


def test_every_constant_is_read():
    constants = {n for n, v in vars(catalogue).items() if isinstance(v, catalogue.Reason)}
    read = {
        node.attr
        for module, path in sources().items()
        if module.startswith("dynfix.rewriter.")
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.Attribute)
    }
    assert constants <= read


@pytest.mark.parametrize("module", [catalogue, rule_reasons])
def test_it_is_data_alone(module):
    """Nothing is loaded for it but itself."""
    statements = ast.parse(inspect.getsource(module)).body
    loaded = {ast.unparse(s) for s in statements if isinstance(s, (ast.Import, ast.ImportFrom))}
    loaded = {each for each in loaded if not each.startswith("from .rule_reasons import ")}
    assert loaded == {"import dataclasses"}


def test_the_modes_are_those_that_the_rule_knows():
    help_ = catalogue.REASONS["DYN902"].help
    assert help_ == f"the modes are {', '.join(compile_misuse._MODES)}"
