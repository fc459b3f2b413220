"""Compiles functions once for symbolic sizes and compares them with eager at many."""

from contextlib import contextmanager

import torch
from dynfix.lowering import pipeline
from dynfix.lowering.joint import compile_graph
from dynfix.lowering.loops.ir import Batch, Group
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import symbolic_trace
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from .harness import CHECKED, as_list, assert_same

SIZES = [
    (7, 12),
    (2, 2),
    (3, 17),
    (64, 31),
    (5, 1009),
    (130, 8),
    (13, 40),
]  # the first is compiled for


def fakes(args, static, mode):
    """Fake tensors, and symbols for ints. All axes are dynamic but those of arguments in `static`
    (indices, or pairs of index and axis)."""
    made = []
    for k, arg in enumerate(args):
        if not isinstance(arg, torch.Tensor):
            symbol = mode.shape_env.create_symbol(
                arg, ConstantSource(f"number{k}"), DimDynamic.DYNAMIC
            )
            made.append(
                mode.shape_env.create_symintnode(
                    symbol, hint=arg, source=ConstantSource(f"number{k}")
                )
            )
            continue
        fixed = [
            k in static or (k, d) in static or (k, d - arg.dim()) in static
            for d in range(arg.dim())
        ]
        kinds = [DimDynamic.STATIC if known else DimDynamic.DYNAMIC for known in fixed]
        made.append(
            mode.from_tensor(arg, symbolic_context=StatelessSymbolicContext(dynamic_sizes=kinds))
        )
    return made


class Symbolic:
    """fn compiled for symbolic sizes. `units`: what the stages made of its graphs."""

    def __init__(self, fn, args, static=(), options=CHECKED):
        self.env = ShapeEnv()
        self.fakes = fakes(args, static, FakeTensorMode(shape_env=self.env))
        self.units = []
        with self.watching():
            self.call = compile_graph(symbolic_trace(fn), self.fakes, options)

    @contextmanager
    def watching(self):
        finish = pipeline.finish

        def watched(unit, *rest):
            self.units.append(unit)
            return finish(unit, *rest)

        pipeline.finish = watched
        try:
            yield
        finally:
            pipeline.finish = finish

    def serves(self, *args):
        """Whether the guards, which whoever calls has to check first, let these arguments pass."""
        given = [a for a in args if isinstance(a, torch.Tensor)]
        return self.env.evaluate_guards_for_args(
            [f for f in self.fakes if isinstance(f, torch.Tensor)], given
        )

    def __call__(self, *args):
        assert self.serves(*args)
        return self.call(*args)

    @property
    def kernels(self):
        return [sum(isinstance(item, Group | Batch) for item in unit.items) for unit in self.units]

    @property
    def externs(self):
        return [
            str(item.target)
            for unit in self.units
            for item in unit.items
            if not isinstance(item, Group | Batch)
        ]


def check_sizes(fn, make, sizes=SIZES, static=(), options=CHECKED, rtol=None, atol=None):
    """What was compiled for make(*sizes[0]) serves at least four of the sizes, all that its guards
    let pass."""
    call = Symbolic(fn, make(*sizes[0]), static, options)
    for args in _served(call, make, sizes):
        assert_same(call(*args), fn(*args), rtol, atol)
    return call


def check_training(fn, make, sizes=SIZES, static=(), options=CHECKED, rtol=1e-4, atol=1e-4):
    """Outputs and gradients of floating-point arguments at all sizes."""
    call = Symbolic(fn, [_leaf(a) for a in make(*sizes[0])], static, options)
    for args in _served(call, make, sizes):
        ours, theirs = [_leaf(a) for a in args], [_leaf(a) for a in args]
        torch.manual_seed(1)
        found = as_list(call(*ours))
        torch.manual_seed(1)
        expected = as_list(fn(*theirs))
        assert_same([_plain(f) for f in found], [_plain(e) for e in expected], rtol, atol)
        used = [
            k for k, e in enumerate(expected) if isinstance(e, torch.Tensor) and e.requires_grad
        ]
        seeds = [torch.randn_like(expected[k]) for k in used]
        gradients = [
            torch.autograd.grad(
                [out[k] for k in used],
                [a for a in into if _differentiable(a)],
                seeds,
                allow_unused=True,
            )
            for out, into in ((found, ours), (expected, theirs))
        ]
        for one, two in zip(*gradients, strict=True):
            assert (one is None) == (two is None)
            if two is not None:
                torch.testing.assert_close(
                    one, two, rtol=rtol, atol=atol * max(1, two.abs().max().item())
                )
    return call


def _served(call, make, sizes):
    made = [make(*size) for size in sizes]
    served = [args for args in made if call.serves(*args)]
    assert len(served) >= 4, call.env.guards
    return served


def _differentiable(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _leaf(value):
    return value.detach().requires_grad_() if _differentiable(value) else value


def _plain(value):
    return value.detach() if isinstance(value, torch.Tensor) else value
