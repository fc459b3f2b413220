"""The names of `torch.compiler`: each is here and works, or says why it is not."""

import inspect
import operator
import os
from pathlib import Path

import dynfix
import numpy as np
import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def fresh():
    yield
    dynfix.set_stance("default")
    dynfix.reset()


def counted():
    """A compiled `x + 1`, and the list of graphs that its backend was given."""
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    return dynfix.compile(lambda x: x + 1, backend=backend), graphs


X, Y = torch.ones(2), torch.ones(2, 3)
LATER = (
    "PrecompileError cudagraph_mark_warmup_incomplete nonstrict_trace precompile".split()
)  # 2.15


@pytest.mark.parametrize("name", sorted({*torch.compiler.__all__, *LATER}))
def test_every_name_is_there_or_says_why_not(name):
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    assert f"`{name}`" in page
    if name in dynfix._MISSING:
        with pytest.raises(AttributeError, match=f"dynfix has no '{name}': .+api.md"):
            getattr(dynfix, name)
    else:
        ours = getattr(dynfix, name)
        theirs = getattr(torch.compiler, name, None)
        if theirs and inspect.isfunction(ours) and name not in ("compile", "list_backends"):
            wanted = list(inspect.signature(theirs).parameters)
            found = list(inspect.signature(ours).parameters)
            assert found[: len(wanted)] == wanted  # torch 2.11 has fewer of one


def test_missing_names_are_torchs():
    assert set(dynfix._MISSING) <= {*torch.compiler.__all__, *LATER}


def test_force_eager():
    f, graphs = counted()
    with dynfix.set_stance("force_eager"):
        f(X)
    assert not graphs
    f(X)
    assert len(graphs) == 1


def test_eager_on_recompile_and_fail_on_recompile():
    f, graphs = counted()
    f(X)
    with dynfix.set_stance("eager_on_recompile"):
        assert torch.equal(f(Y), Y + 1) and torch.equal(f(X), X + 1)
    with dynfix.set_stance("fail_on_recompile"):
        assert torch.equal(f(X), X + 1)
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            f(Y)
    assert len(graphs) == 1


def test_fail_on_recompile_names_the_guard_and_its_line():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(2, 2))
            self.layers[0].scale = 2

        def forward(self, x):
            return self.layers(x) * self.layers[0].scale

    model = Scaled()
    compiled = dynfix.compile(model, backend="eager")
    none = pytest.raises(RuntimeError, match="no call was recorded")
    with dynfix.set_stance("fail_on_recompile"), none:
        compiled(torch.ones(1, 2))
    compiled(torch.ones(1, 2))
    model.layers[0].scale = 3
    line = Scaled.forward.__code__.co_firstlineno + 1
    said = rf"\.layers\[0\]\.scale \(.*test_names\.py:{line}\) was 2, is 3"
    with dynfix.set_stance("fail_on_recompile"), pytest.raises(RuntimeError, match=said):
        compiled(torch.ones(1, 2))


def test_a_warning_stands_at_the_users_line():
    def f(x):
        return x + len(str(id(x)))

    with pytest.warns(dynfix.DynfixWarning) as warned:
        dynfix.compile(f)(torch.ones(2))
    (each,) = warned
    assert os.path.samefile(each.filename, __file__)
    assert each.lineno == f.__code__.co_firstlineno + 1


def test_eager_then_compile():
    f, graphs = counted()
    dynfix.set_stance("eager_then_compile")
    f(X)
    assert not graphs
    f(X)
    assert len(graphs) == 1


def test_stance_as_decorator_and_nested():
    f, graphs = counted()

    @dynfix.set_stance("force_eager")
    def outer():
        with dynfix.set_stance("default"):
            f(X)
        f(Y)

    f(X)
    outer()
    f(Y)
    assert len(graphs) == 2


def test_stance_with_a_backend_and_wrong_ones():
    seen = []
    f = dynfix.compile(lambda x: x + 1, backend="eager")
    with dynfix.set_stance(force_backend=lambda gm, inputs: (seen.append(gm), gm.forward)[1]):
        f(X)
    assert len(seen) == 1
    for wrong in (
        {"stance": "fast"},
        {"stance": "force_eager", "force_backend": "eager"},
        {"force_backend": "nothing"},
        {"skip_guard_eval_unsafe": True},
    ):
        with pytest.raises(dynfix.OptionError):
            dynfix.set_stance(**wrong)


def test_assume_constant_result():
    calls = []

    @dynfix.assume_constant_result
    def table():
        calls.append(1)
        return torch.tensor([1.0, 2.0]), 3

    f = dynfix.compile(lambda x: x * table()[0] + table()[1], fullgraph=True, backend="eager")
    for _ in range(3):
        assert f(X).tolist() == [4.0, 5.0]
    assert len(calls) == 2  # two calls while it was recorded


def test_nonstrict_trace():
    @dynfix.nonstrict_trace
    def opaque(x, settings):
        return {"made": x * settings["factor"], "sizes": [x.sum()]}

    def f(x):
        made = opaque(x + 1, {"factor": 3.0})
        return made["made"] + made["sizes"][0]

    call = dynfix.compile(f, fullgraph=True)
    for turn in range(3):
        torch.testing.assert_close(call(X + turn), f(X + turn))
    dynfix.cudagraph_mark_warmup_incomplete()


def test_substitute_in_graph():
    @dynfix.substitute_in_graph(operator.indexOf)
    def index_of(a, b, /):
        for i, item in enumerate(a):
            if item is b or item == b:
                return i
        raise ValueError("sequence.index(x): x not in sequence")

    f = dynfix.compile(lambda x: x + operator.indexOf([5, 7], 7), fullgraph=True, backend="eager")
    for _ in range(3):
        assert f(X).tolist() == [2.0, 2.0]
    with pytest.raises(dynfix.OptionError, match="signatures differ"):
        dynfix.substitute_in_graph(operator.indexOf)(lambda a: 0)


def test_wrap_numpy():
    g = dynfix.wrap_numpy(lambda a, scale: (np.cumsum(a) * scale, 7))
    out, seven = g(torch.ones(3), scale=2)
    assert out.tolist() == [2.0, 4.0, 6.0] and seven == 7


def test_disable_not_recursive_keeps_the_result():
    def inner(x):
        return x * 2

    outside = dynfix.disable(inner, recursive=False)
    f = dynfix.compile(lambda x: outside(x) + 1, backend="eager")
    assert [f(X).tolist() for _ in range(3)] == [[3.0, 3.0]] * 3


def test_default_backend():
    before = dynfix.get_default_backend()
    try:
        dynfix.set_default_backend("aot_eager")
        assert dynfix.get_default_backend() == "aot_eager" == dynfix.config.backend
        dynfix.set_default_backend(None)
        assert dynfix.get_default_backend() == "native"
    finally:
        dynfix.set_default_backend(before)


def test_questions_about_compiling():
    seen = []

    def f(x):
        seen.append(dynfix.is_dynamo_compiling())
        dynfix.cudagraph_mark_step_begin()
        return x + 1 if not dynfix.is_exporting() else x

    dynfix.compile(f, backend="eager")(X)
    assert seen == [True] and not dynfix.is_dynamo_compiling() and not dynfix.is_exporting()


def test_nested_compile_region_is_part_of_the_graph():
    @dynfix.nested_compile_region
    def block(x):
        return x.sin() * 2

    def f(x):
        for _ in range(3):
            x = block(x)
        return x

    compiled = dynfix.compile(f, fullgraph=True, backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(X), f(X))
    assert dynfix.nested_compile_region(max_reuse_entries=2)(block) is block


def test_install_and_take_back():
    before = torch.compile
    with dynfix.install(backend="eager"):
        compiled = torch.compile(lambda x: x + 1, mode="max-autotune", recompile_limit=2)
        assert compiled(X).tolist() == [2.0, 2.0]
        assert compiled._dynfix_entry.options.recompile_limit == 2
        net = torch.nn.Linear(2, 2)
        net(X), net(X)
        assert torch.compile(net)._orig_mod is net
    assert torch.compile is before and len(compiled._dynfix_entry.recordings) == 1
    with pytest.raises(dynfix.OptionError):
        dynfix.install(backend="nothing")


def test_the_limit_of_one_call():
    f = dynfix.compile(lambda x, n: x + n, backend="eager", recompile_limit=1, dynamic=False)
    f(X, 1)
    with pytest.warns(dynfix.DynfixWarning, match="has 1 compiled version"):
        f(X.double(), 1)
