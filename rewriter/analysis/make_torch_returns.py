"""Writes `lowering/opinfo/returns.txt` from the stubs of an installed torch: `python -m
dynfix.rewriter.analysis.make_torch_returns`."""

import ast
import importlib.util
import textwrap
from collections.abc import Iterable
from pathlib import Path

Found = dict[str, tuple[set[str], bool]]

_FILE = Path(__file__).parents[2] / "lowering/opinfo/returns.txt"
_STUBS = {
    "methods": ("_C/__init__.pyi", "TensorBase"),
    "functions": ("_C/_VariableFunctions.pyi", None),
    "functional": ("nn/functional.pyi", None),
}

_EXACT = {
    "Tensor": "T",
    "_int": "I",
    "int": "I",
    "_float": "F",
    "_bool": "B",
    "bool": "B",
    "Number": "N",
    "Size": "S",
}
_HEADER = """\
# Made by `python -m dynfix.rewriter.analysis.make_torch_returns` from the stubs of torch: what its functions return, as
# `name:letters` (T tensor, U tensors, I int, F float, B bool, N number, S size, O other; `!`: takes a tensor first).
"""  # noqa: E501


def category(annotation: ast.expr | None) -> str:
    """A letter for a return annotation: T tensor, U tensors, I int, F float, B bool, N number, S
    size, O other."""
    if annotation is None:
        return "O"
    text = ast.unparse(annotation).strip("'\"")
    if text in _EXACT:
        return _EXACT[text]
    if "return_types" in text or text.lower().startswith(("tuple[tensor", "list[tensor")):
        return "U"
    return "T" if text in ("Self", "Tensor | None") else "O"


def _defs(path: Path, owner: str | None) -> list[ast.FunctionDef]:
    tree = ast.parse(path.read_text())
    body = tree.body
    if owner is not None:
        body = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == owner).body
    return [n for n in body if isinstance(n, ast.FunctionDef)]


def table(path: Path, owner: str | None) -> Found:
    """{name: (categories of its overloads, whether every overload takes a tensor first)}."""
    found: Found = {}
    for node in _defs(path, owner):
        args = [*node.args.posonlyargs, *node.args.args][1 if owner else 0 :]
        first = (
            bool(args)
            and args[0].annotation is not None
            and ast.unparse(args[0].annotation) == "Tensor"
        )
        kinds, every = found.get(node.name, (set(), True))
        found[node.name] = (kinds | {category(node.returns)}, every and first)
    return found


def _function_layers(root: Path) -> Found:
    """nn.functional functions whose stub says nothing: those that functional.py annotates
    itself."""
    found: Found = {}
    for node in _defs(root / "nn/functional.py", None):
        if not node.name.startswith("_") and node.args.args:
            first = node.args.args[0].annotation
            found[node.name] = (
                {category(node.returns)},
                first is not None and ast.unparse(first) == "Tensor",
            )
    return found


def _lines(name: str, words: Iterable[str]) -> str:
    text = textwrap.fill(
        " ".join(sorted(words)), 116, break_long_words=False, break_on_hyphens=False
    )
    return f"\n@ {name}\n{text}\n"


def main() -> None:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit("torch is not installed")
    root = Path(spec.origin).parent
    parts = [_HEADER]
    for name, (stub, owner) in _STUBS.items():
        found = table(root / stub, owner)
        if name == "functional":
            found = {**_function_layers(root), **{k: v for k, v in found.items() if v[0] != {"O"}}}
        found = {k: v for k, v in found.items() if not k.startswith("__")}
        words = [
            f"{k}:{''.join(sorted(kinds))}{'!' * every}" for k, (kinds, every) in found.items()
        ]
        parts.append(_lines(name, words))
    _FILE.write_text("".join(parts))


if __name__ == "__main__":
    main()
