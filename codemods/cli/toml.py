"""TOML for the settings: tomllib where Python has it (3.11), else the small part of TOML that
settings are written in."""

from __future__ import annotations

import re
from typing import Any

_HEADER = re.compile(r"^\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?$")


class TomlError(ValueError):
    """The text is no TOML that can be read here."""


def tables(text: str, prefix: Any) -> dict[str, dict[str, list[str]] | list[str]]:
    """The table `prefix` of a TOML document as nested dicts; {} where there is none."""
    try:
        import tomllib  # only where there is TOML to read
    except ModuleNotFoundError:
        return _small(text, prefix)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TomlError(str(error)) from None
    for part in prefix:
        table = table.get(part, {})
        if not isinstance(table, dict):
            raise TomlError(f"{part} is no table")
    return table


def _small(text: str, prefix: Any) -> Any:
    """Strings, booleans, whole numbers and arrays of them, in the tables below `prefix`, which may
    stand in braces; other tables are skipped."""
    result: dict[str, Any] = {}
    current, pending, above, depth = None if prefix else result, "", "", 0
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line.strip()) if not pending else None
        if header:
            keys = _keys(header.group(1))
            current = _table(result, keys, list(prefix))
            above = prefix[-1] if keys == list(prefix[:-1]) else ""
            continue
        if above and _keys(line.partition("=")[0])[:1] == [above]:
            _in_braces(result, above, _without_comment(line), number)
            continue
        if current is None:
            continue
        line = _without_comment(line)
        pending += line + " "
        depth += sum(map(line.count, "[{")) - sum(map(line.count, "]}"))
        if not depth:
            if pending.strip():
                _assign(current, pending.strip(), number)
            pending = ""
    return result


def _in_braces(table: Any, name: str, text: str, number: int) -> None:
    """`name = {key = value}`, on one line."""
    found: dict[str, Any] = {}
    value = text.partition("=")[2].strip()
    inside = re.sub(r"([\w-]+)\s*=", r'"\1":', value) if value.startswith("{") else value
    _assign(found, f"{name} = {inside}", number)
    if not isinstance(found[name], dict):
        raise TomlError(f"{name} is no table")
    table.update(found[name])


def _keys(text: str) -> Any:
    return [k.strip().strip("\"'") for k in re.findall(r'"[^"]*"|\'[^\']*\'|[^.\s]+', text)]


def _table(result: Any, keys: Any, prefix: Any) -> Any:
    if keys[: len(prefix)] != prefix:
        return None
    for key in keys[len(prefix) :]:
        result = result.setdefault(key, {})
    return result


def _without_comment(line: Any) -> Any:
    quote = ""
    for index, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char == "#":
            return line[:index]
    return line


def _assign(table: Any, text: str, number: Any) -> None:
    import ast  # only where Python has no tomllib

    key, _, value = text.partition("=")
    if key.strip()[:1] in "\"'":
        end = text.index(key.strip()[0], 1) + 1
        key, value = text[:end], text[end:].partition("=")[2]
    try:
        value = re.sub(r"\btrue\b", "True", re.sub(r"\bfalse\b", "False", value.strip()))
        table[_keys(key)[0]] = ast.literal_eval(value)
    except (SyntaxError, ValueError, IndexError, RecursionError, MemoryError):
        raise TomlError(
            f"line {number}: {text[:80]!r} needs Python 3.11, which reads all of TOML"
        ) from None
