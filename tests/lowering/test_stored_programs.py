"""Programs that an earlier process left: what they are found by, and that they do what a fresh
compilation does."""

import concurrent.futures
import json
import random
import sys

import forked
import pytest
import torch
from dynfix.lowering import joint, stored_graphs
from dynfix.lowering.graph import graph_key
from dynfix.runtime.cache import disk_cache, entries, surroundings
from dynfix.runtime.cache.named_functions import Unnamed
from dynfix.runtime.cache.plain_data import Damaged, Decoder
from dynfix.runtime.options import Options
from torch import nn
from torch.fx import symbolic_trace
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path / "cache"))


class Line:
    """Compiles graphs, and counts those that nobody had compiled before."""

    def __init__(self):
        self.compiled = 0

    def __call__(self, fn, inputs, options=None):
        gm, options = symbolic_trace(fn), options or Options(verify_ir=True)
        kept = stored_graphs.stored_graph(gm, map(graph_key.example_text, inputs), options)
        found = kept.load()
        if found is not None:
            return found
        self.compiled += 1
        return joint.compile_graph(gm, inputs, options, kept)


def leaf(*shape):
    return torch.randn(*shape).requires_grad_()


def written(x, y):
    x.mul_(2).add_(y)
    return x.sum(-1)


def batch_norm(x, mean, var):
    return F.batch_norm(x, mean, var, training=True).relu()


CASES = {
    "norm": (lambda x, w: F.layer_norm(x, (16,)) * w, lambda: (leaf(8, 16), leaf(16))),
    "inference": (lambda x, y: (x.softmax(-1), x + y, x @ y.t()), lambda: tuple(torch.randn(2, 8, 16))),
    "written": (written, lambda: (torch.randn(4, 6), leaf(4, 6))),
    "written without gradients": (written, lambda: tuple(torch.randn(2, 4, 6))),
    "statistics": (batch_norm, lambda: (leaf(4, 3, 5), torch.zeros(3), torch.ones(3))),
    "strides": (lambda x: (x.t() + 1, x.mean(0)), lambda: (leaf(4, 6),)),
    "views of results": (lambda x: (lambda y: (y, y[1:], y.t()))(x * 2), lambda: (leaf(4, 6),)),
    "views of inputs": (lambda x: (x[1:], x.t(), x * 2), lambda: (torch.randn(4, 6),)),
    "an input": (lambda x, y: (x, x * y), lambda: (torch.randn(4), torch.randn(4))),
    "integers": (lambda x: (x.argmax(-1), x.sum()), lambda: (leaf(4, 6),)),
    "constants": (lambda x: x + x.new_ones(6, 6).tril() * 0.1, lambda: (leaf(6, 6),)),
    "half gets none": (lambda x, y: x.detach() * y, lambda: (leaf(4), leaf(4))),
    "bfloat16": (lambda x: F.gelu(x) * float("nan"), lambda: (leaf(4, 6).bfloat16().detach(),)),
    "scalar": (lambda x: (x * x).sum(), lambda: (leaf(5),)),
    "dropout": (lambda x: F.dropout(x, 0.5) * 2, lambda: (leaf(64),)),
    "pooling": (lambda x: F.adaptive_max_pool2d(F.max_pool2d(x, 2), 1), lambda: (leaf(2, 8, 8),)),
}  # fmt: skip


def outcome(fn, inputs):
    """Everything about one call that a program could tell."""
    given = [one.detach().clone().requires_grad_(one.requires_grad) for one in inputs]
    torch.manual_seed(1)
    results = fn(*(one.clone() if one.requires_grad else one for one in given))
    results = list(results) if isinstance(results, list | tuple) else [results]
    outs = [out for out in results if out.requires_grad]
    if outs:
        torch.autograd.backward(outs, [torch.ones_like(out) for out in outs])
    places = [one.untyped_storage().data_ptr() for one in (*given, *results)]
    facts = [
        (o.dtype, o.shape, o.stride(), o.requires_grad, o.is_leaf, o._version) for o in results
    ]
    aliases = [places.index(place) for place in places]
    return [*results, *given, *(one.grad for one in given)], facts, aliases


@pytest.mark.parametrize("name", CASES)
def test_a_loaded_program_does_what_a_compiled_one_does(name):
    fn, make = CASES[name]
    line = Line()
    inputs = make()
    first = line(fn, inputs)
    expected = [outcome(first, inputs), outcome(first, make())]
    loaded = line(fn, inputs)
    assert line.compiled == 1
    for (values, *facts), given in zip(expected, (inputs, None), strict=True):
        if given is not None:
            found, *others = outcome(loaded, given)
            torch.testing.assert_close(found, values, rtol=0, atol=0, equal_nan=True)
            assert others == facts


def key(fn, inputs, options=None):
    texts = map(graph_key.example_text, inputs)
    return graph_key.key_of(symbolic_trace(fn), texts, options or Options())


def product(x, y):
    return x * 2 + y


OTHER_GRAPHS = {
    "operator": (lambda x, y: x * 2 - y, None),
    "constant": (lambda x, y: x * 3 + y, None),
    "type of a constant": (lambda x, y: x * 2.0 + y, None),
    "order": (lambda x, y: y + x * 2, None),
    "results": (lambda x, y: (x * 2 + y,), None),
    "dtype": (product, lambda: (torch.ones(4, 6, dtype=torch.float64), torch.ones(4, 6))),
    "shape": (product, lambda: (torch.ones(4, 1), torch.ones(4, 6))),
    "strides": (product, lambda: (torch.ones(6, 4).t(), torch.ones(4, 6))),
    "offset": (product, lambda: (torch.ones(5, 6)[1:], torch.ones(4, 6))),
    "requires_grad": (product, lambda: (leaf(4, 6), torch.ones(4, 6))),
    "device": (product, lambda: (torch.ones(4, 6, device="meta"), torch.ones(4, 6))),
}


@pytest.mark.parametrize("name", OTHER_GRAPHS)
def test_another_graph_or_input_is_another_key(name):
    fn, make = OTHER_GRAPHS[name]
    inputs = (torch.ones(4, 6), torch.ones(4, 6))
    known = key(product, inputs)
    assert key(lambda a, b: a * 2 + b, inputs) == known
    assert key(fn, make() if make else inputs) != known


def regions(*numbers):
    """The key of a product and a sum in checkpointed regions of these numbers."""
    inputs = torch.ones(4, 6), torch.ones(4, 6)
    gm = symbolic_trace(product)
    for node, number in zip(list(gm.graph.nodes)[2:], numbers, strict=False):
        if number is not None:
            node.meta |= {"recompute": CheckpointPolicy.PREFER_RECOMPUTE, "ac_graph_id": number}
    return graph_key.key_of(gm, map(graph_key.example_text, inputs), Options())


def test_checkpointed_regions_are_part_of_the_key():
    assert len({regions(), regions(7), regions(None, 7), regions(7, 8), regions(7, 7)}) == 5
    assert regions(7, 8) == regions(3, 9)


def no_grad():
    return torch.no_grad()


class Deterministic:
    def __enter__(self):
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *error):
        torch.use_deterministic_algorithms(False)


class Doubles:
    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *error):
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    "context",
    [
        no_grad,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
        Deterministic,
        Doubles,
        torch.inference_mode,
        lambda: torch._functorch.config.patch(treat_parameters_as_free_to_save=False),
        lambda: torch.backends.mkldnn.flags(enabled=False),
        lambda: nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH),
    ],
)
def test_another_state_of_torch_is_another_key(context):
    inputs = (torch.ones(4, 6), torch.ones(4, 6))
    known = key(product, inputs)
    with context():
        assert key(product, inputs) != known
    assert key(product, inputs) == known


@pytest.mark.parametrize("changes", [{"fusion": False}, {"target": "triton"}, {"verify_ir": True},
                                     {"max_autotune": True}, {"cudagraphs": True}])  # fmt: skip
def test_other_options_are_another_key(changes):
    inputs = (torch.ones(4, 6), torch.ones(4, 6))
    options = Options(verify_ir=False)
    assert key(product, inputs, options.replace(**changes)) != key(product, inputs, options)


@pytest.mark.parametrize("what", ["__version__", "isa", "find_compiler", "_sources"])
def test_another_installation_is_another_key(what, monkeypatch):
    known = surroundings.of_process()
    other = "9.9" if what == "__version__" else (lambda: b"another")
    monkeypatch.setattr(surroundings, what, other)
    surroundings.of_process.cache_clear()
    changed = surroundings.of_process()
    monkeypatch.undo()
    surroundings.of_process.cache_clear()
    assert changed != known == surroundings.of_process()


def test_a_package_that_was_written_since_it_was_loaded_has_no_key(monkeypatch):
    known = surroundings.of_process()
    monkeypatch.setattr(surroundings, "_LOADED", 0.0)
    surroundings.of_process.cache_clear()
    with pytest.raises(Unnamed, match="written since it was loaded"):
        surroundings.of_process()
    monkeypatch.undo()
    assert surroundings.of_process() == known


@torch.fx.wrap
def users_own(x):
    return x * 2


def test_what_has_no_text_is_not_kept():
    with pytest.raises(Unnamed):
        key(lambda x: users_own(x), (torch.ones(4),))
    with pytest.raises(Unnamed):
        key(lambda x: x * 2, (torch.ones(4).to_sparse(),))
    with pytest.raises(Unnamed), torch.device("cpu"):
        key(lambda x: x * 2, (torch.ones(4),))


def test_an_operator_of_the_users_is_not_kept():
    with torch.library._scoped_library("stored_programs_test", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
        with pytest.raises(Unnamed):
            key(lambda x: torch.ops.stored_programs_test.twice(x), (torch.ones(4),))


def stored_file():
    (found,) = disk_cache.root().glob("??/*.program")
    return found


def damage_text(path):
    path.write_bytes(path.read_bytes()[:-20])


def as_if_whole(change):
    def damage(path):
        name = path.name[:64], path.name[64:]
        data = json.loads(path.read_bytes())
        change(data)
        path.unlink()
        disk_cache.put(*name, json.dumps(data).encode())

    return damage


def rename(data):
    data["programs"]["inference"]["name"] = "x(): pass\nimport os #"


def cut(data):
    del data["programs"]["inference"]["steps"][0][1:]


def no_kernel(data):
    for step in data["programs"]["inference"]["steps"]:
        if step[0] == "KernelStep":
            step[2][0] = "0" * 64 + ".inference.so"


DAMAGES = (damage_text, as_if_whole(rename), as_if_whole(cut), as_if_whole(no_kernel))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_compiled_anew(damage):
    line, inputs = Line(), (torch.randn(4, 6), torch.randn(4, 6))
    line(product, inputs)
    damage(stored_file())
    assert torch.equal(line(product, inputs)(*inputs), product(*inputs))
    assert line.compiled == 2
    assert torch.equal(line(product, inputs)(*inputs), product(*inputs))
    assert line.compiled == 2


@pytest.mark.parametrize(
    "text", ["__import__('os').getpid()", "x.__class__", "[1]", "lambda: 1", "open(x)", "1; 2"]
)
def test_a_number_of_a_stored_program_only_computes(text):
    with pytest.raises(Damaged):
        Decoder(None).decode(["expression", text, "x"])
    assert Decoder(None).decode(["expression", "max(n1, 2) // 3 + x.size(0)", "n1", "x"])


def test_several_may_write_at_once():
    value = {"numbers": list(range(20_000))}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for _ in pool.map(lambda _: entries.write("ab" * 32, value), range(32)):
            assert entries.read("ab" * 32) == value


def test_what_was_not_used_for_long_makes_room(monkeypatch):
    monkeypatch.setattr(entries, "MAX_STORED_BYTES", 4_000)
    for number in range(8):
        entries.write(f"{number:064x}", {"text": "x" * 900})
        entries.read(f"{0:064x}")
    kept = [number for number in range(8) if entries.read(f"{number:064x}") is not None]
    assert kept == [0, 5, 6, 7]


SCRIPT = """
import sys, torch, dynfix
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16, eps=float(sys.argv[1])), nn.GELU())
x = torch.randn(3, 8)
if sys.argv[2:]:
    torch.optim.SGD(model.parameters())  # which loads Dynamo
compiled = dynfix.compile(model)
for _ in range(3):
    compiled(x).pow(2).mean().backward()
with torch.no_grad():
    for _ in range(3):
        out = compiled(x)
print([float(p.grad.double().sum()).hex() for p in model.parameters()], out.sum().item().hex())
compilers = "dynfix.lowering.joint", "torch._functorch.partitioners"
print([name for name in compilers if name in sys.modules])
"""


def run_script(epsilon, *arguments):
    command = [sys.executable, "-c", SCRIPT, repr(epsilon), *arguments]
    done = forked.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_a_second_process_compiles_nothing(monkeypatch):
    monkeypatch.undo()  # the folder of the other tests, where the native parts are built
    epsilon = random.uniform(1e-6, 1e-4)  # which no process has compiled
    first, second, optimized = (run_script(epsilon, *one) for one in ((), (), ("optimizer",)))
    assert first[0] == second[0] == optimized[0]
    assert "joint" in first[1]
    assert "joint" not in second[1]
    assert optimized[1] == "[]"  # nor the parts of AOTAutograd that only compile


def test_a_compiled_function_does_not_load_the_compiler():
    loads = "torch._functorch.aot_autograd", "torch._functorch.partitioners", "networkx"
    script = "import sys, torch, dynfix; dynfix.compile(torch.nn.Linear(2, 2)); "
    script += f"print([name for name in {loads} if name in sys.modules])"
    done = forked.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n"


RECURRENT = """
import sys, torch, dynfix
from torch import nn
torch.manual_seed(0)
layers = nn.Sequential(nn.Linear(5, 5), nn.LayerNorm(5, float(sys.argv[1])), nn.GRU(5, 7))
model = dynfix.compile(layers)
with torch.no_grad():
    for _ in range(3):
        made = model(torch.linspace(-1, 1, 30).view(3, 2, 5))[0]
print(made.double().sum().item().hex())
operators = "dynfix.lowering.recurrent_operators", "dynfix.lowering.decompositions.random_numbers"
print([name for name in ("dynfix.lowering.joint", *operators) if name in sys.modules])
"""


def test_operators_of_ours_are_loaded_for_programs_that_call_them(monkeypatch):
    monkeypatch.undo()
    command = [sys.executable, "-c", RECURRENT, repr(random.uniform(1e-6, 1e-4))]
    first, second = (
        forked.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        for _ in range(2)
    )
    assert first[0] == second[0]
    assert "joint" in first[1]
    assert "joint" not in second[1] and "recurrent" in second[1]
