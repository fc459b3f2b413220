"""`raise` of a class: what the exception is made of is guarded."""

import pytest
from helpers import X, one_graph, same


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
