"""Choices of a predicated path that nothing selects, for their sides differ in how many rows they
give: `torch.cond`, which runs one of them.

    def taken():
        return x.new_zeros(0)

    def other(x=x):
        x = x[keep]
        return x.clone()
    return torch.cond(keep.sum() == 0, taken, other)"""

import ast

from ...analysis.call_effects import CHANGES_CONTAINERS
from ...analysis.kinds import ANY
from .predicated_values import NotPredicated, method, parsed

_WRITES = "torch.cond traces both sides: one that writes, or gives another dtype, does not compile"
_CHANGE = CHANGES_CONTAINERS - {"sort"}  # of a tensor that is no change


class Sides:
    """One choice: what its sides return, as a tuple of tensors. `numbers`: which of them eager has
    as numbers."""

    def __init__(self, path, node):
        self.path, self.node = path, node
        self.shape, self.value, self.numbers = None, None, ()

    def statements(self, rest):
        """(the statements in the place of the choice and of `rest`, whether they return)."""
        path, returns = self.path, self.path._may_return([self.node])
        truth = path.values.truth(self.node.test)
        path.values.chosen += 1
        path.values.sides += [*self.node.body, *self.node.orelse]
        path.doubts.setdefault(_WRITES)
        for statement in (*self.node.body, *self.node.orelse):
            only_binds(statement)
        if returns:
            return self._returning(truth, rest), True
        return self._assigning(truth), False

    # Sides that return

    def _returning(self, truth, rest):
        path = self.path
        if path.returns.state != "none" or path.active or path._in_loop(self.node):
            raise NotPredicated("data says how many rows are returned")
        for statement in rest:
            only_binds(statement)
        names = path.name("taken"), path.name("other", "not_taken")
        sides = [
            self._function(name, body if _ends(body) else [*body, *rest])
            for name, body in zip(names, (self.node.body, self.node.orelse), strict=True)
        ]
        chosen = path.values.call("cond", truth, *map(path.load, names))
        if path.side is not None:
            path.side.agree(self.shape, self.value, self.numbers)
            return [*sides, ast.Return(chosen)]
        results = [path.name("result", "first_result") for _ in self.numbers]
        parts = [
            method(path.load(n), "item") if number else path.load(n)
            for n, number in zip(results, self.numbers, strict=True)
        ]
        value = path.returns._rebuilt(self.value, iter(parts))
        return [*sides, _assigned(results, chosen), ast.Return(value)]

    def agree(self, shape, value, numbers):
        """Raises where what is returned differs in its form from what was returned before."""
        if self.value is not None and (shape, numbers) != (self.shape, self.numbers):
            raise NotPredicated("what is returned differs in its form")
        self.shape, self.value, self.numbers = shape, value, numbers

    def returned(self, value, parts, numbers):
        """The `return` of a side: `parts` are what `value` is made of."""
        self.agree(self.path.returns._shape(value), value, numbers)
        return ast.Return(self._tuple(map(self._tensor, parts)))

    def _tuple(self, parts):
        parts = list(parts)
        return parts[0] if len(parts) == 1 else ast.Tuple(parts, ast.Load())

    def _tensor(self, node):
        """A new tensor: torch.cond gives none that was there."""
        if isinstance(node, ast.Constant):
            return self.path.values.call("as_tensor", node)
        new = isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare))
        return node if new else method(node, "clone")

    def _function(self, name, body):
        """A side as a function; what it binds anew, and was there, is a parameter."""
        path = self.path
        outer = path.side, path.returns, path._state()
        path.side, path.returns = self, type(path.returns)(path)
        made = self._block(body)
        path.side, path.returns = outer[:2]
        path._restore(outer[2])
        if not isinstance(made[-1], ast.Return):
            raise NotPredicated("it may return nothing at its end")
        return self._defined(name, body, made)

    def _block(self, body):
        """The statements of a side. What an operator asks of sizes, torch asserts whether the side
        runs or not: no operator may ask for more rows than data gives."""
        path, nested = self.path, self.path.values.in_side
        path.values.in_side = True
        made = path.block(body, None)
        path.values.in_side = nested
        return made

    def _defined(self, name, body, made):
        bound = _bound(self.path.function.body)
        used = {n.id for s in (*body, *made) for n in ast.walk(s) if isinstance(n, ast.Name)}
        names = sorted(bound & used & self.path.bound)
        args = parsed(f"lambda {', '.join(f'{n}={n}' for n in names)}: 0").args
        return ast.FunctionDef(name=name, args=args, body=made, decorator_list=[], type_params=[])

    # Sides that assign

    def _assigning(self, truth):
        path, node = self.path, self.node
        inside = set(ast.walk(node))
        loop = path._in_loop(node)
        every = (n for n in ast.walk(path.function) if isinstance(n, ast.Name))
        read = {
            n.id
            for n in every
            if not _stored(n) and n not in inside and (loop or n.lineno > node.end_lineno)
        }
        sides = _bound(node.body), _bound(node.orelse)
        results = sorted((sides[0] | sides[1]) & read)
        if not results or set(results) - path.bound - (sides[0] & sides[1]):
            raise NotPredicated("a side binds what the other has not")
        for assigned in (n for n in inside if isinstance(n, ast.Assign)):
            for name in _bound([assigned]) & path.bound:
                path._keeps_writes(name, assigned.value)
        names = path.name("taken"), path.name("other", "not_taken")
        made, kinds = [], []
        for name, body in zip(names, (node.body, node.orelse), strict=True):
            before = path._state()
            inner = self._block(body)
            kinds.append([self._kind(n) for n in results])
            last = ast.Return(self._tuple(self._tensor(path.load(n)) for n in results))
            path._restore(before)
            made.append(self._defined(name, body, [*inner, last]))
        chosen = path.values.call("cond", truth, *map(path.load, names))
        for name, one, other in zip(results, *kinds, strict=True):
            path._bind(name, one, False, frozenset([(f"{name} of {names[0]}", ())]))
            path.copies.add(name)
            if other.rank != one.rank:
                path.kinds[name] = path.context.inference.tokens.tensor()
        return [*made, _assigned(results, chosen)]

    def _kind(self, name):
        known = _known(self.path, name, self.node)
        if name in self.path.values.numbers or not known.is_tensor:
            raise NotPredicated(f"`{name}` is not known to be a tensor")
        return known


def _known(path, name, node):
    """What a name is at a statement, or where it is read from there on."""
    same = (n for n in ast.walk(path.function) if isinstance(n, ast.Name) and n.id == name)
    later = (n for n in same if not _stored(n) and n.lineno >= node.lineno)
    kinds = [path.kinds.get(name, ANY), *map(path.context.kind, later)]
    return next((k for k in kinds if k.is_tensor), kinds[0])


def only_binds(statement):
    """Raises where a statement does more than to bind names."""
    own = _bound([statement])
    for node in ast.walk(statement):
        stores = isinstance(node, (ast.Attribute, ast.Subscript)) and _stored(node)
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        name = node.func.attr if called else ""
        inplace = name.endswith("_") and not name.endswith("__")
        writes = called and (inplace or name in _CHANGE)
        writes = writes and ast.unparse(node.func.value) not in own
        if stores or writes or isinstance(node, _LEAVES):
            shown = ast.unparse(statement).splitlines()[0]
            raise NotPredicated(f"`{shown}` does more than assign")


_LEAVES = (ast.Break, ast.Continue, ast.Raise, ast.Yield)


def _bound(body):
    """The names that statements bind."""
    every = (n for s in body for n in ast.walk(s) if isinstance(n, ast.Name))
    return {n.id for n in every if _stored(n)}


def _stored(node):
    return not isinstance(node.ctx, ast.Load)


def _assigned(names, value):
    targets = [ast.Name(n, ast.Store()) for n in names]
    return ast.Assign([ast.Tuple(targets, ast.Store()) if len(names) > 1 else targets[0]], value)


def _ends(body):
    return bool(body) and isinstance(body[-1], ast.Return)
