"""Rewritten code shows the user's own lines, to tracers, debuggers and tracebacks, and no columns
that would mislead.
"""

import ast
import itertools
import sys
import traceback
import types

import pytest
from comparing import feature_names, load, observe, path_of, rewrite_all
from dynfix.rewriter.instrument import emit
from plain_forms import Forms

FILES = ["expressions", "statements", "exceptions", "functions"]


def statement_lines(path):
    return {
        node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.stmt)
    }


def line_events(fn, path, wanted):
    """The lines, of those wanted, that a tracer sees in the user's file; frames of lambdas and
    comprehensions left out.
    """
    seen, last = [], {}

    def trace(frame, event, arg):
        code = frame.f_code
        if code.co_filename != str(path) or code.co_name.startswith("<"):
            return None
        if event == "line" and frame.f_lineno in wanted and last.get(frame) != frame.f_lineno:
            last[frame] = frame.f_lineno
            seen.append(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        observe(fn, path)
    finally:
        sys.settrace(before)
    return [line for line, _ in itertools.groupby(seen)]


@pytest.mark.parametrize("file", FILES)
def test_tracers_see_the_same_lines(file):
    path = path_of(file)
    wanted = statement_lines(path)
    plain, rewritten = load(file), load(file)
    rewrite_all(rewritten)
    for name in feature_names(plain):
        if name == "recursion_too_deep":
            continue  # its depth is counted in frames, and operators are frames
        assert line_events(getattr(rewritten, name), path, wanted) == line_events(
            getattr(plain, name), path, wanted
        ), name


def all_code(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from all_code(const)


@pytest.mark.parametrize("file", FILES)
def test_every_line_is_one_of_the_function(file):
    module = load(file)
    for name in feature_names(module):
        fn = getattr(module, name)
        last = max(line for code in all_code(fn.__code__) for _, _, line in code.co_lines() if line)
        new = emit.rewrite(fn, Forms)
        assert new.__code__.co_firstlineno == fn.__code__.co_firstlineno
        for code in all_code(new.__code__):
            assert all(
                line is None or fn.__code__.co_firstlineno <= line <= last + 1
                for _, _, line in code.co_lines()
            )


@pytest.mark.skipif(sys.version_info < (3, 11), reason="no columns before 3.11")
def test_columns_are_gone():
    new = emit.rewrite(load("statements").store_order, Forms)
    for code in all_code(new.__code__):
        assert all(start is None and end is None for _, _, start, end in code.co_positions())


def test_a_traceback_shows_the_users_line_without_carets():
    module = load("statements")
    rewrite_all(module)
    try:
        module.zero_division_deep([])
    except ZeroDivisionError as error:
        text = "".join(traceback.format_exception(error))
    assert "return 1 / n" in text and "__df" not in text
    user = [
        line
        for line, before in zip(text.splitlines()[1:], text.splitlines(), strict=False)
        if "features/statements.py" in before
    ]
    assert len(user) >= 5 and not any(set(line.strip()) <= set("^~") for line in user)
