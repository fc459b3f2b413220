"""What a name in the file stands for: `F.relu` -> "torch.nn.functional.relu", by the file's own
imports."""

import ast
from collections.abc import Iterator

from .name_scopes import module_bindings
from .tree_walk import NodeIndex, below

_DEEPEST = 64  # names in a row; no module's are more, and each attribute of a chain asks


def dotted(node: ast.AST | None) -> list[str] | None:
    """The names of `a.b.c` as ["a", "b", "c"], or None where it is no chain of names."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < _DEEPEST:
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        return [node.id, *reversed(parts)]
    return None


def by_type(tree: ast.AST) -> NodeIndex:
    """{type: nodes} of a whole tree, in the order of the text; contexts and operators are left
    out."""
    found: NodeIndex = {}
    for node in below(tree):
        found.setdefault(type(node), []).append(node)
    for nodes in found.values():
        nodes.sort(key=_place)
    return found


def _place(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def _stored(index: NodeIndex) -> Iterator[list[str]]:
    """The chains of names that a file stores attributes under, by name as well."""
    for node in index.get(ast.Attribute, ()):
        names = dotted(node)
        if names and not isinstance(node.ctx, ast.Load):
            yield names
    for node in index.get(ast.Call, ()):
        named = isinstance(node.func, ast.Name) and node.func.id == "setattr"
        if named and len(node.args) == 3 and isinstance(node.args[1], ast.Constant):
            owner = dotted(node.args[0])
            if owner:
                yield [*owner, str(node.args[1].value)]


_NO_TENSORS = ("torch.optim.", "torch.utils.")


class ImportedNames:
    """The file's imports (at any depth, later ones last) and the names that it binds at module
    level by other means."""

    def __init__(self, tree: ast.Module, index: NodeIndex) -> None:
        self.aliases: dict[str, str] = {}
        self.ambiguous: set[str] = set()  # imported as one thing here and as another there
        self.bound: set[str] = set()
        # bound at several places; bound by the module otherwise than by an import
        self.rebound, self.shadowed = module_bindings(tree, index)
        self.top: dict[str, str] = {}  # what the module's own body imports, whatever happens
        for node in sorted(index.get(ast.Import, []) + index.get(ast.ImportFrom, []), key=_place):
            if isinstance(node, ast.Import):
                self._import(node)
            else:
                self._import_from(node)
        # what the file puts something else in the place of, as `torch.relu = mine`
        self.patched = frozenset(filter(None, map(self._full, _stored(index))))
        for node in tree.body:
            self._bind(node)
            if isinstance(node, ast.Import):
                self.top.update((a.asname or a.name.split(".")[0], a.name) for a in node.names)
            elif isinstance(node, ast.ImportFrom):
                self.top.update(
                    (a.asname or a.name, f"{node.module}.{a.name}")
                    for a in node.names
                    if not node.level
                )

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            root = alias.name.split(".")[0]
            self._alias(alias.asname or root, alias.name if alias.asname else root)

    def _import_from(self, node: ast.ImportFrom) -> None:
        base = "." * node.level + (node.module or "")
        for alias in node.names:
            name = f"{base}.{alias.name}" if base and not base.endswith(".") else base + alias.name
            self._alias(alias.asname or alias.name, name)

    def _alias(self, name: str, full: str) -> None:
        if self.aliases.setdefault(name, full) != full:
            self.ambiguous.add(name)
        self.aliases[name] = full

    def _bind(self, node: ast.AST) -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self.bound.add(node.name)
        elif isinstance(node, ast.Assign):
            self.bound.update(t.id for t in node.targets if isinstance(t, ast.Name))

    def resolve(self, node: ast.AST | None) -> str | None:
        """The full dotted name, or None: `nn.Linear` -> "torch.nn.Linear". Builtins resolve to
        themselves."""
        parts = dotted(node)
        if parts is None or parts[0] in self.bound:
            return None
        root = self.aliases.get(parts[0], parts[0])
        full = ".".join([root, *parts[1:]])
        return None if self.patched and self._is_patched(full) else full

    def _full(self, parts: list[str]) -> str | None:
        """The full dotted name of what is imported, else None."""
        root = self.aliases.get(parts[0])
        return ".".join([root, *parts[1:]]) if root else None

    def _is_patched(self, full: str) -> bool:
        return any(full == p or full.startswith(f"{p}.") for p in self.patched)

    def torch(self) -> str | None:
        """The name under which the whole file knows torch, or None: not where only a function or a
        branch imports it."""
        names = [
            n
            for n, full in self.top.items()
            if full == "torch" or (n == "torch" and full.startswith("torch."))
        ]
        hidden = self.bound | self.shadowed
        names = [n for n in names if n not in hidden and self.aliases.get(n) == "torch"]
        return "torch" if "torch" in names else next(iter(names), None)

    def torch_rebound(self, function: ast.AST) -> str:
        """A name that stands for a part of torch and for something else as well, or ""; parts that
        give no tensors count where the function names them."""
        parts = {n: full for n, full in self.aliases.items() if full.split(".")[0] == "torch"}
        found = [n for n in parts if n in self.shadowed]
        if found and all(parts[n].startswith(_NO_TENSORS) for n in found):
            named = {n.id for n in ast.walk(function) if isinstance(n, ast.Name)}
            found = [n for n in found if n in named]
        return next(iter(found), "")

    @property
    def patches_torch(self) -> bool:
        """Whether the file puts functions of its own in the place of torch's."""
        return any(p.startswith("torch.") and p.count(".") == 1 for p in self.patched)

    @property
    def loads_torch(self) -> bool:
        """Whether importing the file surely imports torch."""
        return any(full.split(".")[0] == "torch" for full in self.top.values())
