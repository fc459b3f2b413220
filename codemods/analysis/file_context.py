"""What a rule sees of the file that it looks at."""

import ast

from ...rewriter.edits.spans import Edit, Fix, Safety
from ...rewriter.patterns.kinds import ANY
from ..trace.trace_facts import qualified
from .definitions import Program
from .findings import ERROR, Finding
from .import_names import Names, by_type
from .inference import Inference
from .name_scopes import rebindings

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)
BLOCKS = ("body", "orelse", "finalbody")


class Context:
    """One file: its source, names, program and inference; parents of the nodes of captured
    functions."""

    def __init__(self, source, settings, suppose=False):
        self.source, self.settings = source, settings
        self.index = by_type(source.tree)
        self.names = Names(source.tree, self.index)
        self.facts = settings.facts_of(source.path)
        named = qualified(source.tree) if self.facts else None
        self.program = Program(source.tree, self.names, self.index, named)
        self.inference = Inference(self.program, self.names, self.facts, suppose)
        self.parents, self.functions = {}, {}
        self._taken, self._whole = {}, None

    # What a node is

    def kind(self, node):
        return self.inference.kinds.get(node, ANY)

    def resolve(self, node):
        """The dotted name, unless a local variable hides its root."""
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in self.local_names(node):
            return None
        return self.names.resolve(node)

    def parent(self, node):
        return self.parents.get(node)

    def statement(self, node):
        """The statement that `node` stands in."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def function(self, node):
        """The captured function that `node` stands in."""
        while node is not None and node not in self.functions:
            node = self.parents.get(node)
        return self.functions.get(node)

    def local_names(self, node):
        """The names bound in the function around `node`, nested ones included."""
        function = self.function(node)
        key = function.node if function else None
        if key not in self._taken:
            self._taken[key] = _bound_names(key) if key is not None else set()
        return self._taken[key]

    def block(self, statement):
        """(the list of statements that holds `statement`, its index)."""
        parent = self.parents.get(statement)
        for name in (*BLOCKS, "handlers"):
            body = getattr(parent, name, None)
            if isinstance(body, list) and statement in body:
                return body, body.index(statement)
        return [statement], 0

    def fresh_name(self, node, *wishes):
        """The first of `wishes` that no name of the function around `node` clashes with; numbered
        where all do."""
        function = self.function(node)
        taken = {
            n.id for n in ast.walk(function.node) if isinstance(n, ast.Name)
        } | self.local_names(node)
        taken |= set(self.names.aliases) | self.names.bound
        wishes = [w for w in wishes if w.isidentifier()]
        numbered = (f"{wishes[0]}_{i}" for i in range(1, 1000))
        return next(w for w in [*wishes, *numbered] if w not in taken)

    # What a proof asks

    def whole_parents(self):
        """The parents of all nodes of the file."""
        if self._whole is None:
            tree = self.source.tree
            self._whole = {c: n for n in ast.walk(tree) for c in ast.iter_child_nodes(n)}
        return self._whole

    def grad_mode(self, node):
        """A number for the grad mode at a branch, the same as that of tensors made under it; None:
        several are possible."""
        return self.inference.grad_modes.get(node)

    def called(self, call):
        """The Function of this file that a call surely runs, with its kinds inferred; or None."""
        program, callee = self.program, call.func
        found = None
        if isinstance(callee, ast.Name) and callee.id not in self.local_names(call):
            known = callee.id not in program.rebound and callee.id not in self.names.aliases
            found = program.top.get(callee.id) if known else None
        elif isinstance(callee, ast.Attribute) and self.kind(callee.value).what == "self":
            cls = program.classes.get(self.kind(callee.value).cls)
            known = cls is not None and not program.stores.overridden(cls, callee.attr)
            found = program.method(cls, callee.attr) if known else None
        if found is not None:
            self.inference.function(found)
        return found

    def callers(self, function):
        """(function or module around it, call) of the calls of this file that may run it."""
        (found,) = [f for f in self.program.functions if f.node is function]
        names = called_names(found, self.program)
        parents = self.whole_parents()
        for call in self.program.calls:
            callee, around = last_name(call.func), call
            if callee not in names and not (
                names & {n.id for n in ast.walk(call.func) if isinstance(n, ast.Name)}
                and isinstance(call.func, ast.Call)
            ):
                continue
            while around in parents and not isinstance(around, FUNCTIONS[:2]):
                around = parents[around]
            for known in self.program.functions:
                if known.node is around:
                    self.inference.function(known)
            yield around, call

    # Making findings and fixes

    def segment(self, node):
        return self.source.segment(node)

    def torch(self, node):
        """(the name of torch at `node`, imports that a fix must add), or None where a local name
        hides it, or the file can be loaded without torch."""
        name = self.names.torch()
        if name is None:
            taken = self.names.bound | self.names.shadowed
            hidden = self._hidden("torch", node) or "torch" in taken
            return None if hidden or not self.names.loads_torch else ("torch", ("torch",))
        return None if self._hidden(name, node) else (name, ())

    def _hidden(self, name, node):
        """Whether a function around `node` binds a name, by an import too."""
        function = self.function(node)
        while function is not None:
            bound = rebindings(function.node)
            if name in _bound_names(function.node) | bound.bound | bound.shared:
                return True
            function = function.outer
        return False

    def finding(self, rule, node, message=None, fix=None, help="", kept="", level=ERROR):
        source = self.source
        return Finding(
            rule.code,
            message or rule.message,
            source.path,
            node.lineno,
            source.column(node.lineno, node.col_offset),
            node.end_lineno,
            source.column(node.end_lineno, node.end_col_offset),
            fix,
            help or rule.help,
            kept,
            level,
        )

    def replacement(self, node, text):
        return Edit(*self.source.span(node), text)

    def fix(self, title, *edits, safety=Safety.SAFE, why="", imports=(), silent=0):
        return Fix(tuple(edits), title, safety, why, tuple(imports), silent)

    def lost_comments(self, start, end, kept=()):
        """Comments of text[start:end] that stand outside the spans `kept`."""
        inside = [(at, text) for at, text in self.source.comments() if start <= at < end]
        return [text for at, text in inside if not any(a <= at < b for a, b in kept)]


def last_name(node):
    """`f` of `f`, `a.f` and `a.b.f`; "" for others."""
    return getattr(node, "attr", None) or getattr(node, "id", "")


def called_names(function, program):
    """Names by which a file may call a function: its own, and those of what is made from it; of a
    `forward`, those of instances of its class."""
    made = {function.name}
    if function.cls is not None and function.name in ("forward", "__call__"):
        made |= {c.name for c in program.classes.values() if _below(c, function.cls, program)}
    found, before = set(made), set()
    while found != before:
        before = set(found)
        for node in ast.walk(program.tree):
            if isinstance(node, ast.Assign):
                targets, value = node.targets, node.value
            elif isinstance(node, (ast.For, ast.comprehension)):
                targets, value = [node.target], node.iter
            else:
                continue
            mentioned = {last_name(n) for n in ast.walk(value)} & found
            if mentioned and isinstance(value, (ast.Call, ast.Name, ast.Attribute)):
                called = isinstance(value, ast.Call) and last_name(value.func) in found - made
                names = {last_name(t) for t in targets for t in ast.walk(t)} - {""}
                found |= set() if called else names
    return found - {"self"}


def _below(cls, base, program):
    return cls is base or any(
        _below(program.classes[b], base, program)
        for b in cls.bases
        if b in program.classes and program.classes[b] is not cls
    )


def _bound_names(function):
    args = function.args
    every = [
        *args.posonlyargs,
        *args.args,
        *args.kwonlyargs,
        *filter(None, (args.vararg, args.kwarg)),
    ]
    found = {a.arg for a in every}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, _NAMED) and node is not function and node.name:
            found.add(node.name)
    return found
