"""What a form for compiled code asks while it is traced: written, and recognised again."""

import ast
from dataclasses import dataclass, field


@dataclass
class TraceTimeChecks:
    """What is asked while the code is traced, in order. `gradients`: what must not require one;
    `histories`: what must not where gradients are off."""

    facts: dict[str, None] = field(default_factory=dict)
    gradients: dict[str, None] = field(default_factory=dict)
    histories: dict[str, None] = field(default_factory=dict)

    def add(self, text):
        self.facts.setdefault(text)

    def copy(self):
        return TraceTimeChecks(dict(self.facts), dict(self.gradients), dict(self.histories))

    def texts(self, torch):
        same = {f.rpartition(" == ")[2].removesuffix(".dtype") for f in self.facts if _DTYPES in f}
        implied = {f"{name}.is_floating_point()" for name in same}
        found = [f for f in self.facts if f not in implied]
        histories = [h for h in self.histories if h not in self.gradients]
        if self.gradients:
            found.append(f"not {_any_of(self.gradients)}")
        if histories:
            found.append(f"({torch}.is_grad_enabled() or not {_any_of(histories)})")
        return found


_DTYPES = ".dtype == "


def _any_of(names):
    """The source that tells whether one of some tensors requires a gradient."""
    asked = [f"{name}.requires_grad" for name in names]
    return asked[0] if len(asked) == 1 else f"({' or '.join(asked)})"


def is_a_tensor(torch, name):
    """What asks whether a name stands for a tensor: `torch.is_tensor` says so of NumPy arrays, too,
    while Dynamo traces."""
    return f"isinstance({name}, {torch}.Tensor)"


def grouped(node, text):
    simple = (ast.Name, ast.Attribute, ast.Call, ast.Subscript)
    return text if isinstance(node, simple) else f"({text})"


def negated(node, text):
    """`not node`, in the words of who would write it."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        turned = {ast.Is: " is not ", ast.IsNot: " is "}.get(type(node.ops[0]))
        left, right = ast.unparse(node.left), ast.unparse(node.comparators[0])
        if turned:
            return f"{left}{turned}{right}"
    return f"not {grouped(node, text)}"


def settles(test: ast.expr, otherwise: ast.stmt | None) -> bool:
    """Whether a test that asks for compiled code asks for nothing else but facts, so that what
    follows is for code where they do not hold: `otherwise`, the statement with the old form."""
    if not isinstance(test, ast.BoolOp) or not isinstance(test.op, ast.And):
        return False
    old = getattr(otherwise, "test", None) or getattr(
        getattr(otherwise, "value", None), "test", None
    )
    parts = old.values if isinstance(old, ast.BoolOp) else []
    known = {ast.unparse(p) for p in parts} | {negated(p, ast.unparse(p)) for p in parts}
    return all(_is_fact(v) or ast.unparse(v) in known for v in test.values[1:])


_FACTS = frozenset("dtype shape stride numel dim device".split())


def _is_fact(node):
    if isinstance(node, ast.BoolOp):
        return all(map(_is_fact, node.values))
    if isinstance(node, ast.UnaryOp):
        return _is_fact(node.operand)
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        return any(
            _tail(s) in ("dtype", "shape", "stride", "numel", "dim", "device") for s in sides
        )
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
        return ast.unparse(node.args[-1]) == "float" or _tail(node.args[-1]) == "Tensor"
    return _tail(node) in ("is_floating_point", "requires_grad", "is_tensor", "is_grad_enabled")


def _tail(node):
    return getattr(node.func if isinstance(node, ast.Call) else node, "attr", "")
