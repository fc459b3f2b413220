"""The traced run: `python -m dynfix.codemods.trace.traced_run PATHS.json OUT.json SCRIPT ARGS…`
runs a script with the files of PATHS instrumented, in eager mode, and writes what each expression
of their functions was. Needs torch."""

from __future__ import annotations

import ast
import atexit
import builtins
import functools
import importlib
import inspect
import json
import os
import sys
import types
from dataclasses import astuple
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING, Any

from .host_reads import HostReadRecorder
from .outermost import OutermostModules
from .trace_facts import Fact, qualified
from .traced_program import launch

if TYPE_CHECKING:
    from ...rewriter.source.source_file import SourceFile


_SEE = "__dynfix_see__"
_LOOK_AROUND = frozenset("super locals globals vars dir eval exec".split())
_MAX_SAMPLES = 4096  # looks at one expression, after which it is known well enough


class FactCollector:
    """Collects facts; `see(number, value)` is what instrumented code calls."""

    def __init__(self, paths: Any) -> None:
        self.paths = frozenset(paths)
        self.places, self.facts, self.looks = [], {}, {}
        self.depth, self.modules, self.captured = 0, 0, set()
        self.torch = self.reads = None
        self.roots = OutermostModules(self.paths)

    def place(self, path: str, function: Any, text: str) -> Any:
        self.places.append((path, function, text))
        return len(self.places) - 1

    def see(self, number: Any, value: Any) -> Any:
        """Note what `value` is, and give it back."""
        looks = self.looks.get(number, 0)
        if self.depth and looks < _MAX_SAMPLES:
            self.looks[number] = looks + 1
            place = self.places[number]
            self.captured.add(place[:2])
            fact = self.fact(value)
            old = self.facts.get(place, fact)
            self.facts[place] = (
                None if old is None or fact is None else (fact if old == fact else old.join(fact))
            )
        return value

    def fact(self, value: Any) -> Any:
        torch, numpy = self.torch, sys.modules.get("numpy")
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            strided = value.layout is torch.strided and not value.is_nested
            return Fact("tensor", value.dim(), dtype, strided=strided)
        if value is None:
            return Fact("none")
        if isinstance(value, _FUNCTIONS):
            return Fact(
                "method" if isinstance(value, types.MethodType) else "function",
                cls=_definition(value),
            )
        simple = {bool: "bool", int: "int", float: "float", str: "str"}.get(type(value))
        if simple:
            return Fact(simple)
        if isinstance(value, torch.nn.Module):
            return Fact("module", cls=_class_of(value))
        if numpy is not None and isinstance(value, numpy.ndarray):
            return Fact("ndarray", value.ndim)
        if numpy is not None and isinstance(value, numpy.generic):
            return Fact("numpy scalar")
        if isinstance(value, dict) and type(value) is not dict:
            known = getattr(type(value), "__getattr__", None)
            lookup = {dict.__getitem__: "__getitem__", dict.get: "get"}.get(known)
            if lookup:
                own = set(dir(type(value))) | set(getattr(value, "__dict__", ()))
                names = ",".join(sorted(own - set(dir(dict))))
                return Fact("dict with attributes", cls=f"{type(value).__name__}.{lookup}:{names}")
        return Fact(_of_all(value, torch) or f"object {type(value).__qualname__}")

    def data(self) -> Any:
        """{path: {"facts": [[function, text, fact]], "captured": [function], "reads": [...]}}:
        reads by the file of the root."""
        found = {path: {"facts": [], "captured": [], "reads": []} for path in self.paths}
        for frames, clean in self.reads.data():
            found[frames[0][0]]["reads"].append([frames, clean])
        for path, roots in self.roots.data(self.reads.data()).items():
            found[path]["roots"] = roots
        for (path, function, text), fact in self.facts.items():
            found[path]["facts"].append([function, text, None if fact is None else astuple(fact)])
        for path, function in sorted(self.captured):
            found[path]["captured"].append(function)
        return found

    # Instrumenting

    def instrument(self, tree: Any, path: str) -> Any:
        """`tree` with every expression of its functions handed to `see`."""
        names = qualified(tree)
        for function, name in names.items():
            transformer = _Wrap(self, path, name)
            function.body = [transformer.visit(s) for s in function.body]
        return ast.fix_missing_locations(tree)

    def compile(self, source: SourceFile, filename: Any, *args: Any, **kwargs: Any) -> Any:
        """In the place of the builtin `compile`."""
        path = os.path.realpath(filename) if isinstance(filename, str) else ""
        mode = args[0] if args else kwargs.get("mode")
        flags = args[1] if len(args) > 1 else kwargs.get("flags", 0)
        if path in self.paths and mode == "exec" and not flags & ast.PyCF_ONLY_AST:
            tree = (
                source
                if isinstance(source, ast.AST)
                else _compile(source, filename, "exec", ast.PyCF_ONLY_AST)
            )
            source = self.instrument(tree, path)
        return _compile(source, filename, *args, **kwargs)

    def install(self) -> None:
        self.torch = importlib.import_module("torch")
        importlib.import_module("torch.utils.weak")
        self.reads = HostReadRecorder(self.paths, self.torch)
        self.reads.mode().__enter__()  # until the process ends
        hooks = importlib.import_module("torch.nn.modules.module")
        hooks.register_module_forward_pre_hook(self._enter)
        hooks.register_module_forward_hook(self._leave, always_call=True)
        self.torch.compile = self._in_eager
        self.torch.nn.Module.compile = lambda module, *args, **kwargs: None
        setattr(builtins, _SEE, self.see)
        builtins.compile = self.compile
        get_code, paths = SourceFileLoader.get_code, self.paths

        def fresh(loader: Any, fullname: Any) -> Any:
            """Not from the byte code on disk, which is not instrumented."""
            path = loader.get_filename(fullname)
            if os.path.realpath(path) in paths:
                return loader.source_to_code(loader.get_data(path), path)
            return get_code(loader, fullname)

        SourceFileLoader.get_code = fresh

    def _enter(self, called: Any, inputs: Any = None) -> None:
        if not self.modules:
            self.reads.enter(called)
            self.roots.enter(called)
        self.modules += 1
        self.depth += 1

    def _leave(self, called: Any, inputs: Any = None, output: Any = None) -> None:
        self.depth = max(0, self.depth - 1)
        self.modules = max(0, self.modules - 1)
        if not self.modules:
            self.reads.leave()

    def _in_eager(self, model: Any = None, **options: Any) -> Any:
        """In the place of `torch.compile`: the function as it is, watched as one that is captured
        (a module is watched by its call)."""
        if model is None:
            return self._in_eager
        if not isinstance(model, _FUNCTIONS):
            return model

        @functools.wraps(model)
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._enter(model)
            try:
                return model(*args, **kwargs)
            finally:
                self._leave(model)

        return watched


_compile = builtins.compile
_FUNCTIONS = (types.FunctionType, types.MethodType)


def _of_all(value: Any, torch: Any) -> str:
    """What all elements of a list or a tuple are; "" of others."""
    if not isinstance(value, (list, tuple)) or not value:
        return ""
    types = {torch.Tensor if isinstance(v, torch.Tensor) else type(v) for v in value}
    return (
        {torch.Tensor: "tensors", int: "ints", float: "floats"}.get(*types)
        if len(types) == 1
        else ""
    )


def _definition(function: Any) -> Any:
    """Where the code of a function, below its decorators, begins: `path:line`."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{os.path.realpath(code.co_filename)}:{code.co_firstlineno}" if code else None


def _class_of(module: Any) -> Any:
    cls = type(module)
    known = cls.__module__.startswith("torch.nn.modules")
    return f"torch.nn.{cls.__name__}" if known else cls.__name__


class _Wrap(ast.NodeTransformer):
    """Wraps the loaded expressions of one function; functions and classes in it are others'
    business."""

    def __init__(self, tracer: Any, path: str, function: Any) -> None:
        self.tracer, self.path, self.function = tracer, path, function

    def wrapped(self, node: Any) -> Any:
        text = ast.unparse(node)
        self.generic_visit(node)
        number = self.tracer.place(self.path, self.function, text)
        call = ast.Call(ast.Name(_SEE, ast.Load()), [ast.Constant(number), node], [])
        return ast.copy_location(call, node)

    def visit_Name(self, node: Any) -> Any:
        return self.wrapped(node) if isinstance(node.ctx, ast.Load) else node

    def visit_Attribute(self, node: Any) -> Any:
        return self.wrapped(node) if isinstance(node.ctx, ast.Load) else self.generic_visit(node)

    visit_Subscript = visit_Attribute

    def visit_BinOp(self, node: Any) -> Any:
        return self.wrapped(node)

    visit_Compare = visit_UnaryOp = visit_IfExp = visit_BinOp

    def visit_Call(self, node: Any) -> Any:
        """What looks for the frame that it is called from, `super()` and `locals()`, is called by
        its plain name."""
        text = ast.unparse(node)
        if not (isinstance(node.func, ast.Name) and node.func.id in _LOOK_AROUND):
            node.func = self.visit(node.func)
        node.args = [self.visit(a) for a in node.args]
        node.keywords = [self.visit(k) for k in node.keywords]
        number = self.tracer.place(self.path, self.function, text)
        call = ast.Call(ast.Name(_SEE, ast.Load()), [ast.Constant(number), node], [])
        return ast.copy_location(call, node)

    def visit_FunctionDef(self, node: Any) -> Any:
        node.decorator_list = [self.visit(d) for d in node.decorator_list]
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: Any) -> Any:
        return node

    def visit_AnnAssign(self, node: Any) -> Any:
        node.value = self.visit(node.value) if node.value else None
        return node

    def visit_match_case(self, node: Any) -> Any:
        node.body = [self.visit(s) for s in node.body]
        return node


def main(argv: Any) -> None:
    listed, out, *words = argv
    with open(listed, encoding="utf-8") as stream:
        tracer = FactCollector(json.load(stream))
    tracer.install()

    def write() -> None:
        temporary = f"{out}.part"
        with open(temporary, "w", encoding="utf-8") as stream:
            json.dump(tracer.data(), stream)
        os.replace(temporary, out)

    atexit.register(write)
    launch(words)


if __name__ == "__main__":
    main(sys.argv[1:])
