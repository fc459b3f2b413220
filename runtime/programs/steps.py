"""What a later call does, as data: compiled graphs with where their inputs come from, and what is
done to the outside afterwards."""

import dataclasses
from collections.abc import Callable
from typing import Any

from .recipes import Env, Recipe

CALL_INPUT = -1
HOST = -2  # a number that Python makes, handed to a graph as a 0-dim tensor


@dataclasses.dataclass(frozen=True)
class Feed:
    """Where a graph's input comes from: a call input, a number of the host, or output `index` of
    the graph number `segment`."""

    segment: int
    index: int


@dataclasses.dataclass(frozen=True, eq=False)
class GraphStep:
    """One compiled graph. `writes`: positions of the inputs that it writes; `histories`: those
    written as part of their gradient history. No program: the graph was empty."""

    program: Callable[..., Any] | None
    feeds: tuple[Feed, ...]
    writes: tuple[int, ...]
    histories: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Redo:
    """`function(*arguments, **keywords)`, done again at each call with arguments made anew.
    `origin`: the user's line."""

    function: Callable[..., Any]
    arguments: tuple[Recipe, ...]
    keywords: dict[str, Recipe]
    origin: str = ""

    def run(self, env: Env) -> None:
        keywords = {name: recipe.make(env) for name, recipe in self.keywords.items()}
        self.function(*(recipe.make(env) for recipe in self.arguments), **keywords)
