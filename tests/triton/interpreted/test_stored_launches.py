"""Programs of Triton's kernels that an earlier process left."""

import pytest
import torch
from dynfix.lowering.targets.triton import triton_build
from dynfix.runtime.cache import disk_cache, gpu_launches
from dynfix.runtime.cache.plain_data import Damaged
from dynfix.runtime.gpu import launch_triton, triton_kernels
from dynfix.runtime.options import Options
from lowering_tests.test_stored_programs import CASES, Line, outcome

OPTIONS = Options(verify_ir=True, target="triton")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNFIX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(triton_kernels, "_modules", {})


@pytest.fixture
def printed(monkeypatch):
    """Counts the groups that are printed."""
    groups, print_group = [], triton_build.print_group

    def counted(group, *args):
        groups.append(group)
        return print_group(group, *args)

    monkeypatch.setattr(triton_build, "print_group", counted)
    return groups


@pytest.mark.parametrize("name", CASES)
def test_a_loaded_program_does_what_a_compiled_one_does(name, printed, monkeypatch):
    fn, make = CASES[name]
    line, inputs = Line(), make()
    expected = outcome(line(fn, inputs, OPTIONS), inputs)
    count = len(printed)
    monkeypatch.setattr(triton_kernels, "_modules", {})
    loaded = line(fn, inputs, OPTIONS)
    found = outcome(loaded, inputs)
    assert line.compiled == 1 and len(printed) == count
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=0, equal_nan=True)
    assert found[1:] == expected[1:]


def launches(monkeypatch, fn, *args):
    made, load = [], launch_triton.load_groups

    def seen(groups, device, tune=False):
        made.extend(load(groups, device, tune))
        return made

    monkeypatch.setattr(triton_build, "load_groups", seen)
    Line()(fn, args, OPTIONS)
    return made


def norm(x):
    return x.softmax(-1) * 2


def test_launches_one_after_the_other(monkeypatch):
    (launch,) = launches(monkeypatch, norm, torch.randn(4, 8))
    both = launch_triton.SequentialLaunch(((launch, (0, 1)), (launch, (1, 2))), 3)
    data = gpu_launches.to_data(both)
    again = gpu_launches.Launches([data]).launch(data)
    x, first, second = torch.randn(4, 8), torch.empty(4, 8), torch.empty(4, 8)
    again(x, first, second)
    torch.testing.assert_close(second, norm(norm(x)))


@pytest.mark.parametrize("place", range(12))
def test_damaged_data(place, monkeypatch):
    (launch,) = launches(monkeypatch, norm, torch.randn(4, 8))
    data = gpu_launches.to_data(launch)
    kernel = data[4][0]
    kernel[place] = {0: "0" * 64, 8: "__import__('os')", 9: "open('x')", 3: ["*fp32; x"]}.get(
        place, "x y" if place == 1 else [1.5] if place in (2, 4, 7) else 1.5
    )
    with pytest.raises((Damaged, TypeError)):
        gpu_launches.Launches([data])


def test_a_source_that_was_changed_is_not_loaded(monkeypatch):
    (launch,) = launches(monkeypatch, norm, torch.randn(4, 8))
    data = gpu_launches.to_data(launch)
    path = disk_cache.path_for(data[4][0][0], ".py")
    path.write_text(path.read_text() + "\nraise SystemExit\n")
    with pytest.raises(Damaged):
        gpu_launches.Launches([data])


def test_launches_of_others_have_no_data():
    assert gpu_launches.to_data(print) is None
