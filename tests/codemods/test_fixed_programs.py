"""What fixed programs import from dynfix, with dynfix and without it."""

import sys

import dynfix
import forked
import pytest
from dynfix.codemods.rules import BY_CODE

torch = pytest.importorskip("torch")

BLOCKED = "import sys; sys.modules['dynfix'] = None\n"
CALL = """
torch.manual_seed(0)
{make}
want = type(m).forward.__get__(m)({args})
assert torch.equal(m({args}), want)
print(want.sum().item())
"""
ARGS = {
    "DYN110": "torch.arange(12.0).view(6, 2), torch.tensor([2, 4])",
    "DYN506": "torch.arange(4.0)",
}


def ran(text):
    done = forked.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_dynfix_they_run_as_they_were_written():
    calls = {code: CALL.format(make="m = Model()", args=ARGS[code]) for code in ARGS}
    assert not any("torch._C" in BY_CODE[code].after for code in ARGS)
    before, after = (
        "".join(getattr(BY_CODE[code], side) + call for code, call in calls.items())
        for side in ("before", "after")
    )
    assert ran(BLOCKED + after) == ran(before)


@pytest.mark.parametrize("code", ARGS)
def test_our_own_compiler_takes_it(code):
    space, args = {}, eval(f"({ARGS[code]},)", {"torch": torch})
    exec(compile(BY_CODE[code].after, f"<{code}>", "exec"), space)
    model = space["Model"]()
    compiled = dynfix.compile(model)
    for scale in (1, 2, 3):
        given = (args[0] * scale, *args[1:])
        assert torch.equal(compiled(*given), model(*given))


def test_values_are_read_ahead_only_outside_of_a_graph():
    seen = []

    def read(self, x):
        seen.append(x)
        return {"n": x.item()}

    class Model(torch.nn.Module):
        @dynfix.read_ahead(read)
        def forward(self, x, *, host_values=None):
            return host_values["n"] if host_values else None

    model = Model()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert model(torch.tensor(2)) is None and not seen  # eager reads where it stands
    assert compiled(torch.tensor(2)) == 2 and len(seen) == 1
    assert model(torch.tensor(2), host_values={"n": 5}) == 5 and len(seen) == 1
    assert compiled(torch.ones(2)) is None  # what it raises is raised again where it belongs
    assert model.forward.__name__ == "forward"
