"""The operators of rewritten code, each doing exactly what Python does: the reference for names,
signatures and meaning.

`forms.operators.Forms` has the same methods with the same parameter names (`test`, `then`, `orelse`
of `select` are passed by keyword).
"""

import operator


class Target:
    """Storing to `.value` calls the operator that `Forms.target` was given."""

    __slots__ = ("_store", "_where")

    def __init__(self, store, where):
        self._store, self._where = store, where

    value = property(None, lambda self, value: self._store(*self._where, value))


BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "@": operator.matmul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
INPLACE = {
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "@=": operator.imatmul,
    "/=": operator.itruediv,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "<<=": operator.ilshift,
    ">>=": operator.irshift,
    "&=": operator.iand,
    "|=": operator.ior,
    "^=": operator.ixor,
}
UNARY = {"-": operator.neg, "+": operator.pos, "~": operator.invert}
COMPARE = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "is": operator.is_,
    "is not": operator.is_not,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}
CONVERSIONS = {None: lambda value: value, "r": repr, "s": str, "a": ascii}


class Forms:
    def __init__(self, fn):
        self.fn = fn

    def call(self, fn, /, *args, **kwargs):
        return fn(*args, **kwargs)

    def attr(self, obj, name):
        return getattr(obj, name)

    def item(self, obj, key):
        return obj[key]

    def glob(self, name, value):
        return value

    def free(self, name, value):
        return value

    def set_attr(self, obj, name, value):
        setattr(obj, name, value)

    def del_attr(self, obj, name):
        delattr(obj, name)

    def set_item(self, obj, key, value):
        obj[key] = value

    def del_item(self, obj, key):
        del obj[key]

    def set_glob(self, name, value):
        """The value that is about to be stored to a global name; returns what to store."""
        return value

    def set_free(self, name, value):
        return value

    def target(self, store, *where):
        """`target(set_attr, obj, "x").value = v`: `store(*where, v)`; used where Python stores at
        its own moment."""
        return Target(store, where)

    def aug_attr(self, obj, name, op, value):
        self.set_attr(obj, name, self.inplace(op, self.attr(obj, name), value))

    def aug_item(self, obj, key, op, value):
        self.set_item(obj, key, self.inplace(op, self.item(obj, key), value))

    def binary(self, op, a, b):
        return BINARY[op](a, b)

    def unary(self, op, a):
        return UNARY[op](a)

    def inplace(self, op, a, b):
        return INPLACE[op](a, b)

    def compare(self, a, op, b):
        return COMPARE[op](a, b)

    def chain(self, a, *links):
        """`chain(a, "<", lambda: b, "<", lambda: c)`."""
        result = True
        for op, make in zip(links[::2], links[1::2], strict=True):
            b = make()
            result = self.compare(a, op, b)
            if make is not links[-1] and not self.truth(result):
                return result
            a = b
        return result

    def truth(self, test):
        return bool(test)

    def not_(self, a):
        return not a

    def and_(self, a, b):
        return b() if self.truth(a) else a

    def or_(self, a, b):
        return a if self.truth(a) else b()

    def select(self, test, then, orelse):
        return then() if self.truth(test) else orelse()

    def key(self, key):
        return key

    def subject(self, value, patterns, attributes):
        return value

    def class_base(self, base):
        return base

    def class_reads(self, reads, computes):
        return ()

    def imported(self, module, level, *names):
        pass

    def iter(self, iterable):
        return iterable

    def decorator(self, fn):
        return fn

    def raised(self, exception):
        return exception

    def caught(self, classes):
        return classes

    def each(self, iterable, parts):
        return iterable

    def unpack(self, value, parts):
        return value

    def unpack_kept(self, value, *targets):
        return value

    def mapping(self, value):
        return value

    def context(self, manager, parts=None):
        return manager

    def fstring(self, *pieces):
        """Texts, and (value, conversion, spec) with conversion None, "r", "s" or "a"; joined."""
        return "".join(piece if isinstance(piece, str) else _formatted(*piece) for piece in pieces)


def _formatted(value, conversion, spec):
    return format(CONVERSIONS[conversion](value), spec)
