"""What is installed, and what loading it costs."""

import configparser
import importlib.metadata
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import dynfix
import pytest
from importgraph import PACKAGES, package_root

CHECKOUT = Path(__file__).parents[1]


def python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tempfile.gettempdir()
    )


def command(name, *args):
    """Run an installed console script as its shim would."""
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name=name)
    start = (
        f"import sys; from {entry.module} import {entry.attr} as main; sys.argv[:] ="
        f" {[name, *args]!r}"
    )
    return python(f"{start}; sys.exit(main())")


def loaded_after(code):
    done = python(f"{code}\nimport sys; print(*sorted(m for m in sys.modules if '.' not in m))")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_import_loads_no_torch():
    assert not {"torch", "triton", "libcst", "rich", "numpy"} & loaded_after(
        "import dynfix; dir(dynfix)"
    )


def test_options_and_errors_load_no_torch():
    assert "torch" not in loaded_after(
        "import dynfix; dynfix.list_options(); dynfix.list_mode_options(); dynfix.config.dynamic"
    )


def test_version_is_the_installed_one():
    assert importlib.metadata.version("dynfix") == dynfix.__version__


@pytest.mark.parametrize("name", ["dynfix", "dynrun"])
def test_version_command(name):
    done = command(name, "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert dynfix.__version__ in done.stdout


@pytest.mark.parametrize("name", ["dynfix", "dynrun"])
def test_version_command_loads_no_torch(name):
    (entry,) = importlib.metadata.entry_points(group="console_scripts", name=name)
    code = (
        f"import sys; from {entry.module} import {entry.attr} as main; sys.argv[:] = [{name!r},"
        " '--version']\ntry: main()\nexcept SystemExit: pass"
    )
    assert not {"torch", "libcst", "rich"} & loaded_after(code)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = dynfix.no_such_name


def test_py_typed_is_installed():
    assert (package_root() / "py.typed").exists()


def test_every_package_folder_is_listed():
    """setup.cfg lists packages one by one: a folder that is forgotten would be missing from the
    wheel alone."""
    setup = configparser.ConfigParser()
    setup.read(CHECKOUT / "setup.cfg")
    listed = set(setup["options"]["packages"].split())
    folders = {
        f.parent.relative_to(CHECKOUT) for name in PACKAGES for f in (CHECKOUT / name).rglob("*.py")
    }
    assert listed == {"dynfix"} | {".".join(("dynfix", *folder.parts)) for folder in folders}


def test_every_package_has_an_init():
    missing = {
        f.parent
        for name in PACKAGES
        for f in (CHECKOUT / name).rglob("*.py")
        if not (f.parent / "__init__.py").exists()
    }
    assert not missing


def test_wheel_holds_the_package_and_nothing_else(tmp_path):
    """Nothing of ours may land beside `dynfix` in site-packages, where it would shadow a user's own
    `runtime`."""
    setuptools = pytest.importorskip("setuptools", minversion="68")
    assert setuptools
    wheel = build_wheel(tmp_path)
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"dynfix", f"dynfix-{dynfix.__version__}.dist-info"}
    packed = {name for name in names if name.startswith("dynfix/")}
    wanted = {
        f"dynfix/{f.relative_to(CHECKOUT)}"
        for name in PACKAGES
        for f in (CHECKOUT / name).rglob("*")
        if is_source(f)
    }
    root_modules = {f"dynfix/{f.name}" for f in CHECKOUT.glob("*.py")}
    assert packed == wanted | root_modules | {"dynfix/py.typed"}


def is_source(path):
    return path.is_file() and path.suffix in {".py", ".cpp", ".h", ".html", ".txt", ".json"}


def build_wheel(folder):
    """Build from a copy, so that no build folder is left in the checkout."""
    copy = folder / "copy"
    git = [
        "git",
        "-C",
        str(CHECKOUT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    for name in subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\0"):
        if name and (CHECKOUT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((CHECKOUT / name).read_bytes())
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(folder),
        str(copy),
    ]
    subprocess.run(pip, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel
