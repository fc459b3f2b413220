"""`torch.utils.checkpoint` in captured code: one graph, the same gradients, less kept for the
backward."""

import functools
import warnings

import dynfix
import pytest
import torch
from dynfix.lowering.graph import common_subexpressions
from helpers import Case, X, Y, call, one_graph, recordings, same, tensor
from torch.utils.checkpoint import checkpoint

GRAD = tensor(1, 2, 3, grad=True)


class Block(torch.nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.lin = torch.nn.Linear(3, 3)
        self.dropout = torch.nn.Dropout(dropout) if dropout else torch.nn.Identity()

    def forward(self, x, scale=1.0):
        return self.dropout(torch.sin(self.lin(x)).exp().cos()) * scale + x


class Net(torch.nn.Module):
    def __init__(self, dropout=0.0, **options):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList([Block(dropout) for _ in range(3)])
        self.run = functools.partial(checkpoint, use_reentrant=False, **options)

    def forward(self, x):
        for number, block in enumerate(self.blocks):
            x = self.run(block, x, scale=1.0 + number)
        return x


@pytest.mark.covering
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_net_of_blocks(dropout, backend):
    fn = same(
        lambda: Net(dropout),
        (X,),
        (GRAD,),
        (Y,),
        (GRAD,),
        (X,),
        backend=backend,
        tolerance=(1e-5, 1e-6),
    )
    one_graph(fn)


def test_what_the_function_reads_is_guarded():
    def make():
        case = Case(k=2.0)
        return Case(
            fn=lambda x: checkpoint(lambda v: (v * case.k).sin(), x, use_reentrant=False), case=case
        )

    fn = same(make, (GRAD,), (GRAD,), lambda c: setattr(c.case, "k", 3.0), (GRAD,), (X,), (GRAD,))
    one_graph(fn)


def test_options_that_change_nothing():
    same(lambda: Net(determinism_check="none", preserve_rng_state=False), (GRAD,), (X,), (GRAD,))


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """How many elements the backward of each graph that is compiled keeps."""
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path))  # no program of an earlier run
    cut, counts = common_subexpressions.min_cut_rematerialization_partition, []

    def noted(*args, **settings):
        parts = cut(*args, **settings)
        inputs = parts[1].graph.find_nodes(op="placeholder")
        saved = [node for node in inputs if "tangents" not in node.name]
        counts.append(sum(node.meta["val"].numel() for node in saved))
        return parts

    monkeypatch.setattr(common_subexpressions, "min_cut_rematerialization_partition", noted)
    return counts


def test_less_is_kept(kept):
    plain = Net()
    plain.run = lambda block, *args, **kwargs: block(*args, **kwargs)
    x = torch.rand(50, 3, requires_grad=True)
    for net in (Net(), plain):
        compiled = dynfix.compile(net, backend="native")
        for _ in range(3):
            compiled(x).sum().backward()
        assert len(recordings(compiled)) == 1
    marked, unmarked = kept
    assert marked < unmarked


def test_nothing_but_inputs_is_kept_of_tensors_alone(kept):
    def block(x, y):
        return ((x @ y).sin() @ y).cos() @ y

    def call(x, y):
        return checkpoint(block, x, y, use_reentrant=False) * 2

    given = [torch.rand(9, 9, requires_grad=True) for _ in range(2)]
    for fn in (call, lambda x, y: block(x, y) * 2):
        compiled = dynfix.compile(fn, backend="native")
        for _ in range(3):
            got, want = (torch.autograd.grad(f(*given).sum(), given) for f in (compiled, fn))
            torch.testing.assert_close(got, want)
    marked, unmarked = kept
    assert marked == 2 * 81 < unmarked


def test_sizes_that_change():
    fn = same(
        Net, *(call(torch.linspace(0, 1, 3 * n).view(n, 3).requires_grad_()) for n in (2, 4, 7, 9))
    )
    assert len(recordings(fn)) == 2


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_one_inside_another(backend):
    def run(function, *args):
        return checkpoint(function, *args, use_reentrant=False)

    class Nested(Net):
        def forward(self, x):
            return run(lambda v: run(self.blocks[1], run(self.blocks[0], v)) * 2, x)

    fn = same(
        Nested,
        *(call(torch.linspace(0, 1, 3 * n).view(n, 3).requires_grad_()) for n in (2, 2, 2, 7, 3)),
        backend=backend,
        tolerance=(1e-5, 1e-6),
    )
    assert torch.is_grad_enabled() and not any(recording.segments for recording in recordings(fn))


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_a_compiled_block_inside_a_checkpoint_that_is_not(backend, reentrant):
    """Run again in the backward, it saves as many tensors as the first time: eager's."""

    def gradients(run):
        x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
        block.zero_grad()
        checkpoint(run, x, use_reentrant=reentrant).square().sum().backward()
        return [x.grad, *(p.grad for p in block.parameters())]

    torch.manual_seed(0)
    block = Block()
    compiled = dynfix.compile(block, backend=backend)
    for _ in range(3):
        torch.testing.assert_close(gradients(compiled), gradients(block))
        compiled(X[None])


@pytest.mark.parametrize("kind", [{"use_reentrant": True}, {}])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_the_reentrant_kind_is_one_graph_where_an_input_learns(backend, kind):
    """It is meant, too, where no kind is named; torch warns of that at each call."""
    block = Block(0.5)

    def run(fn):
        torch.manual_seed(0)
        found = []
        for _ in range(3):
            x = tensor(1, 2, 3, grad=True)
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                result = fn(x)
            assert len([each for each in told if "use_reentrant" in str(each.message)]) == (
                not kind
            )
            result.sum().backward()
            found += [result.detach(), x.grad, block.lin.weight.grad]
            block.zero_grad()
        return found

    def program(x):
        return checkpoint(block, x, **kind) * 2

    compiled = dynfix.compile(program, backend=backend, fullgraph=True)
    for a, b in zip(run(compiled), run(program), strict=True):
        torch.testing.assert_close(a, b)


def test_the_reentrant_kind_without_gradients_is_left_to_torch():
    block = Block()
    compiled = dynfix.compile(lambda x: checkpoint(block, x, use_reentrant=True), backend="eager")
    for _ in range(3):
        with pytest.warns(UserWarning, match="requires_grad"):
            assert not compiled(tensor(1, 2, 3)).requires_grad


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_the_reentrant_kind_of_what_records_no_gradients(backend):
    block = Block()

    def teacher(x):
        with torch.no_grad():
            return block(x)

    compiled = dynfix.compile(lambda x: checkpoint(teacher, x, use_reentrant=True), backend=backend)
    for _ in range(3):
        x = tensor(1, 2, 3, grad=True)
        result = compiled(x)
        torch.testing.assert_close(result, teacher(x).requires_grad_())
        with pytest.raises(RuntimeError, match="none of output has requires_grad=True"):
            (result + x).sum().backward()


class Counted(torch.nn.Module):
    """Changes something at each run: the second one, in the backward, finds it changed."""

    def __init__(self, kind):
        super().__init__()
        self.norm, self.kind, self.runs = torch.nn.BatchNorm1d(3), kind, 0

    def forward(self, x):
        if self.kind == "python":
            self.runs += 1
            return x.sin() * self.runs
        return self.norm(x).sin()


@pytest.mark.parametrize("kind", ["python", "buffer"])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_second_run_that_finds_something_else(kind, backend):
    def trained(wrap):
        torch.manual_seed(0)
        block = Counted(kind)
        run = wrap(lambda x: checkpoint(block, x, use_reentrant=False) * 2)
        found = []
        for _ in range(4):
            x = torch.randn(4, 3, requires_grad=True)
            run(x).square().sum().backward()
            found += [x.grad, block.runs, block.norm.running_mean.clone()]
        return found

    compiled = trained(lambda fn: dynfix.compile(fn, backend=backend))
    torch.testing.assert_close(compiled, trained(lambda fn: fn))


def test_what_is_compared_for_equality_is_kept(kept):
    def call(x, y):
        return checkpoint(lambda a, b: (a @ b).exp().amax(-1), x, y, use_reentrant=False) * 2

    compiled = dynfix.compile(call, backend="native")
    for _ in range(3):
        given = [torch.rand(9, 9, requires_grad=True) for _ in range(2)]
        got, want = (torch.autograd.grad(f(*given).sum(), given) for f in (compiled, call))
        torch.testing.assert_close(got, want)
    assert kept[0] >= 3 * 81  # both inputs, and the exponentials that the extrema were found in


class Sides(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.one, self.two = (torch.nn.Linear(3, 3) for _ in range(3))

    def decide(self, x):
        y = self.one(x)
        if y.sum() > 0:
            y = y / x.abs().sum()
        return self.one(y) if y.mean() > 0 else self.two(y).exp()

    def forward(self, x):
        return checkpoint(self.decide, self.first(x), use_reentrant=False)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_decision_inside(backend):
    same(
        Sides,
        (X,),
        (GRAD,),
        (Y,),
        (tensor(-1, -2, -3, grad=True),),
        (GRAD,),
        backend=backend,
        tolerance=(1e-5, 1e-6),
    )


@pytest.mark.parametrize("training", [False, True])
def test_a_decision_inside_at_many_calls(training):
    compiled, plain = dynfix.compile(Sides()), Sides()
    for seed in range(8):
        torch.manual_seed(seed)
        x, seen = torch.randn(3 + seed % 3, 3), []
        for module in (compiled, plain):
            with torch.set_grad_enabled(training):
                result = module(x)
            if training:
                result.square().sum().backward()
            seen.append((result, [each.grad for each in module.parameters()]))
        torch.testing.assert_close(*seen)
