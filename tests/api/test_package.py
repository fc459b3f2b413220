"""Models in a file: what a loaded one gives is what eager gives."""

import collections
import copy
import dataclasses
import json
import random
import subprocess
import sys
import threading
import zipfile

import dynfix
import pytest
import torch
from dynfix.runtime.errors import NoVersionError, PackageError
from dynfix.runtime.package import machine_code
from torch import nn

Pair = collections.namedtuple("Pair", "first second")


@dataclasses.dataclass
class Scores:
    scores: torch.Tensor
    count: int


class Named(collections.OrderedDict):
    """As the outputs of transformers: a mapping whose items are attributes."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        super().__setattr__(key, value)


class Plain:
    def __init__(self, value):
        self.value = value

    def __call__(self, x):
        return x * self.value


@pytest.fixture(autouse=True)
def kernels_of_one_kind(monkeypatch):
    """A compiler takes as long again for older processors."""
    here = machine_code.targets()[:1]
    monkeypatch.setattr(machine_code, "targets", lambda: here)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("fixed", torch.arange(4.0), persistent=False)


def module(forward, name="Model"):
    return type(name, (Layer,), {"forward": forward})().eval()


def x(rows=3):
    return torch.randn(rows, 4)


def loaded(model, path, *examples, **how):
    dynfix.package(model, path / "model.dfx", [(args, {}) for args in examples], **how)
    return dynfix.load(path / "model.dfx")


def leaves(*values):
    return [one for one in torch.utils._pytree.tree_leaves(values) if isinstance(one, torch.Tensor)]


def sharing(*values):
    memory = [one.untyped_storage().data_ptr() for one in leaves(*values)]
    return [[a == b for b in memory] for a in memory]


def assert_alike(model, served, *args):
    given = copy.deepcopy(args)
    torch.manual_seed(7)
    with torch.no_grad():
        expected = model(*args)
    torch.manual_seed(7)
    result = served(*given)
    torch.testing.assert_close(leaves(result, given), leaves(expected, args))
    assert [one.stride() for one in leaves(result)] == [one.stride() for one in leaves(expected)]
    assert sharing(result, given) == sharing(expected, args)
    assert not any(one.requires_grad for one in leaves(result))
    return expected, result


def test_64_shapes_in_one_version(tmp_path):
    model = module(lambda self, x, y: torch.softmax(self.linear(x) @ y.t(), -1).cumsum(0))
    served = loaded(model, tmp_path, (x(3), x(5)), (x(6), x(7)))
    for number in range(64):
        assert_alike(model, served, x(2 + number % 13), x(2 + number % 11))


def returns(self, x, mask=None):
    y = self.linear(x)
    views = [y.t(), y[0], x, x.view(-1), self.linear.weight, self.linear.weight.t()]
    plain = {"none": None, "mask": mask, "n": x.shape[0], "size": x.shape, "pi": 3.5, "s": "text"}
    made = Pair(y, x), torch.max(y, 1), torch.float16, [True, 1 + 2j], (), y[:0], {2}, range(3), ...
    return views, plain, made, Scores(y * 2, x.shape[0] + 1), Named(y=y, z=None)


def test_results_of_every_kind(tmp_path):
    model = module(returns)
    served = loaded(model, tmp_path, (x(3),), (x(5),), (x(3), x(3)), (x(5), x(5)))
    for args in ((x(4),), (x(9),), (x(4), x(4)), (x(2), None)):
        (_, plain, made, scores, named), result = assert_alike(model, served, *args)
        assert list(result[1]) == list(plain) and result[1]["n"] == plain["n"]
        assert {k: v for k, v in result[1].items() if k != "mask"} == {
            k: v for k, v in plain.items() if k != "mask"
        }
        assert list(map(type, result[2])) == list(map(type, made)) and result[2][3] == made[3]
        assert type(result[3]) is Scores and result[3].count == scores.count
        assert type(result[4]) is Named and list(result[4]) == list(named)
        assert result[4].y is result[4]["y"] and result[4].z is None


def branches(self, x):
    y = self.linear(x)
    if y.sum() > 0:
        y = y * 2
    return y


def adds_to_a_buffer(self, x):
    self.total += x.mean(0)
    return self.linear(x) + self.total


ALIKE = {
    "a buffer that is added to": (adds_to_a_buffer, x),
    "a buffer that is written": (lambda self, x: self.linear(x) + self.total.add_(x.mean(0)), x),
    "an input that is written": (lambda self, x: self.linear(x.mul_(2)), x),
    "draws": (
        lambda self, x: nn.functional.dropout(self.linear(x), training=True) + torch.randn_like(x),
        x,
    ),
    "a branch on values": (branches, x),
    "a buffer that is not saved": (lambda self, x: self.linear(x) + self.fixed, x),
    "a list": (lambda self, x: [self.linear(one) for one in x], lambda: [x(), x(4)]),
    "a dict": (lambda self, x: {k: self.linear(v) for k, v in x.items()}, lambda: {"a": x()}),
    "strides": (lambda self, x: (self.linear(x), x + 1), lambda: torch.randn(4, 3).t()),
    "channels last": (
        lambda self, x: nn.functional.conv2d(x, torch.ones(2, 3, 3, 3)) + x.mean(),
        lambda: torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last),
    ),
    "sixteen bits": (lambda self, x: self.linear(x.float()).bfloat16(), lambda: x().bfloat16()),
    "an embedding": (
        lambda self, i: nn.functional.embedding(i, self.linear.weight),
        lambda: torch.randint(0, 4, (2, 5)),
    ),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_it_is_what_eager_gives(tmp_path, kind):
    forward, make = ALIKE[kind]
    model = module(forward)
    before = copy.deepcopy(model.state_dict())
    served = loaded(model, tmp_path, (make(),))
    torch.testing.assert_close(model.state_dict(), before)  # examples leave buffers as they are
    for _ in range(3):
        assert_alike(model, served, make())
    if "total" in served.weights:
        torch.testing.assert_close(served.weights["total"], model.total)


def test_versions_by_dtype_and_by_numbers(tmp_path):
    model = module(lambda self, x, k=2, *, f=1.0: self.linear(x.float()) * k + f)
    examples = [((x(),), {}), ((x().double(),), {}), ((x(), 3), {}), ((x(),), {"f": 2.0})]
    dynfix.package(model, tmp_path / "m.dfx", examples)
    served = dynfix.load(tmp_path / "m.dfx")
    assert str(served.__signature__) == "(x, k=2, *, f=1.0)"
    for args, kwargs in [*examples, ((), {"x": x(), "k": 2}), ((x(), 2), {"f": 1.0})]:
        torch.testing.assert_close(served(*args, **kwargs), model(*args, **kwargs).detach())
    with pytest.raises(NoVersionError) as caught:
        served(torch.ones(3, 4, dtype=torch.int64))
    says = str(caught.value)
    assert "version 1: x (test_package.py:" in says
    assert "has dtype torch.int64 instead of torch.float32" in says
    assert "version 2: x (test_package.py:" in says and "instead of torch.float64" in says
    with pytest.raises(TypeError, match="missing a required argument: 'x'"):
        served()


def writes_at(self, x, place):
    self.table[:, place] = x
    return self.table[:, : place + 1].sum(-1)


def test_a_cache_that_is_written_at_a_place(tmp_path):
    model = module(writes_at)
    model.register_buffer("table", torch.zeros(3, 10, 4))
    served = loaded(model, tmp_path, (x(3), 3), (x(3), 5), (x(3), 7))
    for place in (3, 5, 7, 5, 3):
        assert_alike(model, served, x(3), place)
    torch.testing.assert_close(served.weights["table"], model.table)


def test_sizes_out_of_range_are_told(tmp_path):
    def forward(self, x):
        return self.linear(x) if x.shape[0] < 50 else x

    served = loaded(module(forward), tmp_path, (x(3),), (x(7),))
    with pytest.raises(
        NoVersionError, match=r"expected s\d+ < 50, given s\d+ = x\.shape\[0\] = 60$"
    ):
        served(x(60))
    assert served.guard_check(x(9)) and not served.guard_check(x(60))


def test_a_fallback_serves_what_no_version_does(tmp_path):
    model = module(lambda self, x: self.linear(x.float()))
    dynfix.package(model, tmp_path / "m.dfx", [((x(),), {})])
    served = dynfix.load(tmp_path / "m.dfx", fallback=model)
    for given in (x(), x(8), x().double()):
        torch.testing.assert_close(served(given), model(given))
    assert served(x(8)).requires_grad and not served(x()).requires_grad


def test_errors_of_the_call_are_raised(tmp_path):
    model = module(lambda self, i: nn.functional.embedding(i, self.linear.weight) + 1)
    served = loaded(model, tmp_path, (torch.tensor([0, 3]),))
    with pytest.raises(IndexError, match="index out of range"):
        served(torch.tensor([0, 9]))
    assert_alike(model, served, torch.tensor([1, 2]))


def test_modes_of_the_caller(tmp_path):
    model = module(lambda self, x: self.linear(x))
    served = loaded(model, tmp_path, (x(),))
    with torch.inference_mode():
        assert_alike(model, served, x())
        assert_alike(model, loaded(model, tmp_path, (x(),)), x())
    served = dynfix.load(tmp_path / "model.dfx")
    assert_alike(model, served, x())
    with torch.autocast("cpu"), pytest.raises(NoVersionError, match="autocast"):
        served(x())
    with pytest.raises(NoVersionError, match="requires_grad True instead of False"):
        served(x().requires_grad_())


def test_weights_may_come_separately(tmp_path):
    model = module(lambda self, x: self.linear(x) + self.fixed)
    dynfix.package(model, tmp_path / "m.dfx", [((x(),), {})], weights="separate")
    with pytest.raises(PackageError, match=r"weights=.*linear\.bias"):
        dynfix.load(tmp_path / "m.dfx")
    other = module(type(model).forward)
    served = dynfix.load(tmp_path / "m.dfx", weights=other.state_dict())
    assert_alike(other, served, x())
    state = other.state_dict()
    for wrong in (state["linear.weight"].double(), torch.ones(5, 4)):
        with pytest.raises(PackageError, match=r"weights\['linear.weight'\] is .* needs"):
            dynfix.load(tmp_path / "m.dfx", weights={**state, "linear.weight": wrong})
    strided = {**state, "linear.weight": state["linear.weight"].t().contiguous().t()}
    assert_alike(other, dynfix.load(tmp_path / "m.dfx", weights=strided), x())


def test_tied_and_overlapping_weights_stay_one_memory(tmp_path):
    def forward(self, x):
        self.total.add_(1)
        return self.linear(x) + self.part.sum() + self.fixed + self.again.sum()

    model = module(forward)
    model.register_buffer("again", model.total)
    model.register_buffer("part", model.fixed[2:])
    served = loaded(model, tmp_path, (x(),))
    other = dynfix.load(tmp_path / "model.dfx")
    for _ in range(3):
        assert_alike(model, served, x())
    assert served.weights["again"] is served.weights["total"]
    torch.testing.assert_close(served.weights["again"], torch.full((4,), 3.0))
    torch.testing.assert_close(other.weights["again"], torch.zeros(4))  # each has its own
    parts = served.weights["part"], served.weights["fixed"]
    assert sharing(*parts) == [[True, True], [True, True]]


def test_functions_and_methods(tmp_path):
    scale = torch.full((4,), 2.0)

    def function(x, k=1):
        return x * scale + k

    served = loaded(function, tmp_path, (x(),))
    assert_alike(function, served, x())
    assert served.__name__.endswith("function") and str(served.__signature__) == "(x, k=1)"
    model = module(lambda self, x: x)
    served = loaded(Plain(2.0), tmp_path, (x(),))
    assert_alike(Plain(2.0), served, x())
    assert served.__name__ == "Plain" and str(served.__signature__) == "(x)"
    assert_alike(
        torch.nn.Linear.forward.__get__(model.linear), loaded(model.linear, tmp_path, (x(),)), x()
    )
    served = loaded(dynfix.compile(model.linear.forward), tmp_path, (x(),))
    assert_alike(model.linear, served, x())


def test_names_of_torch(tmp_path):
    model = module(lambda self, x: self.linear(x))
    for compiled in (dynfix.compile(model, fullgraph=True), dynfix.compile(lambda x: x + 1)):
        given = x()
        made = compiled.aot_compile(((given,), {}))
        made.save_compiled_function(tmp_path / "m.bin")
        with open(tmp_path / "m.bin", "rb") as file:
            again = dynfix.load_compiled_function(file)
        torch.testing.assert_close(made(given), compiled(given).detach())
        torch.testing.assert_close(again(given), made(given))
        with pytest.raises(RuntimeError):
            again(x(9))


def test_threads_may_call_at_once(tmp_path):
    model = module(lambda self, x: torch.relu(self.linear(x)).sum(-1))
    served = loaded(model, tmp_path, (x(3),), (x(5),))
    given = [x(2 + number) for number in range(8)]
    results = [None] * len(given)

    def call(number):
        for _ in range(20):
            results[number] = served(given[number])

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(given))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.testing.assert_close(results, [model(one).detach() for one in given])


# ---- what a package cannot hold


@torch.library.custom_op("package_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def counts(self, x):
    self.calls = getattr(self, "calls", 0) + 1
    return self.linear(x)


def keeps(self, x):
    self.last = x * 2
    return self.linear(x)


def leaves_by_size(self, x):
    self.rows = int(x.shape[0])
    return self.linear(x)


def exchanges(self, x):
    self.total, self.fixed = self.fixed, self.total
    return self.linear(x) + self.total


REFUSED = {
    "buffers that change places": (exchanges, r"\S*test_package\.py:\d+: .*stores"),
    "a print": (lambda self, x: (print("."), x + 1)[1], r"\S*test_package\.py:\d+: .* print\(\)"),
    "a number that Python draws": (lambda self, x: x * random.random(), r".*Random\.random\(\)"),
    "a count": (counts, r"\S*test_package\.py:\d+: .*'calls'"),
    "a tensor that is kept": (keeps, r"\S*test_package\.py:\d+: .*'last'"),
    "a list that grows": (
        lambda self, x: (self.__dict__.setdefault("log", []).append(1), x + 1)[1],
        r"\S*test_package\.py:\d+: .*append",
    ),
    "a graph break": (
        lambda self, x: (dynfix.graph_break(), self.linear(x))[1],
        r"the graph breaks here:\n.*test_package\.py:\d+",
    ),
    "sizes that data decides": (lambda self, x: torch.nonzero(x > 0), r"test_package\.py:\d+: "),
    "an operator of the user's": (lambda self, x: twice(x), r"test_package\.py:\d+: .*twice"),
    "an object of a class": (
        lambda self, x: Plain(x + 1),
        "what the call returns .* an object of class .*:Plain",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_it_cannot_hold_is_refused(tmp_path, kind, capsys):
    forward, says = REFUSED[kind]
    with pytest.raises(PackageError, match=rf"Model cannot be packaged: {says}"):
        loaded(module(forward), tmp_path, (x(3),), (x(5),))
    assert not list(tmp_path.iterdir())


def test_wrong_examples_are_refused(tmp_path):
    model = module(lambda self, x: self.linear(x))
    for examples, says in (
        ([], "needs an example"),
        ([(x(),)], "a pair of arguments"),
        ([((x().requires_grad_(),), {})], "requires a gradient"),
        ([((model.linear.weight.detach(), model.linear.weight),)], "a pair of arguments"),
    ):
        with pytest.raises(PackageError, match=says):
            dynfix.package(model, tmp_path / "m.dfx", examples)
    for wrong in (nn.Linear, torch.jit.script(model.linear)):
        with pytest.raises(PackageError, match="takes a module or a function"):
            dynfix.package(wrong, tmp_path / "m.dfx", [((x(),), {})])
    with pytest.raises(FileNotFoundError, match="none"):
        dynfix.package(model, tmp_path / "none" / "m.dfx", [((x(),), {})])
    with pytest.raises(PackageError, match="'inside' or 'separate'"):
        dynfix.package(model, tmp_path / "m.dfx", [((x(),), {})], weights="none")


def test_a_flag_that_is_set_at_every_call_changes_nothing(tmp_path):
    def forward(self, x):
        was = getattr(self, "seen", False)
        self.seen = True
        return self.linear(x) + (1 if was else 100)

    model = module(forward)
    served = loaded(model, tmp_path, (x(),))
    assert_alike(model, served, x())


def test_what_sizes_leave_behind_is_refused_or_alike(tmp_path):
    model = module(leaves_by_size)
    with pytest.raises(PackageError, match="'rows'"):
        loaded(model, tmp_path, (x(3),), (x(5),))


# ---- another process


SERVES = """
import json, os, sys
import torch
inputs, expected = torch.load(sys.argv[2])
from dynfix import load
served = load(sys.argv[1])
results = served(inputs)
torch.testing.assert_close(results[0], expected)
unwanted = ("libcst", "model_of_the_test", "dynfix.rewriter.frontend", "dynfix.codemods")
print(json.dumps([name for name in unwanted if name in sys.modules]))
print(type(results).__name__, results.n, os.listdir("."))
"""

MODEL = """
import dataclasses, torch
@dataclasses.dataclass
class Out:
    y: torch.Tensor
    n: int
    def __getitem__(self, index):
        return self.y
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
    def forward(self, x):
        return {"y": torch.relu(self.linear(x)), "n": x.shape[0]}
"""


def test_a_process_without_compiler_and_source(tmp_path, monkeypatch):
    (tmp_path / "model_of_the_test.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    import model_of_the_test

    model, inputs = model_of_the_test.Model().eval(), x(6)
    dynfix.package(model, tmp_path / "model.dfx", [((x(3),), {}), ((x(5),), {})])
    torch.save((inputs, model(inputs)["y"].detach()), tmp_path / "expected.pt")
    (tmp_path / "model_of_the_test.py").unlink()
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o500)
    code = SERVES.replace("results[0]", 'results["y"]').replace("results.n", 'results["n"]')
    environment = {"PATH": str(empty), "DYNFIX_CACHE_DIR": str(empty / "none"), "HOME": str(empty)}
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "model.dfx", tmp_path / "expected.pt"],
        cwd=empty,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["[]", "dict 6 []"]
    assert not done.stderr


def test_classes_that_are_not_loaded_have_a_stand_in(tmp_path, monkeypatch):
    served = loaded(module(lambda self, x: Named(y=x + 1, z=x * 2)), tmp_path, (x(),))
    with zipfile.ZipFile(tmp_path / "model.dfx") as file:
        assert "Named" in file.read("versions/0.json").decode()
    monkeypatch.delitem(sys.modules, __name__)
    again, given = dynfix.load(tmp_path / "model.dfx"), x()
    result = again(given)
    assert type(served(given)) is Named and type(result) is not Named
    assert type(result).__name__ == "Named" and isinstance(result, collections.OrderedDict)
    torch.testing.assert_close(result.y, given + 1)
    assert result[0] is result["y"] and result[1] is result.z and list(result) == ["y", "z"]
    assert json.dumps(list(result.to_tuple()[0].shape)) == "[3, 4]"
