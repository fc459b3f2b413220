"""What a call computes of the sizes of its inputs, as text: Python over symbols that are read of
them."""

import ast
import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from .recipes import Env, Recipe

ITSELF = -1  # in the place of a dim: the input is a number
_NAMES = {"__builtins__": {}, "math": math, "min": min, "max": max, "abs": abs}


@dataclasses.dataclass(frozen=True, eq=False)
class SizeFunction:
    """`reads`: each symbol's (input, dim)."""

    text: str
    reads: Mapping[str, tuple[int, int]]

    def function(self, names: Mapping[str, Any] | None = None) -> Callable[[list[Any]], Any]:
        """The function of a call's inputs. `names`: what the text may use, if it is more than
        arithmetic."""
        places = ", ".join(_read(*at) for at in self.reads.values())
        source = f"lambda I: (lambda {', '.join(self.reads)}: {self.text})({places})"
        return eval(source, dict(_NAMES if names is None else names))  # type: ignore[no-any-return]

    def parts(self) -> "list[SizeFunction]":
        """The conditions that one is made of, each with what it reads."""
        tree = ast.parse(self.text, mode="eval").body
        found = []
        for part in tree.values if isinstance(tree, ast.BoolOp) else [tree]:
            names = {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}
            reads = {name: at for name, at in self.reads.items() if name in names}
            found.append(SizeFunction(ast.unparse(part), reads))
        return found


def _read(index: int, dim: int) -> str:
    return f"I[{index}]" if dim == ITSELF else f"I[{index}].shape[{dim}]"


class SizeRecipe(Recipe):
    """A number that follows from the sizes of the inputs."""

    sizes = True

    def __init__(self, sizes: SizeFunction) -> None:
        self._compute = sizes.function()

    def make(self, env: Env) -> Any:
        return self._compute(env.inputs)
