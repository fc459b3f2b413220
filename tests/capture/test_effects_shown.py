"""Prints, warnings and log records of captured calls are shown at every call, in order."""

import contextlib
import dataclasses
import io
import logging
import sys
import warnings

import dynfix
import pytest
import torch
from helpers import FOUR, Case, X, call, one_graph, same, watching

log = logging.getLogger("user.effects")


def test_prints_and_logs_in_order():
    def body(s, x):
        print("start", x.shape, s.n, end=" .. ")
        y = x * 2
        print(y, y.sum(), [y], {"y": y}, (y, [y]), f"{y}", f"{ {'k': y} }", sep="\n")
        log.info("y %s", y)
        y.add_(1)
        print(y, file=sys.stdout)
        log.warning("after %s %d", {"y": y}, 3, extra={"who": "me"})
        warnings.warn(f"sum {y.sum().item():.2f}", stacklevel=2)
        sys.stdout.write(f"{y.max().item()}\n")
        s.log.append("between")
        print(s.log, s, type(s), len(s.log))
        print()
        return y

    same(watching(body, n=0, log=list), *FOUR)


def test_print_of_user_objects():
    @dataclasses.dataclass
    class Result:
        loss: object

    class Shown:
        def __init__(self, v):
            self.v = v

        def __str__(self):
            return f"<{self.v}>"

    outer = Shown(1)

    def body(s, x):
        print(Result(x.sum()), Shown(x), Shown(x.sum().item()), outer, s.o)
        print(
            f"{Result(x)} {Shown(x)!s:>9}",
            "%s" % Shown(x.sum().item()),
            "{}".format(Shown(x.mean().item())),
            repr([Result(x.sum().item())]),
        )
        s.o.v += 1
        log.error("%s %r", s.o, Result(x))
        try:
            raise ValueError("inner")
        except ValueError:
            log.exception("caught %s", x.sum().item())
        return x

    same(watching(body, o=lambda: Shown(2)), *FOUR)


def test_print_stream_replaced():
    def make():
        out = io.StringIO()
        state = Case(out=out)

        def f(x):
            print("to stream", x, file=state.out)
            with contextlib.redirect_stdout(state.out):
                print("redirected", x.sum().item())
            return x + 1

        return Case(fn=f, watch=lambda: out.getvalue())

    same(make, *FOUR)


def test_logger_level_changed():
    logger = logging.getLogger("user.level")

    def make():
        def f(x):
            logger.debug("debug %s", x.shape)
            if logger.isEnabledFor(logging.INFO):
                logger.info("info")
            return x + logger.level

        return f

    def level(value):
        return lambda _: logger.setLevel(value)

    same(make, (X,), level(logging.ERROR), (X,), level(logging.DEBUG), (X,), level(0), (X,))


def test_log_records_name_the_users_line():
    class Handler(logging.Handler):
        def emit(self, record):
            self.places.append((record.funcName, record.lineno, record.filename))

    def make():
        logger = logging.Logger("own")
        handler = Handler()
        handler.places = []
        logger.addHandler(handler)

        def f(x):
            logger.info("here")
            return x + 1

        return Case(fn=f, watch=lambda: handler.places)

    same(make, *FOUR)


@pytest.mark.parametrize("made", [io.StringIO, lambda: sys.stdout])
def test_print_into_a_stream_that_the_call_made(made):
    def body(s, x):
        first, second = io.StringIO(), made()
        with contextlib.redirect_stdout(first):
            print("redirected", x.sum().item())
        print("given", x.shape, file=second)
        return x * 2, first.getvalue(), second is sys.stdout or second.getvalue()

    same(watching(body), *FOUR, *FOUR)


def test_stream_made_in_the_call_is_returned():
    def body(x):
        stream = io.StringIO()
        print(x.sum().item(), file=stream)
        return x + 1, stream

    compiled = dynfix.compile(body, backend="eager")
    texts = [compiled(X * k)[1].getvalue() for k in (1, 2, 3, 1)]
    assert texts == [f"{(X * k).sum().item()}\n" for k in (1, 2, 3, 1)]


def test_what_tells_names_the_users_line_where_nothing_is_recorded():
    """After a break, and in functions that run in parts."""
    shown = []

    class Keep(logging.Handler):
        def emit(self, record):
            shown.append((record.filename, record.lineno, record.funcName))

    def tell(x):
        sys._getframe()
        log.warning("a")
        logging.getLogger("user.adapted").error("b", exc_info=True)
        adapted.error("c", stacklevel=1)
        log.exception("d")
        warnings.warn("e", UserWarning, 2)
        warnings.warn("f", stacklevel=1)
        return x + 1

    def body(x):
        return tell(x) * 2

    def places(fn):
        shown.clear()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for _ in range(4):
                fn(X)
        own = [w for w in told if w.category is UserWarning]
        return [*shown, *((w.filename, w.lineno) for w in own)]

    adapted = logging.LoggerAdapter(logging.getLogger("user.adapted"), {})
    handler = Keep()
    handler.setFormatter(logging.Formatter("%(message)s"))
    logging.root.addHandler(handler)
    try:
        assert places(dynfix.compile(body, backend="eager")) == places(body)
    finally:
        logging.root.removeHandler(handler)


@pytest.mark.parametrize("learns", [False, True])
def test_a_tensor_is_a_number_to_who_formats_it(learns):
    def body(s, x):
        y = (x * 2).sum()
        log.info("%.2f %d %s", y, y, y)
        log.warning("%s", [y])
        return y

    steps = (call(torch.full((3,), float(n)).requires_grad_(learns)) for n in range(4))
    same(watching(body), *steps)


def test_texts_of_tensors_cut_no_graph():
    def body(s, x):
        y = x * 2
        shown = "%.2f|%s|%d" % (y.sum(), y, y.sum()), "%.3f" % y.mean()
        named = "{0:.3f} {n:d} {0!r}".format(y.mean(), n=3), "{}".format((y, 1))
        y.add_(1)
        print(str(y), repr(y.sum()), *shown, *named, "%s" % [y])
        s.log.append(shown)
        return y, named

    learning = (call(torch.full((3,), float(n)).requires_grad_()) for n in range(3))
    one_graph(same(watching(body, log=list), *FOUR, *learning))


def test_a_text_that_raises():
    def body(s, x):
        try:
            return "%.2f" % x, "%d" % x.sum()
        except (TypeError, ValueError, RuntimeError) as error:
            return type(error).__name__

    values = (1.0, 2.0, float("nan"), 3.0)
    same(watching(body), *[(torch.full((size,), v),) for size in (1, 2, 1, 3) for v in values])


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_logger_is_asked_for_its_level_in_one_graph(backend, caplog):
    logger = logging.getLogger("user.asked")

    def f(x):
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("mean %.3f", x.mean().item())
        return x * 2 if logger.getEffectiveLevel() > logging.INFO else x + 1

    compiled = dynfix.compile(f, backend=backend, fullgraph=True)
    for level in (logging.WARNING, logging.DEBUG, logging.DEBUG, logging.INFO, logging.WARNING):
        x, seen = torch.randn(3), []
        for function in (f, compiled):
            caplog.clear()
            with caplog.at_level(level, "user.asked"):
                seen.append((function(x).tolist(), caplog.messages))
        assert seen[0] == seen[1]
