"""`raise` of a class: what the exception is made of is guarded. What Python itself raises for what
the user's code gave, it raises here too, and asks once."""

import dynfix
import pytest
import torch
from helpers import Case, X, one_graph, same


class Told:
    text = "a"


class Failure(Exception):
    def __init__(self):
        super().__init__(Told.text)


def raised(x):
    try:
        raise Failure
    except Failure as error:
        return x * len(str(error))


def caused(x):
    try:
        raise ValueError from Failure
    except ValueError as error:
        return x * len(error.__cause__.args[0])


def told(text):
    return lambda case: setattr(Told, "text", text)


@pytest.mark.parametrize("body", [raised, caused])
def test_class(body, monkeypatch):
    monkeypatch.setattr(Told, "text", "a")
    texts = [told(text) for text in ("bb", "ccc", "a")]
    one_graph(same(lambda: body, (X,), texts[0], (X,), texts[1], (X,), texts[2], (X,)))


def test_an_exception_leaves():
    def body(x):
        y = x + 1
        raise Failure from KeyError(y.shape[0])

    same(lambda: body, (X,), (X,))


def ended():
    yield 1
    raise StopIteration("early")


def emptied():
    yield 1
    next(iter(()))


@pytest.mark.parametrize("made", [ended, emptied])
@pytest.mark.parametrize("taken", [lambda made: (next(made), next(made)), list])
def test_a_generator_raises_stop_iteration(made, taken):
    def body(x):
        try:
            return x + len(taken(made()))
        except RuntimeError as error:
            return x * 2, str(error)

    same(lambda: body, (X,), (X,))


class Answers:
    """Its special methods give what they may, or may not, and are counted."""

    def __init__(self, answer):
        self.answer, self.asked = answer, 0

    def _answered(self):
        self.asked += 1
        return self.answer

    def __contains__(self, value):
        return self._answered()

    __bool__ = __float__ = __hash__ = __int__ = __iter__ = __str__ = _answered


class Made:
    def __init__(self, asked):
        return asked._answered()


ASKED = {
    "if": lambda x, asked: x + 1 if asked else x,
    "not": lambda x, asked: not asked,
    "bool": lambda x, asked: bool(asked),
    "float": lambda x, asked: x + float(asked),
    "hash": lambda x, asked: hash(asked),
    "int": lambda x, asked: x + int(asked),
    "iter": lambda x, asked: [x + value for value in asked],
    "str": lambda x, asked: str(asked),
    "in": lambda x, asked: x in asked,
    "init": lambda x, asked: Made(asked),
}


@pytest.mark.parametrize("answer", [1, -1, 1.5, "a", None, True])
@pytest.mark.parametrize("name", ASKED)
def test_special_methods_that_answer_wrongly(name, answer):
    made = [Answers(answer), Answers(answer)]
    outcomes = []
    for asked, fn in zip(
        made, (ASKED[name], dynfix.compile(ASKED[name], backend="eager")), strict=True
    ):
        try:
            outcomes.append(repr(fn(X, asked)))
        except Exception as error:
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1] or "object at" in outcomes[0]
    assert made[0].asked == made[1].asked


@pytest.mark.parametrize("answer", [-1, "a", 2])
def test_lengths_that_are_none(answer):
    class Sized:
        def __len__(self):
            return answer

    same(lambda: lambda x: x + 1 if Sized() else x, (X,), (X,))


@pytest.mark.parametrize("hook_fails", [False, True])
def test_hooks_that_are_always_called(hook_fails):
    class Refuses(torch.nn.Module):
        def forward(self, x, refused):
            if refused:
                raise ValueError("refused")
            return x * 2

    def make():
        log, net = [], Refuses()

        def hook(module, args, result):
            log.append((args[1], result is None))
            if hook_fails and result is None:
                raise KeyError("hook")
            return None if result is None else result + 1

        net.register_forward_hook(lambda *given: log.append("before"))
        net.register_forward_hook(hook, always_call=True)
        net.register_forward_hook(lambda *given: log.append("after"))

        def f(x, refused):
            try:
                return net(x, refused)
            except ValueError as error:
                return str(error)

        return Case(fn=f, watch=lambda: log)

    same(make, (X, False), (X, True), (X, False), (X, True), (X, False))


def test_pre_hook_that_gives_no_pair():
    def make():
        net = torch.nn.Identity()
        net.register_forward_pre_hook(lambda module, args, kwargs: args, with_kwargs=True)
        return lambda x: net(x)

    same(make, (X,), (X,))


def test_a_view_beyond_the_memory_of_an_input_raises_once_it_was_written():
    """Once: eager writes, and then raises."""

    def fn(x, y):
        y.mul_(0.5)
        return torch.as_strided(x, (x.size(0),), (1,))

    compiled = dynfix.compile(fn, dynamic=True)
    for rows, length in ((5, 7), (17, 33), (7, 3), (7, 3), (5, 9)):
        x = torch.randn(length).expand(rows, length)
        given = torch.ones(length), torch.ones(length)
        if rows > length:
            for each, y in zip((compiled, fn), given, strict=True):
                with pytest.raises(RuntimeError, match="out of bounds"):
                    each(x, y)
        else:
            assert torch.equal(compiled(x, given[0]), fn(x, given[1]))
        assert torch.equal(*given)
