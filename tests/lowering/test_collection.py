"""When garbage is collected while graphs are compiled."""

import gc

import torch
import waiting
from dynfix.lowering import joint
from dynfix.runtime.background_budget import Account, Worker
from dynfix.runtime.gc_pause import gc_paused
from dynfix.runtime.options import Options
from torch.fx import symbolic_trace


def test_nothing_is_collected_inside():
    with gc_paused():
        assert not gc.isenabled()
        with gc_paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_nothing_is_collected_while_a_graph_is_traced(monkeypatch):
    seen = []
    trace = joint.inference_graph
    monkeypatch.setattr(
        joint, "inference_graph", lambda *given: seen.append(gc.isenabled()) or trace(*given)
    )
    with torch.no_grad():
        joint.compile_graph(symbolic_trace(lambda x: (x + 1,)), [torch.ones(3)], Options())
    assert seen == [False] and gc.isenabled()


def test_background_work_leaves_collection_as_it_is():
    seen, worker = [], Worker(Account())

    def job():
        with gc_paused():
            seen.append(gc.isenabled())

    worker.submit(job)
    waiting.until(lambda: not worker.busy)
    worker.stop()
    assert seen == [True]
