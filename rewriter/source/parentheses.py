"""How strongly an expression binds, what stands where bare, and so: does this need parentheses?"""

import ast
import enum

from .source_file import SourceFile


class Binding(enum.IntEnum):
    """How strongly an expression holds together, as the grammar orders it."""

    NAMED = 0  # `a := b`, `yield a`
    TUPLE = 1
    TEST = 2  # a ternary, a lambda
    OR = 3
    AND = 4
    NOT = 5
    COMPARE = 6
    BIT_OR = 7
    BIT_XOR = 8
    BIT_AND = 9
    SHIFT = 10
    SUM = 11
    PRODUCT = 12
    SIGN = 13
    POWER = 14
    AWAIT = 15
    ATOM = 16


_OPERATORS: dict[type[ast.operator], Binding] = {
    ast.BitOr: Binding.BIT_OR,
    ast.BitXor: Binding.BIT_XOR,
    ast.BitAnd: Binding.BIT_AND,
    ast.LShift: Binding.SHIFT,
    ast.RShift: Binding.SHIFT,
    ast.Add: Binding.SUM,
    ast.Sub: Binding.SUM,
    ast.Mult: Binding.PRODUCT,
    ast.MatMult: Binding.PRODUCT,
    ast.Div: Binding.PRODUCT,
    ast.FloorDiv: Binding.PRODUCT,
    ast.Mod: Binding.PRODUCT,
    ast.Pow: Binding.POWER,
}
_KINDS: dict[type[ast.expr], Binding] = {
    ast.NamedExpr: Binding.NAMED,
    ast.Yield: Binding.NAMED,
    ast.YieldFrom: Binding.NAMED,
    ast.Tuple: Binding.TUPLE,
    ast.Starred: Binding.TUPLE,
    ast.Slice: Binding.TUPLE,
    ast.IfExp: Binding.TEST,
    ast.Lambda: Binding.TEST,
    ast.Compare: Binding.COMPARE,
    ast.Await: Binding.AWAIT,
}


def binding(node: ast.expr) -> Binding:
    """How strongly `node` holds together without parentheses around it."""
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)]
    if isinstance(node, ast.UnaryOp):
        return Binding.NOT if isinstance(node.op, ast.Not) else Binding.SIGN
    if isinstance(node, ast.BoolOp):
        return Binding.AND if isinstance(node.op, ast.And) else Binding.OR
    return _KINDS.get(type(node), Binding.ATOM)


def asked(parent: ast.AST, child: ast.AST) -> Binding:
    """The weakest binding that stands bare where `child` stands in `parent`."""
    if isinstance(parent, ast.BinOp):
        return _of_operand(parent, child)
    if isinstance(parent, (ast.UnaryOp, ast.BoolOp)):
        own = binding(parent)
        return own if isinstance(parent, ast.UnaryOp) else Binding(own + 1)
    if isinstance(parent, ast.IfExp):
        return Binding.TEST if child is parent.orelse else Binding.OR
    if isinstance(parent, ast.comprehension):
        return Binding.OR
    if isinstance(parent, (ast.Compare, ast.Starred)):
        return Binding.BIT_OR
    if isinstance(parent, (ast.Attribute, ast.Await)):
        return Binding.ATOM
    if isinstance(parent, (ast.Call, ast.Subscript)):
        return _of_trailer(parent, child)
    values = (ast.Expr, ast.Assign, ast.AugAssign, ast.Return, ast.For)
    return Binding.TUPLE if isinstance(parent, values) else Binding.TEST


def _of_operand(parent: ast.BinOp, child: ast.AST) -> Binding:
    """The left operand of most operators may be another of the same; of `**` the right one."""
    own = binding(parent)
    if own is Binding.POWER:
        return Binding.AWAIT if child is parent.left else Binding.SIGN
    return own if child is parent.left else Binding(own + 1)


def _of_trailer(parent: ast.Call | ast.Subscript, child: ast.AST) -> Binding:
    if isinstance(parent, ast.Call):
        return Binding.ATOM if child is parent.func else Binding.TEST
    return Binding.ATOM if child is parent.value else Binding.TUPLE


def shown(source: SourceFile, node: ast.expr, least: Binding = Binding.TEST) -> str:
    """The text of `node` so that it can stand where `least` is asked: in parentheses where it binds
    less, or goes over lines that only parentheses elsewhere held together."""
    return grouped(source.segment(node), node, least)


def grouped(text: str, node: ast.expr, least: Binding) -> str:
    """`text`, that of `node`, in parentheses where it needs them where `least` is asked."""
    number = isinstance(node, ast.Constant) and type(node.value) is int and least is Binding.ATOM
    own = Binding.TUPLE if number else binding(node)
    if isinstance(node, ast.Tuple) and text.startswith("("):
        own = Binding.ATOM if _is_one(text) else own
    return f"({text})" if own < least or not stands_alone(text) else text


def _is_one(text: str) -> bool:
    """Whether the parentheses that a tuple's text begins with are its own."""
    tree = ast.parse(f"{text}.x", mode="eval").body
    return isinstance(tree, ast.Attribute) and isinstance(tree.value, ast.Tuple)


def stands_alone(text: str) -> bool:
    """Whether a text of several lines is one expression without parentheses around it."""
    if "\n" not in text and "\r" not in text:
        return True
    try:
        ast.parse(text.strip(), mode="eval")
    except SyntaxError:
        return False
    return True
