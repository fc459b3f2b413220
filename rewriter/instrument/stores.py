"""Stores to attributes, items, global and free names.

`obj.x = v` -> `__df.set_attr(obj, "x", v)` where the order of evaluation cannot be told; Python
evaluates `v` first. Everywhere else (several targets, `for obj.x in`, `with … as obj.x`) the target
becomes `__df.target(__df.set_attr, obj, "x").value`: storing to `.value` of that object calls
`set_attr(obj, "x", v)` at the very moment when Python would have stored.
"""

from typing import Any

import libcst as cst

from ..source.scope import NameKind, imported_names, target_names
from . import attributes, subscripts
from .calls import can_be_lazy
from .conversion import ConversionContext
from .form import NodeSequence, Part, argument, around, gap, operator, template, text_of
from .names import stored
from .order import any_order, is_still, place_is_still
from .tree import swap
from .unpacking import parts_of

INPLACE = {
    cst.AddAssign: "+=",
    cst.SubtractAssign: "-=",
    cst.MultiplyAssign: "*=",
    cst.MatrixMultiplyAssign: "@=",
    cst.DivideAssign: "/=",
    cst.FloorDivideAssign: "//=",
    cst.ModuloAssign: "%=",
    cst.PowerAssign: "**=",
    cst.LeftShiftAssign: "<<=",
    cst.RightShiftAssign: ">>=",
    cst.BitAndAssign: "&=",
    cst.BitOrAssign: "|=",
    cst.BitXorAssign: "^=",
}
_HELD = "_df_held"


def convert_target(node: Any, cx: ConversionContext) -> Any:
    if isinstance(node, cst.Attribute):
        return template(
            "__df.target(__df.set_attr, ", *attributes.place(node, cx), ").value", like=node
        )
    if isinstance(node, cst.Subscript):
        return template(
            "__df.target(__df.set_item, ", *subscripts.place(node, cx), ").value", like=node
        )
    if isinstance(node, (cst.Tuple, cst.List)):
        return swap(
            node,
            elements=[swap(each, value=convert_target(each.value, cx)) for each in node.elements],
        )
    return node


def convert_assign(node: cst.Assign, cx: ConversionContext) -> Any:
    first = node.targets[0].target
    if len(node.targets) == 1:
        if isinstance(first, (cst.Attribute, cst.Subscript)) and any_order(first, node.value, cx):
            link = node.targets[0]
            between = gap(link.whitespace_before_equal, ",", link.whitespace_after_equal)
            return cst.Expr(_store(first, between, node.value, cx), semicolon=node.semicolon)
        if (
            isinstance(first, cst.Name)
            and (kind := cx.scope.resolve(first.value)) is not NameKind.LOCAL
        ):
            return swap(node, value=stored(first.value, argument(cx.convert(node.value)), kind, cx))
    targets = [swap(each, target=convert_target(each.target, cx)) for each in node.targets]
    new = swap(node, targets=targets, value=_unpacked(node, cx))
    return _followed(new, [name for each in node.targets for name in target_names(each.target)], cx)


def _unpacked(node: cst.Assign, cx: ConversionContext) -> Any:
    """The value of an assignment, which a target may take apart."""
    value = cx.convert(node.value)
    parts = [parts for each in node.targets if (parts := parts_of(each.target)) is not None]
    if not parts:
        return value
    if len(node.targets) > 1:
        return operator("unpack_kept", value, *parts)
    if any("(" in part[1:].replace("()", "") for part in parts):
        return operator("unpack", value, *parts)
    displayed = isinstance(node.value, (cst.Tuple, cst.List))
    return value if displayed else operator("iter", value)


def _store(
    target: Any, between: tuple[Part, ...], value: Any, cx: ConversionContext
) -> NodeSequence:
    module, name = (
        (attributes, "set_attr") if isinstance(target, cst.Attribute) else (subscripts, "set_item")
    )
    return template(
        f"__df.{name}(", *module.place(target, cx), *between, argument(cx.convert(value)), ")"
    )


def _followed(node: Any, names: list[str], cx: ConversionContext) -> Any:
    """`node`, and after it a store of each global or free name that it bound: `n =
    __df.set_glob("n", n)`."""
    outer = [
        (name, kind) for name in names if (kind := cx.scope.resolve(name)) is not NameKind.LOCAL
    ]
    if not outer:
        return node
    again = [
        cst.Assign([cst.AssignTarget(cst.Name(name))], stored(name, cst.Name(name), kind, cx))
        for name, kind in outer
    ]
    statements = [swap(node, semicolon=cst.MaybeSentinel.DEFAULT), *again]
    return [*statements[:-1], swap(statements[-1], semicolon=node.semicolon)]


def convert_import(node: cst.Import | cst.ImportFrom, cx: ConversionContext) -> Any:
    """What was imported is told after it."""
    new = _followed(node, list(imported_names(node)), cx)
    statements = new if isinstance(new, list) else [new]
    told = cst.Expr(template("__df.imported(", *_imported(node), ")"), semicolon=node.semicolon)
    return [
        *(swap(each, semicolon=cst.MaybeSentinel.DEFAULT) for each in statements),
        told,
    ]


def _imported(node: cst.Import | cst.ImportFrom) -> tuple[Part, ...]:
    """`"package.module", level, ("name", name), …`; of `import a.b as c`: `"", 0, ("a.b", c)`."""
    if isinstance(node.names, cst.ImportStar):
        return ('"", 0',)
    of_module = isinstance(node, cst.ImportFrom)
    module = text_of(node.module) if isinstance(node, cst.ImportFrom) and node.module else ""
    level = len(node.relative) if isinstance(node, cst.ImportFrom) else 0
    pairs = []
    for alias, bound in zip(node.names, imported_names(node), strict=True):
        name = text_of(alias.name)
        shown = name if of_module or alias.asname else name.partition(".")[0]
        pairs.append(f', ("{shown}", {bound})')
    return (f'"{module}", {level}', *pairs)


def convert_annotated(node: cst.AnnAssign, cx: ConversionContext) -> Any:
    """In a function the annotation is never evaluated, so a store needs none; `x: int` alone is a
    declaration."""
    if node.value is None:
        return node
    assert isinstance(node.equal, cst.AssignEqual)
    if isinstance(node.target, cst.Name):
        return swap(node, value=cx.convert(node.value))
    before, after = node.equal.whitespace_before, node.equal.whitespace_after
    target = cst.AssignTarget(node.target, before, after)  # type: ignore[arg-type]
    return convert_assign(cst.Assign([target], node.value, semicolon=node.semicolon), cx)


def convert_augmented(node: cst.AugAssign, cx: ConversionContext) -> Any:
    """`a += b` -> `a = __df.inplace("+=", a, b)`; on attributes and items `aug_attr`,
    `aug_item`."""
    sign, target = INPLACE[type(node.operator)], node.target
    between = around(node.operator, ",")
    value = argument(cx.convert(node.value))
    if isinstance(target, cst.Name):
        new = template(f'__df.inplace("{sign}", ', cx.convert(target), *between, value, ")")
        kind = cx.scope.resolve(target.value)
        new = new if kind is NameKind.LOCAL else stored(target.value, new, kind, cx)
        return cst.Assign([cst.AssignTarget(target)], new, node.semicolon)
    if is_still(node.value, cx):
        module, name = (
            (attributes, "attr") if isinstance(target, cst.Attribute) else (subscripts, "item")
        )
        place = module.place(target, cx)
        return cst.Expr(
            template(f"__df.aug_{name}(", *place, f', "{sign}"', *between, value, ")"),
            semicolon=node.semicolon,
        )
    return cst.Expr(
        _augmented_in_order(node, sign, (*between, value), cx), semicolon=node.semicolon
    )


def _augmented_in_order(
    node: cst.AugAssign, sign: str, value: tuple[Part, ...], cx: ConversionContext
) -> NodeSequence:
    """Python reads the old value before it evaluates the new one, and the place once: if need be, a
    lambda's default holds the place.
    """
    target = node.target
    if isinstance(target, cst.Attribute):
        name = "attr"
        held: tuple[Part, ...] = (argument(cx.convert(target.value)),)
        place: tuple[Part, ...] = (f'{_HELD}, "{cx.mangled(target.attr.value)}"',)
    else:
        name, held, place = "item", ("(", *subscripts.place(target, cx), ")"), (f"*{_HELD}",)  # type: ignore[arg-type]
    repeats = place_is_still(target, cx) and "\n" not in text_of(target)
    if repeats:
        place = attributes.place(target, cx) if name == "attr" else subscripts.place(target, cx)  # type: ignore[arg-type]
    store = (
        f"__df.set_{name}(",
        *place,
        f', __df.inplace("{sign}", __df.{name}(',
        *place,
        ")",
        *value,
        "))",
    )
    if repeats:
        return template(*store)
    if not can_be_lazy(node.value):
        raise cx.unsupported("an augmented assignment of a yield or walrus to an attribute or item")
    return template(f"(lambda {_HELD}=", *held, ": ", *store, ")()")


def convert_del(node: cst.Del, cx: ConversionContext) -> Any:
    """`del a.x, b` -> `__df.del_attr(a, "x"); del b`."""
    statements = [_deletion(each, cx) for each in _deleted(node.target)]
    if all(isinstance(each, cst.Del) for each in statements):
        return node
    if "\n" in text_of(node):
        raise cx.unsupported("a del statement over several lines")
    plain = [swap(each, semicolon=cst.MaybeSentinel.DEFAULT) for each in statements]
    return [*plain[:-1], swap(plain[-1], semicolon=node.semicolon)]


def _deleted(target: Any) -> Any:
    if isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _deleted(element.value)
    else:
        yield target


def _deletion(target: Any, cx: ConversionContext) -> Any:
    if isinstance(target, cst.Attribute):
        return cst.Expr(template("__df.del_attr(", *attributes.place(target, cx), ")"))
    if isinstance(target, cst.Subscript):
        return cst.Expr(template("__df.del_item(", *subscripts.place(target, cx), ")"))
    if cx.scope.resolve(target.value) is not NameKind.LOCAL:
        raise cx.unsupported(f"deleting the global or nonlocal name {target.value!r}")
    return cst.Del(target)
