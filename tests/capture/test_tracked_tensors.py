"""What a recording knows of live tensors goes when they go."""

import gc

import torch
from dynfix.rewriter.capture.values import CALL_INPUT, Meta, TracedTensor, Tracker


def value(tensor, home=CALL_INPUT):
    return TracedTensor(home, None, 0, Meta.of(tensor))


def test_entries_go_with_their_tensors():
    tracker = Tracker()
    kept = torch.ones(2)
    tracker.add(kept, value(kept))
    for _ in range(50):  # identities are used again
        tensor = torch.ones(3)
        assert tracker.get(tensor) is None
        assert tracker.add(tensor, value(tensor, 0)) is tracker.get(tensor)
    del tensor
    gc.collect()
    assert [each is kept for each in tracker.live()] == [True]
    assert [tensor is kept for tensor, _ in tracker.live_inputs()] == [True]


def test_a_tensor_that_only_autograd_keeps_is_the_same_one_again():
    tracker = Tracker()
    leaf = torch.ones(2, requires_grad=True)
    made = leaf * 2
    loss = (made * made).sum()
    tracker.add(made, value(made, 0))
    saved = loss.grad_fn.next_functions[0][0]
    del made
    again = saved._saved_self
    found = tracker.get(again)
    assert found is None or found.value.home == 0
    assert len(tracker.live()) <= 1 and not tracker.unseen_writes()


def test_forgotten_and_dropped_entries():
    tracker = Tracker()
    x, y = torch.ones(2), torch.ones(2)
    tracker.add(x, value(x, 0)), tracker.add(y, value(y, 1))
    tracker.drop(0)
    assert tracker.get(x) is None and tracker.get(y) is not None
    tracker.forget()
    assert tracker.get(y) is None and not tracker.live()
    torch.utils.swap_tensors(x, y)  # which refuses tensors with weak references
