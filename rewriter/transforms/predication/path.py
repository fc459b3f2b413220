"""Statements of a predicated path (if-conversion, Allen et al., POPL 1983): every side of a choice
by a tensor runs, a predicate selects what stays; a loop that a tensor leaves takes all its turns,
with its state as it was; what is returned early is selected at the end."""

import ast
import copy

from ...analysis.call_effects import draws
from ...analysis.kinds import ANY, TENSORS
from ...analysis.output_calls import is_log, is_print, is_warning
from .cond_sides import Sides
from .predicated_values import DifferentRows, NotPredicated, PredicatedValues, method, parsed
from .returns import Returns

MOST_NESTED = 12  # choices: each level is looked through again for those inside of it
_STOPS = (ast.Break, ast.Continue, ast.Return, ast.Raise)


def names_in(node):
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def stored(nodes):
    """The names that statements bind."""
    every = (n for node in nodes for n in ast.walk(node))
    return {n.id for n in every if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}


def place_of(statement):
    return statement.lineno, statement.col_offset


class PredicatedPath:
    """Converts blocks of one function. A predicate is a name, or None where all runs."""

    def __init__(self, function, context, torch, conds=frozenset()):
        self.function, self.context = function, context
        self.conds = conds  # the places of choices that are made by torch.cond
        self.side, self.open_choice = None, None  # of such a choice; the last outermost choice
        self.values = PredicatedValues(context, torch)
        self.returns = Returns(self)
        self.bound, self.late, self.taken = set(), set(), names_in(function)
        self.kinds, self.guards, self.empty = {}, {}, {}
        self.copies = set()  # names of what eager has as one of several tensors that were there
        self.active, self.turn, self.base, self.exits = None, None, None, 0
        self.asserts, self.draws, self.doubts = False, False, {}
        self.at = None  # the statement that is converted
        self.choices = []  # (a choice around it, whether it stands in its first side)
        self.size = 0

    # Names and small nodes

    def name(self, *wishes):
        """A name that the function has not."""
        bound = self.context.names.bound
        numbered = (f"{wishes[0]}_{i}" for i in range(2, 1000))
        found = next(w for w in (*wishes, *numbered) if w not in self.taken and w not in bound)
        self.taken.add(found)
        return found

    def assign(self, name, value):
        return ast.Assign([ast.Name(name, ast.Store())], value)

    def load(self, name):
        return ast.Name(name, ast.Load())

    def where(self, predicate, new, old):
        return self.values.where(self.load(predicate), new, old)

    def both(self, predicate, truth):
        if predicate is None:
            return truth
        return self.values.call("logical_and", self.load(predicate), truth)

    def otherwise(self, truth):
        return self.values.call("logical_not", truth)

    def true(self):
        torch = self.values.torch
        return ast.parse(f"{torch}.ones((), dtype={torch}.bool)", mode="eval").body

    def note(self, statement):
        """What is known of the names that a statement before the path binds."""
        for node in ast.walk(statement):
            name = getattr(node.targets[0], "id", None) if isinstance(node, ast.Assign) else None
            if name is not None:
                rows = self.values.rows(node.value)
                if node is not statement:  # on one of several ways
                    rows |= self.values.ragged.get(name, frozenset())
                self._bind(name, self.context.kind(node.value), False, rows)

    # Blocks

    def block(self, body, predicate):
        made = []
        for index, statement in enumerate(body):
            rest = body[index + 1 :]
            self.size += 1
            if self.size > 400:
                raise NotPredicated("it would be too long")
            self.draws = self.draws or (predicate is not None and draws(statement))
            convert = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if convert is None:
                raise NotPredicated(
                    f"`{self._first_line(statement)}` has no form under a predicate"
                )
            exits, self.at = self.exits, statement
            if predicate is None and place_of(statement) in self.conds:
                lines, returned = Sides(self, statement).statements(rest)
                made += lines
                if returned:
                    break
                continue
            made += convert(statement, predicate)
            if isinstance(statement, _STOPS):
                break
            if self.exits != exits and rest:
                predicate, lines = self._still(predicate)
                made += lines
        return made

    def _still(self, predicate):
        """(the predicate of what follows a statement that may have left the loop or its turn, the
        statements that make it)."""
        left = self.turn or self.active
        if predicate in (self.base, self.active, self.turn):
            return left, []
        held = self.name("still", "goes_on")
        self.guards[held] = None
        return held, [self.assign(held, self.both(predicate, self.load(left)))]

    def _first_line(self, statement):
        return ast.unparse(statement).splitlines()[0]

    def _pass(self, node, predicate):
        return []

    def _import(self, node, predicate):
        return [node]

    _importfrom = _import

    def _functiondef(self, node, predicate):
        if names_in(node) & self.values.numbers.keys():
            raise NotPredicated("an inner function uses a number that is read")
        self.bound.add(node.name)
        return [node]

    def _delete(self, node, predicate):
        if predicate:
            raise NotPredicated("something is deleted under a condition")
        return [node]

    def _with(self, node, predicate):
        items = [
            ast.withitem(self.values.shown(i.context_expr), i.optional_vars) for i in node.items
        ]
        self.bound |= stored(node.items)
        return [ast.With(items, self.block(node.body, predicate) or [ast.Pass()])]

    # Choices

    def _if(self, node, predicate):
        compiled = self._compiled_side(node)
        if compiled is not None:
            return self.block(compiled, predicate)
        first, rest = self._led(node)
        if first is not None:
            return (
                self._if(rest, predicate)
                if first is True
                else self._python_if(first, rest, node, predicate)
            )
        truth = self.values.truth(node.test)
        if truth is None:
            return self._plain_if(node, predicate)
        return self._chosen(node, truth, predicate)

    def _compiled_side(self, node):
        """The side that compiled code takes of a choice between it and eager; None of others."""
        test, sides = node.test, (node.body, node.orelse)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test, sides = test.operand, sides[::-1]
        asks = isinstance(test, ast.Call) and not test.args
        name = self.context.names.resolve(test.func) if asks else None
        return sides[0] if name == "torch.compiler.is_compiling" else None

    def _led(self, node):
        """A test that Python's conditions lead, split in two: (Python's, the `if` of the rest)."""
        test = node.test
        if not isinstance(test, ast.BoolOp) or self.values.truth(test.values[0]) is not None:
            return None, None
        if all(self.values.truth(v) is None for v in test.values):
            return None, None
        rest = test.values[1:]
        rest = rest[0] if len(rest) == 1 else ast.copy_location(ast.BoolOp(test.op, rest), rest[0])
        return test.values[0], ast.copy_location(ast.If(rest, node.body, node.orelse), node)

    def _python_if(self, first, rest, node, predicate):
        """`if python and tensor`, `if python or tensor`."""
        leads = isinstance(node.test.op, ast.And)
        sides = ([rest], node.orelse) if leads else (node.body, [rest])
        return self._sides(self.values.shown(first), *sides, predicate)

    def _plain_if(self, node, predicate):
        return self._sides(self.values.shown(node.test), node.body, node.orelse, predicate)

    def _sides(self, test, body, orelse, predicate):
        """A choice that Python makes while the graph is made."""
        within = predicate is not None or self._returns_deep([*body, *orelse])
        opened = self.returns.open(within and self._may_return([*body, *orelse]))
        before, left = self._state(), self.returns.state
        first = self.block(body, predicate)
        after, self_state = self._state(), before
        self._restore(self_state)
        second = self.block(orelse, predicate)
        first += self._as_tensors(before, after, self._state())
        second += self._as_tensors(before, self._state(), after)
        if self.returns.state != left:
            raise NotPredicated("one side of a Python condition returns by a tensor")
        self._join(after)
        return [*opened, ast.If(test, first or [ast.Pass()], second)]

    def _state(self):
        values = self.values
        return dict(values.numbers), dict(values.ragged), set(self.bound), dict(self.kinds)

    def _restore(self, state):
        numbers, ragged, bound, kinds = state
        self.values.numbers, self.values.ragged = dict(numbers), dict(ragged)
        self.bound, self.kinds = set(bound), dict(kinds)

    def _as_tensors(self, before, mine, other):
        """Numbers of one side that the other has as tensors."""
        names = {n for n in other[0] if n not in mine[0] and n.isidentifier() and n in mine[2]}
        return [self.assign(n, self.values.call("tensor", self.load(n))) for n in sorted(names)]

    def _join(self, other):
        numbers, ragged, bound, _ = other
        self.values.numbers = {**numbers, **self.values.numbers}
        nothing, mine = frozenset(), self.values.ragged
        self.values.ragged = {
            n: mine.get(n, nothing) | ragged.get(n, nothing) for n in {**mine, **ragged}
        }
        self.late |= self.bound ^ bound
        self.bound &= bound

    def _may_return(self, body):
        return any(isinstance(n, ast.Return) for s in body for n in ast.walk(s))

    def _returns_deep(self, body):
        """Whether a `return` stands below another statement, which may depend on a tensor."""
        return self._may_return(s for s in body if not isinstance(s, ast.Return))

    def _chosen(self, node, truth, predicate):
        if len(self.choices) >= MOST_NESTED:
            raise NotPredicated("choices are nested too deep to compute every side")
        self.values.chosen += 1
        self.values.sides += [*node.body, *node.orelse]
        if predicate is None and self.returns.state == "none":
            self.open_choice = node
        if self.returns.drops(node, predicate):
            self.doubts.setdefault("where a mask chooses nothing, there are no rows to return")
            return self.block(node.orelse, predicate)
        checked = self._checked(node, truth, predicate)
        if checked is not None:
            return checked
        held = self.name("condition", "chosen")
        made = [self.assign(held, self.both(predicate, truth))]
        self._guard(held, node.test, predicate)
        other = None
        if node.orelse:
            other = self.name("otherwise", "not_chosen")
            made.append(self.assign(other, self.both(predicate, self.otherwise(truth))))
            self.guards[other] = None
        for side, truth, first in ((node.body, held, True), (node.orelse, other, False)):
            self.choices.append((node, first))
            made += self.block(side, truth)
            self.choices.pop()
        return made

    def _guard(self, held, test, predicate):
        """What a predicate asks to be not empty: the names; None where it asks for more. `empty`:
        the same of predicates that ask for something to be empty."""
        asked, empty = self._rows_asked(test)
        outer = self.guards.get(predicate, set()) if predicate else set()
        self.guards[held] = None if not asked or empty or outer is None else asked | outer
        if asked and empty and outer is not None:
            self.empty[held] = asked

    def _rows_asked(self, test):
        """(the names of which a test asks whether there are rows, whether there must be none); no
        names where it asks for something else."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            asked, empty = self._rows_asked(test.operand)
            return asked, not empty
        empty = False
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            compared = type(test.ops[0]), ast.unparse(test.comparators[0])
            empty = compared in ((ast.Eq, "0"), (ast.Lt, "1"), (ast.LtE, "0"))
            if not empty and compared not in ((ast.Gt, "0"), (ast.NotEq, "0"), (ast.GtE, "1")):
                return set(), False
        elif not self._asks_any(test):
            return set(), False
        counted = {n for k in names_in(test) for n in self.returns.made_of.get(k, ())}
        return self.values.masks(test) | counted, empty

    def _asks_any(self, test):
        """`mask.any()`, `torch.any(mask)`."""
        if not isinstance(test, ast.Call):
            return False
        bare = not test.args and not test.keywords and ast.unparse(test).endswith(".any()")
        return bare or (self.context.resolve(test.func) == "torch.any" and len(test.args) == 1)

    def _checked(self, node, truth, predicate):
        """An `if` that raises: an assertion on the device."""
        if node.orelse or not isinstance(node.body[-1], ast.Raise):
            return None
        if any(not self._only_tells(s) for s in node.body[:-1]):
            raise NotPredicated("more is done before it raises")
        effect = self.returns.effect(predicate)
        bad = truth if effect is None else self.values.call("logical_and", effect, truth)
        return [self._assertion(self.otherwise(bad), node.body[-1].exc, node.test)]

    def _assertion(self, holds, raised, test):
        self.values.chosen, self.asserts = self.values.chosen + 1, True
        text = next(iter(getattr(raised, "args", ())), None)
        constant = isinstance(text, ast.Constant) and isinstance(text.value, str)
        shown = text if constant else ast.Constant(" ".join(ast.unparse(test).split()))
        return ast.Expr(self.values.call("_assert_async", holds, shown))

    def _raise(self, node, predicate):
        if predicate is None:
            return [node]
        raise NotPredicated("it raises under a condition of several parts")

    def _assert(self, node, predicate):
        truth = self.values.truth(node.test)
        if truth is None:
            return [ast.Assert(self.values.shown(node.test), None)] if predicate is None else []
        holds, effect = truth, self.returns.effect(predicate)
        if effect is not None:
            holds = self.values.call("logical_or", self.otherwise(effect), truth)
        message = ast.Call(self.load("str"), [node.msg], []) if node.msg else None
        return [self._assertion(holds, message, node.test)]

    # Stores

    def _only_tells(self, statement):
        call = statement.value if isinstance(statement, ast.Expr) else None
        constant = isinstance(call, ast.Constant)
        tells = (is_print, is_log, is_warning)
        return constant or (call and any(is_one(call, self.context) for is_one in tells))

    def _expr(self, node, predicate):
        if self._only_tells(node):
            return []  # silent in compiled code
        call = node.value
        named = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        inplace = named and call.func.attr.endswith("_")
        if inplace:
            self._written(call.func.value)
        inplace = inplace and self.values.is_tensor(call.func.value)
        effect = self.returns.effect(predicate)
        if effect is None or (inplace and self._writes_its_rows(node, predicate)):
            return [ast.Expr(self.values.shown(call))]
        if inplace:
            owner = self.values.shown(call.func.value)
            again = copy.deepcopy(self.values.shown(call))
            again.func.value = method(owner, "clone")
            chosen = self.values.where(effect, again, owner)
            return [ast.Expr(method(owner, "copy_", chosen))]
        raise NotPredicated(f"`{self.values.text(call)}` runs under a condition")

    def _written(self, node):
        """Raises NotPredicated where a write into a tensor would be one into a copy."""
        while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
            node = node.func if isinstance(node, ast.Call) else node.value
        if isinstance(node, ast.Name) and node.id in self.copies:
            raise NotPredicated(f"a tensor is written into that `{node.id}` stands for")

    def _writes_its_rows(self, node, predicate):
        """Whether a predicate asks alone whether there are rows, of what then writes these."""
        asked = self.guards.get(predicate) if predicate else self.returns.asked
        left = self.returns.state == "none" or self.returns.asked is not None
        return left and bool(asked) and bool(names_in(node) & asked)

    def _assign(self, node, predicate):
        if len(node.targets) != 1:
            raise NotPredicated("one value goes to several targets")
        target = node.targets[0]
        if isinstance(target, (ast.Tuple, ast.List)):
            return self._unpacked(target, node.value, predicate)
        return self._store(target, node.value, predicate)

    def _annassign(self, node, predicate):
        return self._store(node.target, node.value, predicate) if node.value else []

    def _unpacked(self, target, value, predicate):
        if not all(isinstance(t, ast.Name) for t in target.elts):
            raise NotPredicated("it unpacks to other things than names")
        names = [t.id for t in target.elts]
        if isinstance(value, ast.Tuple) and len(value.elts) == len(names):
            return self._paired(names, value.elts, predicate)
        shown = self.values.shown(value)
        rows = self.values.rows(value)
        outer = {n for n in names if not self._is_local(n)} & (self.bound | self.late)
        fresh = predicate is None or not outer
        temps = names if fresh else [self.name(f"new_{n}") for n in names]
        made = [
            ast.Assign([ast.Tuple([ast.Name(t, ast.Store()) for t in temps], ast.Store())], shown)
        ]
        for name, temp in zip(names, temps, strict=True):
            if not fresh:
                self._keeps_writes(name, value)
                made += self._selected(name, self.load(temp), predicate, rows)
            self._bind(name, ANY, False, rows)
        return made

    def _paired(self, names, values, predicate):
        made, found = [], [self.values.convert(v) for v in values]
        kinds = [self.context.kind(v) for v in values]
        temps = [self.name(f"new_{n}") for n in names] if len(names) > 1 else names
        for temp, value in zip(temps, found, strict=True):
            made.append(self.assign(temp, value.node))
        sized = [self.values.rows(v) for v in values]
        parts = zip(names, temps, values, found, kinds, sized, strict=True)
        for name, temp, original, value, kind, rows in parts:
            if predicate and name in self.bound | self.late and not self._is_local(name):
                self._keeps_writes(name, original)
            made += self._selected(name, self.load(temp), predicate, rows)
            self._bind(name, kind, value.number, rows)
        return made

    def _bind(self, name, kind, number, rows):
        versions = self.values.versions
        self.bound.add(name)
        self.copies.discard(name)
        versions[name] = versions.get(name, 0) + 1
        self.kinds[name] = kind
        self.values.numbers.pop(name, None)
        self.values.lists.pop(name, None)
        self.values.ragged.pop(name, None)
        if number:
            self.values.numbers[name] = name
        if rows:
            self.values.ragged[name] = rows

    def _selected(self, name, value, predicate, rows=frozenset()):
        """`name = value` where a predicate holds."""
        known = (name in self.bound or name in self.late) and not self._is_local(name)
        if predicate is not None and known and rows != self.values.ragged.get(name, frozenset()):
            raise DifferentRows(f"data says how many rows `{name}` has")
        if predicate is None or self._is_local(name):
            return [self.assign(name, value)]
        if name in self.late:
            fits = ast.Compare(self.load(name), [ast.Is()], [ast.Constant(None)])
            chosen = ast.IfExp(fits, value, self.where(predicate, value, self.load(name)))
            return [self.assign(name, chosen)]
        if name not in self.bound:
            return [self.assign(name, value)]
        return [self.assign(name, self.where(predicate, value, self.load(name)))]

    def _is_local(self, name):
        """Whether what a side binds to a name is read in that side alone: nothing is selected."""
        if not self.choices or self._in_loop(self.choices[0][0]):
            return False
        top = self.choices[0][0]
        if any(name in names_in(s) for node, first in self.choices if first for s in node.orelse):
            return False
        inside, inner = set(ast.walk(top)), (ast.Lambda, ast.FunctionDef)
        outside = [n for n in ast.walk(self.function) if n not in inside and n is not self.function]
        if any(isinstance(n, inner) and name in names_in(n) for n in outside):
            return False
        named = (n for n in outside if isinstance(n, ast.Name) and n.id == name)
        return not any(n.lineno > top.end_lineno for n in named)

    def _in_loop(self, node):
        loops = (n for n in ast.walk(self.function) if isinstance(n, (ast.For, ast.While)))
        return any(n.lineno <= node.lineno <= n.end_lineno for n in loops)

    def _keeps_writes(self, name, value):
        """Raises where something is written into a name after it was selected, and what it was is
        held elsewhere: that would miss the write."""
        old, new = self.kinds.get(name, ANY), self.context.new(value)
        if old.is_number or self.context.kind(value).is_number or name in self.values.numbers:
            return
        at = self.choices[0][0] if self.choices and new else self.at
        at = at if self.context.function(at) is not None else self.at  # one that was made here
        own = old.made is not None and (new or self.context.kind(value).made is not None)
        why = self.context.lost_write(at, (value, self.load(name)), {name}, own)
        if why:
            raise NotPredicated(why)

    def _store(self, target, value, predicate):
        listed = self.values.list_tensor(value)
        if listed and isinstance(target, ast.Name) and predicate is None:
            self._bind(target.id, ANY, False, frozenset())
            self.values.lists[target.id] = listed[1]
            return [self.assign(target.id, listed[0])]
        converted, kind = self.values.convert(value), self.context.kind(value)
        if isinstance(target, ast.Name):
            self.returns.made_of[target.id] = self.values.masks(value)
            known = predicate and (target.id in self.bound or target.id in self.late)
            known = known and not self._is_local(target.id)
            if known and TENSORS in (kind.what, self.kinds.get(target.id, ANY).what):
                return self._listed(target.id, converted.node, kind, predicate)
            if known:
                self._keeps_writes(target.id, value)
                self.values.selectable(value)
                ranks = {kind.rank, self.kinds.get(target.id, ANY).rank} - {None}
                if kind.is_tensor and len(ranks) > 1:
                    raise NotPredicated("the sides differ in their number of axes")
            rows = self.values.rows(value)
            old = self.kinds.get(target.id, ANY)
            made = self._selected(target.id, converted.node, predicate, rows)
            copied = known and not (kind.fresh and old.fresh)
            number = converted.number or bool(known and not kind.is_tensor)
            self._bind(target.id, kind, number, rows)
            self.copies |= {target.id} if copied else set()
            return made
        if isinstance(target, ast.Attribute):
            return self._attribute(target, converted, value, predicate)
        return self._element(target, self.values.shown(value), value, predicate)

    def _listed(self, name, value, kind, predicate):
        """A list of tensors where a predicate holds, else the one that there was."""
        if name in self.late:
            raise NotPredicated(f"`{name}` is a list that the loop makes")
        pairs = f"zip({ast.unparse(value)}, {name}, strict=True)"
        chosen = ast.unparse(self.where(predicate, self.load("new"), self.load("old")))
        self._bind(name, kind, False, frozenset())
        return [self.assign(name, parsed(f"[{chosen} for new, old in {pairs}]"))]

    def _attribute(self, target, converted, value, predicate):
        text, shown = ast.unparse(target), converted.node
        loaded = ast.Attribute(target.value, target.attr, ast.Load())
        made, effect = [], self.returns.effect(predicate)
        if effect is not None:
            self.values.selectable(value)
            shown = self.values.where(effect, shown, self.values.convert(loaded).node)
        number = converted.number or (effect and not self.context.kind(value).is_tensor)
        if number:
            local = self.name(target.attr, f"new_{target.attr}")
            made, shown = [self.assign(local, shown)], method(self.load(local), "item")
            self.values.numbers[text], self.values.reads = local, True
        else:
            self.values.numbers.pop(text, None)
        return [*made, ast.Assign([target], shown)]

    def _element(self, target, shown, value, predicate):
        self._written(target)
        place = self._place(target, self.context.kind(value).rank == 0)
        self.values.reads |= self.values._is_source(target)
        effect = self.returns.effect(predicate)
        if effect is None or self._writes_its_rows(target, predicate):
            return [ast.Assign([place], shown)]
        if not self.values.is_tensor(target.value) and not self._replaces(target, value):
            raise NotPredicated(f"`{self.values.text(target)}` is stored under a condition")
        old = ast.Subscript(place.value, place.slice, ast.Load())
        return [ast.Assign([place], self.values.where(effect, shown, old))]

    def _replaces(self, target, value):
        """Whether a tensor is stored in a loop over a list or a dict of tensors, in the place of
        the one that the loop is at."""
        held, over = self.context.kind(target.value).what == TENSORS, False
        owner, key = ast.unparse(target.value), ast.unparse(target.slice)
        ways = {f"{owner}.items()", f"enumerate({owner})", f"range(len({owner}))", owner}
        for loop in (n for n in ast.walk(self.function) if isinstance(n, ast.For)):
            names = [ast.unparse(e) for e in getattr(loop.target, "elts", [loop.target])]
            if loop.lineno <= target.lineno <= loop.end_lineno and names[0] == key:
                over = over or ast.unparse(loop.iter) in ways
                reads = (n for s in loop.body for n in ast.walk(s) if isinstance(n, ast.Name))
                kinds = [self.context.kind(n) for n in reads if n.id in names[1:]]
                held = held or any(k.is_tensor or k.of_input for k in kinds)
        return held and over and self.values.is_tensor(value)

    def _place(self, target, scalar):
        """Where something is stored; `scalar`: it has no axes."""
        index, axis = (
            self.values.index(target.slice)
            if self.values.is_tensor(target.value)
            else (self.values._part(target.slice), None)
        )
        if axis is not None and axis.value and not scalar:
            raise NotPredicated(f"`{self.values.text(target)}` is stored at what was read")
        return ast.Subscript(self.values.shown(target.value), index, ast.Store())

    def _augassign(self, node, predicate):
        target = copy.copy(node.target)
        target.ctx = ast.Load()
        value, before = self.values.convert(node.value), self.values.convert(target)
        whole = ast.BinOp(before.node, node.op, value.node)
        tensor = self._old_kind(node).is_tensor
        if tensor or isinstance(node.target, ast.Subscript):
            self._written(node.target)
        if isinstance(node.target, ast.Subscript):
            return self._added_element(node, whole, predicate)
        sums = self.values.is_tensor(node.value) and not (tensor or value.number)
        if sums and isinstance(node.target, ast.Name):
            return self._summed(node, whole, predicate)
        number = (before.number or value.number) and not tensor
        named = isinstance(node.target, ast.Name) and not tensor
        effect = predicate if named else self.returns.effect(predicate)
        if effect is None and not number:
            shown = value.node if tensor else self.values.shown(node.value)
            return [ast.AugAssign(node.target, node.op, shown)]
        if isinstance(node.target, ast.Attribute):
            return self._added_attribute(node, whole, tensor, predicate)
        return self._added_name(node, whole, tensor, number, predicate)

    def _summed(self, node, whole, predicate):
        """A number to which a tensor is added: a tensor from here on."""
        name = node.target.id
        if predicate is not None:
            self.doubts.setdefault(f"`{name}` is a tensor where nothing was added to a number")
        made = self._selected(name, whole, predicate)
        self._bind(name, self.context.kind(node.value), False, frozenset())
        return made

    def _added_name(self, node, whole, tensor, number, predicate):
        name, kind = node.target.id, self._old_kind(node)
        known = tensor or number or kind.is_number
        if not known:
            raise NotPredicated(f"`{name}` is not known to be a tensor or a number")
        effect = self.returns.effect(predicate)
        if tensor and effect and not kind.fresh:
            chosen = self.values.where(effect, whole, self.load(name))
            return [ast.Expr(method(self.load(name), "copy_", chosen))]
        rows = self.values.ragged.get(name, frozenset())
        made = self._selected(name, whole, predicate, rows)
        self._bind(name, kind, not tensor, rows)
        return made

    def _added_attribute(self, node, whole, tensor, predicate):
        target = ast.Attribute(node.target.value, node.target.attr, ast.Load())
        effect = self.returns.effect(predicate)
        if tensor:
            chosen = self.values.where(effect, whole, target)
            return [ast.Expr(method(target, "copy_", chosen))]
        old = self.values.convert(target).node
        shown = whole if effect is None else self.values.where(effect, whole, old)
        local = self.name(target.attr, f"new_{target.attr}")
        self.values.numbers[ast.unparse(target)], self.values.reads = local, True
        store = ast.Attribute(target.value, target.attr, ast.Store())
        read = method(self.load(local), "item")
        return [self.assign(local, shown), ast.Assign([store], read)]

    def _added_element(self, node, whole, predicate):
        place = self._place(node.target, self.context.kind(node.value).rank == 0)
        self.values.reads |= self.values._is_source(node.target)
        effect = self.returns.effect(predicate)
        if effect is None or self._writes_its_rows(node.target, predicate):
            return [ast.AugAssign(place, node.op, self.values.shown(node.value))]
        if not self.values.is_tensor(node.target.value):
            raise NotPredicated(f"`{self.values.text(node.target)}` is stored under a condition")
        old = ast.Subscript(place.value, place.slice, ast.Load())
        return [ast.Assign([place], self.values.where(effect, whole, old))]

    def _old_kind(self, node):
        """What the target of an `x += y` was."""
        text = ast.unparse(node.target)
        if text in self.kinds:
            return self.kinds[text]
        same = (n for n in ast.walk(self.function) if isinstance(n, ast.expr))
        loads = (n for n in same if isinstance(getattr(n, "ctx", None), ast.Load))
        kinds = [self.context.kind(n) for n in loads if ast.unparse(n) == text]
        own = self.context.kind(node.target)
        return next((k for k in [own, *kinds] if k.what != ANY.what), ANY)

    def _return(self, node, predicate):
        return self.returns.made(node, predicate)

    # Loops

    def _break(self, node, predicate):
        if predicate in (None, self.active) and not self.active:
            return [ast.Break()]
        self.exits += 1
        left = self.otherwise(self.load(predicate))
        made = [self.assign(self.active, self.both(self.active, left))]
        return made + ([self.assign(self.turn, self.both(self.turn, left))] if self.turn else [])

    def _continue(self, node, predicate):
        if predicate is None or self.turn is None:
            return [ast.Continue()]
        self.exits += 1
        left = self.otherwise(self.load(predicate))
        asked = self.empty.get(predicate)
        known = self.guards.get(self.turn, set())
        self.guards[self.turn] = None if asked is None or known is None else asked | known
        return [self.assign(self.turn, self.both(self.turn, left))]

    def _for(self, node, predicate):
        if predicate and stored([node.target]) & self.bound & self._read_outside(node):
            raise NotPredicated("a loop under a condition binds a name again")
        if any(self.values.decides(n) for n in self._turn_counts(node.iter)):
            raise NotPredicated("a tensor's value says how many turns there are")
        if self.values.is_ragged(node.iter):
            raise NotPredicated("data says how many turns there are")
        for name in stored([node.target]):
            self._bind(name, ANY, False, frozenset())
        turns = self.values.turns(node.iter)
        iterated, kind = turns or (self.values.shown(node.iter), None)
        if turns:
            self.values.chosen += 1
            self.values.bind_turn(node.target, kind)
        head = ast.For(node.target, iterated, [], [])
        last = self._last_turn(node)
        made = self._loop(node, head, predicate, None, last)
        self.values.numbers.update({node.target.id: last} if last else {})
        return made

    def _last_turn(self, node):
        """The name of a tensor that keeps the number of the turn in which a tensor ended the loop;
        "" where nothing asks for it behind the loop."""
        ends = any(isinstance(n, ast.Break) for n in self._own_exits(node.body))
        if not ends or not stored([node.target]) & self._read_after(node):
            return ""
        counts = isinstance(node.iter, ast.Call) and self.context.resolve(node.iter.func) == "range"
        if not counts or not isinstance(node.target, ast.Name):
            raise NotPredicated("what the loop's last turn had is used behind it")
        return self.name(f"last_{node.target.id}")

    def _read_after(self, node):
        """The names that the function reads behind a loop, other than in loops over them."""
        every = [n for n in ast.walk(self.function) if getattr(n, "lineno", 0) > node.end_lineno]
        again = (n for n in every if isinstance(n, ast.For))
        bound = {id(n) for f in again for n in ast.walk(f) if names_in(n) & stored([f.target])}
        names = (n for n in every if isinstance(n, ast.Name) and id(n) not in bound)
        return {n.id for n in names if isinstance(n.ctx, ast.Load)}

    def _turn_counts(self, iterated):
        called = isinstance(iterated, ast.Call) and isinstance(iterated.func, ast.Name)
        return iterated.args if called and iterated.func.id == "range" else []

    def _while(self, node, predicate):
        tests = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or):
            raise NotPredicated("the loop goes on for one of several reasons")
        counter = next((t for t in tests if self._counts(t, node)), None)
        if counter is None:
            raise NotPredicated("no counter bounds the turns of the loop")
        limit = self.values.shown(counter.comparators[0])
        if isinstance(counter.ops[0], ast.LtE):
            limit = ast.BinOp(limit, ast.Add(), ast.Constant(1))
        turns = ast.Call(self.load("range"), [counter.left, limit], [])
        held = self.name("turns", "most_turns")
        head = ast.For(ast.Name("_", ast.Store()), self.load(held), [], [])
        rest = [t for t in tests if t is not counter]
        return [self.assign(held, turns), *self._loop(node, head, predicate, rest)]

    def _counts(self, test, node):
        """Whether a test is `n < limit` of a number that each turn makes one larger."""
        less = isinstance(test, ast.Compare) and len(test.ops) == 1
        if not less or not isinstance(test.ops[0], (ast.Lt, ast.LtE)):
            return False
        if not isinstance(test.left, ast.Name) or test.left.id in self.values.numbers:
            return False
        changes = [
            s for s in ast.walk(node) if isinstance(s, ast.AugAssign) and s.target == test.left
        ]
        name = test.left.id
        steps = [s for s in node.body if self._steps(s, name)]
        every = [
            n
            for n in ast.walk(node)
            if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
        ]
        still = not (names_in(test.comparators[0]) & stored(node.body))
        return len(steps) == 1 and len(every) == 1 and still and not changes

    def _steps(self, statement, name):
        if not isinstance(statement, ast.AugAssign) or not isinstance(statement.op, ast.Add):
            return False
        one = isinstance(statement.value, ast.Constant) and statement.value.value == 1
        return one and isinstance(statement.target, ast.Name) and statement.target.id == name

    def _loop(self, node, head, predicate, tests, last_turn=""):
        """All turns of a loop; `tests`: what a `while` asks before each; `last_turn`: the name that
        keeps the number of the last one that eager takes."""
        self.values.sides += node.body
        own = self._own_exits(node.body)
        leaves = tests is not None or any(isinstance(n, (ast.Break, ast.Return)) for n in own)
        outer = self.active, self.turn, self.base, set(self.late)
        opened = self.returns.open(any(isinstance(n, ast.Return) for n in own))
        before = self._state()
        made = self._carried(node, leaves)
        opened += made
        self.active = self.name("active", "going_on") if self._by_tensor(own, tests) else None
        skips = any(isinstance(n, ast.Continue) for n in own)
        self.turn = self.name("this_turn", "in_turn") if skips else None
        opened += self._starts(predicate)
        body = self._body(node, predicate, tests)
        numbers = {n for n in self.values.numbers if n.isidentifier() and n not in before[0]}
        first = sorted(n for n in numbers if n in before[2])
        if first:  # from the second turn on it is a tensor: so it is in the first
            opened += [self.assign(n, self.values.call("tensor", self.load(n))) for n in first]
            ragged, self.bound = self.values.ragged, set(before[2])
            self.values.numbers = {**before[0], **{n: n for n in first}}
            self.values.ragged = {n: r for n, r in ragged.items() if n in before[2]} | before[1]
            body = self._body(node, predicate, tests)
        if last_turn:
            zero = self.values.call("tensor", ast.Constant(0))
            opened.append(self.assign(last_turn, zero))
            number = self.where(self.active, head.target, self.load(last_turn))
            body = [self.assign(last_turn, number), *body]
        head.body = body or [ast.Pass()]
        active, (self.active, self.turn, self.base, self.late) = self.active, outer
        self.late |= stored(node.body) - self.bound
        last = self.block(node.orelse, active or predicate) if node.orelse else []
        return [*opened, head, *last]

    def _by_tensor(self, own, tests):
        return tests is not None or any(isinstance(n, (ast.Break, ast.Return)) for n in own)

    def _starts(self, predicate):
        if not self.active:
            return []
        start = self.load(predicate) if predicate else self.true()
        self.guards[self.active] = self.guards.get(predicate) if predicate else None
        return [self.assign(self.active, start)]

    def _body(self, node, predicate, tests):
        made, inner = [], self.active or predicate
        for test in tests or ():
            truth = self.values.truth(test)
            if truth is None:
                truth = ast.Call(self.load("bool"), [self.values.shown(test)], [])
                truth = ast.BinOp(self.load(self.active), ast.BitAnd(), truth)
                made.append(self.assign(self.active, truth))
            else:
                made.append(self.assign(self.active, self.both(self.active, truth)))
        if self.turn:
            start = self.load(inner) if inner else self.true()
            made.append(self.assign(self.turn, start))
            self.guards[self.turn] = set() if inner is None else self.guards.get(inner)
        self.base = inner
        return made + self.block(node.body, inner)

    def _carried(self, node, leaves):
        """Names that the loop binds first, and that are read behind it: None before."""
        outside = self._read_outside(node)
        first = sorted((stored(node.body) - self.bound) & outside) if leaves else []
        self.late |= set(first)
        return [self.assign(n, ast.Constant(None)) for n in first]

    def _read_outside(self, node):
        """The names that the function reads outside of a statement."""
        inside = set(ast.walk(node))
        every = (n for n in ast.walk(self.function) if isinstance(n, ast.Name))
        return {n.id for n in every if isinstance(n.ctx, ast.Load) and n not in inside}

    def _own_exits(self, body):
        """What leaves a loop or its turn, not those in loops within."""
        found, todo = [], list(body)
        while todo:
            node = todo.pop()
            if isinstance(node, (ast.Break, ast.Continue, ast.Return)):
                found.append(node)
            inner = isinstance(node, (ast.For, ast.While, ast.FunctionDef))
            if inner:
                found += [n for n in ast.walk(node) if isinstance(n, ast.Return)]
            else:
                todo += ast.iter_child_nodes(node)
        return found
