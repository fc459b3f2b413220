"""The rewriter's table of contents: every construct that is converted, and the conversion of one
whole function."""

import dataclasses

import libcst as cst

from ..source.live_source import Source
from ..source.scope import rebound_inside, root_scope
from . import (
    arithmetic,
    attributes,
    calls,
    classes,
    comparisons,
    functions,
    logic,
    loops,
    names,
    raising,
    statements,
    stores,
    strings,
    subscripts,
    ternary,
    unpacking,
)
from .conversion import ConversionContext, Converter, StoreTarget, TruthTest
from .form import text_of
from .tree import COMPREHENSIONS, swap


@dataclasses.dataclass(frozen=True)
class Construct:
    """`name`: what the user calls it; `nodes`: the syntax that it stands for; `convert(node,
    context)` gives what replaces it.
    """

    name: str
    nodes: tuple[type, ...]
    convert: Converter


CONSTRUCTS = (
    Construct("name", (cst.Name,), names.convert),
    Construct("walrus", (cst.NamedExpr,), names.convert_walrus),
    Construct("call", (cst.Call,), calls.convert),
    Construct(
        "unpacking", (cst.Arg, cst.StarredElement, cst.StarredDictElement), unpacking.convert
    ),
    Construct("yield", (cst.Yield,), unpacking.convert_yield),
    Construct("attribute", (cst.Attribute,), attributes.convert),
    Construct("item", (cst.Subscript,), subscripts.convert),
    Construct("dict key", (cst.DictElement,), subscripts.convert_dict_element),
    Construct("set", (cst.Set,), subscripts.convert_set),
    Construct("arithmetic", (cst.BinaryOperation,), arithmetic.convert_binary),
    Construct("sign and not", (cst.UnaryOperation,), arithmetic.convert_unary),
    Construct("comparison", (cst.Comparison,), comparisons.convert),
    Construct("and/or", (cst.BooleanOperation,), logic.convert),
    Construct("truth test", (TruthTest,), logic.convert_test),
    Construct("ternary", (cst.IfExp,), ternary.convert),
    Construct("if/while", (cst.If, cst.While), loops.convert_branch),
    Construct("for", (cst.For,), loops.convert_for),
    Construct("comprehension", COMPREHENSIONS, loops.convert_comprehension),
    Construct("f-string", (cst.FormattedString,), strings.convert),
    Construct("joined strings", (cst.ConcatenatedString,), strings.convert_concatenated),
    Construct("store", (cst.Assign,), stores.convert_assign),
    Construct("target", (StoreTarget,), stores.convert_target),
    Construct("annotated store", (cst.AnnAssign,), stores.convert_annotated),
    Construct("augmented store", (cst.AugAssign,), stores.convert_augmented),
    Construct("del", (cst.Del,), stores.convert_del),
    Construct("import", (cst.Import, cst.ImportFrom), stores.convert_import),
    Construct("assert", (cst.Assert,), statements.convert_assert),
    Construct("raise", (cst.Raise,), raising.convert),
    Construct("with", (cst.With,), statements.convert_with),
    Construct("except", (cst.ExceptHandler, cst.ExceptStarHandler), statements.convert_handler),
    Construct("match", (cst.Match,), statements.convert_match),
    Construct("case", (cst.MatchCase,), statements.convert_case),
    Construct("line", (cst.SimpleStatementLine, cst.SimpleStatementSuite), statements.convert_line),
    Construct("function", (cst.FunctionDef,), functions.convert),
    Construct("lambda", (cst.Lambda,), functions.convert_lambda),
    Construct("class", (cst.ClassDef,), classes.convert),
)
_TABLE: dict[type, Converter] = {
    node: construct.convert for construct in CONSTRUCTS for node in construct.nodes
}


def convert(source: Source) -> str:
    """The rewritten text of a function: as `source.text`, line for line. Raises `NotRewritable` for
    syntax that is not supported.
    """
    try:
        return _convert(source)
    except (cst.ParserSyntaxError, cst.CSTValidationError) as error:
        raise source.error(f"LibCST cannot handle it: {error}") from error
    except RecursionError:
        raise source.error("nested too deeply") from None


def _convert(source: Source) -> str:
    if source.is_lambda:
        root = swap(
            cst.parse_expression(f"({source.text})"), lpar=(), rpar=()
        )  # the parentheses allow line breaks
        return text_of(functions.convert_root(root, _context(source, root)))
    header = "if 1:\n" if source.is_indented else ""
    module = cst.parse_module(header + source.text)
    outer = module.body[0]
    root = outer.body.body[0] if header else outer  # type: ignore[union-attr]
    new = functions.convert_root(root, _context(source, root))  # type: ignore[arg-type]
    if header:
        new = swap(outer, body=swap(outer.body, body=[new]))
    rewritten: str = swap(module, body=[new]).code[len(header) :]
    return rewritten


def _context(source: Source, root: cst.CSTNode) -> ConversionContext:
    return ConversionContext(_TABLE, source, root_scope(source.free), rebound_inside(root))
