"""Graph inputs that are overwritten: where they lie, as eager does, and not before what may
raise."""

import dynfix
import pytest
import torch
from dynfix.lowering import pipeline
from dynfix.lowering.joint import compile_graph
from dynfix.lowering.loops.in_place import may_raise
from dynfix.lowering.loops.ir import Batch, Group
from dynfix.lowering.loops.kernel_graph import ExternCall
from torch.fx.experimental.proxy_tensor import make_fx

from .harness import CHECKED

randn = torch.randn


def one_slice(cache, k):
    cache[:, 3:4] = k


def strided_sum(cache, k):
    cache[:, 1:9:2] += k


def one_position(cache, k):
    cache[1, :, 3] = k[0, 0, 0]


def copied_rows(cache, k, at):
    cache.index_copy_(1, at, k)


def put_rows(cache, k, at):
    cache[:, at] = k


def overlapping_slices(cache, k):
    cache[0:2] += 1
    cache[1:3] *= 2
    cache[0, 0] = k[0, 0]


def swapped(a, b):
    old = a.clone()
    a.copy_(b)
    b.copy_(old)


def ring(a, b):
    total, product = a + b, a * b
    a.copy_(total)
    b.copy_(product)


def flipped(a):
    a.copy_(a.flip(0))


def softmaxed(a):
    a.copy_(torch.softmax(a, -1))


def picked(a, table, at):
    a.copy_(table[at])


def written_and_read(cache, k, at, query):
    cache.index_copy_(1, at, k)
    return torch.matmul(query, cache.transpose(1, 2))


def read_before(cache, k):
    before = cache * 2
    cache[:, 2:3] = k
    return before


def read_between(cache, k):
    cache[:, 2:3] = k
    between = cache + 1
    cache[:, 4:5] = k
    return between


def written_further(cache, k, at):
    cache.index_copy_(1, at, k)
    after = cache + 1
    after.index_copy_(1, at.flip(0), k * 2)
    return after.index_add(1, at, k)


def row_of_a_larger_result(a, x):
    larger = x * 2
    row = larger[0]
    product = row @ x
    a[0] = row
    return product


def windows_of_a_result(a, x, weight):
    longer = x * 2
    product = longer @ weight
    a[:, :3].copy_(longer.as_strided((3, 3), (4, 1)))
    return product


def overwritten_when_it_was_copied(a, b, x, at):
    a[0].copy_(b[0])
    b[at] = x[0:2]
    a[:, 0:2].t().copy_(x[at])
    a[:, 0:2].copy_(a[:, 1:3].clone())
    return a.clone()


def adam(p, g, m, v, step):
    step += 1
    m.lerp_(g, 0.1)
    v.mul_(0.99).addcmul_(g, g, value=0.01)
    p.addcdiv_(m / (1 - 0.9**step), v.sqrt() + 1e-8, value=-0.1)


def compiled(function, *args):
    """Compiled on copies of args."""
    graph = make_fx(function)(*(arg.clone() for arg in args))
    return compile_graph(graph, list(args), CHECKED)


def rows(count):
    return torch.randperm(16)[:count]


def cache():
    return randn(4, 16, 8)


CASES = {
    one_slice: lambda: (cache(), randn(4, 1, 8)),
    strided_sum: lambda: (cache(), randn(1)),
    one_position: lambda: (cache(), randn(1, 1, 1)),
    copied_rows: lambda: (cache(), randn(4, 2, 8), rows(2)),
    put_rows: lambda: (cache(), randn(4, 2, 8), rows(2)),
    overlapping_slices: lambda: (cache(), randn(1, 16, 8)),
    swapped: lambda: (randn(40), randn(40)),
    ring: lambda: (randn(40), randn(40)),
    flipped: lambda: (randn(6, 5),),
    softmaxed: lambda: (randn(6, 50),),
    picked: lambda: (randn(5, 4), randn(10, 4), torch.randint(0, 10, (5,))),
    written_and_read: lambda: (cache(), randn(4, 1, 8), rows(1), randn(4, 1, 8)),
    read_before: lambda: (cache(), randn(4, 1, 8)),
    read_between: lambda: (cache(), randn(4, 1, 8)),
    written_further: lambda: (cache(), randn(4, 2, 8), rows(2)),
    row_of_a_larger_result: lambda: (randn(3, 3), randn(3, 3)),
    windows_of_a_result: lambda: (randn(3, 4), randn(11), randn(11, 2)),
    overwritten_when_it_was_copied: lambda: (
        randn(3, 3),
        randn(3, 3),
        randn(3, 3),
        torch.tensor([2, 0]),
    ),
    adam: lambda: (randn(40), randn(40), randn(40), randn(40).abs(), torch.tensor(3.0)),
}


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_inputs_and_results_are_eagers(function):
    call = compiled(function, *CASES[function]())
    for _ in range(3):
        ours = CASES[function]()
        theirs = [x.clone() for x in ours]
        found, expected = call(*ours), function(*theirs)
        for one, two in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, two)
        if expected is not None:
            torch.testing.assert_close(found, expected)


def test_what_lies_between_the_elements_of_an_input_stays():
    def program(a, x, weight):
        longer = x * 2
        a.copy_(longer.as_strided((3, 3), (4, 1)))
        return longer @ weight

    call = dynfix.compile(program)
    for _ in range(4):
        base, x, weight = randn(3, 4), randn(11), randn(11, 2)
        expected = base.clone()
        torch.testing.assert_close(
            call(base[:, :3], x, weight), program(expected[:, :3], x, weight)
        )
        torch.testing.assert_close(base, expected)


@pytest.fixture
def items(monkeypatch):
    """What the graphs compiled meanwhile run."""
    seen = []
    finish = pipeline.finish
    monkeypatch.setattr(
        pipeline, "finish", lambda unit, *rest: seen.extend(unit.items) or finish(unit, *rest)
    )
    return seen


@pytest.mark.parametrize("function", [one_slice, strided_sum, copied_rows, put_rows])
def test_only_what_changes_is_stored(function, items):
    args = CASES[function]()
    compiled(function, *args)
    target = max((b for b in _stored(items)), key=lambda b: b.size)
    assert target.size == args[0].numel()
    assert all(_points(item) <= args[0].numel() // 4 for item in items)


def test_a_cache_that_the_graph_goes_on_reading_is_not_copied(items):
    compiled(written_and_read, *CASES[written_and_read]())
    assert not any(_points(item) >= 512 for item in items if isinstance(item, Group | Batch))
    assert not any(isinstance(item, ExternCall) for item in items)  # the product is a loop, too


def test_an_optimizer_step_is_one_kernel(items):
    compiled(adam, *CASES[adam]())
    assert len(items) == 1


def _stored(items):
    nests = [nest for item in items if isinstance(item, Group | Batch) for nest in item.nests]
    return {store.buffer for nest in nests for store in nest.stores}


def _points(item):
    count = 1
    for size in getattr(item, "space", ()):
        count *= size
    return count


def adds_then_picks(a, table, at):
    a.add_(1)
    a[0] = table[at][0]
    a[:, 1] = table[at, 0][0]


def test_nothing_is_written_by_a_call_that_raises(items):
    a, table = randn(4, 3), randn(5, 3)
    call = compiled(adds_then_picks, a, table, torch.tensor([1]))
    before = a.clone()
    with pytest.raises(IndexError):
        call(a, table, torch.tensor([7]))
    assert torch.equal(a, before)
    for function in (copied_rows, put_rows):
        args = (*CASES[function]()[:2], rows(2))
        call, before = compiled(function, *args), args[0].clone()
        with pytest.raises((IndexError, RuntimeError)):
            call(*args[:2], torch.tensor([3, 16]))
        assert torch.equal(args[0], before)


def counts_then_multiplies(counter, weight, x):
    counter.add_(1)
    return torch.mm(x, weight) + counter


def test_writes_that_are_not_repeatable_come_last(items):
    compiled(counts_then_multiplies, torch.zeros(3), randn(3, 3), randn(2, 3))
    (last,) = [n for n, item in enumerate(items) if "arg0" in _names(item)]
    assert not any(map(_raises, items[last + 1 :]))


def reads_sets_and_multiplies(a, weight):
    old = a.exp()
    a[0].zero_()
    return old, torch.mm(a, weight)


def test_what_is_read_before_it_is_written_comes_last(items):
    compiled(reads_sets_and_multiplies, randn(4, 3), randn(3, 3))
    (last,) = [n for n, item in enumerate(items) if "arg0" in _names(item)]
    assert not any(map(_raises, items[last + 1 :]))


def multiplies_beside_alike_copies(a, weight, other, at):
    a[0].mul_(weight[0])
    return a @ weight, other.index_add(0, at, other[:2])


def picks_then_sets_and_multiplies(a, b, weight, at):
    a[0:2] = weight[at]
    b[0] = weight[0]
    return b @ weight


def test_what_eager_does_not_reach_is_not_written():
    a, b, weight = randn(3, 3), randn(3, 3), randn(3, 3)
    call = compiled(picks_then_sets_and_multiplies, a, b, weight, torch.tensor([0, 2]))
    before = a.clone(), b.clone()
    with pytest.raises(IndexError):
        call(a, b, weight, torch.tensor([0, 7]))
    assert torch.equal(a, before[0]) and torch.equal(b, before[1])


def test_what_is_written_joins_no_kernel_of_its_kind_before_what_may_raise(items):
    a, weight, other = randn(3, 3), randn(3, 3), randn(3, 3)
    compiled(multiplies_beside_alike_copies, a, weight, other, torch.tensor([0, 2]))
    (last,) = [n for n, item in enumerate(items) if "arg0" in _names(item)]
    assert not any(map(_raises, items[last + 1 :]))


def _names(item):
    return {b.name for b in _stored([item])}


def _raises(item):
    return isinstance(item, ExternCall) or any(map(may_raise, item.nests))


def test_a_position_that_changes_at_each_call():
    def write(cache, k, at):
        cache[:, at : at + 1] = k
        return cache.sum()

    ours = torch.zeros(2, 16, 3)
    theirs = ours.clone()
    call = dynfix.compile(write)
    for at in (3, 7, 0, 15, 8, 15, 4):
        k = randn(2, 1, 3)
        torch.testing.assert_close(call(ours, k, at), write(theirs, k, at))
        assert torch.equal(ours, theirs), at


def test_running_statistics():
    ours, theirs = torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)
    call = dynfix.compile(ours)
    for _ in range(4):
        x = randn(8, 4)
        call(x).sum().backward()
        theirs(x).sum().backward()
        torch.testing.assert_close(ours.running_mean, theirs.running_mean)
        torch.testing.assert_close(ours.running_var, theirs.running_var)
        assert ours.num_batches_tracked == theirs.num_batches_tracked


def test_the_version_counter_moves():
    graph = make_fx(lambda a: a.add_(1))(randn(3))
    a = randn(3)
    call, before = compile_graph(graph, [a], CHECKED), a._version
    call(a)
    assert a._version > before


def test_an_input_whose_elements_share_memory_keeps_eagers_error():
    def add(x):
        x.add_(1)

    call = dynfix.compile(add)
    call(randn(4, 3))
    for _ in range(3):
        with pytest.raises(RuntimeError):
            call(randn(1, 3).expand(4, 3))
