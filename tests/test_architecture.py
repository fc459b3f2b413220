"""The architecture as a test: import direction, no cycles, and the size of functions and files."""

import ast
import re
import statistics
from collections import Counter
from graphlib import CycleError, TopologicalSorter

import pytest
from importgraph import PACKAGES, graph, imports, loads_torch, sources, syntax

# Modules that may import parts of torch's own compiler, and why.
TORCH_COMPILER_USERS = {
    "dynfix.runtime.guards.guard": "TensorGuards, torch's native check of tensor metadata",
    "dynfix.runtime.backends": "opt-in peer backends, looked up by name on request",
    "dynfix.lowering.autograd.aot": "AOTAutograd's own helpers",
    "dynfix.lowering.graph.attention_node": "how FlexAttention indexes by tensors",
    "dynfix.rewriter.capture.numbers.symbolic": "the class that names where a ShapeEnv's symbol comes from",
    "dynfix.codemods.cli.side_by_side": "counts the graph breaks of torch.compile",
}
LONGEST_FILE = 900
MEDIAN_FUNCTION = 8
LONG_FUNCTION = 35  # the 95th percentile


def place(edge):
    return f"{edge.module}:{edge.line} imports {edge.target}"


def rank(module):
    """The place of a module's package in the one-way order; -1 for the root and for what is not
    ours."""
    top, _, rest = module.partition(".")
    package = rest.split(".")[0]
    return PACKAGES.index(package) if top == "dynfix" and package in PACKAGES else -1


def test_imports_point_one_way():
    assert not [place(edge) for edge in graph() if rank(edge.target) > rank(edge.module) >= 0]


def test_imports_of_our_own_modules_are_relative():
    wrong = []
    for module, path in sources().items():
        for node in ast.walk(syntax(path)):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            wrong += [f"{module}:{node.lineno}" for name in names if name.split(".")[0] == "dynfix"]
    assert not wrong


def test_no_import_cycles():
    ours = sources()
    edges = {module: set() for module in ours}
    for edge in graph():
        if edge.target in ours and edge.target != edge.module and not edge.typing:
            edges[edge.module].add(edge.target)
    try:
        list(TopologicalSorter(edges).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_no_function_local_import_of_our_own_modules():
    assert not [
        place(edge) for edge in graph() if edge.local and edge.target.split(".")[0] == "dynfix"
    ]


def test_modules_of_ours_are_loaded_by_name_in_listed_places_only():
    """The package's lazy table, which keeps torch out of `import dynfix`; LibCST, which costs 0.2 s
    to load; the compiler, which stored programs do without; AOTAutograd, which graphs without
    gradients do without; the recorder, which calls that stored recordings serve do without; patterns,
    which recordings without breaks do without; operators of ours,
    which take long to register; and the parts of the command that most runs do without."""
    by_name = re.compile(
        r"import_module\(f?[\"'](\.|\{__name__\}|dynfix)|import_module\([^)]*__package__"
    )
    users = {
        module
        for module, path in sources().items()
        if by_name.search(path.read_text(encoding="utf-8"))
    }
    listed = {
        *(
            "rewriter.instrument.emit",
            "rewriter.source.intents",
            "rewriter.frontend.segment_programs",
            "rewriter.frontend.compile_logs",
            "rewriter.frontend.compiling",
            "rewriter.frontend.stored_function",
        ),
        *("lowering.stored_graphs", "lowering.joint", "codemods.cli.on_demand"),
        *("rewriter.capture.rewrites.branch_rewrites", "lowering.graph.rnn"),
        "lowering.autograd.eager_rerun",
    }
    assert users == {"dynfix", *(f"dynfix.{name}" for name in listed)}


def test_only_listed_modules_touch_torchs_compiler():
    private = ("torch._dynamo", "torch._inductor")
    users = {edge.module for edge in graph() if edge.target.startswith(private)}
    for module, path in sources().items():
        text = path.read_text(encoding="utf-8")
        if any(
            re.search(rf"from torch import .*{name.split('.')[1]}|import_module\(\"{name}", text)
            for name in private
        ):
            users.add(module)
    assert users <= TORCH_COMPILER_USERS.keys()


def test_the_light_commands_load_no_torch():
    light = [
        "dynfix",
        "dynfix.rewriter.dynrun.main",
        "dynfix.rewriter.frontend.config",
        "dynfix.runtime.options",
        "dynfix.codemods.cli.command",
    ]
    assert not [module for module in light if loads_torch(module)]


def test_files_are_short():
    lengths = {
        module: len(path.read_text(encoding="utf-8").splitlines())
        for module, path in sources().items()
    }
    assert not {module: length for module, length in lengths.items() if length > LONGEST_FILE}


def test_functions_are_short():
    lengths = sorted(
        node.end_lineno - node.lineno + 1
        for path in sources().values()
        for node in ast.walk(syntax(path))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    )
    assert statistics.median(lengths) <= MEDIAN_FUNCTION
    assert lengths[int(len(lengths) * 0.95)] <= LONG_FUNCTION


def test_the_reader_sees_imports_of_every_kind(tmp_path):
    """The checks above rest on this: relative, local, aliased and typing-only imports are told
    apart."""
    file = tmp_path / "fake.py"
    file.write_text(
        "from ..runtime import options\nimport torch._dynamo as d\nfrom typing import"
        " TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import catalogue\ndef f():\n    from"
        " ..codemods import rules\n"
    )
    found = {(e.target, e.local, e.typing) for e in imports("dynfix.rewriter.fake", file)}
    assert found == {
        ("dynfix.runtime.options", False, False),
        ("torch._dynamo", False, False),
        ("typing", False, False),
        ("dynfix.rewriter.catalogue", False, True),
        ("dynfix.codemods.rules", True, False),
    }


# Parts of the house where the rest holds as well; the others join as it gets true of them.
TYPED = ("dynfix.codemods", "dynfix.rewriter.source", "dynfix.rewriter.catalogue")
SMALL = 100  # lines
MOST_SMALL_MODULES = 82  # with a single importer; this number may only fall
WIDTH = 100


def functions(module, path):
    for node in ast.walk(syntax(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{module}:{node.lineno} {node.name}", node


def test_every_function_has_types():
    untyped = []
    for module, path in sources().items():
        if module.startswith(TYPED):
            for place, node in functions(module, path):
                args = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                bare = [a for a in args if a.annotation is None and a.arg not in ("self", "cls")]
                untyped += [place] if bare or node.returns is None else []
    assert not untyped


def test_a_module_earns_its_place():
    """By more than one importer, or by its size. A file of rules has one: the list of rules."""
    ours, importers = sources(), {}
    for edge in graph():
        if edge.target in ours and edge.target != edge.module:
            importers.setdefault(edge.target, set()).add(edge.module)
    small = [
        module
        for module, path in ours.items()
        if len(importers.get(module, ())) == 1
        and importers[module] != {"dynfix.codemods.rules"}
        and len(path.read_text(encoding="utf-8").splitlines()) < SMALL
        and path.name != "__init__.py"
    ]
    assert len(small) <= MOST_SMALL_MODULES, (
        f"{len(small)} files of less than {SMALL} lines have one importer, {MOST_SMALL_MODULES} are"
        f" allowed: put yours into the file that imports it, or beside its like: {small}"
    )


def test_a_file_name_is_used_once():
    names = Counter(p.name for p in sources().values() if p.name != "__init__.py")
    assert {name for name, n in names.items() if n > 1} <= {"containers.py"}  # to be renamed


def test_lines_are_narrow():
    """Texts in strings are laid out for whom they are shown to."""
    wide = []
    for module, path in sources().items():
        if module.startswith(TYPED):
            tree, lines = syntax(path), path.read_text(encoding="utf-8").splitlines()
            strings = (n for n in ast.walk(tree) if isinstance(n, (ast.Constant, ast.JoinedStr)))
            inside = {i for n in strings for i in range(n.lineno, n.end_lineno + 1)}
            bare = (re.sub(r"  # (noqa|type: ignore).*", "", line) for line in lines)
            wide += [
                f"{module}:{i}"
                for i, line in enumerate(bare, 1)
                if len(line) > WIDTH and i not in inside
            ]
    assert not wide


# Patterns and rules that write spans of text themselves, and why.
SPLICERS = {
    "rewriter.transforms.compiled.compiled_checks": "a head above a statement, which becomes its else",
    "rewriter.transforms.compiled.compiled_scalars": "a head above a statement, which becomes its else",
    "rewriter.transforms.tensor_if": "an elif becomes an else; comments go above",
    "rewriter.transforms.compiled.when_compiled": "a head above an if, which becomes its elif",
    "codemods.rules.host.tensor_text": "within an f-string",
    "codemods.rules.libraries.constant_block": "the text of statements that move",
    "codemods.rules.migrations.renames": "an argument within a call, a decorator's line",
}


def test_patterns_and_rules_state_intents():
    """Parentheses, comments, semicolons and indentation are looked after in rewriter/edits."""
    found = set()
    for module, path in sources().items():
        if module.startswith(("dynfix.rewriter.transforms", "dynfix.codemods.rules")):
            calls = (n for n in ast.walk(syntax(path)) if isinstance(n, ast.Call))
            if any(isinstance(c.func, ast.Name) and c.func.id == "Edit" for c in calls):
                found.add(module.removeprefix("dynfix."))
    assert found == SPLICERS.keys()


def test_results_have_one_type():
    """No function gives a Fix or else a text."""
    mixed = [
        place
        for module, path in sources().items()
        if module.startswith(TYPED)
        for place, node in functions(module, path)
        if node.returns is not None
        and {"Fix", "str"} <= set(ast.unparse(node.returns).split(" | "))
    ]
    assert not mixed
