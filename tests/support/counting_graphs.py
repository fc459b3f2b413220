"""Graphs counted from outside: builds, calls, and operators that ran in none of them."""

import torch


class Counting:
    """A backend that counts builds and calls. `compiler`: what builds the graph's callable;
    without, the graph runs as it is."""

    def __init__(self, compiler=None):
        self.compiler = compiler
        self.built = self.calls = 0

    def __call__(self, graph_module, example_inputs):
        self.built += 1
        program = self.compiler(graph_module, example_inputs) if self.compiler else graph_module

        def run(*args):
            self.calls += 1
            with torch.profiler.record_function("CAPTURED"):
                return program(*args)

        return run


# Handing buffers on, or reading a value: no work that was missed.
PLUMBING = {
    "aten::" + name
    for name in """item _local_scalar_dense is_nonzero detach alias view_as as_strided empty empty_like empty_strided clone copy_
    _to_copy to lift_fresh resize_ set_ size stride result_type equal""".split()
}


def outside(fn):
    """(result of fn(), names of the operators that ran outside every captured graph)."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result = fn()
    return result, [event.name for event in profile.events() if _is_outside(event)]


def _is_outside(event):
    if not event.name.startswith("aten::") or event.name in PLUMBING:
        return False
    parent = event.cpu_parent
    while parent is not None:
        if parent.name == "CAPTURED" or parent.name.startswith("aten::"):
            return False
        parent = parent.cpu_parent
    return True
