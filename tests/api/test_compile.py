"""`compile` on functions, methods and callable objects, and its arguments."""

import functools
import inspect
import pickle

import dynfix
import pytest
import torch
from dynfix.runtime.errors import OptionError
from dynfix.runtime.options import Options

X = torch.tensor([1.0, -2.0])


def double(x, *, plus=0.0):
    """Twice x."""
    return x * 2 + plus


class Counting:
    """A backend that runs the graph as it is, and counts what it built."""

    def __init__(self):
        self.built = self.calls = 0
        self.kwargs = None

    def __call__(self, gm, example_inputs, **kwargs):
        assert isinstance(gm, torch.fx.GraphModule)
        self.built, self.kwargs = self.built + 1, kwargs

        def run(*args):
            self.calls += 1
            return gm(*args)

        return run


@pytest.mark.parametrize(
    "decorate", [dynfix.compile, dynfix.compile(backend="eager"), dynfix.compile(dynamic=False)]
)
def test_function_three_calls(decorate):
    compiled = decorate(double)
    for _ in range(3):
        torch.testing.assert_close(compiled(X, plus=1.0), X * 2 + 1)


def test_the_result_looks_like_the_function():
    compiled = dynfix.compile(double)
    assert inspect.isfunction(compiled)
    assert (compiled.__name__, compiled.__doc__, compiled.__wrapped__) == (
        "double",
        "Twice x.",
        double,
    )
    assert inspect.signature(compiled) == inspect.signature(double)


def test_compiling_twice_compiles_the_function_itself():
    assert dynfix.compile(dynfix.compile(double), backend="eager").__wrapped__ is double


def refuses(gm, example_inputs):
    raise AssertionError("torch.compile was asked")


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.k = 3

    @torch.compile(backend=refuses)
    def scaled(self, x):
        return x * self.k

    def forward(self, x):
        return torch.compile(double, backend=refuses)(self.scaled(x))


MADE_BY_TORCH = {
    "function": lambda: (torch.compile(double, backend=refuses), 2),
    "module": lambda: (torch.compile(Scaled(), backend=refuses), 6),
    "module that calls such": lambda: (Scaled(), 6),
    "method": lambda: (Scaled().scaled, 3),
    "module within one": lambda: (
        torch.nn.Sequential(torch.compile(Scaled(), backend=refuses), torch.nn.Identity()),
        6,
    ),
}


@pytest.mark.parametrize("make", MADE_BY_TORCH.values(), ids=MADE_BY_TORCH)
def test_what_torch_compile_made_is_compiled_as_it_was_given(make):
    model, factor = make()
    backend = Counting()
    compiled = dynfix.compile(model, backend=backend)
    for number in range(1, 4):
        torch.testing.assert_close(compiled(X * number), X * number * factor)
    assert (backend.built, backend.calls) == (1, 2)


def test_method_of_a_plain_object():
    class Adder:
        def __init__(self, k):
            self.k = k

        @dynfix.compile
        def add(self, x):
            return x + self.k

        def sub(self, x):
            return x - self.k

        @staticmethod
        @dynfix.compile
        def plain(x):
            return x + 7

        def __call__(self, x):
            return x * self.k

    one, two = Adder(1), Adder(2)
    for _ in range(3):
        torch.testing.assert_close([one.add(X), two.add(X), Adder.plain(X)], [X + 1, X + 2, X + 7])
    sub, call = dynfix.compile(one.sub), dynfix.compile(two)
    for _ in range(3):
        torch.testing.assert_close([sub(X), call(X)], [X - 1, X * 2])


@pytest.mark.parametrize(
    "fn", [torch.relu, functools.partial(double, plus=1.0), lambda x: x + 3, torch.Tensor.abs]
)
def test_other_callables(fn):
    compiled = dynfix.compile(fn)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), fn(X))


def test_method_of_a_module_and_of_a_compiled_module():
    class Net(torch.nn.Linear):
        def twice(self, x):
            return self(x) * 2

    net = Net(2, 2)
    for owner in (net, dynfix.compile(net)):
        compiled = dynfix.compile(owner.twice)
        for _ in range(3):
            torch.testing.assert_close(compiled(X), net(X) * 2)


def test_disable_argument_gives_back_the_same():
    net = torch.nn.ReLU()
    assert dynfix.compile(double, disable=True) is double
    assert dynfix.compile(net, disable=True) is net
    assert dynfix.compile(disable=True)(double) is double


def test_backend_callable_sees_one_graph():
    backend = Counting()
    compiled = dynfix.compile(double, backend=backend)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), X * 2)
    assert (backend.built, backend.kwargs) == (1, {})


def test_mode_and_options_reach_a_foreign_backend():
    backend = Counting()
    dynfix.compile(double, backend=backend, options={"anything": 1})(X)
    assert backend.kwargs == {"options": {"anything": 1}}
    dynfix.compile(double, backend=backend, mode="theirs")(X)
    assert backend.kwargs == {"mode": "theirs"}


@pytest.mark.parametrize("mode", [None, *dynfix.list_mode_options()])
def test_modes_are_known(mode):
    torch.testing.assert_close(dynfix.compile(double, mode=mode, backend="eager")(X), X * 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "fastest"}, "unknown mode 'fastest': use one of default, reduce-overhead"),
        ({"backend": "nothing"}, "unknown backend 'nothing': use one of aot_eager"),
        ({"backend": 3}, "unknown backend 3"),
        ({"options": {"fusoin": True}}, "unknown option 'fusoin': use one of recompile_limit"),
        ({"options": {"backend": "eager"}}, "unknown option 'backend'"),
        ({"options": {"fusion": 1}}, "fusion must be True or False, not 1"),
        ({"options": {"recompile_limit": 0}}, "recompile_limit must be at least 1"),
        ({"options": {"target": "cuda"}}, "target must be one of 'cpp', 'triton', or None"),
        ({"mode": "default", "options": {}}, "either mode or options"),
        ({"dynamic": "yes"}, "dynamic must be True, False or None"),
        ({"fullgraph": "yes"}, "fullgraph must be True or False"),
    ],
)
def test_wrong_arguments_name_the_choices(arguments, message):
    with pytest.raises(OptionError, match=message):
        dynfix.compile(double, **arguments)
    with pytest.raises(ValueError, match=message):
        dynfix.compile(**arguments)


@pytest.mark.parametrize("model", [3, "double", torch.ones(2), int])
def test_what_cannot_be_called_is_refused(model):
    with pytest.raises(OptionError, match="compile\\(\\) takes"):
        dynfix.compile(model)


def test_options_are_hashable_and_frozen():
    options = Options(backend_kwargs=(("options", {"a": 1}),))
    assert hash(options) == hash(Options())
    with pytest.raises(AttributeError):
        options.fusion = False


def test_a_decorated_function_of_a_module_pickles_by_name():
    assert pickle.loads(pickle.dumps(compiled_double))(X).tolist() == [2.0, -4.0]


compiled_double = dynfix.compile(double)
compiled_double.__qualname__ = "compiled_double"


def test_registered_backend():
    backend = Counting()

    @dynfix.register_backend(name="test_registered")
    def compiler(gm, example_inputs):
        return backend(gm, example_inputs)

    assert "test_registered" in dynfix.list_backends()
    torch.testing.assert_close(dynfix.compile(double, backend="test_registered")(X), X * 2)
    assert backend.built == 1
    assert dynfix.register_backend(compiler, "test_registered") is compiler
    with pytest.raises(OptionError, match="exists already"):
        dynfix.register_backend(backend, "test_registered")
    with pytest.raises(OptionError, match="exists already"):
        dynfix.register_backend(backend, "native")


def test_reset_compiles_anew():
    backend = Counting()
    compiled = dynfix.compile(double, backend=backend)
    compiled(X)
    dynfix.reset()
    torch.testing.assert_close(compiled(X), X * 2)
    assert backend.built == 2


def test_disable_keeps_out_of_the_graph():
    seen = []

    @dynfix.disable
    def outside(x):
        seen.append(dynfix.is_compiling())
        return x + 1

    @dynfix.compile(backend="eager")
    def fn(x):
        return outside(x * 2) * 3

    for _ in range(3):
        torch.testing.assert_close(fn(X), (X * 2 + 1) * 3)
    assert len(seen) == 3
    assert dynfix.disable(recursive=False)(double)(X).tolist() == [2.0, -4.0]


def test_allow_in_graph_is_one_node():
    graphs = []

    def keep(gm, example_inputs):
        graphs.append(gm)
        return gm

    @dynfix.allow_in_graph
    def inside(x):
        return x.sin().cos()

    @dynfix.compile(backend=keep)
    def fn(x):
        return inside(x) + 1

    for _ in range(3):
        torch.testing.assert_close(fn(X), X.sin().cos() + 1)
    (graph,) = graphs
    assert len([node for node in graph.graph.nodes if node.op.startswith("call_")]) == 2


def test_graph_break_gives_two_graphs():
    backend = Counting()

    @dynfix.compile(backend=backend)
    def fn(x):
        y = x + 1
        dynfix.graph_break()
        return y * 2

    for _ in range(3):
        torch.testing.assert_close(fn(X), (X + 1) * 2)
    assert backend.built == 2
    assert dynfix.graph_break() is None


def test_is_compiling_only_inside():
    seen = []

    @dynfix.compile(backend="eager")
    def fn(x):
        seen.append(dynfix.is_compiling())
        return x + 1

    fn(X)
    assert seen == [True] and not dynfix.is_compiling()
