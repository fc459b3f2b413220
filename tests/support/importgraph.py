"""Who imports whom, read from the source: no module is loaded."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGES = (
    "runtime",
    "lowering",
    "rewriter",
    "codemods",
)  # each may import itself and what stands left of it
NEEDS_TORCH = ("torch", "triton", "transformers")


class Import(NamedTuple):
    """`module` imports `target` at `line`; `local`: inside a function; `typing`: only for type
    checkers."""

    module: str
    target: str
    line: int
    local: bool
    typing: bool


@cache
def package_root() -> Path:
    """The folder of the installed dynfix, found without importing it."""
    spec = importlib.util.find_spec("dynfix")
    assert spec and spec.origin, "dynfix is not installed"
    return Path(spec.origin).parent


@cache
def sources() -> dict[str, Path]:
    """Every module of the package, by dotted name, with its file."""
    root = package_root()
    files = [
        root / "__init__.py",
        *(f for name in PACKAGES for f in sorted((root / name).rglob("*.py"))),
    ]
    return {_module_name(file.relative_to(root)): file for file in files}


def _module_name(relative: Path) -> str:
    parts = relative.with_suffix("").parts
    return ".".join(("dynfix", *(parts[:-1] if parts[-1] == "__init__" else parts)))


@cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(module: str, path: Path) -> list[Import]:
    """Every import statement of a file, with relative names resolved."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return list(_walk(syntax(path), module, package, local=False, typing=False))


def _walk(node: ast.AST, module: str, package: str, local: bool, typing: bool):
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        typing = True
    local = local or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        for target in _targets(node, package):
            yield Import(module, target, node.lineno, local, typing)
    for child in ast.iter_child_nodes(node):
        yield from _walk(child, module, package, local, typing)


def _targets(node: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        parent = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*parent, base] if base else parent)
    return [_submodule(base, alias.name) for alias in node.names]


def _submodule(base: str, name: str) -> str:
    """`from base import name`: the module meant, where name is one of ours, else base."""
    return f"{base}.{name}" if f"{base}.{name}" in sources() else base


@cache
def graph() -> tuple[Import, ...]:
    return tuple(edge for module, path in sources().items() for edge in imports(module, path))


@cache
def loads_torch(module: str) -> bool:
    """Whether importing this module of ours imports torch, directly or through others."""
    return _reaches_torch({module}, set())


@cache
def file_loads_torch(path: Path) -> bool:
    """The same for a file that is no module of the package, as a test; helpers beside it, or here,
    count."""
    tops = {edge.target for edge in imports(path.stem, path) if not edge.local and not edge.typing}
    names = {f"{target.split('.')[0]}.py" for target in tops}
    helpers = {path.with_name(name) for name in names} - {path}
    helpers |= {Path(__file__).with_name(name) for name in names} - {path}
    return (
        any(target.split(".")[0] in NEEDS_TORCH for target in tops)
        or any(map(loads_torch, tops & sources().keys()))
        or any(file_loads_torch(helper) for helper in helpers if helper.exists())
    )


def _reaches_torch(todo: set[str], seen: set[str]) -> bool:
    while todo:
        module = todo.pop()
        seen.add(module)
        for edge in imports(module, sources()[module]):
            if edge.local or edge.typing:
                continue
            if edge.target.split(".")[0] in NEEDS_TORCH:
                return True
            if edge.target in sources() and edge.target not in seen:
                todo.add(edge.target)
    return False
