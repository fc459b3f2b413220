"""Kernels in a folder: written, compared with eager by their own test, edited, used again."""

import os
import re
import sys
import warnings

import dynfix
import forked
import pytest
import torch
import torch.nn.functional as F
from dynfix.lowering import written_kernels
from dynfix.lowering.kernel_files import compare_with_eager, constant, differs, digest
from dynfix.rewriter.lock import lock_file
from dynfix.rewriter.lock.lock_changes import compared
from dynfix.rewriter.lock.lock_run import Lock

X = torch.linspace(-2, 2, 24).view(4, 6)


@pytest.fixture
def folder(tmp_path):
    written_kernels.folder_of.cache_clear()
    return tmp_path / "kernels"


def compiled(fn, folder, **options):
    return dynfix.compile(fn, options={"write_kernels": str(folder), **options})


def called(fn, folder, *calls):
    """What new compilations give for the calls, and the messages."""
    again = compiled(lambda *args: fn(*args), folder)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        dynfix.reset()
        results = [again(*args) for args in calls]
    return results, "\n".join(str(each.message) for each in said)


def scaled(x):
    return torch.relu(x) * 3


def sources(folder):
    return sorted(folder.glob("kernel_*.cpp"))


def edit(folder, old, new):
    (source,) = sources(folder)
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new))
    return source


PROGRAMS = {
    "pointwise": (lambda x: torch.relu(x) * 3 + 1, (X,)),
    "reductions": (lambda x: (x.softmax(-1), x.sum(0), F.layer_norm(x, (6,))), (X,)),
    "halves": (lambda x: (x.bfloat16() * 3).sum(-1), (X,)),
    "positions": (lambda x, i: x[i] + 1, (X, torch.tensor([3, 0, 1]))),
    "bools": (lambda x: (x > 0) & (x < 1), (X,)),
    "running": (lambda x: (x * 2).cumsum(1), (X,)),
    "one input twice in a batch": (
        lambda s, *parts: [part.mul_(s).add_(1) for part in parts],
        (torch.tensor(2.0), torch.ones(5), torch.ones(9), torch.ones(4)),
    ),
    "added": (lambda x: x.add_(1).mul_(2), (X.clone(),)),
}


@pytest.mark.parametrize(("program", "args"), PROGRAMS.values(), ids=PROGRAMS)
def test_what_is_written_agrees_with_eager(program, args, folder):
    call = compiled(program, folder)
    for _ in range(3):
        given = [each.clone() for each in args]
        torch.testing.assert_close(call(*given), program(*[each.clone() for each in args]))
    modules = sorted(folder.glob("kernel_*.py"))
    assert modules
    for module in modules:
        assert "test_written_kernels.py:" in module.read_text()
        assert compare_with_eager(module) == ""


def test_sizes_that_only_a_call_knows(folder):
    call = compiled(lambda x: (x * 2).sum(-1), folder)
    for rows in (3, 5, 7):
        torch.testing.assert_close(call(torch.ones(rows, 4)), torch.full((rows,), 8.0))
    for module in folder.glob("kernel_*.py"):
        assert compare_with_eager(module) == ""


def test_equal_kernels_have_equal_names_wherever_they_stand(folder):
    compiled(scaled, folder)(X)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix != ".h"}
    compiled(lambda x: (torch.relu(x) * 3,), folder)(X)
    assert {path.name for path in folder.iterdir() if path.suffix != ".h"} == {*before}


def test_an_edited_kernel_is_used(folder):
    compiled(scaled, folder)(X)
    source = edit(folder, "int64_t bad = 0;", "int64_t bad = 0;  // mine")
    module = source.with_suffix(".py").read_text()
    assert constant(module, "WRITTEN") != digest(source.read_text())
    (first, second), said = called(scaled, folder, (X,), (-X,))
    torch.testing.assert_close((first, second), (scaled(X), scaled(-X)))
    assert not said and "// mine" in source.read_text()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("int64_t bad = 0;", "int64_t bad = 0; return 0;", "result 0"),
        ("int64_t bad = 0;", "int64_t bad = 1;", "raises IndexError"),
        ("int64_t bad = 0;", "int64_t bad = 0", r"cpp:\d+:\d+: error"),
    ],
    ids=["another result", "raises", "no C++"],
)
def test_a_wrong_edit_is_named_and_left_out(folder, old, new, why):
    compiled(scaled, folder)(X)
    source = edit(folder, old, new)
    results, said = called(scaled, folder, (X,), (-X,), (X + 1,))
    torch.testing.assert_close(results, [scaled(X), scaled(-X), scaled(X + 1)])
    assert said.count(f"{source.name} is left out, and the original runs") == 1
    assert re.search(why, said)


def test_a_wrong_edit_writes_its_inputs_no_more_than_once(folder):
    def stepped(x):
        return x.add_(1)

    compiled(stepped, folder)(torch.zeros(4))
    edit(folder, "int64_t bad = 0;", "int64_t bad = 0; ((float *)p[0])[0] = 9; return 0;")
    given = torch.zeros(4)
    _, said = called(stepped, folder, (given,), (given,), (given,))
    assert given.tolist() == [3.0] * 4 and "left out" in said


def test_another_kernel_leaves_the_edited_one_alone(folder):
    compiled(scaled, folder)(X)
    source = edit(folder, "int64_t bad = 0;", "int64_t bad = 0;  // mine")
    written_kernels.folder_of.cache_clear()
    (result,), said = called(lambda x: torch.relu(x) * 4, folder, (X,))
    torch.testing.assert_close(result, torch.relu(X) * 4)
    with warnings.catch_warnings(record=True) as unused:
        warnings.simplefilter("always")
        written_kernels.folder_of(str(folder))._tell_unused()
    assert source.stem in str(unused[0].message) and not said


def test_a_lock_tells_an_edit(folder, tmp_path):
    def facts():
        lock = Lock()
        lock.begin(str(tmp_path))
        try:
            compiled(lambda x: scaled(x), folder)(X)
            return lock.facts([])
        finally:
            lock.end()

    before = facts()
    edit(folder, "int64_t bad = 0;", "int64_t bad = 0; (void)threads;")
    changes = compared(lock_file.parsed(lock_file.written(before), ""), facts())
    assert changes.failing and "kernels: 1 changed" in str(changes)


def test_differences_beyond_another_order_of_sums():
    right = [torch.tensor([1.0, float("nan"), float("inf")]), torch.tensor([1, 2])]
    assert differs([right[0] * (1 + 1e-6), right[1]], right) == ""
    assert "result 0" in differs([right[0] * 1.01, right[1]], right)
    assert "NaN" in differs([right[0].nan_to_num(1.0), right[1]], right)
    assert "1 of 2" in differs([right[0], torch.tensor([1, 3])], right)


def test_triton_kernels(tmp_path):
    """In a process whose Triton interprets."""
    (tmp_path / "model.py").write_text(
        "import dynfix, torch, pathlib, sys\n"
        "from dynfix.lowering.kernel_files import compare_with_eager\n"
        "f = dynfix.compile(lambda x: (x * 2).softmax(-1),\n"
        "    options={'write_kernels': 'kernels', 'target': 'triton'})\n"
        "x = torch.randn(3, 5)\n"
        "torch.testing.assert_close(f(x), f(x))\n"
        "torch.testing.assert_close(f(x), (x * 2).softmax(-1))\n"
        "print([compare_with_eager(p) for p in pathlib.Path('kernels').glob('kernel_*.py')])\n"
    )

    def run():
        env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "model.py"]
        done = forked.run(command, cwd=tmp_path, env=env, capture_output=True)
        return done.stdout.strip(), done.stderr

    pytest.importorskip("triton")
    assert run() == ("['']", "")
    (source,) = (tmp_path / "kernels").glob("triton_*.py")
    text = source.read_text()
    source.write_text(text.replace("    m.after_earlier()\n", "    return\n"))
    out, said = run()
    assert out.startswith("['result 0") and f"{source.name} is left out" in said
