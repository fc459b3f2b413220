"""Finding the source of live functions: what is found is what runs, or it is refused."""

import ast
import functools
import gc
import importlib.util
import linecache
import os
import types

import pytest
from dynfix.rewriter.instrument import emit
from dynfix.rewriter.source import live_source
from plain_forms import Forms


def write(tmp_path, text, name="user_module"):
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lambdas_on_one_line_are_told_apart():
    fs = [lambda x: x + 1, lambda x: x - 1, lambda x: (lambda y: x * y)(3), lambda: None]
    texts = [live_source.find(f).text for f in fs]
    assert texts == [
        "lambda x: x + 1",
        "lambda x: x - 1",
        "lambda x: (lambda y: x * y)(3)",
        "lambda: None",
    ]
    assert [emit.rewrite(f, Forms)(*([5] * f.__code__.co_argcount)) for f in fs] == [6, 4, 15, None]
    f, accent, g = lambda: "é", "é", lambda: ("é", 1)
    assert accent and (live_source.find(f).text, live_source.find(g).text) == (
        'lambda: "é"',
        'lambda: ("é", 1)',
    )


def test_lambdas_of_comprehensions(tmp_path):
    text = (
        "plus = [lambda x: x + n for n in (1, 2)]\ntimes = list(lambda x: x * n for n in (2, 3))\n"
    )
    module = write(tmp_path, text)
    for f, found in zip(module.plus + module.times, (7, 7, 15, 15), strict=True):
        assert emit.rewrite(f, Forms)(5) == f(5) == found


def test_a_lambda_over_lines_keeps_its_lines():
    f = (  # noqa: E731
        lambda x:
        x +
        undefined_name  # noqa: F821
    )  # fmt: skip
    with pytest.raises(NameError) as caught:
        emit.rewrite(f, Forms)(1)
    assert caught.traceback[-1].frame.code.raw is emit.rewrite(f, Forms).__code__
    assert caught.traceback[-1].lineno + 1 == f.__code__.co_firstlineno + 2


def test_an_edited_file_is_refused_and_an_unchanged_one_is_not(tmp_path):
    module = write(tmp_path, "def f():\n    return 1\n\ndef g():\n    return 2\n")
    path = tmp_path / "user_module.py"
    path.write_text("def f():\n    return 3\n\ndef g():\n    return 2\n")
    os.utime(path, (1, 1))
    linecache.checkcache(str(path))
    with pytest.raises(emit.NotRewritable, match="differs") as caught:
        emit.rewrite(module.f, Forms)
    assert (caught.value.file, caught.value.line) == (str(path), 1)
    assert emit.rewrite(module.g, Forms)() == 2


def test_lines_moved_are_refused(tmp_path):
    module = write(tmp_path, "def f():\n    return 1\n")
    (tmp_path / "user_module.py").write_text("\n\ndef f():\n    return 1\n")
    linecache.checkcache(module.__file__)
    with pytest.raises(emit.NotRewritable):
        emit.rewrite(module.f, Forms)


@pytest.mark.parametrize(
    "old, new",
    [("0.0", "-0.0"), ("1", "True"), ("(1,)", "(1.0,)"), ("x.a", "x.b"), ("{1, 2}", "{1, 3}")],
)
def test_small_edits_are_seen(tmp_path, old, new):
    module = write(tmp_path, f"def f(x):\n    return x in {old}\n")
    (tmp_path / "user_module.py").write_text(f"def f(x):\n    return x in {new}\n")
    linecache.checkcache(module.__file__)
    with pytest.raises(emit.NotRewritable, match="differs"):
        live_source.find(module.f)


def test_functions_without_a_text():
    scope = {}
    exec(compile(ast.parse("def f():\n    return 1_234_567\n"), "<string>", "exec"), scope)
    with pytest.raises(emit.NotRewritable, match=r"no source|source differs"):
        emit.rewrite(scope["f"], Forms)


def test_functions_that_exec_made_have_the_text_that_it_was_given():
    scope = {}
    exec("def f():\n    return 1\n", scope)
    assert emit.rewrite(scope["f"], Forms)() == 1
    assert emit.rewrite(eval("lambda: 2"), Forms)() == 2


def test_asynchronous_functions_are_refused():
    async def f():
        pass

    async def g():
        yield 1

    for fn in (f, g):
        with pytest.raises(emit.NotRewritable, match="asynchronous"):
            emit.rewrite(fn, Forms)


@pytest.mark.parametrize(
    "not_a_function", [len, Forms, functools.partial(print), Forms(None).call, 3]
)
def test_what_is_no_function_is_refused(not_a_function):
    with pytest.raises(emit.NotRewritable, match="not a Python function"):
        emit.rewrite(not_a_function, Forms)


def test_nested_async_functions_stay(tmp_path):
    module = write(
        tmp_path,
        "import asyncio\ndef f(k):\n    async def g():\n        await asyncio.sleep(0)\n       "
        " return k\n    return asyncio.run(g())\n",
    )
    assert emit.rewrite(module.f, Forms)(4) == 4


def test_shapes_of_source(tmp_path):
    module = write(
        tmp_path,
        "def a(x,\n      y=(\n1,\n)\n):\n  '''doc\nless indented\n  '''\n  return '''\nx''', y\n\n#"
        " after\nif True:\n\tdef b():\n\t\tx = [\n1]\n# comment at the left\n\t\treturn x\ndef c():"
        " return 1\ndef d(): return (\n2)\nclass E:\n    @staticmethod\n\n    # between\n    def"
        " f(): return '\\\n'\ndef last():\n    return 5",
    )
    for fn in (module.a, module.b, module.c, module.d, module.E.f, module.last):
        args = (1,) * (fn is module.a)
        assert emit.rewrite(fn, Forms)(*args) == fn(*args)
        assert emit.rewrite(fn, Forms).__doc__ == fn.__doc__


def test_wrapped_functions_are_not_followed():
    def deco(fn):
        @functools.wraps(fn)
        def wrapper(*args):
            def inner():
                return "wrapped", fn(*args)

            return inner()

        return wrapper

    @deco
    def f(x):
        return x

    assert emit.rewrite(f, Forms)(3) == ("wrapped", 3)
    assert emit.rewrite(f.__wrapped__, Forms)(3) == 3


def test_future_annotations(tmp_path):
    module = write(
        tmp_path,
        "from __future__ import annotations\ndef f():\n    def g(x: Undefined): return x\n   "
        " return g\n",
    )
    assert emit.rewrite(module.f, Forms)().__annotations__ == {"x": "Undefined"}


def test_what_the_new_function_keeps():
    cell = 1

    def f(a, b=2, /, *, k=3) -> int:
        """Doc."""
        return a, b, k, cell

    f.mark = ["m"]
    new = emit.rewrite(f, Forms)
    for name in (
        "__name__",
        "__qualname__",
        "__module__",
        "__doc__",
        "__defaults__",
        "__kwdefaults__",
        "__annotations__",
        "mark",
    ):
        assert getattr(new, name) == getattr(f, name), name
    assert new.__globals__ is f.__globals__ and new.__code__.co_filename == __file__
    cell = 5
    assert new(1) == (1, 2, 3, 5)
    assert set(new.__code__.co_freevars) == {"cell", "__df"}
    assert new.__closure__[new.__code__.co_freevars.index("cell")] is f.__closure__[0]


def test_each_function_has_its_own_cells_and_operators():
    def make(n):
        return lambda: n + 1

    one, two = (emit.rewrite(make(n), Forms) for n in (1, 2))
    assert one.__code__ is two.__code__ and (one(), two()) == (2, 3)
    operators = [
        f.__closure__[f.__code__.co_freevars.index("__df")].cell_contents for f in (one, two)
    ]
    assert operators[0] is not operators[1]


def test_is_rewritten():
    def f():
        class Body:
            def method(self):
                return [1 for _ in "a"]

        def inner():
            return lambda: 1

        return inner, Body.method

    new = emit.rewrite(f, Forms)
    inner, method = new()
    assert (
        emit.is_rewritten(new.__code__)
        and emit.is_rewritten(inner.__code__)
        and emit.is_rewritten(inner().__code__)
    )
    assert (
        not emit.is_rewritten(f.__code__)
        and not emit.is_rewritten(method.__code__)
        and not emit.is_rewritten(f()[0].__code__)
    )
    assert emit.rewrite(new, Forms) is new
    assert emit.rewrite(method, Forms)(None) == [1]


def test_qualified_names_of_what_is_nested():
    class Outer:
        def m(self):
            class Inner:
                def deep(self): ...

            def g(): ...

            return (
                Inner.__qualname__,
                Inner.deep.__qualname__,
                g.__qualname__,
                (lambda: 1).__qualname__,
            )

    assert emit.rewrite(Outer.m, Forms)(None) == Outer.m(None)


def test_dead_code_objects_are_forgotten(tmp_path):
    def once(n):
        module = write(tmp_path, f"def f():\n    return {n}\n", f"dead{n}")
        return emit.rewrite(module.f, Forms)()

    gc.collect()
    before = len(emit._done), len(emit.rewritten_codes)
    assert [once(n) for n in range(5)] == list(range(5))
    gc.collect()
    assert (len(emit._done), len(emit.rewritten_codes)) <= (before[0] + 1, before[1] + 1)


def test_rewritten_source_is_readable():
    def f(x):
        # a comment
        return x.y + 1

    assert emit.rewritten_source(f).split() == [
        "def",
        "f(x):",
        "#",
        "a",
        "comment",
        "return",
        '__df.binary("+",',
        "__df.attr(x,",
        '"y"),',
        "1)",
    ]


def test_too_deep_is_refused(tmp_path):
    module = write(tmp_path, "def f(a):\n    return " + "+".join("a" * 500) + "\n")
    with pytest.raises(emit.NotRewritable, match=r"deep|compile|LibCST"):
        emit.rewrite(module.f, Forms)


def test_types_function_from_code_without_file(tmp_path):
    module = write(tmp_path, "def f():\n    return 1\n")
    moved = types.FunctionType(module.f.__code__.replace(co_filename="/nowhere/x.py"), {})
    with pytest.raises(emit.NotRewritable, match="no source"):
        emit.rewrite(moved, Forms)
