import ctypes
import random

import pytest
import torch
from dynfix.lowering.loops.ir import Buffer, Nest, Store
from dynfix.lowering.loops.kernel_graph import Unit
from dynfix.lowering.loops.sizes import ZERO
from dynfix.lowering.loops.storage import Storage, _Lives, overlaps, pack
from dynfix.lowering.lowerings.value_builders import const
from dynfix.lowering.targets.cpp.cpp_target import library_source, print_kernel
from dynfix.runtime.build import FLAGS, build_shared, probe_flags
from dynfix.runtime.programs import program
from dynfix.runtime.programs.launch import CtypesKernel, Library, kernel_type

from .examples import EXAMPLES
from .harness import compiled


def kernel_of(group, vector_math):
    kernel = print_kernel(group)
    source = library_source([kernel], [group], vector_math)
    return kernel, Library(build_shared(source, flags=FLAGS, name=group.name))


@pytest.mark.parametrize("vectors", [True, False], ids=["libmvec", "scalar"])
@pytest.mark.parametrize("make", EXAMPLES, ids=lambda make: make.__name__)
def test_examples_compute_what_they_should(make, vectors):
    group, tensors, expected = make()
    kernel, library = kernel_of(group, probe_flags().vector_math if vectors else frozenset())
    for _ in range(3):
        library.kernel(kernel.name, kernel.big)(
            *(tensors[buffer.name] for buffer in kernel.buffers)
        )
        for name, value in expected.items():
            torch.testing.assert_close(tensors[name], value, rtol=1e-5, atol=1e-5, equal_nan=True)
            tensors[name].fill_(3)


def test_ctypes_launches_as_the_native_extension_does():
    group, tensors, expected = EXAMPLES[0]()
    kernel, library = kernel_of(group, frozenset())
    address = ctypes.cast(getattr(library._library, kernel.name), ctypes.c_void_p).value
    for threads in (None, lambda: 2):
        tensors["y"].zero_()
        CtypesKernel(address, kernel.name, threads)(
            *(tensors[b.name].data_ptr() for b in kernel.buffers)
        )
        torch.testing.assert_close(tensors["y"], expected["y"])


def test_bad_positions_raise_and_touch_nothing():
    group, tensors, _ = next(make for make in EXAMPLES if make.__name__ == "gather")()
    kernel, library = kernel_of(group, frozenset())
    tensors["ids"][3] = 50
    with pytest.raises(IndexError, match="out of range"):
        library.kernel(kernel.name, kernel.big)(*(tensors[b.name] for b in kernel.buffers))


def test_kernels_refuse_what_is_no_tensor():
    group, _, _ = EXAMPLES[0]()
    kernel, library = kernel_of(group, frozenset())
    with pytest.raises((AttributeError, TypeError)):
        library.kernel(kernel.name, kernel.big)("x", None)
    with pytest.raises((ValueError, TypeError)):
        kernel_type()(0, "nothing", None) if kernel_type() is not CtypesKernel else CtypesKernel(
            "x", "nothing", None
        )


def test_packing_gives_live_buffers_their_own_bytes():
    wanted = [
        (0, 3, 100, "a"),
        (1, 2, 200, "b"),
        (3, 5, 50, "c"),
        (4, 6, 200, "d"),
        (6, 7, 300, "e"),
        (0, 7, 64, "f"),
    ]
    offsets, size = pack(wanted)
    assert size < sum(entry[2] for entry in wanted)
    for first, last, bytes_, name in wanted:
        for first2, last2, bytes2, name2 in wanted:
            if name != name2 and first <= last2 and first2 <= last:
                low, low2 = offsets[name], offsets[name2]
                assert low + bytes_ <= low2 or low2 + bytes2 <= low


def first_fit(wanted):
    """As `pack`, by looking at every buffer that was placed."""
    placed, offsets = [], {}
    for first, last, size, name in sorted(wanted, key=lambda entry: -entry[2]):
        size = -(-size // 64) * 64
        beside = sorted((lo, hi) for lo, hi, f, e in placed if f <= last and first <= e)
        offset = 0
        for low, high in beside:
            if low - offset >= size:
                break
            offset = max(offset, high)
        placed.append((offset, offset + size, first, last))
        offsets[name] = offset
    return offsets


@pytest.mark.parametrize("seed", range(20))
def test_packing_is_first_fit(seed):
    draw = random.Random(seed)
    ends = [sorted(draw.choices(range(draw.choice([8, 80, 300])), k=2)) for _ in range(200)]
    wanted = [(*life, draw.choice([1, 64, 200, 1000]), n) for n, life in enumerate(ends)]
    assert pack(wanted)[0] == first_fit(wanted)


def test_packing_of_many_that_live_long_looks_at_few(monkeypatch):
    """Gradients live from the backward to the update of their parameter."""
    seen = []
    meeting = _Lives.meeting

    def counted(self, *life):
        for one in meeting(self, *life):
            seen.append(one)
            yield one

    monkeypatch.setattr(_Lives, "meeting", counted)
    count = 400
    pack([(place, 3 * count - place, 64 + place % 7, place) for place in range(count)])
    assert len(seen) < 200 * count


def test_overlap_is_found():
    one, two = Buffer("one", torch.float32, 4), Buffer("two", torch.float32, 4)
    nest = Nest(
        (),
        (),
        (Store(one, ZERO, const(1, torch.float32)), Store(two, ZERO, const(2, torch.float32))),
    )
    unit = Unit("u", (), (), (nest,), {}, {})
    assert overlaps(unit, Storage({one: 0, two: 8}, 24, {}, ((),)))
    assert not overlaps(unit, Storage({one: 0, two: 64}, 80, {}, ((),)))


def _chain(x):
    for _ in range(6):
        x = (x @ x).tanh().softmax(-1)
    return x


def test_dead_buffers_are_used_again():
    made = []
    original = program.Program.__init__

    def remember(self, *args):
        original(self, *args)
        made.append(self)

    program.Program.__init__ = remember
    try:
        with torch.no_grad():
            compiled(_chain, torch.randn(16, 16))
    finally:
        program.Program.__init__ = original
    (arena,) = (step for step in made[-1].steps if isinstance(step, program.Arena))
    assert arena.size <= 3 * 16 * 16 * 4  # of eleven buffers, at most three live at once
    assert sum(isinstance(step, program.Alloc) for step in made[-1].steps) == 1  # the result
    assert all(
        "# " in line or line.startswith("    ") or line.startswith("def ")
        for line in made[-1].source.splitlines()
    )
