"""What a new user meets first: clear errors, readable values, names in the profiler."""

import subprocess
import sys

import dynfix
import pytest
import torch
from dynfix import OptionError


def test_without_torch_one_error_says_what_to_install(tmp_path):
    code = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name.split('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "import dynfix\n"
        "print(dynfix.config.recompile_limit, dynfix.__version__)\n"
        "dynfix.compile\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stdout.startswith("8 ")
    last = done.stderr.splitlines()[-1]
    wanted = "dynfix.compile needs PyTorch: pip install 'dynfix[torch]'"
    assert last == f"ModuleNotFoundError: {wanted}" and "During handling" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": ["fusion"]}, "options must be a dict of names and values, not a list: "),
        ({"options": "fusion"}, "options must be a dict of names and values, not a str: "),
        ({"options": {"no": 1}}, "unknown option 'no': use one of "),
        ({"mode": "lite"}, "unknown mode 'lite' (it is Inductor's: backend='inductor' takes it)"),
        ({"mode": ["default"]}, "unknown mode ['default']: use one of default, "),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(OptionError) as raised:
        dynfix.compile(lambda x: x, **arguments)
    assert str(raised.value).startswith(message)


def test_config_shows_its_values():
    with dynfix.config.patch(recompile_limit=3):
        lines = repr(dynfix.config).splitlines()
    assert lines[0] == "dynfix.config(" and lines[-1] == ")"
    assert "    recompile_limit=3,  # changed" in lines and "    fusion=True," in lines


def test_kernels_have_names_in_the_profiler():
    def work(x):
        return (x.exp() + 1).sigmoid().sum(-1)

    compiled = dynfix.compile(work)
    x = torch.randn(64, 64)
    wanted = work(x)
    compiled(x), compiled(x)
    with torch.profiler.profile() as profile:
        torch.testing.assert_close(compiled(x), wanted)
    names = [event.name for event in profile.events() if event.name.startswith("dynfix::")]
    line = work.__code__.co_firstlineno + 1
    assert len(names) == 1 and f"test_first_screens.py:{line}" in names[0]
    torch.testing.assert_close(compiled(x), wanted)
