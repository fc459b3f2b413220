"""A second process takes what the first one recorded, unless something is otherwise that the
recording relies on."""

import json
import os
import sys

import forked
import pytest

pytest.importorskip("torch")

HELPER = """
import torch

FACTOR = 2.0
NAMES = {"mode": "plain"}

def activation(x):
    return torch.relu(x) * FACTOR

def other(x):
    return torch.tanh(x) * FACTOR
"""
MODEL = """
import os
import helper
import torch
from torch.nn import functional as F

def shifted(x, by=1.0):
    return x + by

class Model(torch.nn.Module):
    scale = 0.5

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
        self.drop, self.eps, self.calls = torch.nn.Dropout(0.0), 0.25, 0

    @property
    def slope(self):
        return self.eps * 2

    def forward(self, x, flags=None):
        x = helper.activation(self.first(x)) * self.scale + self.slope
        if os.environ.get("MODE") == "wide":
            x = x * 3
        if helper.NAMES["mode"] == "plain":
            x = F.silu(shifted(x))
        self.last = x.shape[0]
        return {"out": self.second(self.drop(x)), "rows": x.shape[0]}
"""
RUN = """
import json, os, sys
import torch
import dynfix, helper, model

RECORDER = "dynfix.rewriter.frontend.compiled_function", "libcst", "dynfix.lowering.joint"

torch.manual_seed(0)
m, options, shape, dtype, grad = model.Model(), {}, (4, 6), torch.float32, True
compiled = dynfix.compile(m)

def is_stored(change):
    # in a process of its own
    child = os.fork()
    if not child:
        names = globals()
        try:
            exec(change, names)
            entry = dynfix.compile(m.to(names["dtype"]), options=names["options"])._dynfix_entry
            assert "dynfix.rewriter.frontend.compiled_function" not in sys.modules
            with torch.set_grad_enabled(names["grad"]):
                x = torch.randn(names["shape"], dtype=names["dtype"], requires_grad=names["grad"])
                os._exit(entry.stored.load((m, x), {}, m) is not None)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

changes = json.loads(os.environ.get("CHANGES", "null"))
if changes is not None:
    print(json.dumps({name: is_stored(change) for name, change in changes.items()}))
    sys.exit()

def result(call, x):
    m.zero_grad()
    x = x.clone().requires_grad_(grad)
    found = call(x)
    if not grad:
        return [found["out"], torch.tensor(found["rows"])]
    found["out"].square().sum().backward()
    return [found["out"].detach(), torch.tensor(found["rows"]), x.grad,
            *(p.grad.clone() for p in m.parameters())]

with torch.set_grad_enabled(grad):
    for _ in range(3):
        x = torch.randn(shape, dtype=dtype)
        for got, want in zip(result(compiled, x), result(m, x), strict=True):
            torch.testing.assert_close(got, want)
loaded = [name for name in RECORDER if name in sys.modules]
kinds = [type(each).__name__ for each in compiled._dynfix_entry.recordings]
assert not loaded or "Recording" in kinds, loaded
print(json.dumps([kinds.count("Recording"), kinds.count("StoredRecording")]))
"""
FILES = {"helper.py": HELPER, "model.py": MODEL, "run.py": RUN}
LOADED = "dynfix.rewriter.frontend.compiling"
NOTHING_RECORDED, NOTHING_STORED = [0, 1], [1, 0]


class Project:
    """A program in a folder, with a cache of its own."""

    def __init__(self, folder):
        self.folder, self.cache = folder, folder / "cache"
        for name, text in FILES.items():
            (folder / name).write_text(text)

    def edit(self, name, before, after):
        text = (self.folder / name).read_text()
        assert before in text
        (self.folder / name).write_text(text.replace(before, after))

    def run(self, script="run.py", **variables):
        env = {
            **os.environ,
            "DYNFIX_CACHE_DIR": str(self.cache),
            "DYNFIX_STORED_RECORDINGS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **variables,
        }
        command = [sys.executable, script]
        done = forked.run(command, cwd=self.folder, env=env, capture_output=True, loaded=LOADED)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A program that has run once."""
    project = Project(tmp_path_factory.mktemp("project"))
    assert project.run() == NOTHING_STORED
    return project


@pytest.fixture
def program(tmp_path):
    return Project(tmp_path)


def test_nothing_is_recorded_in_a_second_process(recorded):
    assert recorded.run() == NOTHING_RECORDED


CHANGES = {
    "nothing": "",
    "global": "helper.FACTOR = 3.0",
    "item of a global": "helper.NAMES['mode'] = 'other'",
    "class attribute": "model.Model.scale = 0.75",
    "attribute": "m.eps = 0.5",
    "dtype": "dtype = torch.float64",
    "grad mode": "grad = False",
    "training flag": "m.eval()",
    "replaced function": "helper.activation = helper.other",
    "replaced method": "model.Model.forward = lambda self, x: {'out': self.second(x), 'rows': 4}",
    "replaced property": "model.Model.slope = property(lambda self: self.eps * 3)",
    "replaced code": "helper.activation.__code__ = helper.other.__code__",
    "replaced default": "model.shifted.__defaults__ = (2.0,)",
    "replaced function of torch": "torch.nn.functional.silu = torch.nn.functional.gelu",
    "layer": "m.first = torch.nn.Linear(6, 6, bias=False)",
    "subclass": "m.__class__ = type('Other', (model.Model,), {'scale': 0.1})",
    "hook": "m.first.register_forward_hook(lambda module, given, out: out * 2)",
    "option": "options['fusion'] = False",
    "other torch": "torch.__version__ = '9.9.9'",
    "default dtype": "torch.set_default_dtype(torch.float64)",
    "threads": "torch.set_num_threads(2)",
}


def test_what_is_otherwise_is_not_served(recorded):
    served = recorded.run(CHANGES=json.dumps(CHANGES))
    assert served == {name: int(name == "nothing") for name in CHANGES}


def test_a_variable_that_the_model_reads(recorded):
    asked = json.dumps({"nothing": ""})
    assert recorded.run(CHANGES=asked, MODE="wide") == {"nothing": 0}
    assert recorded.run(CHANGES=asked, UNREAD="wide") == {"nothing": 1}


EDITS = {
    "model": ("model.py", "self.eps * 2", "self.eps * 4"),
    "helper": ("helper.py", "torch.relu(x) * FACTOR", "torch.relu(x) + FACTOR"),
    "default": ("model.py", "by=1.0", "by=1.5"),
    "constant": ("helper.py", "FACTOR = 2.0", "FACTOR = 2.5"),
    "lines": ("helper.py", "FACTOR = 2.0", "FACTOR = 2.0\n\n"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edited_sources(recorded, edit):
    name, before, after = EDITS[edit]
    asked = json.dumps({"nothing": ""})
    recorded.edit(name, before, after)
    try:
        assert recorded.run(CHANGES=asked) == {"nothing": 0}
    finally:
        recorded.edit(name, after, before)
    assert recorded.run(CHANGES=asked) == {"nothing": 1}


def test_sizes_that_move_are_stored_with_their_symbols(program):
    program.edit("run.py", "torch.randn(shape,", "torch.randn((_ + 2, 6),")
    assert program.run() == [2, 0]
    assert program.run()[0] == 0


KINDS = """
import dataclasses, json, sys
import torch, dynfix
from dynfix.rewriter.capture.recording import Recording

class Table: pass
class Counter: pass
@dataclasses.dataclass
class Settings:
    scale: float = 2.0
    names: tuple = ("a", "b")

table, settings, counters, LENGTH = Table(), Settings(), {}, 3

def id_(x):
    return x + id(table) % 7

def hash_(x):
    return x + hash("a name") % 7

def order_of_a_set(x):
    return x * [float(len(n)) for n in {"a", "bb", "c" * LENGTH}][0]

def address(x):
    return x + len(str(table)) if "7" in str(table) else x

def dataclass(x):
    return x * settings.scale + len(settings.names)

def effects(x):
    counter = counters["now"]
    counter.last = x.sum()
    counter.log.append(2)
    return x * 2 + 1

def views(x):
    return x.view(2, -1), x[1], x.t()

def written(x):
    return x.add_(1).mul_(2)

def nested(x):
    return {"a": [x + 1, (x * 2, None, "text")], "b": settings, "c": torch.float32}

def made(factor):
    def closure(x):
        return torch.sin(x) * factor
    return closure

def values(x):
    return x * 2 if x.sum() > 100 else x - 1

def results(call):
    counters["now"] = counter = Counter()
    counter.log, counter.last = [], None
    torch.manual_seed(1)
    found = [(call(x), x) for x in map(torch.randn, [(4, 4)] * 3)]
    return found, counter.log, counter.last

found = {}
given = id_, hash_, order_of_a_set, address
others = dataclass, effects, views, written, nested, made(3.0), values
for eager in given + others:
    compiled = dynfix.compile(eager)
    got, want = results(compiled), results(eager)
    assert got[1] == want[1]
    for one, other in zip(*(torch.utils._pytree.tree_leaves(each) for each in (got, want))):
        assert one == other if not isinstance(one, torch.Tensor) else torch.allclose(one, other)
    kinds = [type(each) for each in compiled._dynfix_entry.recordings]
    found[eager.__name__] = kinds.count(Recording)
print(json.dumps(found))
"""
ONLY_HERE = {"id_", "hash_", "order_of_a_set", "address"}


@pytest.mark.slow
def test_kinds_of_programs(program):
    """Equal in each process. What another process sees otherwise, though no guard says so, is
    recorded in each."""
    (program.folder / "kinds.py").write_text(KINDS)
    first, second = (program.run(script="kinds.py") for _ in range(2))
    assert all(first.values())
    assert {name for name, count in second.items() if count} == ONLY_HERE


def test_a_damaged_store_is_no_error(program):
    program.run()
    for path in program.cache.rglob("*.recordings.program*"):
        path.write_bytes(b"{}")
    assert program.run() == NOTHING_STORED
