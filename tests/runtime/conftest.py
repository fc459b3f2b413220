"""Both engines of the guards, behind one fixture."""

import functools

import pytest
from dynfix.runtime.guards import guard_native
from dynfix.runtime.guards.guard import GuardSet


class Matcher:
    """A GuardSet pinned to one engine; `holds` also asks that `explain` agrees with `match`."""

    def __init__(self, native, guards, inputs=(), nargs=0, kwnames=(), **options):
        self.set = GuardSet(guards, inputs, nargs, kwnames, **options)
        self.match = guard_native.lower(native, self.set.plan) if native else self.set.plan.match

    def holds(self, *args, **kwargs):
        found = self.match(args, kwargs)
        failure = self.set.explain(args, kwargs)
        assert (found is None) == (failure is not None), (found, failure)
        return found is not None

    def why(self, *args, **kwargs):
        assert self.match(args, kwargs) is None
        return self.set.explain(args, kwargs).message


@pytest.fixture(params=["python", "native"])
def engine(request):
    """Makes a Matcher: engine(guards, inputs, nargs, kwnames, **options)."""
    native = None
    if request.param == "native":
        native = guard_native.wait()
        if native is None:
            pytest.skip("no native guards here")
    return functools.partial(Matcher, native)
