import threading

import pytest
import torch
from dynfix.lowering.joint import compile_graph
from dynfix.runtime.options import Options
from dynfix.runtime.programs import result_memory
from torch.fx import symbolic_trace

SHAPE = (600, 700)


@pytest.fixture(scope="module", autouse=True)
def native():
    result_memory.start().join()
    if result_memory._Engine.native is None:
        pytest.skip("no native memory here")
    return result_memory._Engine.native


def made(shape=SHAPE, strides=None, dtype=torch.float32):
    return result_memory.empty_large(shape, strides or (shape[1], 1), dtype)


def test_memory_that_was_let_go_of_serves_again():
    address = made().data_ptr()
    assert made().data_ptr() == address
    first, second = made(), made()
    assert first.data_ptr() != second.data_ptr()


def test_a_view_keeps_the_memory(native):
    view = made().fill_(3)[5:, 1]
    other = made().fill_(4)
    assert bool((view == 3).all()) and other.data_ptr() != view.data_ptr()


def test_tensors_are_ordinary():
    tensor = made((3, 4, 5), (1, 15, 3), torch.bfloat16)
    assert tensor.stride() == (1, 15, 3) and tensor.dtype == torch.bfloat16
    assert tensor.untyped_storage().nbytes() == 120 and not tensor.requires_grad
    tensor.fill_(2).resize_(100, 100)  # as torch's own: the storage grows
    assert bool((tensor.reshape(-1)[:60] == 2).all())
    assert made((0, 4), (4, 1)).numel() == 0


def test_what_is_kept_is_bounded(native):
    tensors = [made() for _ in range(4)]
    try:
        native.keep_at_most(2 * tensors[0].nbytes)
        del tensors
        assert 0 < native.kept() <= 2 * 4 * 600 * 700
    finally:
        native.keep_at_most(1 << 28)


def test_small_results_that_died_beside_each_other_serve_a_large_one(native):
    native.keep_at_most(0)
    native.keep_at_most(1 << 28)
    whole = made((6 * SHAPE[0], SHAPE[1]))
    del whole
    small = [made() for _ in range(6)]
    del small
    before = native.kept()
    large = made((5 * SHAPE[0], SHAPE[1]))
    assert before - native.kept() >= large.nbytes


def test_zeros_are_zeros_and_may_be_written():
    zeros = result_memory.zeros(SHAPE, torch.float32, torch.device("cpu"))
    assert zeros.shape == SHAPE and zeros.is_contiguous() and not bool(zeros.any())
    zeros.add_(1)
    again = result_memory.zeros(SHAPE, torch.float32, torch.device("cpu"))
    assert bool((zeros == 1).all()) and not bool(again.any())


def kept_elsewhere(tensor):
    return {
        "a variable": lambda: tensor,
        "a view": lambda: tensor[1:],
        "numpy": lambda: tensor.numpy(),
        "its storage": lambda: tensor.untyped_storage(),
        "another tensor": lambda: tensor.detach(),
    }


def overwritten(args):
    (arg,) = args
    args.clear()
    made = result_memory.take_over(arg, SHAPE, (SHAPE[1], 1), torch.float32)
    there = made.data_ptr() == arg.data_ptr()
    del arg
    return there


def test_memory_that_nothing_else_holds_is_taken_over():
    assert overwritten([made()])
    assert not overwritten([torch.empty(SHAPE)])  # of unknown origin


@pytest.mark.parametrize("how", kept_elsewhere(torch.empty(1)))
def test_memory_that_something_else_holds_is_left_alone(how):
    tensor = made()
    other = kept_elsewhere(tensor)[how]()
    args = [tensor]
    del tensor
    assert not overwritten(args) and other is not None


def test_large_results_of_library_calls_lie_there(native):
    x = torch.randn(4, 8, 64, 64)
    weight = torch.randn(8, 8, 3, 3)
    call = compile_graph(
        symbolic_trace(lambda x, w: torch.conv2d(x, w, padding=1)), [x, weight], Options()
    )
    address = call(x, weight).data_ptr()
    assert call(x, weight).data_ptr() == address
    torch.testing.assert_close(call(x, weight), torch.conv2d(x, weight, padding=1))
    before = native.kept()
    assert torch.conv2d(x, weight, padding=1) is not None and native.kept() == before


def test_threads_never_share():
    wrong = []

    def work(number):
        for _ in range(50):
            tensor = made().fill_(number)
            if not bool((tensor == number).all()):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_results_of_programs_lie_there():
    x = torch.randn(SHAPE)
    call = compile_graph(symbolic_trace(lambda x: x.sin() * 2), [x], Options())
    address = call(x).data_ptr()
    kept = [call(x), call(x + 1)]
    assert kept[0].data_ptr() == address
    torch.testing.assert_close(kept[0], x.sin() * 2)
    torch.testing.assert_close(kept[1], (x + 1).sin() * 2)
