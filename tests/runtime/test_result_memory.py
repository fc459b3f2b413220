import threading

import pytest
import torch
from dynfix.lowering.joint import compile_graph
from dynfix.runtime import result_memory
from dynfix.runtime.options import Options
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
