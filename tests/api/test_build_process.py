"""Graphs that another process compiles: the same programs, or none; and its end."""

import os
import resource
import threading
from pathlib import Path

import dynfix
import pytest
import torch
import waiting
from dynfix.lowering.autograd import missing_gradients
from dynfix.lowering.graph import graph_key, graph_transfer
from dynfix.rewriter.frontend import build_process, build_worker, segment_programs
from dynfix.rewriter.frontend.build_process import KEY, LENGTH, REFUSED, STORED, BuildProcess
from dynfix.rewriter.frontend.thread_modes import Modes, process_settings
from dynfix.runtime import background_budget
from dynfix.runtime.background_budget import Account, Worker
from dynfix.runtime.cache import entries, named_functions
from dynfix.runtime.options import Options
from simulated import Simulated
from torch import nn
from torch.nn import functional as F


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path / "cache"))


NET = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
HEAD, LAYER = nn.Linear(4, 3), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
OPTIMIZER = torch.optim.AdamW(HEAD.parameters(), lr=0.1)


def step(x):
    OPTIMIZER.zero_grad()
    loss = F.cross_entropy(HEAD(x), torch.zeros(len(x), dtype=torch.long))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(HEAD.parameters(), 1.0)
    OPTIMIZER.step()
    return loss.detach()


def views(x):
    return (
        torch.stack([x.T, x.mT])[..., 1:3].to(torch.float64) * x.shape[0] + x[None, :2, ::2].sum()
    )


CALLS = {
    "net": (NET, lambda: torch.randn(2, 1, 8, 8)),
    "layer": (LAYER, lambda: torch.randn(2, 5, 8)),
    "step": (step, lambda: torch.randn(2, 4)),
    "views": (views, lambda: torch.randn(4, 4)),
    "drawn": (lambda x: x + torch.rand(3), lambda: torch.randn(3)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_graph_that_travelled_is_the_same(monkeypatch, name):
    seen, compile = [], segment_programs._callable

    def watched(segment, options, *more):
        place = segment_programs.stored_graph(segment.module, segment.metas, options)
        around = segment.metas, options, Modes.now(), process_settings()
        data = graph_transfer.to_bytes(segment.module, around)
        graph, there = graph_transfer.from_bytes(data)
        assert there == around
        assert segment_programs.stored_graph(graph, there[0], there[1]).key == place.key
        assert graph_key.origins_of(graph) == graph_key.origins_of(segment.module)
        assert [n.meta for n in graph.graph.nodes] == [n.meta for n in segment.module.graph.nodes]
        seen.append(name)
        return compile(segment, options, *more)

    monkeypatch.setattr(segment_programs, "_callable", watched)
    fn, given = CALLS[name]
    compiled = dynfix.compile(fn, backend="native")
    for _ in range(2):
        compiled(given())
    assert seen


def test_functions_of_the_users_do_not_travel():
    graph = torch.fx.Graph()
    graph.output(graph.call_function(step, (graph.placeholder("x"),)))
    with pytest.raises(named_functions.Unnamed):
        graph_transfer.to_bytes(torch.fx.GraphModule({}, graph), ())
    for text in ("os:system", "builtins:no_such", "torch:no_such", "aten::no_such", "nothing"):
        with pytest.raises(named_functions.Unnamed):
            named_functions.by_text(text)


def relu_job(key=None, settings=None):
    """A graph's key, and what a worker is given for it."""
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.relu, (graph.placeholder("x"),)))
    gm, options = torch.fx.GraphModule({}, graph), Options()
    metas = (segment_programs.Meta((4,), (1,), torch.float32, torch.device("cpu"), True),)
    place = segment_programs.stored_graph(gm, metas, options)
    around = metas, options, Modes.now(), settings or process_settings()
    return key or place.key, graph_transfer.to_bytes(gm, around), place


def test_what_it_compiles_is_stored_with_its_backward():
    key, data, place = relu_job()
    assert not place.is_stored() and build_worker._is_compiled(key, data)
    assert sorted(entries.read(key)["programs"]) == ["backward", "forward"]
    x = torch.tensor([-1.0, 0.0, 2.0, float("nan")], requires_grad=True)
    result = place.load()(x)
    result.sum().backward()
    assert result[:3].tolist() == [0.0, 0.0, 2.0] and x.grad[:3].tolist() == [0.0, 0.0, 1.0]


def test_what_has_another_key_there_is_refused():
    """Of a process that is not as this one in something that programs follow from."""
    key, data, place = relu_job(key="0" * KEY)
    assert not build_worker._is_compiled(key, data) and not place.is_stored()
    assert not build_worker._is_compiled(place.key, b"damaged") and not place.is_stored()


def test_a_backward_that_depends_on_the_gradients_given_is_left_to_the_call(monkeypatch):
    monkeypatch.setattr(missing_gradients, "MIN_ZEROS_BYTES", 4)
    graph = torch.fx.Graph()
    made = graph.call_function(torch.sin, (graph.placeholder("x"),))
    graph.output((made, graph.call_function(torch.cos, (made,))))
    gm, options = torch.fx.GraphModule({}, graph), Options()
    metas = (segment_programs.Meta((4,), (1,), torch.float32, torch.device("cpu"), True),)
    place = segment_programs.stored_graph(gm, metas, options)
    data = graph_transfer.to_bytes(gm, (metas, options, Modes.now(), process_settings()))
    assert not build_worker._is_compiled(place.key, data) and not place.is_stored()


# -- the two processes


class Pipes(BuildProcess):
    """One whose other side is this test's."""

    def _start(self):
        self.given, self._to = os.pipe()
        self._from, self.answers = os.pipe()
        os.set_blocking(self._to, False)

    def asked(self):
        length = int.from_bytes(build_worker._read(self.given, LENGTH), "little")
        data = build_worker._read(self.given, length)
        return data[:KEY].decode(), data[KEY:]

    def answer(self, how, key):
        os.write(self.answers, how + key.encode())


KEYS = ["a" * KEY, "b" * KEY]


def test_each_graph_is_asked_for_once_and_answered(monkeypatch):
    process = Pipes()
    large = b"x" * (1 << 20)  # more than a pipe holds
    sender = threading.Thread(target=lambda: process.ask(KEYS[0], lambda: large))
    sender.start()
    waiting.until(lambda: process._to >= 0)
    assert process.asked() == (KEYS[0], large)
    waiting.join(sender)
    assert process.ask(KEYS[0], lambda: 1 / 0)  # not again
    assert process.ask(KEYS[1], lambda: b"second")
    assert process.asked() == (KEYS[1], b"second")
    process.answer(REFUSED, KEYS[1])
    process.answer(STORED, KEYS[0])
    assert process.has_stored(KEYS[0]) and not process.has_stored(KEYS[1])
    process.end()


def test_nobody_waits_for_one_that_has_ended():
    process = Pipes()
    assert process.ask(KEYS[0], lambda: b"job")
    os.close(process.answers)
    assert not process.has_stored(KEYS[0]) and not process.ask(KEYS[1], lambda: b"job")
    os.close(process.given)
    handle = os.open(os.devnull, os.O_RDONLY)  # which has the number of one that was closed
    process.end()
    os.close(handle)
    other = Pipes()
    assert not other.ask(KEYS[0], lambda: 1 / 0)  # cannot travel: others still may
    assert other.ask(KEYS[1], lambda: b"job")
    os.close(other.given)
    assert not other.ask(KEYS[0], lambda: b"job")


def test_handles_may_be_large(monkeypatch):
    """Of a process with many open files."""
    process = Pipes()
    process.start()
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1200:
        pytest.skip("this process may not open so many")
    large = [os.dup2(handle, 1100 + n) for n, handle in enumerate((process._to, process._from))]
    process._to, process._from = large
    assert process.ask(KEYS[0], lambda: b"job") and process.asked() == (KEYS[0], b"job")
    process.answer(STORED, KEYS[0])
    assert process.has_stored(KEYS[0])


def test_a_worker_that_stops_does_not_wait():
    process, machine = Pipes(), Simulated()
    worker = Worker(Account(started=machine.now(), machine=machine))
    worker.submit(lambda: process.ask(KEYS[0], lambda: b"job") and process.has_stored(KEYS[0]))
    waiting.until(lambda: process._asked)
    worker.stop()
    waiting.join(worker._thread)
    assert process._asked and not process._answers


@pytest.mark.parametrize(
    ("left", "answered", "goes_on"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_only_what_has_begun_goes_on_after_the_script(left, answered, goes_on):
    process = Pipes(left)
    process.ask(KEYS[0], lambda: b"job")
    if answered:
        process.answer(STORED, KEYS[0])
        assert process.has_stored(KEYS[0])
    process.end()
    process.asked()
    os.set_blocking(process.given, False)
    try:
        ended = os.read(process.given, 1) == b""
    except BlockingIOError:
        ended = False
    assert ended is not goes_on
    assert not process.ask(KEYS[1], lambda: b"job")


def test_it_ends_a_while_after_the_process_that_it_works_for(monkeypatch):
    machine, ended, alive = Simulated(), [], iter([True, True, False])
    monkeypatch.setattr(build_worker, "_is_alive", lambda process: next(alive))
    monkeypatch.setattr(build_worker, "MACHINE", machine)
    monkeypatch.setattr(build_worker.compilers, "end_compilers", lambda: ended.append("compilers"))
    monkeypatch.setattr(build_worker.os, "_exit", ended.append)
    build_worker._end_after(1, seconds=60.0)
    assert ended == ["compilers", 1]
    assert len(machine.slept) == 3 + 60.0 / build_worker.LOOK


def test_a_process_is_alive_until_it_is_not():
    assert build_worker._is_alive(os.getpid())
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert not build_worker._is_alive(child)


def children():
    """The processes whose parent is this one."""
    parts = [each.read_text() for each in Path("/proc/self/task").glob("*/children")]
    return set(" ".join(parts).split())


@pytest.mark.slow
def test_a_worker_has_its_graphs_built_by_a_process_that_is_nobodys_child(monkeypatch):
    process, found, before = BuildProcess(), [], children()
    monkeypatch.setattr(build_process, "_serving", [process])
    worker = Worker(Account(share=1e9))

    def job():
        with background_budget.imports():
            compiled = dynfix.compile(F.softplus)
        x = torch.randn(5, requires_grad=True)
        found.append(torch.allclose(compiled(x), F.softplus(x)))

    worker.submit(job)
    waiting.until(lambda: not worker.busy)
    worker.stop()
    assert found == [True] and list(process._answers.values()) == [True]
    assert children() == before
    process.end()
