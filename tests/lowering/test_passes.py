"""The list of passes, and its table in the docs."""

from pathlib import Path

import pytest
import torch
from dynfix.lowering import passes, pipeline, program_steps
from dynfix.lowering.targets.cpp.cpp_build import CppTarget
from dynfix.runtime import options

from .harness import CHECKED, compiled

PAGE = Path(__file__).parents[2] / "docs" / "internals.md"


def rows():
    yield "| pass | level | targets | what it does | why there |"
    yield "|---|---|---|---|---|"
    for each in passes.PASSES:
        targets = each.execution.value if each.execution else "all"
        yield f"| {each.name} | {each.level} | {targets} | {each.what} | {each.why} |"


def test_the_docs_show_the_list():
    assert "\n".join(rows()) in PAGE.read_text("utf-8"), "\n".join(["", *rows()])


def test_levels_stand_in_order():
    levels = [each.level for each in passes.PASSES]
    assert levels == sorted(levels, key=[passes.TORCH, passes.ATEN, passes.LOOPS].index)


def test_another_target_is_one_that_options_may_name(monkeypatch):
    asked = []

    class Counted(CppTarget):
        def build(self, unit, groups, may_meet=()):
            asked.append(len(groups))
            return super().build(unit, groups, may_meet)

    kind = program_steps.TargetKind(
        "counted", frozenset({"other"}), passes.CPU, lambda _: Counted()
    )
    monkeypatch.setattr(pipeline, "TARGETS", [*pipeline.TARGETS])
    monkeypatch.setattr(options, "TARGET_NAMES", {*options.TARGET_NAMES})
    with pytest.raises(options.OptionError, match="'cpp', 'triton', or None"):
        options.Options(target="counted")
    monkeypatch.setattr(pipeline, "TARGET_NAMES", options.TARGET_NAMES)
    pipeline.register(kind)
    x = torch.randn(7, 3)
    call = compiled(lambda x: (x + 1).sum(0), x, options=CHECKED.replace(target="counted"))
    torch.testing.assert_close(call(x), (x + 1).sum(0))
    assert asked == [1]
    with pytest.raises(options.OptionError, match="'counted', 'cpp', 'triton', or None"):
        options.Options(target="unknown")
