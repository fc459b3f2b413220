"""CUDA graphs that a CPU stands for: a replay runs the program again on the memory of the capture.

What it cannot show: what a GPU does not capture, memory pools, streams, parts of the host's.
"""

import ctypes

import torch
from dynfix.lowering import host_device_split, pipeline, stored_graphs
from dynfix.runtime.gpu import cuda_graphs

UNCOMPUTED = 171  # each byte of results that no replay has made yet


def unowned(tensor):
    """A tensor over the same memory, which does not hold it: as a graph, that knows addresses."""
    if not isinstance(tensor, torch.Tensor) or not tensor.untyped_storage().nbytes():
        return tensor
    storage = tensor.untyped_storage()
    memory = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
    flat, made = torch.frombuffer(memory, dtype=torch.uint8), torch.empty(0, dtype=tensor.dtype)
    made.set_(flat.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
    made = made.conj() if tensor.is_conj() else made
    return torch._neg_view(made) if tensor.is_neg() else made


def _memory(tensor):
    """All of its storage, as bytes."""
    storage = tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))


def _place(tensor):
    return tensor.untyped_storage().data_ptr()


class Graph:
    def __init__(self, program, given, results):
        self.program, self.given, self.results = program, [*map(unowned, given)], results

    def replay(self):
        done = set()
        for result, made in zip(self.results, self.program(list(self.given)), strict=True):
            if not isinstance(result, torch.Tensor) or _place(result) in {_place(made), *done}:
                continue
            assert (result.shape, result.stride()) == (made.shape, made.stride())
            assert result.storage_offset() == made.storage_offset()
            count = min(_memory(result).numel(), _memory(made).numel())
            _memory(result)[:count].copy_(_memory(made)[:count])
            done.add(_place(result))


def captured(program, device, given):
    """Nothing is computed yet: what the program wrote or drew is put back."""
    tensors = [each for each in given if isinstance(each, torch.Tensor)]
    before, drawn = [_memory(each).clone() for each in tensors], torch.get_rng_state()
    results = program(list(given))
    for each, content in zip(tensors, before, strict=True):
        _memory(each).copy_(content)
    torch.set_rng_state(drawn)
    known = {_place(each) for each in (*tensors, *program.namespace.values()) if _is_tensor(each)}
    for result in filter(_is_tensor, results):
        if _place(result) not in known:
            _memory(result).fill_(UNCOMPUTED)
    return [Graph(program, given, results)], results


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


def install(patch, programs=None):
    """Have programs with graphs made so, by `patch` (`setattr`, or pytest's, to be undone); each
    goes to `programs`. Nothing is taken from earlier runs."""

    class StandIn(cuda_graphs.GraphedProgram):
        def __init__(self, *args):
            super().__init__(*args)
            if programs is not None:
                programs.append(self)

        def _may_replay(self):
            return True

    patch(pipeline, "GraphedProgram", StandIn)
    patch(host_device_split, "on_host", lambda buffer, unit: False)
    patch(pipeline, "_graph_device", lambda unit: torch.device("cpu"))
    patch(cuda_graphs, "captured", captured)
    for module in (pipeline, stored_graphs):
        patch(module, "watchers", [lambda unit, launches: launches])
