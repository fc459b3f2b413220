"""Which tensors and modules the backward of an expression reaches, through the names that stand
for what was computed before it."""

import ast

from ....lowering.opinfo import having
from ...analysis.tree_walk import only_value
from ...analysis.value_uses import UNKNOWN, WRITE, ValueUses
from ...analysis.where_safety import NO_GRAD

_NO_VALUE = ("dtype", "shape", "device", "ndim", "layout", "requires_grad")
_LINEAR = (ast.Add, ast.Sub, ast.Mult, ast.MatMult)
_SMOOTH = having("finite_gradient")
_QUIET = ("torch.no_grad", "torch.inference_mode")
_DEEPEST = 20


class GradientRoots:
    """`at`: the statement that chooses; what it binds itself is not looked at."""

    def __init__(self, context, at):
        self.context, self.tokens = context, context.inference.tokens
        function = context.function(at)
        self.function, self.own = function.node, function.self_name
        self.inside = set(ast.walk(at))
        self.bound = {}  # names that a side binds, and to what
        self.uses = ValueUses(context, self.function)

    def fed(self, node, depth=0):
        """{dump: node} of the tensors and modules whose gradients an expression feeds. A name that
        was bound once, by operators of which a zero gradient comes out as zeros, is what it was
        made of."""
        if isinstance(node, ast.Attribute) and node.attr in _NO_VALUE:
            return {}
        inverted = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert)
        if inverted or isinstance(node, (ast.Compare, ast.Constant)):
            return {}
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in NO_GRAD:
            return {}
        kind = self.context.kind(node)
        if isinstance(node, ast.Name) and node.id in self.bound:
            return self.fed(self.bound[node.id], depth)
        if isinstance(node, (ast.Name, ast.Attribute)) and kind.is_tensor:
            return self._named(node, kind, depth)
        if kind.what == "module":
            return {ast.dump(node): node}
        return {d: n for c in ast.iter_child_nodes(node) for d, n in self.fed(c, depth).items()}

    def learns(self, node, passed=frozenset()):
        """Whether a tensor is made of modules or parameters, so that it requires a gradient
        wherever the code is trained."""
        if isinstance(node, ast.Attribute) and self.context.kind(node.value).what == "self":
            return not (self.context.kind(node).is_tensor and self._is_buffer(node.attr))
        if self.context.kind(node).what == "module":
            return True
        if not isinstance(node, ast.Name):
            return any(self.learns(n, passed) for n in ast.iter_child_nodes(node))
        if node.id in passed:
            return False
        every = (n for n in ast.walk(self.function) if isinstance(n, ast.Name) and n.id == node.id)
        stores = [n for n in every if isinstance(n.ctx, ast.Store) and n not in self.inside]
        values = [self.context.statement(n) for n in stores]
        with_gradients = [s for s in values if not self._without_gradients(s)]
        passed = {*passed, node.id}
        return any(self.learns(s, passed) for s in with_gradients)

    def _is_buffer(self, attr):
        calls = (n for n in ast.walk(self.context.source.tree) if isinstance(n, ast.Call))
        named = (c for c in calls if getattr(c.func, "attr", "") == "register_buffer" and c.args)
        return any(getattr(c.args[0], "value", None) == attr for c in named)

    def _named(self, node, kind, depth):
        if self.tokens.category(kind.dtype) in ("int", "bool"):
            return {}
        value = self._made_of(node) if isinstance(node, ast.Name) and depth < _DEEPEST else None
        if value is None:
            return {ast.dump(node): node}
        return self.fed(value, depth + 1) if value else {}

    def _made_of(self, name):
        """The expression that a name was bound to; () where that was done without gradients; None
        where it is not known, or would not be zero."""
        value = only_value(name, self.context, self.function, self.inside)
        if value is None:
            return None
        names = self.uses.together({name.id}) - {self.own}
        happens = self.uses.events(names)
        if any(e.what in (WRITE, UNKNOWN) and e.node not in self.inside for e in happens):
            return None
        quiet = self._without_gradients(self.context.parent(value))
        if quiet is None or not self._smooth(value):
            return None
        return () if quiet else value

    def _without_gradients(self, statement):
        """Whether a statement stands under `no_grad`; None where that cannot be told."""
        quiet, node = False, self.context.parent(statement)
        while node is not None and node is not self.function:
            if isinstance(node, (ast.With, ast.AsyncWith)):
                calls = [i.context_expr for i in node.items]
                names = [
                    self.context.resolve(c.func) if isinstance(c, ast.Call) else "" for c in calls
                ]
                if not all(n in _QUIET for n in names):
                    return None
                quiet = True
            elif not isinstance(node, ast.If):
                return None  # a loop, or code that may have been left by an exception
            node = self.context.parent(node)
        return quiet

    def _smooth(self, node):
        if isinstance(node, (ast.Name, ast.Constant)):
            return True
        if isinstance(node, ast.Attribute):
            return self._smooth(node.value)
        if isinstance(node, ast.UnaryOp):
            return self._smooth(node.operand)
        if isinstance(node, ast.BinOp):
            return isinstance(node.op, _LINEAR) and all(map(self._smooth, (node.left, node.right)))
        if not isinstance(node, ast.Call):
            return False
        layer = (self.context.kind(node.func).cls or "").startswith("torch.nn.")
        full = self.context.resolve(node.func) or ""
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        method = owner is not None and self.context.kind(owner).is_tensor
        known = layer or ((full.startswith("torch.") or method) and node.func.attr in _SMOOTH)
        parts = [*node.args, *(k.value for k in node.keywords), *((owner,) if method else ())]
        return known and all(map(self._smooth, parts))
