"""Classes of Parameters: those that only add to it are Parameters as any other."""

import pytest
import torch
from helpers import Case, X, one_graph, recordings, same


def _module(kind):
    module = torch.nn.Module()
    module.weight = kind(torch.ones(3))
    return module


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_what_a_class_adds_is_read(backend):
    def make():
        class Scaled(torch.nn.Parameter):
            factor = 2.0

            def __new__(cls, data):
                made = torch.Tensor._make_subclass(cls, data, True)
                made.rate = 3.0
                return made

            def doubled(self):
                return self * 2

            @property
            def asked(self):
                self.count = getattr(self, "count", 0) + 1
                return self.count

        module = _module(Scaled)

        def fn(x):
            w = module.weight
            return x * w.doubled() * w.rate + w.factor + w.asked, type(w) is Scaled, w

        return Case(fn=fn, module=module, kind=Scaled, watch=lambda: module.weight.count)

    def write(case):
        with torch.no_grad():
            case.module.weight.add_(1)

    fn = same(
        make,
        *[(X,)] * 3,
        write,
        (X,),
        lambda case: setattr(case.module.weight, "rate", 5.0),
        *[(X,)] * 2,
        lambda case: setattr(case.kind, "factor", 7.0),
        *[(X,)] * 2,
        lambda case: setattr(case.kind, "doubled", lambda self: self * 9),
        *[(X,)] * 2,
        backend=backend,
        tolerance=(1e-5, 1e-6),
    )
    assert all(len(recording.segments) == 1 for recording in recordings(fn))


def test_another_class_is_another_recording():
    class First(torch.nn.Parameter):
        factor = 2.0

    class Second(First):
        factor = 3.0

    def change(kind):
        return lambda case: setattr(case.module, "weight", kind(torch.ones(3)))

    def make():
        module = _module(First)
        return Case(fn=lambda x: x * module.weight * module.weight.factor, module=module)

    one_graph(same(make, (X,), (X,), change(Second), (X,), (X,), change(First), (X,)))


def test_a_class_that_changes_operators_runs_once_a_call():
    def make():
        asked = []

        class Counted(torch.nn.Parameter):
            def __add__(self, other):
                asked.append("add")
                return super().__add__(other) * 2

            def sum(self, *args):
                asked.append("sum")
                return super().sum(*args)

        module = _module(Counted)
        return Case(
            fn=lambda x: (module.weight + x) * module.weight.sum(), watch=lambda: list(asked)
        )

    same(make, *[(X,)] * 4)
