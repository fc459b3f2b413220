"""What a predicated path returns: the first value that eager would have returned, selected part by
part."""

import ast

from .predicated_values import DifferentRows, NotPredicated, method

_EMPTY = ("[:0]", "(0,", "(0)")


class Returns:
    """`state`: "none" where nothing was returned under a predicate so far, "sure" where something
    was, "maybe" where that is asked while the graph is made."""

    def __init__(self, path):
        self.path, self.state = path, "none"
        self.left, self.results = "", []
        self.shape, self.sizes, self.leaves = None, [], []
        self.asked = set()  # what was empty, where it was returned for that alone; else None
        self.made_of = {}  # the names that each name was made of, for tests of emptiness

    def open(self, needed):
        """What stands before a part that may return under a predicate, and may not be reached."""
        if not needed or self.state != "none":
            return []
        shapes = [n.value for n in ast.walk(self.path.function) if isinstance(n, ast.Return)]
        if not shapes:
            raise NotPredicated("it returns nothing")
        self._names(shapes[-1], self._leaves(shapes[-1]))
        self.state = "maybe"
        path, nothing = self.path, ast.Constant(None)
        made = [path.assign(name, nothing) for name in self.results]
        return [path.assign(self.left, ast.Constant(False)), *made]

    def _names(self, value, leaves):
        self.shape, path = self._shape(value), self.path
        self.left = path.name("returned", "has_returned")
        self.results = [path.name("result", "first_result") for _ in leaves]

    def effect(self, predicate):
        """The predicate of what is written for good; None where all runs."""
        path = self.path
        held = None if predicate is None else path.load(predicate)
        if self.state == "none":
            return held
        still = path.otherwise(path.load(self.left))
        if self.state == "maybe":
            still = ast.UnaryOp(
                ast.Invert(), ast.BinOp(path.true(), ast.BitAnd(), path.load(self.left))
            )
        return still if held is None else path.values.call("logical_and", held, still)

    def made(self, node, predicate):
        """The statements for a `return`."""
        path = self.path
        if predicate is None and self.state == "none" and path.side is None:
            return [ast.Return(node.value and self._read(node.value))]
        if predicate is None and self.state == "none":
            return [self._of_side(node.value)]
        if predicate is not None:
            empty = path.empty.get(predicate)
            self.asked = None if empty is None or self.asked is None else self.asked | empty
        leaves = self._leaves(node.value)
        if self.state == "none":
            self._names(node.value, leaves)
        if self._shape(node.value) != self.shape:
            raise NotPredicated("what is returned differs in its form")
        self._fits(leaves)
        for leaf in leaves:
            path.values.selectable(leaf)
        values = [path.values.convert(leaf).node for leaf in leaves]
        if predicate is None:
            return [ast.Return(self._last(node.value, leaves, values))]
        return self._first(values, predicate)

    def _fits(self, leaves):
        """Raises where what is returned differs in shape from what was returned before."""
        values = self.path.values
        sizes = [(values.rows(leaf), self._rank(leaf)) for leaf in leaves]
        before = self.sizes or sizes
        in_loop = self.path.active and any(rows for rows, _ in sizes)
        if in_loop or any(a[0] != b[0] for a, b in zip(sizes, before, strict=True)):
            raise DifferentRows("data says how many rows are returned")
        if any(
            a[1] != b[1] and None not in (a[1], b[1]) for a, b in zip(sizes, before, strict=True)
        ):
            raise NotPredicated("what is returned differs in its number of axes")
        for one, other in zip(self.leaves or leaves, leaves, strict=True):
            if one is not other:
                values.one_shape(one, other)
        self.sizes, self.leaves = sizes, leaves

    def _rank(self, leaf):
        kind = self.path.context.kind(leaf)
        return 0 if self.path.values.convert(leaf).number or kind.is_number else kind.rank

    def _first(self, values, predicate):
        path = self.path
        made = []
        for name, value in zip(self.results, values, strict=True):
            old = path.load(name)
            chosen = value if self.state == "none" else self._kept(old, value)
            made.append(path.assign(name, chosen))
        held = path.load(predicate)
        if self.state == "none":
            self.state = "sure"
            return [*made, path.assign(self.left, held)]
        both = ast.BinOp(held, ast.BitOr(), path.load(self.left))
        return [*made, path.assign(self.left, both)]

    def _kept(self, old, value):
        """What was returned before, or else the value."""
        path = self.path
        chosen = path.values.where(path.load(self.left), old, value)
        if self.state == "sure":
            return chosen
        fits = ast.Compare(old, [ast.Is()], [ast.Constant(None)])
        return ast.IfExp(fits, value, chosen)

    def _last(self, value, leaves, values):
        path = self.path
        chosen, bare = [], []
        for name, leaf, last in zip(self.results, leaves, values, strict=True):
            kept = self._kept(path.load(name), last)
            bare.append(kept)
            if not path.values.is_tensor(leaf):
                path.values.reads = True
                kept = method(kept, "item")
            chosen.append(kept)
        if path.side is not None:
            numbers = tuple(not path.values.is_tensor(leaf) for leaf in leaves)
            return path.side.returned(value, bare, numbers).value
        return self._rebuilt(value, iter(chosen))

    def _of_side(self, value):
        """The `return` of a side of torch.cond."""
        values, leaves = self.path.values, self._leaves(value)
        for leaf in leaves:
            values.selectable(leaf)
        numbers = tuple(not values.is_tensor(leaf) for leaf in leaves)
        return self.path.side.returned(value, [values.convert(n).node for n in leaves], numbers)

    # The form of a result

    def _shape(self, value):
        if isinstance(value, (ast.Tuple, ast.List)):
            return type(value).__name__, tuple(map(self._shape, value.elts))
        if isinstance(value, ast.Dict):
            keys = tuple(ast.unparse(k) if k else "" for k in value.keys)
            return "Dict", keys, tuple(map(self._shape, value.values))
        return repr(value and value.value) if _is_form(value) else ""

    def _leaves(self, value):
        if isinstance(value, (ast.Tuple, ast.List)):
            return [leaf for e in value.elts for leaf in self._leaves(e)]
        if isinstance(value, ast.Dict):
            return [leaf for e in value.values for leaf in self._leaves(e)]
        return [] if _is_form(value) else [value]

    def _rebuilt(self, value, leaves):
        if isinstance(value, (ast.Tuple, ast.List)):
            return type(value)([self._rebuilt(e, leaves) for e in value.elts], ast.Load())
        if isinstance(value, ast.Dict):
            return ast.Dict(value.keys, [self._rebuilt(e, leaves) for e in value.values])
        return value if _is_form(value) else next(leaves)

    def _read(self, value):
        """A result with its numbers read."""
        leaves = self._leaves(value)
        return self._rebuilt(value, iter([self.path.values.shown(leaf) for leaf in leaves]))

    def drops(self, node, predicate):
        """Whether an `if` returns no rows where a mask chooses none: what follows does so too."""
        one = len(node.body) == 1 and isinstance(node.body[0], ast.Return)
        asked, empty = self.path._rows_asked(node.test)
        if not one or node.body[0].value is None or not (asked and empty):
            return False
        leaves = self._leaves(node.body[0].value)
        texts = [ast.unparse(leaf) for leaf in leaves]
        empty = bool(texts) and all(any(e in t for e in _EMPTY) for t in texts)
        return empty and not any(self._picks_elements(n, leaves) for n in ast.walk(node.test))

    def _picks_elements(self, mask, leaves):
        """Whether a mask may choose elements of what is returned, not its rows: then no axes are
        left of it."""
        kind = self.path.context.kind
        if kind(mask).dtype != self.path.context.inference.tokens.bool or kind(mask).rank in (0, 1):
            return False
        return any(kind(getattr(e, "value", e)).shape == kind(mask).shape for e in leaves)


def _is_form(value):
    """Whether something that is returned is no value to choose: nothing, None, a text."""
    constant = isinstance(value, ast.Constant) and isinstance(value.value, (str, type(None)))
    return value is None or constant
