"""The tables of a TOML file, as the settings need them."""

from __future__ import annotations

import sys
from typing import Any


class TomlError(ValueError):
    """The text is no TOML, or the table that is asked for is none."""


def tables(text: str, prefix: Any) -> dict[str, Any]:
    """The table `prefix` of a TOML document as nested dicts; {} where there is none."""
    if sys.version_info >= (3, 11):  # imported only where there is TOML to read
        import tomllib
    else:
        import tomli as tomllib
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TomlError(str(error)) from None
    for part in prefix:
        table = table.get(part, {})
        if not isinstance(table, dict):
            raise TomlError(f"{part} is no table")
    return table
