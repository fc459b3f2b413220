"""What may write, after a choice, into a tensor that something else holds as well: in eager that is
the tensor which the choice kept, afterwards a copy of it."""

import ast

from .value_uses import Event

_DEEPEST = 3


class LaterWrites:
    """`uses`: of the function that chooses, at the statement `at`."""

    def __init__(self, context, uses, at):
        self.context, self.uses, self.at = context, uses, at

    def first(self, kept):
        """The first write that may reach what the events `kept` gave away (None: to anything);
        None: there is none."""
        attributes = None if kept is None else _stored_in(kept)
        for node in self.uses.inside:
            later = self.uses.after(Event("", node, ""), self.at) if _has_place(node) else False
            if later and self._may_write(node, attributes, 0):
                return node
        return None

    def _may_write(self, node, attributes, depth):
        written = self._written(node)
        if written is not None:
            return self._reaches(written, attributes)
        if isinstance(node, ast.Call) and depth < _DEEPEST:
            found = self.context.called(node)
            inside = ast.walk(found.node) if found is not None else ()
            return any(self._may_write(n, attributes, depth + 1) for n in inside)
        return False

    def _written(self, node):
        """The expression into which a statement or call writes; None for others."""
        if isinstance(node, ast.AugAssign):
            return node.target
        if isinstance(node, ast.Assign):
            return next((t.value for t in node.targets if _stores_inside(t)), None)
        if not isinstance(node, ast.Call):
            return None
        out = [k.value for k in node.keywords if k.arg == "out"]
        name = getattr(node.func, "attr", "") or getattr(node.func, "id", "")
        inplace = self.context.kind(node.func).const is True
        if out or not (inplace or (name.endswith("_") and not name.endswith("__"))):
            return out[0] if out else None
        full = self.context.resolve(node.func) or ""
        method = isinstance(node.func, ast.Attribute) and not full.startswith("torch.")
        return node.func.value if method and not inplace else next(iter(node.args), node)

    def _reaches(self, node, attributes):
        """Whether what is written may be what was given away."""
        kind = self.context.kind(node)
        if kind.is_number or kind.what in ("list", "dict", "str") or kind.fresh:
            return False
        root = node
        while isinstance(root, (ast.Subscript, ast.Call)):
            root = root.func if isinstance(root, ast.Call) else root.value
            root = root.value if isinstance(root, ast.Attribute) and root is not node else root
        own = isinstance(root, ast.Attribute) and self.context.kind(root.value).what == "self"
        return not own or attributes is None or root.attr in attributes


def _has_place(node):
    return isinstance(node, (ast.expr, ast.stmt))


def _stored_in(events):
    """The attributes to which alone the tensor went; None: it may be anywhere."""
    found = set()
    for event in events:
        targets = getattr(event.node, "targets", [None])
        if not all(isinstance(t, ast.Attribute) for t in targets):
            return None
        found |= {t.attr for t in targets}
    return found


def _stores_inside(target):
    """`t[i] = …`, `t.data = …`."""
    data = isinstance(target, ast.Attribute) and target.attr == "data"
    return data or isinstance(target, ast.Subscript)
