"""The command line: modes, exit codes, formats, suppression, configuration."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from dynfix.codemods.cli import rules_page
from dynfix.codemods.cli.settings import FORMATS
from dynfix.codemods.rules import RULES

from . import support

SAFE = (support.FIXTURES / "DYN301/prints.in.py").read_text()
UNSAFE = (support.FIXTURES / "DYN101/kept.in.py").read_text()
CLEAN = (support.FIXTURES / "DYN201/quiet_python.in.py").read_text()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project folder with a file of each sort; the cache in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DYNFIX_CODEMOD_CACHE", raising=False)
    (tmp_path / "pyproject.toml").write_text(
        '[tool.dynfix]\nextend-exclude = []\nignore = ["DYN506"]\n'
    )
    (tmp_path / "safe.py").write_text(SAFE)
    (tmp_path / "unsafe.py").write_text(UNSAFE)
    (tmp_path / "clean.py").write_text(CLEAN)
    return tmp_path


def test_the_bare_command_fixes_in_place(folder):
    os.chmod("safe.py", 0o754)
    code, _, err = support.command("safe.py")
    assert (folder / "safe.py").read_text() == support.expected(
        support.FIXTURES / "DYN301/prints.in.py", "out"
    ).read_text()
    assert os.stat("safe.py").st_mode & 0o777 == 0o754
    assert "silent when compiled" in err
    assert code == 0
    before = (folder / "safe.py").read_text()
    support.command("safe.py")
    assert (folder / "safe.py").read_text() == before
    assert sorted(os.listdir()) == [
        ".dynfix_cache",
        "clean.py",
        "pyproject.toml",
        "safe.py",
        "unsafe.py",
    ]


def test_exit_codes(folder):
    assert support.command("--check", "clean.py")[0] == 0
    assert support.command("--check", "safe.py")[0] == 1
    assert support.command("--check", "--exit-zero", "safe.py")[0] == 0
    assert support.command("unsafe.py")[0] == 1
    assert support.command("--unsafe-fixes", "unsafe.py")[0] == 0
    assert support.command("missing.py")[0] == 2
    assert support.command("--select", "XYZ1", ".")[0] == 2
    (folder / "p.py").write_text(
        "import torch\nclass M(torch.nn.Module):\n    def forward(self, x):\n        print(x)\n"
    )
    assert support.command("--exit-non-zero-on-fix", "p.py")[0] == 1
    assert support.command("--exit-non-zero-on-fix", "p.py")[0] == 0


def test_check_and_diff_change_nothing(folder):
    assert support.command("--check", ".")[0] == 1
    code, out, _ = support.command("--diff", ".")
    assert code == 1
    assert "+        if not torch.compiler.is_compiling():" in out
    assert (folder / "safe.py").read_text() == SAFE


def test_a_bad_file_is_one_line_and_the_others_go_on(folder):
    (folder / "bad.py").write_text("import torch\ndef f(:\n")
    (folder / "latin.py").write_bytes(b"import torch\nx = '\xe9'\n")
    (folder / "book.ipynb").write_text("{}")
    assert "notebooks of format 4 are read" in support.command("--check", "book.ipynb")[1]
    code, out, err = support.command("--check", ".")
    assert code == 2
    assert "bad.py:2:7: SyntaxError" in out
    assert "\nlatin.py:2:1: byte 0xe9 is not utf-8\n" in out
    assert "safe.py:" in out
    assert "3 failures: see above." in err


def test_quiet_prints_findings_and_nothing_else(folder):
    assert support.command("--check", "-q", "clean.py") == (0, "", "")
    code, out, err = support.command("--check", "-q", "--output-format", "concise", "unsafe.py")
    assert (code, err) == (1, "")
    assert out.startswith("unsafe.py:13:13: DYN101 [unsafe fix] ")


def test_standard_input(folder):
    run = [sys.executable, "-m", "dynfix.codemods.cli.command", "-"]
    out = subprocess.run(run, input=(SAFE + UNSAFE).encode(), capture_output=True)
    assert b"DYN101" in out.stderr
    assert out.returncode == 1
    out = subprocess.run(run, input=SAFE.encode(), capture_output=True)
    assert (
        out.stdout.decode()
        == support.expected(support.FIXTURES / "DYN301/prints.in.py", "out").read_text()
    )
    assert out.returncode == 0


@pytest.mark.parametrize("name", FORMATS)
def test_formats(folder, name):
    code, out, _ = support.command("--check", "--output-format", name, "safe.py", "unsafe.py")
    assert code == 1
    assert "DYN101" in out
    assert "unsafe.py" in out
    if name in ("json", "gitlab", "sarif", "rdjson"):
        json.loads(out)
    if name == "json-lines":
        assert all(json.loads(line)["code"] for line in out.splitlines())
    if name == "junit":
        assert ElementTree.fromstring(out).find("testsuite/testcase/failure") is not None
    if name == "github":
        assert all(line.startswith("::error title=dynfix (DYN") for line in out.splitlines())


def test_full_shows_the_caret_under_the_place(folder):
    lines = support.command("--check", "unsafe.py")[1].splitlines()
    assert lines[1] == "  --> unsafe.py:13:13"
    assert lines[3] == "13 |         m = y.mean().item()"
    assert lines[4] == "   |             ^^^^^^^^^^^^^^^"


def test_sarif_has_what_viewers_need(folder):
    log = json.loads(support.command("--check", "--output-format", "sarif", "unsafe.py")[1])
    run = log["runs"][0]
    assert log["version"] == "2.1.0"
    assert run["results"][0]["ruleId"] == run["tool"]["driver"]["rules"][0]["id"] == "DYN101"
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"] == 13


def test_select_ignore_and_statistics(folder):
    assert support.command("--check", "--select", "DYN3", "unsafe.py")[0] == 0
    assert support.command("--check", "--ignore", "DYN101,DYN506", "unsafe.py")[0] == 0
    assert (
        support.command("--check", "--select", "DYN3", "--extend-select", "DYN101", "unsafe.py")[0]
        == 1
    )
    assert support.command("--check", "--per-file-ignores", "un*.py:DYN1", "unsafe.py")[0] == 0
    out = support.command("--check", "--statistics", ".")[1]
    assert "1  DYN101" in out
    assert support.command("--unfixable", "DYN301", "safe.py")[0] == 1
    assert (folder / "safe.py").read_text() == SAFE


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "pyproject.toml",
            '[tool.other]\nx = 1\n[tool.dynfix]\nignore = [\n  "DYN101", # why\n  "DYN506"]\n',
        ),
        ("pyproject.toml", '[tool.dynfix.per-file-ignores]\n"un*.py" = ["DYN1", "DYN506"]\n'),
        ("dynfix.toml", 'select = ["DYN3"]\n'),
        ("setup.cfg", "[dynfix]\nignore = DYN101, DYN506\n"),
        ("setup.cfg", "[dynfix]\nper-file-ignores =\n    unsafe.py: DYN101 DYN506\n"),
    ],
)
def test_configuration_files(folder, name, text):
    (folder / "pyproject.toml").unlink()
    assert support.command("--check", "unsafe.py")[0] == 1
    (folder / name).write_text(text)
    assert support.command("--check", "unsafe.py")[0] == 0
    assert support.command("--check", "--isolated", "unsafe.py")[0] == 1


def test_wrong_configuration_is_told(folder):
    (folder / "pyproject.toml").write_text("[tool.dynfix]\nspeed = 1\n")
    code, _, err = support.command("--check", ".")
    assert code == 2
    assert "unknown setting 'speed'" in err


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("pyproject.toml", "[tool]\ndynfix = 3\n", "dynfix is no table"),
        ("pyproject.toml", '[tool]\ndynfix = {select = ["XYZ"]}\n', "no rule has the code XYZ"),
        ("pyproject.toml", "[tool.dynfix]\nexit_zer = 1\n", "did you mean exit-zero?"),
        ("setup.cfg", "[dynfix\nselect = DYN3\n", "no section headers"),
    ],
)
def test_settings_that_cannot_be_read_are_told(folder, name, text, said):
    (folder / "pyproject.toml").unlink()
    (folder / name).write_text(text)
    code, _, err = support.command("--check", ".")
    assert code == 2 and f"{name}: " in err and said in err


def test_gitignore_and_exclude(folder):
    (folder / ".git").mkdir()
    (folder / "sub").mkdir()
    (folder / "sub" / "unsafe.py").write_text(UNSAFE)
    (folder / ".gitignore").write_text("*safe.py\n!unsafe.py\n/sub/\n")
    out = support.command("--check", "--output-format", "concise", ".")[1]
    assert out.startswith("unsafe.py:")
    assert "sub" not in out
    assert (
        "sub/unsafe.py"
        in support.command("--check", "--no-respect-gitignore", "--output-format", "concise", ".")[
            1
        ]
    )
    assert support.command("--check", "--extend-exclude", "unsafe.py", ".")[0] == 0
    # a named file is taken
    assert support.command("--check", "--extend-exclude", "unsafe.py", "unsafe.py")[0] == 1


def test_add_noqa_silences_and_unused_ones_are_told(folder):
    (folder / "safe.py").unlink()
    assert support.command("--add-noqa", ".")[0] == 0
    assert "m = y.mean().item()  # noqa: DYN101\n" in (folder / "unsafe.py").read_text()
    assert support.command("--check", ".")[0] == 0
    (folder / "unsafe.py").write_text(
        (folder / "unsafe.py").read_text().replace(".item()", ".detach()")
    )
    code, out, _ = support.command("--check", ".")
    assert (code, "DYN900" in out) == (1, True)


def test_skip_file_and_scope(folder):
    (folder / "unsafe.py").write_text("# dynfix: skip-file\n" + UNSAFE)
    assert support.command("--check", "unsafe.py")[0] == 0
    text = (
        "import torch\n\ndef f(x: torch.Tensor):\n    print(x)\n\n@torch.compile\ndef g(x:"
        " torch.Tensor):\n    print(x)\n"
    )
    assert support.codes(text) == ["DYN301"]
    assert support.codes(text, scope="all") == ["DYN301", "DYN301"]
    assert support.codes(SAFE, scope="compiled") == []


def test_the_cache_gives_the_same(folder):
    first = support.command("--check", ".")
    assert (folder / ".dynfix_cache").is_dir()
    assert support.command("--check", ".") == first
    for file in (folder / ".dynfix_cache").glob("*.json"):
        file.write_text("{ damaged")
    assert support.command("--check", ".") == first
    support.command(".")
    assert "is_compiling" in (folder / "safe.py").read_text()


def test_several_processes_give_the_same(folder):
    for index in range(6):
        (folder / f"more{index}.py").write_text(SAFE)
    one = support.command("--check", "--no-cache", "--jobs", "1", ".")
    assert support.command("--check", "--no-cache", "--jobs", "2", ".") == one


def test_rule_pages(folder):
    for rule in RULES:
        code, out, _ = support.command("rule", rule.code)
        assert code == 0
        assert f"## {rule.code} {rule.name}" in out
    assert support.command("rule", "DYN999")[0] == 2
    assert support.command("--explain", "DYN101")[0] == 0


def test_the_rules_page_is_up_to_date(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "rules.md"
    if not page.parent.exists():
        pytest.skip("the pages are not beside the tests")
    assert rules_page.main(["--check", str(page)]) == 0
    changed = tmp_path / "rules.md"
    changed.write_text(page.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert rules_page.main(["--check", str(changed)]) == 1


def loaded(*argv):
    """The modules that a run of the command has loaded."""
    script = (
        "import sys\nfrom dynfix.codemods.cli import command\ntry:\n   "
        " command.main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
    )
    script += "print('\\n'.join(sys.modules), file=sys.stderr)"
    run = subprocess.run(
        [sys.executable, "-c", script, *map(str, argv)], capture_output=True, text=True
    )
    return set(run.stderr.splitlines())


@pytest.mark.parametrize("argv", [("--version",), ("--check", "safe.py"), ("clean.py",)])
def test_the_command_loads_neither_torch_nor_libcst_nor_rich(folder, argv):
    names = loaded(*argv)
    assert ("dynfix.codemods.cli.check" in names) == (argv != ("--version",))
    assert not names & {"torch", "libcst", "rich", "multiprocessing", "numpy"}


def test_what_is_known_of_a_file_is_told_without_a_rule(folder):
    first = support.command("--check", "safe.py")
    assert not {n for n in loaded("--check", "safe.py") if n.startswith("dynfix.codemods.rules")}
    assert support.command("--check", "safe.py") == first and "DYN" in first[1]


def test_a_fix_that_is_made_loads_libcst(folder):
    assert loaded("safe.py") & {"torch", "libcst", "rich", "numpy"} == {"libcst"}


def test_without_a_path_nothing_is_changed(tmp_path, monkeypatch):
    text = "import torch\nclass N(torch.nn.Module):\n    def forward(self, x):\n        print(x)\n"
    (tmp_path / "model.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    for options in ((), ("--unsafe-fixes",), ("--add-noqa",)):
        code, out, err = support.command(*options)
        assert code == 2 and out.startswith("usage: dynfix") and "no PATH given" in err
    assert support.command("--check")[0] == 1
    assert (tmp_path / "model.py").read_text() == text
