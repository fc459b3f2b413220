"""Loop nests as text, one shared value a line."""

from collections.abc import Iterable, Iterator

from .ir import Group, Nest, Value, dtype_name, indices_of, show, walk


def _short(value: Value, names: dict[Value, str]) -> str:
    return names.get(value) or show(value)


def _line(value: Value, names: dict[Value, str]) -> str:
    if not value.children() or indices_of(value):
        return show(value)
    head = show(value).split("(")[0].split("<")[0]
    return f"{head}({', '.join(_short(child, names) for child in value.children())})"


def _value_lines(roots: Iterable[Value], names: dict[Value, str]) -> Iterator[str]:
    for value in reversed(list(walk(*roots))):
        if value.children() and value not in names:
            line = _line(value, names)
            names[value] = f"%{len(names)}"
            yield f"    {names[value]}: {dtype_name(value.dtype)} = {line}"


def nest_lines(nest: Nest) -> Iterator[str]:
    axes = ", ".join(
        f"{axis.text} < {axis.size}" + (" inner" if axis.number >= len(nest.space) else "")
        for axis in nest.axes
    )
    yield f"  for {axes or 'one point'}:"
    yield from (f"    # {origin}" for origin in nest.origins)
    names: dict[Value, str] = {}
    for store in nest.stores:
        yield from _value_lines([store.value], names)
        sign = "=" if store.combine is None else f"{store.combine}="
        yield f"    {store.buffer.name}[{store.index.text}] {sign} {_short(store.value, names)}"


def dump(group: Group) -> str:
    """The kernel as text: for people, for tests, and for comparing two nests."""
    lines = [f"{group.name}{list(group.space)}"]
    for nest in group.nests:
        lines.extend(nest_lines(nest))
    return "\n".join(lines)
