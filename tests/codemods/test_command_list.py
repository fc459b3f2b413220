"""The command beside ruff: what is written and when, excludes, failures, formats, options."""

import cProfile
import importlib.util
import json
import os
import pstats
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from dynfix.codemods.cli import command_report, completion, file_writes, runner
from dynfix.codemods.cli.settings import FORMATS, Settings

from . import support

HEAD = "import torch\n\n\nclass M(torch.nn.Module):\n    def forward(self, x: torch.Tensor):\n"
PRINTS = HEAD + "        print(x)\n        return x + 1\n"
UNSAFE = HEAD + "        m = x.mean().item()\n        return x, m\n"
ADVICE = HEAD + "        for i in x.tolist():\n            x = x + hash(i)\n        return x\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DYNFIX_CODEMOD_CACHE", str(tmp_path / ".cache"))
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    configured(tmp_path)
    (tmp_path / "m.py").write_text(PRINTS)
    return tmp_path


def configured(folder, *lines):
    """Without the fix that captures a read, which is safe."""
    text = ["[tool.dynfix]", *lines, *(["ignore = ['DYN506']"] if not _says(lines) else [])]
    (folder / "pyproject.toml").write_text("\n".join(text) + "\n")


def _says(lines):
    return any(line.startswith(("ignore", "[")) for line in lines)


# Commands and options


def test_check_and_fix_are_commands(folder):
    assert support.command("check", "m.py") == support.command("--check", "m.py")
    assert support.command("check")[0] == 1
    assert (folder / "m.py").read_text() == PRINTS
    code, out, _ = support.command("fix")
    assert code == 2 and out.startswith("usage: dynfix fix")
    assert support.command("fix", "m.py")[0] == 0
    assert "is_compiling" in (folder / "m.py").read_text()


def test_a_folder_with_a_commands_name(folder):
    (folder / "check").mkdir()
    shutil.move("m.py", "check/m.py")
    assert support.command("--check", "./check")[0] == 1
    assert support.command("check", "check")[0] == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--unsafe"], "unknown option --unsafe; did you mean --unsafe-fixes?"),
        (["--chekc", "m.py"], "unknown option --chekc; did you mean --check?"),
        (["--zzz=1", "m.py"], "unknown option --zzz"),
        (["--format", "m.py"], "unknown option --format; did you mean --output-format?"),
        (["--stats", "m.py"], "unknown option --stats; did you mean --statistics?"),
        (["--fix", "m.py"], "unknown option --fix; did you mean the command `dynfix fix`?"),
        (["--json", "m.py"], "unknown option --json; did you mean --output-format json?"),
        (["check", "--output-format", "yaml"], "rdjson, not 'yaml'\n"),
        (["check", "--output-format", "jsn"], "rdjson, not 'jsn'; did you mean json?\n"),
        (["check", "--select", "tensor-if"], "the code TENSOR-IF; did you mean DYN201?\n"),
        (["check", "--select", "E501"], "no rule has the code E501\n"),
        (["rule", "dyn10"], "no rule DYN10; did you mean DYN101?\n"),
        (["rule", "tensor-iff"], "no rule TENSOR-IFF; did you mean tensor-if?\n"),
        (["rule", "nonsense"], "no rule NONSENSE; `dynfix rule` shows all\n"),
        (["--check", "--per-file-ignores", "m.py"], "must be PATTERN:CODE, not 'm.py'"),
        (["--check", "--per-file-ignores", "m.py:XY1"], "no rule has the code XY1"),
        (["--verify", "nomodule.sub:make", "m.py"], "no module 'nomodule.sub'"),
        (["--verify", "nothing", "m.py"], "'nothing' is not MODULE:FACTORY"),
        (["--trace", "nothing.py", "m.py"], "nothing.py: no such script"),
        (["check", "--statistics", "--output-format", "sarif"], "not as sarif"),
        (["completion", "tcsh"], "completion is for bash, zsh and fish, not 'tcsh'"),
        (["server", "--port"], "dynfix server takes nothing, not --port"),
    ],
)
def test_what_is_not_understood_is_one_line(folder, argv, said):
    code, out, err = support.command(*argv)
    assert (code, out) == (2, "")
    assert err.startswith("dynfix: ") and said in err
    assert len(err.splitlines()) == 1
    assert (folder / "m.py").read_text() == PRINTS


def test_a_setting_that_is_not_known_is_told_with_the_one_meant(folder):
    configured(folder, "extend-exlude = []")
    assert "'extend-exlude'; did you mean extend-exclude?" in support.command("check")[2]


def test_trace_without_torch_is_one_line(folder, monkeypatch):
    (folder / "run.py").write_text("")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    code, _, err = support.command("--trace", "run.py", "m.py")
    assert (code, err) == (2, "dynfix: --trace needs torch: install dynfix[torch]\n")


def test_the_bash_completion_completes(folder):
    (folder / "done.sh").write_text(completion.script("bash"))

    def completed(*words):
        line = f"COMP_WORDS=({' '.join(words)}) COMP_CWORD={len(words) - 1}"
        run = f'. ./done.sh; {line}; _dynfix; printf "%s\\n" "${{COMPREPLY[@]}}"'
        done = subprocess.run(["bash", "-c", run], capture_output=True, text=True)
        return done.stdout.split()

    assert completed("dynfix", "ch") == ["check"]
    assert completed("dynfix", "--uns") == ["--unsafe-fixes"]
    assert completed("dynfix", "rule", "DYN10")[:2] == ["DYN101", "DYN102"]
    assert set(completed("dynfix", "--output-format", "''")) >= set(FORMATS)
    assert completed("dynfix", "--check", "m.") == ["m.py"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_parse(folder, shell):
    (folder / "done").write_text(support.command("completion", shell)[1])
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    assert subprocess.run([shell, "-n", "done"]).returncode == 0


# What is written


def test_add_noqa_writes_nothing_under_check_and_diff(folder):
    code, out, err = support.command("--add-noqa", "--diff", "m.py")
    assert (code, err) == (1, "Would add 1 noqa comment.\n")
    assert "+        print(x)  # noqa: DYN301\n" in out
    assert support.command("--add-noqa", "--check", "m.py")[::2] == (1, err)
    assert (folder / "m.py").read_text() == PRINTS
    assert support.command("--add-noqa", "m.py")[0] == 0
    assert "# noqa: DYN301" in (folder / "m.py").read_text()


def test_a_file_that_was_changed_meanwhile_is_left_alone(folder, monkeypatch):
    handle = runner.handle

    def slow(path, *rest):
        result = handle(path, *rest)
        Path(path).write_text("edited = 1\n")
        return result

    monkeypatch.setattr(runner, "handle", slow)
    code, out, err = support.command("m.py")
    assert code == 2 and "the file changed while dynfix ran" in out and "All clear" not in err
    assert (folder / "m.py").read_text() == "edited = 1\n"
    (folder / "m.py").write_text(PRINTS)
    support.command("--add-noqa", "m.py")
    assert (folder / "m.py").read_text() == "edited = 1\n"
    assert not list(folder.glob(".m.py*"))


def test_a_read_only_file_is_not_replaced(folder):
    os.chmod("m.py", 0o444)
    code, out, err = support.command("m.py")
    assert code == 2 and "m.py:1:1: cannot be written: the file is read-only" in out
    assert "Fixed" not in err
    assert (folder / "m.py").read_text() == PRINTS
    assert support.command("--add-noqa", "m.py")[0] == 2


def test_what_falls_silent_is_counted_in_each_file(folder):
    (folder / "same.py").write_text(PRINTS)
    err = support.command("m.py", "same.py")[2]
    one = PRINTS.count("print(")
    assert f"Fixed {2 * one} problems in 2 files ({2 * one} print or log calls silent" in err


def test_a_file_that_another_run_fixed_alike_is_no_failure(folder, monkeypatch):
    handle = runner.handle

    def slow(path, raw, settings, fixing):
        result = handle(path, raw, settings, fixing)
        (folder / "m.py").write_bytes(result.raw)
        return result

    monkeypatch.setattr(runner, "handle", slow)
    code, out, _ = support.command("m.py")
    assert code == 0 and "changed meanwhile" not in out


def test_a_pipe_in_a_folder_is_passed_over(folder):
    os.mkfifo("pipe.py")
    assert support.command("check", ".")[0] == 1


def test_what_a_killed_run_left_is_swept(folder):
    old, new, own = ".m.py.dynfix-oldold_0.tmp", ".m.py.dynfix-newnew_0.tmp", ".m.py.dynfix-notes"
    for name, age in ((old, 3600), (new, 0), (own, 3600)):
        (folder / name).write_text("")
        os.utime(name, (time.time() - age,) * 2)
    file_writes.write("m.py", b"x = 1\n", PRINTS.encode())
    assert sorted(p.name for p in folder.glob(".m.py*")) == [new, own]


# Which files


def test_excludes_hold_for_named_files_where_they_are_forced(folder):
    (folder / "third" / "party").mkdir(parents=True)
    shutil.copy("m.py", "third/party/m.py")
    configured(folder, 'exclude = ["third"]')
    assert support.command("check", "third/party/m.py")[0] == 1
    assert support.command("check", "--force-exclude", "third/party/m.py")[0] == 0
    configured(folder, 'exclude = ["third"]', "force-exclude = true")
    assert support.command("check", "third/party/m.py", "third/party")[0] == 0
    assert support.command("check", "m.py")[0] == 1


def test_the_hooks_force_excludes():
    hooks = Path(__file__).parents[2] / ".pre-commit-hooks.yaml"
    if not hooks.exists():
        pytest.skip("the hooks are not beside the tests")
    entries = [line for line in hooks.read_text().splitlines() if "entry:" in line]
    assert len(entries) == 2 and all("--force-exclude" in line for line in entries)


def test_gits_own_exclude_file_counts(folder):
    subprocess.run(["git", "init", "-q", "."], check=True)
    (folder / ".git" / "info" / "exclude").write_text("/m.py\n")
    assert support.command("check", ".")[0] == 0
    assert support.command("check", "m.py")[0] == 1
    assert support.command("check", "--force-exclude", "m.py")[0] == 0
    (folder / ".gitignore").write_text("!m.py\n")  # which goes over it
    assert support.command("check", ".")[0] == 1


def test_an_empty_folder_says_so(folder):
    (folder / "empty").mkdir()
    assert support.command("check", "empty") == (
        0,
        "",
        "No Python files or notebooks found in empty.\n",
    )


# What fails


@pytest.mark.parametrize("name", FORMATS)
def test_failures_are_in_every_format(folder, name):
    (folder / "bad.py").write_text("import torch\ndef f(:\n")
    code, out, err = support.command("check", "--output-format", name, "bad.py", "gone.py")
    assert code == 2 and "All clear" not in err
    assert "SyntaxError: invalid syntax" in out and "bad.py" in out
    assert "no such file or folder" in out and "gone.py" in out


def test_a_command_behind_options_changes_nothing(folder):
    text = "import torch\n@torch.compile\ndef f(x):\n    print(x)\n    return x\n"
    (folder / "model.py").write_text(text)
    code, _, err = support.command("--isolated", "check", "model.py")
    assert code == 2 and "a command goes first: dynfix check" in err
    assert (folder / "model.py").read_text() == text


@pytest.mark.parametrize(("word", "meant"), [("chek", "check"), ("fx", "fix"), ("rules", "rule")])
def test_a_misspelt_command_changes_nothing(folder, word, meant):
    code, _, err = support.command(word, "m.py")
    said = f"no command, file or folder {word!r}; did you mean {meant}?"
    assert code == 2 and said in err and (folder / "m.py").read_text() == PRINTS


# Python 3.12 counts calls of C code against a limit that no setting moves.
DEEP = 450 if sys.version_info[:2] == (3, 12) else 3000


def test_deep_expressions_are_read(folder):
    deep = f"        y = {' + '.join(['x'] * DEEP)}\n        print(y)\n        return -(y{'.abs()' * 150})\n"
    (folder / "m.py").write_text(HEAD + deep)
    assert support.command("check", "m.py")[1].count("DYN301") == 1
    assert support.command("m.py")[0] == 0
    assert "is_compiling" in (folder / "m.py").read_text()


def test_a_large_file_takes_calls_in_proportion(folder):
    def calls(classes):
        body = "".join(
            PRINTS.replace("class M", f"class M{i}")
            .replace("import torch\n", "")
            .replace(
                "    def forward", "    def __init__(self):\n        self.n = 1\n\n    def forward"
            )
            + f"\n\ndef helper{i}(t: torch.Tensor):\n    return t * {i}\n"
            for i in range(classes)
        )
        (folder / "m.py").write_text("import torch\n" + body)
        profile = cProfile.Profile()
        profile.runcall(runner.run, ["m.py"], Settings(cache=False), False)
        return pstats.Stats(profile).total_calls

    calls(20)
    assert calls(400) < 6 * calls(100)  # four times as many; 16 where it is quadratic


# Formats


def checked(folder, name, text=PRINTS):
    (folder / "m.py").write_text(text)
    return json.loads(support.command("check", "--output-format", name, "m.py")[1])


def test_sarif_has_fixes_and_help(folder):
    run = checked(folder, "sarif", UNSAFE)["runs"][0]
    (rule,), (result,) = run["tool"]["driver"]["rules"], run["results"]
    assert rule["help"]["markdown"].startswith("## DYN101 item") and rule["fullDescription"]["text"]
    (fix,) = result["fixes"]
    (change,) = fix["artifactChanges"]
    assert "(unsafe)" in fix["description"]["text"]
    assert change["artifactLocation"]["uri"] == "m.py"
    assert made(UNSAFE, change["replacements"]) == support.fixed(UNSAFE, unsafe=True).source.text


def made(text, replacements):
    """A text with the replacements of SARIF made."""
    lines = text.splitlines(keepends=True)

    def offset(line, column):
        return sum(map(len, lines[: line - 1])) + column - 1

    for one in sorted(replacements, key=lambda r: -r["deletedRegion"]["startLine"]):
        region = one["deletedRegion"]
        start = offset(region["startLine"], region["startColumn"])
        end = offset(region["endLine"], region["endColumn"])
        text = text[:start] + one["insertedContent"]["text"] + text[end:]
    return text


def test_json_edits_can_be_made(folder):
    (found,) = checked(folder, "json")
    replacements = [
        {
            "deletedRegion": {
                "startLine": e["location"]["row"],
                "startColumn": e["location"]["column"],
                "endLine": e["end_location"]["row"],
                "endColumn": e["end_location"]["column"],
            },
            "insertedContent": {"text": e["content"]},
        }
        for e in found["fix"]["edits"]
    ]
    assert made(PRINTS, replacements) == support.fixed(PRINTS).source.text
    assert checked(folder, "rdjson")["diagnostics"][0]["suggestions"]


def test_json_tells_the_chain_the_reason_the_proof_and_the_diff(folder):
    (folder / "net.py").write_text(
        HEAD.replace("import torch\n", "import torch\nfrom m import f\n") + "        return f(x)\n"
    )
    text = "import torch\n\n\ndef f(x: torch.Tensor):\n    print(x)\n    return x\n"
    (folder / "m.py").write_text(text)
    (found,) = json.loads(support.command("check", "--output-format", "json", "net.py", "m.py")[1])
    assert found["chain"] == ["net.py:7", "m.py:5"]
    assert found["reason"] == {
        "name": "print",
        "message": "print in compiled code",
        "dynamo": ["GB0059"],
    }
    assert found["proof"]["basis"] == "the text alone"
    assert found["proof"]["graph_breaks"]["2.13"]["after"] == 0
    diff = found["fix"]["diff"].splitlines()
    assert diff[:2] == ["--- m.py", "+++ m.py"] and "-    print(x)" in diff
    assert not [line for line in diff if line.startswith("-    return")]
    sarif = json.loads(support.command("check", "--output-format", "sarif", "net.py", "m.py")[1])
    (result,) = sarif["runs"][0]["results"]
    (flow,) = result["codeFlows"][0]["threadFlows"]
    lines = [s["location"]["physicalLocation"]["region"]["startLine"] for s in flow["locations"]]
    assert lines == [7, 5] and result["properties"]["proof"] == found["proof"]


def test_github_escapes(folder):
    (folder / "a,b:c%.py").write_text(PRINTS)
    line = support.command("check", "--output-format", "github", "a,b:c%.py")[1]
    assert line.startswith("::error title=dynfix (DYN301),file=a%2Cb%3Ac%25.py,line=6,col=9,")
    assert "::a,b:c%25.py:6:9: DYN301 " in line


def test_statistics_in_json(folder):
    out = support.command("check", "--statistics", "--output-format", "json", "m.py")[1]
    assert json.loads(out) == [{"code": "DYN301", "name": "print", "count": 1, "fixable": 1}]
    lines = support.command("check", "--statistics", "--output-format", "json-lines", "m.py")[1]
    assert json.loads(lines)["count"] == 1


def test_statistics_mark_what_would_be_fixed(folder):
    (folder / "m.py").write_text(PRINTS + UNSAFE)
    rows = [
        support.command("check", "--statistics", *more, "m.py")[1]
        for more in ((), ["--unsafe-fixes"])
    ]
    assert "1  DYN301  [*]  print" in rows[0] and "DYN101  [ ]  item" in rows[0]
    assert "DYN101  [*]  item" in rows[1]


# Exit codes and colours


def test_a_diff_exits_as_ruffs_does(folder):
    assert support.command("--diff", "m.py")[0] == 1
    assert support.command("--diff", "--exit-zero", "m.py")[0] == 0
    (folder / "m.py").write_text(ADVICE)  # findings, but nothing to show
    assert support.command("--diff", "m.py")[0] == 0
    (folder / "m.py").write_text("def f(:\n")
    assert support.command("--diff", "m.py")[0] == 2


def test_exit_zero_where_all_that_is_left_is_unsafe(folder):
    (folder / "m.py").write_text(UNSAFE)
    assert support.command("m.py")[0] == 1
    assert support.command("--exit-zero-on-unsafe", "m.py")[0] == 0
    configured(folder, "exit-zero-on-unsafe = true")
    assert support.command("check", "m.py")[0] == 0
    (folder / "m.py").write_text(ADVICE)
    assert support.command("m.py")[0] == 1
    configured(folder, "exit-zero = true")
    assert support.command("m.py")[0] == 0
    (folder / "m.py").write_text("def f(:\n")
    assert support.command("m.py")[0] == 2


class Screen:
    def __init__(self, terminal):
        self.isatty = lambda: terminal


@pytest.mark.parametrize(
    ("terminal", "variables", "expected"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"TERM": "dumb"}, False),
        (True, {"NO_COLOR": "1"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (False, {"FORCE_COLOR": "0"}, False),
        (True, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (True, {"FORCE_COLOR": "1", "TERM": "dumb"}, True),
    ],
)
def test_colours(monkeypatch, terminal, variables, expected):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert command_report.coloured(Screen(terminal)) is expected


def test_forced_colours_are_printed(folder, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in support.command("check", "m.py")[1]


# Suppressions


@pytest.mark.parametrize(
    ("line", "after", "told"),
    [
        ("x = 1  # noqa: DYN101", "x = 1", "DYN101"),
        ("x = 1  # noqa: E501, DYN101", "x = 1  # noqa: E501", "DYN101"),
        ("x = 1  # noqa: DYN101, DYN201 as before", "x = 1  # as before", "DYN101, DYN201"),
        ("x = 1  # why  # noqa: DYN101", "x = 1  # why", "DYN101"),
        ("x = 1  # noqa: DYN999", "x = 1", "DYN999"),
        ("        # noqa: DYN101", None, "DYN101"),
    ],
)
def test_an_unused_noqa_has_a_fix(line, after, told):
    head = HEAD.rpartition("    def")[0] + "    def forward(self, x: torch.Tensor):\n"
    text = f"{head}        {line.strip()}\n        return x\n"
    (found,) = support.found(text)
    assert (found.code, found.message) == ("DYN900", f"unused suppression: nothing here is {told}")
    kept = "" if after is None else f"        {after}\n"
    assert support.fixed(text).source.text == f"{head}{kept}        return x\n"


def test_a_noqa_of_a_rule_that_is_off_is_not_unused():
    text = PRINTS.replace("print(x)", "print(x)  # noqa: DYN301")
    assert support.codes(text) == support.codes(text.replace("DYN301", "DYN301, DYN201")) == []
    assert support.codes(text, ignore=("DYN301",)) == []
    assert support.codes(text, select=("DYN2", "DYN900")) == []


def test_unused_noqa_has_its_page(folder):
    code, out, _ = support.command("rule", "DYN900")
    assert code == 0 and out.startswith("## DYN900 unused-noqa") and "Before:" in out


def test_the_server_says_what_it_needs(folder):
    script = "import sys; sys.modules['pygls'] = None; from dynfix.codemods.cli import command; sys.exit(command.main(['server']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "dynfix: no pygls: install dynfix[server]\n")
