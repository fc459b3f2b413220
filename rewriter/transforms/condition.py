"""The test of a branch as a bool tensor: what `torch.where` and `torch.cond` take."""

import ast
from dataclasses import dataclass, replace

from ...lowering.opinfo import having
from ..analysis.call_effects import TOTAL_TESTS
from ..analysis.kinds import SIZE, Kind, literal
from ..analysis.tree_walk import surely_evaluated

DECIDES = {ast.Gt: ">", ast.GtE: ">=", ast.Lt: "<", ast.LtE: "<=", ast.Eq: "==", ast.NotEq: "!="}
_READS = ("float", "int", "bool")
_EXACT_INTEGER, _EXACT_DOUBLE = 127, 2**53


@dataclass(frozen=True)
class Condition:
    """`text`: a bool tensor's source; `negated`: the sides change places; `doubt`: why it may
    differ from the original test. `settled`: Python that asks for what `exact`, the source in
    place of `text` where there is one, needs to be free of all doubt; empty: nothing is enough."""

    text: str
    kind: Kind
    negated: bool = False
    doubt: str = ""
    pure: bool = False
    settled: tuple = ()
    exact: str = ""


def host_read(node, context):
    """The tensor expression whose value `node` reads on the host (`t.item()`, `float(t)`), or
    None."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args:
        return node.func.value if context.kind(node.func.value).is_tensor else None
    if (
        isinstance(node.func, ast.Name)
        and node.func.id in _READS
        and len(node.args) == 1
        and not node.keywords
    ):
        known = context.resolve(node.func) in _READS and node.func.id not in context.names.bound
        inner = node.args[0]
        if known and context.kind(inner).is_tensor:
            return inner
    return None


def condition(test, context):
    """The Condition of a test on a tensor's value; a string: why there is none; None: it is no such
    test."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = condition(test.operand, context)
        return replace(inner, negated=not inner.negated) if isinstance(inner, Condition) else inner
    if isinstance(test, ast.NamedExpr):
        return "the test binds a name" if _depends(test, context) else None
    if isinstance(test, ast.BoolOp):
        return _joined(test, context)
    if isinstance(test, ast.Compare):
        read = _compared_read(test, context) if len(test.ops) == 1 else _chain(test, context)
        if read is not None:
            return read
    return _plain(test, context)


def _chain(test, context):
    """`low < t < high` as `low < t and t < high`, where evaluating `t` twice is nothing."""
    parts = [test.left, *test.comparators]
    between = [host_read(p, context) or p for p in parts[1:-1]]
    if not all(isinstance(p, (ast.Name, ast.Attribute, ast.Constant)) for p in between):
        return None
    pairs = pairs_of(test, context)
    joined = _joined(ast.copy_location(ast.BoolOp(ast.And(), pairs), test), context)
    return joined if isinstance(joined, Condition) else None


def pairs_of(test, context):
    """The comparisons of a chain, as nodes."""
    pairs, parts = [], [test.left, *test.comparators]
    for left, op, right in zip(parts, test.ops, parts[1:], strict=False):
        pair = ast.copy_location(ast.Compare(left, [op], [right]), left)
        pair.end_lineno, pair.end_col_offset = right.end_lineno, right.end_col_offset
        pairs.append(pair)
        _give_kind(pair, context)
    return pairs


def _give_kind(pair, context):
    """The kind of a comparison that stands nowhere: of a tensor with a number, or with one of its
    shape."""
    if context.exact:
        return
    kinds, tokens = context.inference.kinds, context.inference.tokens
    one, other = context.kind(pair.left), context.kind(pair.comparators[0])
    tensor = one if one.is_tensor else other
    same = one.is_tensor and other.is_tensor and one.shape == other.shape
    if tensor.is_tensor and (same or one.is_number or other.is_number):
        kinds[pair] = replace(tensor, dtype=tokens.bool)


def _plain(test, context):
    read = host_read(test, context)
    if read is not None:
        return _as_bool(read, context)
    near = closeness(test, context)
    if near:
        made = context.inference.tokens.tensor(rank=0)
        return Condition(near, replace(made, dtype=context.inference.tokens.bool))
    kind = context.kind(test)
    if not kind.is_tensor:
        return "no tensor expression computes this test" if _depends(test, context) else None
    if kind.optional and isinstance(test, ast.Name):
        return f"`{test.id}` may be None"
    return _as_bool(test, context)


def closeness(node, context):
    """`torch.isclose(a, b).all()`, which is what `torch.allclose(a, b)` reads on the host; "" for
    others."""
    called = isinstance(node, ast.Call) and context.resolve(node.func) == "torch.allclose"
    if not called or not all(context.kind(a).is_tensor for a in node.args[:2]):
        return ""
    name, asked = context.segment(node.func), context.segment(node)
    return f"{name.removesuffix('allclose')}isclose{asked[len(name) :]}.all()"


def _as_bool(node, context):
    kind, text = context.kind(node), context.segment(node)
    tokens = context.inference.tokens
    pure = isinstance(node, (ast.Name, ast.Compare)) and not any(
        isinstance(n, ast.Call) for n in ast.walk(node)
    )
    if kind.dtype == tokens.bool:
        one = (f"{_wrapped(node, context, _CALLED)}.numel() == 1",)
        return Condition(text, kind, doubt=_count(kind, tokens), pure=pure, settled=one)
    text = (
        text
        if isinstance(node, (ast.Name, ast.Call, ast.Attribute, ast.Subscript))
        else f"({text})"
    )
    made, one = replace(kind, dtype=tokens.bool), (f"{text}.numel() == 1",)
    return Condition(f"{text} != 0", made, doubt=_count(kind, tokens), pure=pure, settled=one)


def _count(kind, tokens):
    """Truth of a tensor needs one element; where and cond take any number."""
    known = kind.rank == 0 or kind.shape in tokens.one_element
    return "" if known else "a condition of several elements raised an error"


def _compared_read(test, context):
    """`t.item() > 0.5` -> `t > 0.5`."""
    sides = [test.left, test.comparators[0]]
    reads = [host_read(s, context) for s in sides]
    if not any(reads) or type(test.ops[0]) not in DECIDES:
        return None
    shown = [_wrapped(s if r is None else r, context) for r, s in zip(reads, sides, strict=True)]
    operator = DECIDES[type(test.ops[0])]
    kind = context.kind(next(r for r in reads if r is not None))
    tokens = context.inference.tokens
    rough = _exact(sides, reads, kind, context)
    wide = _in_double(sides, reads, context) if rough else ""
    if wide:
        shown, rough = wide, ""
    doubt = _count(kind, tokens) or rough
    facts, exact = _settled(sides, reads, operator, context) if rough else ((), "")
    whole = _whole(sides, reads, test, context) if rough else ()
    if whole:
        facts, exact = whole, f"{shown[0]} {operator} {shown[1]}"
    if not rough or exact:
        tensor = _wrapped(next(r for r in reads if r is not None), context, _CALLED)
        facts = (*facts, *((f"{tensor}.numel() == 1",) if _count(kind, tokens) else ()))
    text = f"{shown[0]} {operator} {shown[1]}"
    made = replace(kind, dtype=tokens.bool)
    return Condition(text, made, doubt=doubt, settled=facts, exact=exact)


def _whole(sides, reads, test, context):
    """The fact by which a tensor that is read as an int compares as that does, with a size."""
    read, number = (reads[0], sides[1]) if reads[0] is not None else (reads[1], sides[0])
    found, one = context.torch(test), sum(r is not None for r in reads) == 1
    category = context.inference.tokens.category(context.kind(read).dtype)
    if not one or found is None or context.kind(number).what != SIZE or category != "int":
        return ()
    return (f"{_wrapped(read, context, _CALLED)}.dtype == {found[0]}.int64",)


def _has_double(kind, context):
    """Whether a tensor's device surely has float64, which those of Apple do not."""
    tokens = context.inference.tokens
    if context.exact:
        return kind.device != tokens.of("device", "mps:0")
    return kind.device == tokens.default_device


def _in_double(sides, reads, context):
    """The sides of a comparison that Python makes in double of floating-point tensors, as tensors
    that compare so; "" where they are no such ones."""
    tokens, kinds = context.inference.tokens, [context.kind(r) for r in reads if r is not None]
    floats = all(tokens.category(k.dtype) == "float" for k in kinds)
    floats = floats and all(_has_double(k, context) for k in kinds)
    facts, text = _settled(sides, reads, "\0", context) if floats else ((), "")
    return text.split(" \0 ") if facts else ""


_CALLED = (ast.Name, ast.Call, ast.Attribute, ast.Subscript)


def _wrapped(node, context, simple=(*_CALLED, ast.Constant, ast.BinOp, ast.UnaryOp)):
    text = context.segment(node)
    return text if isinstance(node, simple) else f"({text})"


def _settled(sides, reads, operator, context):
    """(facts, source) of a comparison in double, as Python makes it of what it reads of
    floating-point tensors; ((), "") where that is not what it does."""
    shown, facts = [], []
    for side, read in zip(sides, reads, strict=True):
        if read is None:
            known = context.kind(side)
            whole = type(literal(side)) is int and abs(literal(side)) <= _EXACT_DOUBLE
            if not whole and (known.what != "float" or known.host or known.optional):
                return (), ""
            shown.append(_wrapped(side, context))
            continue
        if isinstance(side.func, ast.Name) and side.func.id != "float":
            return (), ""
        tensor = _wrapped(read, context, _CALLED)
        shown.append(f"{tensor}.double()")
        facts.append(f"{tensor}.is_floating_point()")
    return tuple(facts), f"{shown[0]} {operator} {shown[1]}"


def _exact(sides, reads, kind, context):
    """Python compares in double precision, a tensor in its own: only numbers that every dtype holds
    compare alike."""
    tokens = context.inference.tokens
    category = tokens.category(kind.dtype)
    if all(r is not None for r in reads):
        same = context.kind(reads[0]).dtype == context.kind(reads[1]).dtype and category
        return "" if same else "two tensors of different dtypes compare in another precision"
    if any(
        r is not None and isinstance(s.func, ast.Name) and s.func.id != "float"
        for r, s in zip(reads, sides, strict=True)
    ):
        return "int() and bool() change the value that is compared"
    number = literal(sides[0] if reads[1] is not None else sides[1])
    if category not in ("bool", "int", "float"):
        return "a complex tensor is refused with another exception"
    if isinstance(number, int) and 0 <= number <= _EXACT_INTEGER:
        return ""
    whole = context.kind(sides[0] if reads[1] is not None else sides[1]).what == SIZE
    whole = whole or (type(number) is int and abs(number) < 2**63)
    if kind.dtype == tokens.int64 and whole:
        return ""
    return (
        ""
        if category == "float" and short(number)
        else "the tensor is compared in its own precision, not in double"
    )


def short(number):
    """Whether every floating-point dtype holds the number exactly: a few bits in all."""
    return (
        isinstance(number, (int, float))
        and abs(number) <= _EXACT_INTEGER / 8
        and number * 8 == int(number * 8)
    )


def _joined(test, context):
    """`a and b` of conditions."""
    parts = [condition(v, context) for v in test.values]
    if all(p is None for p in parts):
        return None
    if not all(isinstance(p, Condition) for p in parts):
        text = next((p for p in parts if isinstance(p, str)), "")
        return text or "the test joins a tensor's value with a Python condition"
    found = context.torch(test)
    if found is None:
        return "`torch` is hidden by a local name, or not imported at the top of the file"
    text = _chained(test, [p.text for p in parts], parts, found[0])
    exact = _chained(test, [p.exact or p.text for p in parts], parts, found[0])
    doubt = next((p.doubt for p in parts if p.doubt), "")
    later = zip(test.values[1:], parts[1:], strict=True)
    reduced = frozenset(_not_empty(test.values[0], context))
    partial = [(v, p) for v, p in later if not _total(v, context, reduced=reduced)]
    asked = [ast.parse(p.text, mode="eval").body for _, p in partial]
    if not doubt and partial and not context.total(*asked):
        doubt = "every part of the test is evaluated"
    settled = _all_settled(parts, [v for v, _ in partial], context, reduced)
    return Condition(text, parts[0].kind, doubt=doubt, settled=settled, exact=exact)


def _chained(test, texts, parts, torch):
    name = "logical_and" if isinstance(test.op, ast.And) else "logical_or"
    shown = [
        f"{torch}.logical_not({t})" if p.negated else t for t, p in zip(texts, parts, strict=True)
    ]
    text = shown[0]
    for part in shown[1:]:
        text = f"{torch}.{name}({text}, {part})"
    return text


_NEED_ELEMENTS = having("raises_if_empty") & having("total")


def _not_empty(test, context):
    """Of what a test reduces, so that it has elements; as dumps."""
    for node in surely_evaluated(test):
        called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        bare = called and node.func.attr in _NEED_ELEMENTS and not (node.args or node.keywords)
        if bare and context.kind(node.func.value).is_tensor:
            yield ast.dump(node.func.value)


def _has_elements(node, reduced):
    """Whether a reduction asks a tensor that was reduced before: of numbers that compare, too."""
    method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    bare = method and node.func.attr in _NEED_ELEMENTS and not node.args
    return bare and ast.dump(node.func.value) in reduced


def _all_settled(parts, partial, context, reduced):
    """The facts that free all parts of doubt: of `partial` ones, that the tensors that they ask are
    floating-point; () where that is not enough."""
    names = {}
    if any(p.doubt and not p.settled for p in parts):
        return ()
    if not all(_total(v, context, names, reduced) for v in partial):
        return ()
    facts = [f for p in parts if p.doubt for f in p.settled]
    return tuple(dict.fromkeys([*facts, *(f"{n}.is_floating_point()" for n in names)]))


def is_total(tests, found, context):
    """Whether evaluating `tests`, of which `found` is the Condition, surely changes nothing."""
    if all(_total(test, context) for test in tests):
        return True
    return context.total(ast.parse(found.text, mode="eval").body)


def _total(node, context, asked=None, reduced=frozenset()):
    """Whether a test on a tensor surely can be evaluated: it only asks of a tensor's elements what
    every tensor of its dtype can tell. `asked` takes the names that must be floating-point
    tensors for that, where it is given; `reduced`: what has elements."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _total(node.operand, context, asked, reduced)
    kind = context.kind(node)
    if asked is not None and isinstance(node, ast.Name) and kind.is_tensor:
        asked.setdefault(node.id)
        return True
    if isinstance(node, (ast.Name, ast.Constant)):
        return kind.strided or (kind.what in ("int", "float") and not kind.optional)
    if isinstance(node, ast.Compare):
        parts = [node.left, *node.comparators]
        free = asked is not None
        real = all(
            free or _real(context.kind(p), context) or _has_elements(p, reduced) for p in parts
        )
        return real and all(_total(p, context, asked, reduced) for p in parts)
    if not isinstance(node, ast.Call) or node.keywords or len(node.args) > 1:
        return False
    read = host_read(node, context)
    if read is not None and _real(context.kind(read), context):
        return _total(read, context, asked, reduced)
    full, name = context.resolve(node.func) or "", getattr(node.func, "attr", "")
    inner = node.args[0] if full.startswith("torch.") and node.args else None
    if not node.args and isinstance(node.func, ast.Attribute):
        inner = node.func.value
    known = name in TOTAL_TESTS or (asked is not None and name == "mean")
    fits = inner is not None and known and _total(inner, context, asked, reduced)
    return fits or _has_elements(node, reduced)


def _real(kind, context):
    categories = ("bool", "int", "float")
    return not kind.is_tensor or context.inference.tokens.category(kind.dtype) in categories


def _depends(test, context):
    """Whether the truth of `test` needs a tensor's value."""
    kind = context.kind(test)
    if kind.is_tensor or kind.host:
        return True
    return any(host_read(n, context) is not None or closeness(n, context) for n in ast.walk(test))
