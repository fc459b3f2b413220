"""Parts of the command that most runs do without: each is loaded when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class OnDemand:
    """Stands for a module of ours, by its name relative to this package, until an attribute of it
    is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name, __package__), attribute)
