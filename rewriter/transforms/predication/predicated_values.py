"""Expressions of a predicated path: a number that is read from a tensor stays a tensor of no axes,
until something needs it as a number."""

import ast
from dataclasses import dataclass

from ....lowering.opinfo import having
from ...analysis.kinds import MODULE, PYTHON_NUMBERS, UNKNOWN
from ..condition import closeness, host_read
from ..torch_draw import torch_draw

MATH = {"math.floor": "floor", "math.ceil": "ceil", "math.fabs": "abs"}
_MATH = having("math_name")
_SIZED = frozenset("nonzero argwhere masked_select unique unique_consecutive bincount".split())
_MADE_OF_SIZES = having("made_of_sizes")
_TAKE_TENSORS = frozenset("narrow split chunk repeat_interleave".split())
_REDUCES = having("gives_one")
_KEEP_SHAPE = having("writes_rows")
_OTHER_ROWS = having("other_rows")
_POSITIONS = ("torch.where", "nonzero", "argwhere")
_ASK_SIZES = having("asks_sizes")
_RAISES = {"min": "inf", "max": "-inf", "amin": "inf", "amax": "-inf"}  # without elements
_SHAPES = having("moves_axes")
_LOSSES = ("loss", "cross_entropy", "kl_div", "cross_entropy_with_logits")
_NEVER = (ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, ast.Starred)


class NotPredicated(Exception):
    """Why there is no predicated form."""


class DifferentRows(NotPredicated):
    """The sides differ in how many rows they have, or one needs rows: `torch.cond` may run one."""


@dataclass(frozen=True)
class Converted:
    """An expression of the new path; `number`: it is a tensor where eager has a Python number."""

    node: ast.expr
    number: bool = False


def _axes(index):
    return index.elts if isinstance(index, ast.Tuple) else [index]


def _is_zero(node):
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value == 0


def _is_detached(node):
    """Whether it is made of one tensor alone, without its history."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "detach":
            return True
        if node.args or node.keywords:
            return False
        node = node.func.value
    return isinstance(node, ast.Attribute) and node.attr == "data"


def _without_detach(node):
    """What is compared has no gradient anyway."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return node.func.value if called and node.func.attr == "detach" else node


def parsed(text):
    return ast.parse(text, mode="eval").body


def _operands(node):
    return node, node.left, node.right


def method(node, name, *args):
    return ast.Call(ast.Attribute(node, name, ast.Load()), list(args), [])


class PredicatedValues:
    """Converts expressions. `numbers`: {source of a name or an attribute: the local name of the
    tensor that has its number}; `ragged`: {name of a tensor: its `rows`}."""

    def __init__(self, context, torch):
        self.context, self.torch = context, torch
        self.numbers, self.ragged, self.versions = {}, {}, {}
        self.chosen = 0  # choices by tensors
        self.sides = []  # what runs in eager where such a choice says so
        self.in_side = False  # whether what is converted is a side of torch.cond
        self.assumed = {}  # what is taken for granted of inputs, as doubts
        self.lists = {}  # {name of a tensor that eager has as a list of numbers: its rank}
        self.draws = False  # whether torch draws what Python draws
        self.reads = False  # whether something is read as a number after all, or has such a shape

    def call(self, name, *args):
        return ast.Call(parsed(f"{self.torch}.{name}"), list(args), [])

    def where(self, predicate, new, old):
        """A choice; raises NotPredicated where data says how large a side is."""
        self.chosen += 1
        every = (n for side in (new, old) for n in ast.walk(side))
        if any(isinstance(n, ast.Attribute) and n.attr == "item" for n in every):
            raise DifferentRows("a size, a slice or an index depends on what was read")
        self.one_shape(new, old)
        return self.call("where", predicate, new, old)

    def one_shape(self, new, old):
        """Raises where one of two expressions is surely a part of the other, or in another
        shape."""
        for one, other in ((new, old), (old, new)):
            part = ast.dump(other)
            if isinstance(one, ast.Subscript) and ast.dump(one.value) == part:
                raise NotPredicated("one side is a part of the other: they differ in shape")
            folded = self._reduces(one) and any(ast.dump(n) == part for n in ast.walk(one))
            if (folded and self.context.kind(other).rank != 0) or self._reshapes(one, other):
                raise NotPredicated("one side is the other in another shape")

    def _reshapes(self, node, part):
        """Whether an expression joins, pads or lays out a part of it anew."""
        wanted = ast.dump(part)
        calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
        named = (c for c in calls if getattr(c.func, "attr", "") in _SHAPES)
        return any(ast.dump(n) == wanted for c in named for n in ast.walk(c))

    def shown(self, node):
        """The expression as eager has it: numbers read."""
        converted = self.convert(node)
        if not converted.number:
            return converted.node
        self.reads = True
        return method(converted.node, "item")

    def convert(self, node):
        """The Converted of an expression; raises NotPredicated."""
        if isinstance(node, _NEVER) and not isinstance(node, ast.Starred):
            raise NotPredicated(f"`{self.text(node)}` stands in an expression")
        known = self.numbers.get(ast.unparse(node)) if self.named(node) else None
        if known:
            return Converted(ast.Name(known, ast.Load()), True)
        if isinstance(node, ast.Name) and node.id in self.lists:
            self.reads = True
            return Converted(method(ast.Name(node.id, ast.Load()), "tolist"))
        made = getattr(self, f"_{type(node).__name__.lower()}", None)
        return made(node) if made else self._parts(node)

    def named(self, node):
        return isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)

    def text(self, node):
        return " ".join(ast.unparse(node).split())

    def is_tensor(self, node):
        return self.context.kind(node).is_tensor

    def _parts(self, node):
        """What has parts, of which those that are numbers are read."""
        if isinstance(node, ast.FormattedValue) and self.decides(node.value):
            raise NotPredicated("a text is made of a tensor's value")
        fields = {}
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                fields[name] = [self._part(v) for v in value]
            else:
                fields[name] = self._part(value)
        return Converted(ast.copy_location(type(node)(**fields), node))

    def _part(self, value):
        if isinstance(value, ast.comprehension):
            if any(self.decides(test) for test in value.ifs):
                raise NotPredicated("a comprehension chooses by a tensor's value")
            return self._parts(value).node
        if isinstance(value, ast.expr) and isinstance(getattr(value, "ctx", ast.Load()), ast.Load):
            return self.shown(value)
        return self._parts(value).node if isinstance(value, (ast.keyword, ast.Slice)) else value

    # Reads

    def _call(self, node):
        read = host_read(node, self.context)
        if read is not None:
            return self._read(node, read)
        found = self.list_tensor(node)
        if found is not None:
            self.reads = True
            return Converted(method(found[0], "tolist"))
        counted = self._folded_list(node) or self._count(node) or self._masked(node)
        if counted is not None:
            return counted
        if self.in_side and self._asks_size(node):
            raise NotPredicated(f"`{self.text(node)}` asks how many rows data gives")
        name = self.context.resolve(node.func) or ""
        close = closeness(node, self.context)
        if close:
            return Converted(parsed(close), True)
        drawn = torch_draw(node, self.context)
        if drawn:
            self.draws = True
            return Converted(parsed(drawn), True)
        if any(self.convert(a).number for a in node.args if not isinstance(a, ast.Starred)):
            found = self._of_numbers(node, name)
            if found is not None:
                return Converted(found, True)
        self._note_shape(node, name)
        return self._parts(node)

    def _read(self, node, read):
        kind, value = self.context.kind(read), self.convert(read).node
        category = self.context.inference.tokens.category(kind.dtype)
        value = value if kind.rank == 0 else method(value, "reshape", ast.Tuple([], ast.Load()))
        if category not in ("int", "bool") and not _is_detached(value):
            value = method(value, "detach")  # no gradient flows through a number
        wanted = node.func.id if isinstance(node.func, ast.Name) else ""
        if wanted == "int" and category != "int":
            value = method(value, "long")
        if wanted == "float" and category != "float":
            value = method(value, "float")
        if wanted == "bool" and kind.dtype != self.context.inference.tokens.bool:
            value = ast.Compare(value, [ast.NotEq()], [ast.Constant(0)])
        return Converted(value, True)

    def _sources(self, node):
        """The functions that give the rows of something."""
        texts = (text for text, _ in self.rows(node))
        return [text.partition("(")[0] for text in texts if "(" in text] or [""]

    def _asks_size(self, node):
        """Whether something of as many rows as data says is asked for a number of them. Torch
        asserts that outside of the side, or fails in the backward of another size."""
        if isinstance(node, ast.Subscript):
            axis, kind = _axes(node.slice)[0], self.context.kind(node.value)
            whole = self.context.inference.tokens.category(kind.dtype) == "int"
            whole = whole or all(t.endswith(_POSITIONS) for t in self._sources(node.value))
            part = isinstance(axis, ast.Slice) and not whole
            return (part or isinstance(axis, (ast.Constant, ast.UnaryOp))) and self.is_ragged(
                node.value
            )
        func = node.func if isinstance(node.func, ast.Attribute) else None
        return func is not None and func.attr in _ASK_SIZES and self.is_ragged(func.value)

    # Lists of numbers

    def list_tensor(self, node):
        """(the tensor, its rank) of what eager has as a list of its numbers; None of others."""
        if isinstance(node, ast.Name) and node.id in self.lists:
            return ast.Name(node.id, ast.Load()), self.lists[node.id]
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if not called or node.func.attr != "tolist" or node.args:
            return None
        kind = self.context.kind(node.func.value)
        if not kind.is_tensor or kind.rank == 0 or self.is_ragged(node.func.value):
            return None
        return self.convert(node.func.value).node, kind.rank or 1  # of more axes, its use tells

    def _folded_list(self, node):
        """`sum(values)`, `max(values)`, `min(values)`, `len(values)` of such a list."""
        name = self.context.resolve(node.func) if len(node.args) == 1 else None
        found = self.list_tensor(node.args[0]) if name in ("sum", "max", "min", "len") else None
        if found is None or node.keywords or (found[1] != 1 and name != "len"):
            return None
        if name == "len":
            return Converted(ast.Call(node.func, [found[0]], []))
        return Converted(method(found[0], {"max": "amax", "min": "amin"}.get(name, name)), True)

    def turns(self, node):
        """(what a loop goes through, what each turn has: "number", the rank of a list, None of
        others, or a tuple of these) where lists of numbers are among it; None for others."""
        found = self.list_tensor(node)
        if found is not None:
            return found[0], found[1] - 1 or "number"
        name = self.context.resolve(node.func) if isinstance(node, ast.Call) else None
        if name not in ("zip", "enumerate", "reversed", "list", "tuple"):
            return None
        parts = [self.turns(a) for a in node.args]
        if all(p is None for p in parts) or node.keywords:
            return None
        if name == "reversed":
            backwards = isinstance(parts[0][1], tuple)
            return (
                None if backwards else (method(parts[0][0], "flip", ast.Constant(0)), parts[0][1])
            )
        if name in ("list", "tuple"):
            return parts[0]
        shown = [p[0] if p else self.shown(a) for p, a in zip(parts, node.args, strict=True)]
        kinds = tuple(p and p[1] for p in parts)
        if name == "enumerate":
            kinds = (None, kinds[0])
        return ast.Call(node.func, shown, []), kinds

    def bind_turn(self, target, kind):
        """The names of a loop's target, by what each turn has."""
        if isinstance(target, ast.Name):
            self.numbers.pop(target.id, None)
            self.lists.pop(target.id, None)
            if kind == "number":
                self.numbers[target.id] = target.id
            elif isinstance(kind, int):
                self.lists[target.id] = kind
        elif isinstance(target, (ast.Tuple, ast.List)) and isinstance(kind, tuple):
            for part, each in zip(target.elts, kind, strict=False):
                self.bind_turn(part, each)
        elif kind is not None:
            raise NotPredicated("a loop unpacks what is read from a tensor")

    def _count(self, node):
        """How many rows something has, where data says it."""
        owner, func = None, node.func if isinstance(node, ast.Call) else None
        if isinstance(func, ast.Name) and func.id == "len" and len(node.args) == 1:
            owner = node.args[0]
        elif isinstance(func, ast.Attribute) and func.attr in ("numel", "size"):
            first = not node.args or ast.unparse(node.args[0]) == "0"
            owner = func.value if first else None
        if owner is None or not self.is_ragged(owner):
            return None
        self.reads = True
        rows = parsed(f"{self.torch}.scalar_tensor(0, dtype={self.torch}.int64)")
        rows.args = (
            [method(self.convert(owner).node, func.attr, *node.args)]
            if isinstance(func, ast.Attribute)
            else [
                ast.Subscript(parsed(f"({ast.unparse(owner)}).shape"), ast.Constant(0), ast.Load())
            ]
        )
        return Converted(rows, True)

    def _masked(self, node):
        """`x[mask].min()` of as many axes as the mask has: `where(mask, x, inf).min()`, for what is
        chosen may be nothing; None for other calls."""
        func = node.func if isinstance(node.func, ast.Attribute) else None
        if func is None or func.attr not in _RAISES or node.args or node.keywords:
            return None
        if not self.is_ragged(func.value):
            return None
        chosen, kind = func.value, self.context.kind
        index = chosen.slice if isinstance(chosen, ast.Subscript) else None
        if index is None or not self._is_source(chosen) or isinstance(index, ast.Tuple):
            raise DifferentRows(f"`{self.text(node)}` raises where there are no rows")
        ranks = {kind(chosen.value).rank, kind(index).rank}
        category = self.context.inference.tokens.category(kind(chosen.value).dtype)
        if len(ranks) != 1 or None in ranks or category != "float":
            raise DifferentRows(f"`{self.text(node)}` raises where there are no rows")
        least = parsed(f"float('{_RAISES[func.attr]}')")
        parts = self.convert(index).node, self.convert(chosen.value).node, least
        return Converted(method(self.call("where", *parts), func.attr))

    def is_ragged(self, node):
        """Whether an expression has as many rows as data says."""
        return any(self._is_source(n) or n.__class__ is ast.Name for n in self._sizing(node))

    def rows(self, node):
        """What says how many rows an expression has, where that is data or nothing: values of
        different `rows` are no sides of a choice."""
        found = set()
        for part in self._sizing(node, loose=True):
            if isinstance(part, ast.Name):
                found |= self.ragged[part.id]
            else:
                found.add(self._sized_by(part))
        return frozenset(found)

    def _sizing(self, node, loose=False):
        """The parts of an expression that data gives a size; `loose`: those that may be such."""
        if self.context.kind(node).rank == 0 or self._reduces(node):
            return
        source = self._is_source(node) or (loose and self._may_pick(node))
        source = source or self._picks_rows(node)
        if source or (isinstance(node, ast.Name) and node.id in self.ragged):
            yield node
        for child in ast.iter_child_nodes(node):
            if source and child is getattr(node, "slice", None):
                continue
            if self._keeps_shape(node) and child is not node.func:
                continue
            yield from self._sizing(child, loose)

    def _picks_rows(self, node):
        """Whether positions, or a method, pick rows of as many as data says: as many as they
        ask for."""
        if isinstance(node, ast.Subscript):
            return self.is_tensor(_axes(node.slice)[0]) and self.is_ragged(node.value)
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        return called and node.func.attr in _OTHER_ROWS and self.is_ragged(node.func.value)

    def _keeps_shape(self, node):
        """Whether a method gives a tensor as large as its own, whatever it is given."""
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        return (
            called and node.func.attr.rstrip("_") in _KEEP_SHAPE and self.is_tensor(node.func.value)
        )

    def _may_pick(self, node):
        """Whether an index may be a mask, for its type is not known, or is empty; or a slice, or a
        new tensor, as long as what was read says."""
        if isinstance(node, ast.Subscript) and not self._is_shape(node.value):
            return any(map(self._may_pick_axis, _axes(node.slice)))
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if not called or node.func.attr not in _MADE_OF_SIZES:
            return False
        takes = (self.context.resolve(node.func) or "").startswith("torch.")
        given = node.args[takes and node.func.attr in _TAKE_TENSORS :]
        sizes = [e for a in given[:2] for e in getattr(a, "elts", [a])]
        read = (self.is_tensor(e) or self.convert(e).number for e in sizes)
        return _is_zero(sizes[0] if sizes else None) or any(read)

    def _is_shape(self, node):
        return isinstance(node, ast.Attribute) and node.attr == "shape"

    def _may_pick_axis(self, axis):
        if isinstance(axis, ast.Slice):
            bounds = [b for b in (axis.lower, axis.upper) if b is not None]
            return _is_zero(axis.upper) or any(self.convert(b).number for b in bounds)
        if isinstance(axis, (ast.Constant, ast.UnaryOp, ast.List)) or self.convert(axis).number:
            return False
        kind = self.context.kind(axis)
        category = self.context.inference.tokens.category(kind.dtype) if kind.is_tensor else None
        return category is None and (kind.is_tensor or kind.what == UNKNOWN)

    def _sized_by(self, node):
        """What gives a part its size, as it is bound here."""
        sizes = node.slice if isinstance(node, ast.Subscript) else node
        names = {n.id for n in ast.walk(sizes) if isinstance(n, ast.Name)}
        return ast.unparse(sizes), tuple(sorted((n, self.versions.get(n, 0)) for n in names))

    def masks(self, node):
        """The names in an expression that choose rows: masks, and what has as many rows."""
        bools, names = self.context.inference.tokens.bool, set()
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and (
                part.id in self.ragged or self.context.kind(part).dtype == bools
            ):
                names.add(part.id)
        return names

    def _reduces(self, node):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if called and self._is_loss(node):
            return True
        return called and node.func.attr in _REDUCES and not node.args and not node.keywords

    def _is_loss(self, node):
        """Whether a call is that of a loss, a function or a module, that gives one number."""
        full, made = self.context.resolve(node.func) or "", node
        if self.context.kind(node.func).what == MODULE:
            full, made = self.context.kind(node.func).cls or "", self._constructor(node.func)
        given = {k.arg: k.value for k in made.keywords} if made is not None else {None: None}
        reduction = given.get("reduction", ast.Constant("mean"))
        known = isinstance(reduction, ast.Constant) and reduction.value in ("mean", "sum")
        loss = full.startswith("torch.nn.") and full.rpartition(".")[2].lower().endswith(_LOSSES)
        return (
            loss and known and None not in given and not given.keys() & {"reduce", "size_average"}
        )

    def _constructor(self, attribute):
        """The call that makes the module that an attribute holds, where there is one alone."""
        text = ast.unparse(attribute)
        stores = [
            n for n in self.context.index.get(ast.Assign, ()) if ast.unparse(n.targets[0]) == text
        ]
        return (
            stores[0].value if len(stores) == 1 and isinstance(stores[0].value, ast.Call) else None
        )

    def _is_source(self, node):
        if isinstance(node, ast.Subscript):
            bools, kind = self.context.inference.tokens.bool, self.context.kind
            return any(self.is_tensor(a) and kind(a).dtype == bools for a in _axes(node.slice))
        if not isinstance(node, ast.Call):
            return False
        called = self.context.called(node)
        if called is not None:
            return self._gives_rows(called.node)
        full = self.context.resolve(node.func) or ""
        if full == "torch.where":
            return len(node.args) == 1
        last = full.rpartition(".")[2] if full.startswith("torch.") else ""
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if owner is not None and self.is_tensor(owner):
            last = node.func.attr
        return last in _SIZED

    def _gives_rows(self, function):
        """Whether what a function returns is itself of as many rows as data says."""
        values = (n.value for n in ast.walk(function) if isinstance(n, ast.Return) and n.value)
        while_indexed = [v.value if isinstance(v, ast.Subscript) else v for v in values]
        return any(isinstance(v, ast.Call) and self._is_source(v) for v in while_indexed)

    def _note_shape(self, node, name):
        self.reads |= self._is_source(node)

    # Operators

    def _of_numbers(self, node, name):
        """A call of Python's or `math`'s functions of numbers, as one of tensors; None for
        others."""
        values = [self.convert(a) for a in node.args]
        last = name.rpartition(".")[2]
        if name in ("min", "max") and len(values) == 2 and not node.keywords:
            return self._extreme(name, values)
        if name.startswith("math.") and last in _MATH and len(values) == 1:
            return self.call(last, values[0].node)
        if name in MATH:
            return method(self.call(MATH[name], values[0].node), "long")
        if name in ("abs", "float", "int", "bool", "round") and len(values) == 1:
            inner = values[0].node
            made = {"abs": "abs", "float": "float", "int": "long", "bool": "bool"}
            return (
                method(inner, made[name])
                if name in made
                else method(method(inner, "round"), "long")
            )
        return None

    def _extreme(self, name, values):
        if all(v.number for v in values):
            return self.call(f"{name}imum", *(v.node for v in values))
        tensor, bound = values if values[0].number else values[::-1]
        limit = ast.keyword("max" if name == "min" else "min", bound.node)
        return ast.Call(parsed(f"{self.torch}.clamp"), [tensor.node], [limit])

    def _binop(self, node):
        left, right = self.convert(node.left), self.convert(node.right)
        made = ast.BinOp(left.node, node.op, right.node)
        if not (left.number or right.number) or any(map(self.is_tensor, _operands(node))):
            return Converted(made)
        for operand, converted in ((node.left, left), (node.right, right)):
            if not converted.number and self.context.kind(operand).of_input:
                self._assume_number(operand)
        return Converted(made, True)

    def _assume_number(self, node):
        """What the constructor was given, and what has a number for its default, is taken to be a
        number; of others that may be tensors, NotPredicated is raised."""
        if not isinstance(node, ast.Attribute) and not self._has_number_default(node):
            raise NotPredicated(f"`{self.text(node)}` may be a tensor or a number")
        self.assumed.setdefault(f"`{self.text(node)}` is taken to be a number")

    def _has_number_default(self, node):
        function = self.context.function(node)
        args = function.node.args if function and isinstance(node, ast.Name) else ast.arguments()
        positional = [*getattr(args, "posonlyargs", ()), *getattr(args, "args", ())]
        defaults = getattr(args, "defaults", ())
        pairs = [*zip(positional[len(positional) - len(defaults) :], defaults, strict=True)]
        pairs += zip(getattr(args, "kwonlyargs", ()), getattr(args, "kw_defaults", ()), strict=True)
        given = next((d for a, d in pairs if a.arg == getattr(node, "id", "")), None)
        return isinstance(given, ast.Constant) and isinstance(given.value, (int, float))

    def _unaryop(self, node):
        if isinstance(node.op, ast.Not):
            truth = self.truth(node.operand)
            if truth is not None:
                return Converted(self.call("logical_not", truth), True)
        inner = self.convert(node.operand)
        return Converted(ast.UnaryOp(node.op, inner.node), inner.number)

    def _compare(self, node):
        parts = [node.left, *node.comparators]
        values = [self.convert(p) for p in parts]
        number = any(v.number for v in values) and not any(map(self.is_tensor, parts))
        plain = (ast.Is, ast.IsNot, ast.In, ast.NotIn)
        if any(isinstance(op, plain) for op in node.ops):
            return self._parts(node)
        compared = [_without_detach(v.node) for v in values]
        pairs = zip(compared, node.ops, compared[1:], strict=False)
        made = [ast.Compare(a, [op], [b]) for a, op, b in pairs]
        decided = number or any(map(self.is_tensor, parts))
        if len(made) > 1 and decided:
            whole = made[0]
            for each in made[1:]:
                whole = self.call("logical_and", whole, each)
            return Converted(whole, True)
        return Converted(
            ast.Compare(values[0].node, node.ops, [v.node for v in values[1:]]), number
        )

    def _boolop(self, node):
        truths = [self.truth(v) for v in node.values]
        if all(t is None for t in truths):
            return self._parts(node)
        made, name = None, "logical_and" if isinstance(node.op, ast.And) else "logical_or"
        symbol = ast.BitAnd() if isinstance(node.op, ast.And) else ast.BitOr()
        tensors = [t for t in truths if t is not None]
        for truth in tensors:
            made = truth if made is None else self.call(name, made, truth)
        for value, truth in zip(node.values, truths, strict=True):
            if truth is None:
                asked = ast.Call(ast.Name("bool", ast.Load()), [self.shown(value)], [])
                made = ast.BinOp(made, symbol, asked)
        return Converted(made, True)

    def _ifexp(self, node):
        truth = self.truth(node.test)
        if truth is None:
            return self._parts(node)
        self.sides += [node.body, node.orelse]
        sides = [self.convert(n) for n in (node.body, node.orelse)]
        for side in (node.body, node.orelse):
            self.selectable(side)
        tensor = any(map(self.is_tensor, (node.body, node.orelse)))
        why = tensor and self.context.lost_write(node, (node.body, node.orelse), set())
        if why or self.rows(node.body) != self.rows(node.orelse):
            raise NotPredicated(why or "the sides differ in shape")
        return Converted(self.where(truth, *(s.node for s in sides)), not tensor)

    def selectable(self, node):
        """Raises where a value is neither a tensor nor a number."""
        kind = self.context.kind(node)
        known = kind.is_tensor or kind.what in PYTHON_NUMBERS or self.convert(node).number
        if not known or (kind.optional and not kind.is_tensor):
            raise NotPredicated(f"`{self.text(node)}` is not known to be a tensor or a number")

    def _subscript(self, node):
        counted = isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
        if counted and ast.unparse(node.slice) == "0" and self.is_ragged(node.value.value):
            size = parsed(f"{self.torch}.scalar_tensor(0, dtype={self.torch}.int64)")
            size.args, self.reads = [self._parts(node).node], True
            return Converted(size, True)
        listed = self.list_tensor(node.value)
        if listed and not isinstance(node.slice, ast.Slice):
            index, axis = self.index(node.slice)
            picked = ast.Subscript(listed[0], index, ast.Load())
            picked = picked if axis is None else method(picked, "squeeze", axis)
            if listed[1] == 1:
                return Converted(picked, True)
            self.reads = True
            return Converted(method(picked, "tolist"))
        self.reads |= self._is_source(node)
        if self.in_side and self._asks_size(node):
            raise NotPredicated(f"`{self.text(node)}` asks how many rows data gives")
        if self.is_tensor(node.value):
            index, axis = self.index(node.slice)
            picked = ast.Subscript(self.shown(node.value), index, ast.Load())
            return Converted(picked if axis is None else method(picked, "squeeze", axis))
        return self._parts(node)

    def index(self, node):
        """(an index of a tensor in which numbers that were read are tensors of one element, the
        axis that these make, where there are such)."""
        parts = node.elts if isinstance(node, ast.Tuple) else [node]
        read = [not isinstance(p, ast.Slice) and self.convert(p).number for p in parts]
        made = [self._index_part(p, r) for p, r in zip(parts, read, strict=True)]
        index = ast.Tuple(made, ast.Load()) if isinstance(node, ast.Tuple) else made[0]
        if not any(read):
            return index, None
        slices = [isinstance(p, ast.Slice) for p in parts]
        first = read.index(True)
        if not all(slices[:first]) or not all(slices[first + sum(read) :]):
            raise NotPredicated(f"`{self.text(node)}` picks by numbers that were read, and others")
        return index, ast.Constant(first)

    def _index_part(self, node, read):
        if isinstance(node, ast.Slice):
            return self._parts(node).node
        converted = self.convert(node).node
        return method(converted, "reshape", ast.Constant(1)) if read else converted

    # Truth

    def decides(self, node):
        """Whether the truth of an expression is a tensor's."""
        if not isinstance(node, ast.expr):
            return False
        return self.is_tensor(node) or self.convert(node).number

    def truth(self, node):
        """A bool tensor of no axes for what decides; None for what Python decides."""
        if isinstance(node, ast.Constant):
            return None
        converted, kind = self.convert(node), self.context.kind(node)
        if not converted.number and not kind.is_tensor:
            return None
        if kind.optional and isinstance(node, ast.Name):
            raise NotPredicated(f"`{node.id}` may be None")
        bools = isinstance(node, (ast.Compare, ast.BoolOp)) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        )
        made = converted.node
        if not bools and kind.dtype != self.context.inference.tokens.bool:
            made = ast.Compare(made, [ast.NotEq()], [ast.Constant(0)])
        one = converted.number or kind.rank == 0
        return made if one else method(made, "reshape", ast.Tuple([], ast.Load()))
