"""Other functions in the list of passes."""

import dataclasses

from dynfix.lowering import passes


def wrap_pass(monkeypatch, name, wrap):
    """Let `wrap(run)` stand for each pass of that name."""
    changed = [
        dataclasses.replace(each, run=wrap(each.run)) if each.name == name else each
        for each in passes.PASSES
    ]
    assert changed != list(passes.PASSES)
    monkeypatch.setattr(passes, "PASSES", tuple(changed))


def insert_pass(monkeypatch, place, made):
    """`made`, a Pass, at that place of the list."""
    monkeypatch.setattr(passes, "PASSES", (*passes.PASSES[:place], made, *passes.PASSES[place:]))
