"""What comes from a checkout is data: its names are no options, its links are not written through,
its bytes do not end the run, and a fix keeps what belongs to a file."""

import ast
import io
import json
import os
import socket
import stat
import subprocess
import sys

import pytest
from dynfix.codemods.analysis import file_summary
from dynfix.codemods.cli import file_writes, flake8, formats, gitignore, runner, settings
from dynfix.codemods.trace import saved_facts
from dynfix.rewriter.source import regular_files

from . import hostile_inputs, support

HEALTHY = hostile_inputs.HEALTHY


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A checkout with one healthy file, and a file outside."""
    inside = tmp_path / "checkout"
    inside.mkdir()
    monkeypatch.chdir(inside)
    monkeypatch.delenv("DYNFIX_CODEMOD_CACHE", raising=False)
    (inside / "healthy.py").write_text(HEALTHY)
    (tmp_path / "outside.py").write_text(HEALTHY)
    return inside


def listed(out):
    return "healthy.py:6:9: DYN301" in out


def concise(*argv):
    return support.command("check", "--output-format=concise", *argv)


# Names


@pytest.mark.parametrize(
    "name", ["--trace=evil.py", "--verify=evil:f.py", "-j9.py", "--config=.py"]
)
@pytest.mark.parametrize("dashes", [[], ["--"]])
def test_a_name_like_an_option_is_a_file(folder, name, dashes):
    (folder / "evil.py").write_text("open('ran', 'w').close()\n")
    (folder / name).write_text(HEALTHY)
    code, out, _ = concise("--force-exclude", *dashes, name, "evil.py", "healthy.py")
    assert code == 1 and listed(out) and f"{name}:6:9" in out
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("word", ["--exit-zero", "--trace", "-q", "--add-noqa", "-"])
def test_an_option_that_is_a_file_too_is_an_error(folder, word):
    (folder / word).write_text(HEALTHY)
    code, out, err = concise(word, "healthy.py")
    assert code == 2 and not out and "put --" in err
    code, out, _ = concise("--", word, "healthy.py")
    assert code == 1 and listed(out) and f"{word}:6:9: DYN301" in out
    assert (folder / "healthy.py").read_text() == HEALTHY


def test_two_dashes_that_are_a_file_end_no_options(folder):
    for name in ("--", "--exit-zero=.py"):
        (folder / name).write_text(HEALTHY)
    assert concise("--exit-zero=.py", "--", "healthy.py")[0] == 2
    code, out, _ = concise("--", "--", "--exit-zero=.py", "healthy.py")
    assert code == 1 and listed(out) and "--exit-zero=.py:6:9" in out and "--:6:9" in out


def test_other_words_stay_options(folder):
    assert concise("-q", "--exit-zero", "healthy.py")[0] == 0
    (folder / "@args").write_text("--exit-zero\n")
    assert concise("@args", "healthy.py")[0] == 1


def test_the_hooks_end_their_options(folder):
    hooks = hostile_inputs.Path(__file__).parents[2] / ".pre-commit-hooks.yaml"
    assert hooks.read_text().count('args: ["--"]') == 2


def test_no_module_of_the_folder_is_run(folder):
    for name in ("typing", "argparse", "ast", "json", "re", "torch", "difflib", "tomllib"):
        (folder / f"{name}.py").write_text("open('ran', 'w').close()\n")
    command = [sys.executable, "-m", "dynfix", "check", "--output-format", "concise", "."]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and listed(done.stdout) and not (folder / "ran").exists()


# Links


def test_no_link_of_the_cache_is_followed(folder):
    victim = folder.parent / "victim"
    victim.write_text("keep\n")
    cache = folder / ".dynfix_cache"
    cache.mkdir()
    for name in (".gitignore", "traced.json"):
        (cache / name).symlink_to(victim)
    known = settings.load(str(folder))
    concise(".")
    saved_facts.store({"a": {"captured": ["f"]}}, {"a": ""}, known.root)
    assert victim.read_text() == "keep\n" and not (cache / "traced.json").is_symlink()
    assert len(list(cache.glob("*.json"))) == 2


def test_a_cache_that_is_a_link_is_no_cache(folder):
    other = folder.parent / "other"
    other.mkdir()
    (folder / ".dynfix_cache").symlink_to(other)
    assert listed(concise(".")[1]) and not list(other.iterdir())


def test_a_link_is_written_through_within_the_checkout_alone(folder):
    (folder / "real.py").write_text(HEALTHY)
    (folder / "inner.py").symlink_to("real.py")
    (folder / "outer.py").symlink_to("../outside.py")
    (folder / "up").symlink_to("..")
    code, out, _ = support.command("fix", "inner.py", "outer.py", "up/outside.py", "healthy.py")
    assert code == 2 and out.count("leads from here out of this checkout") == 2
    assert (folder / "inner.py").is_symlink() and "is_compiling" in (folder / "real.py").read_text()
    assert (folder.parent / "outside.py").read_text() == HEALTHY
    assert "is_compiling" in (folder / "healthy.py").read_text()


# What is kept is only data


def _facts(path, **changes):
    data = {"facts": [], "captured": ["f"], "reads": [], "roots": {}, **changes}
    stamp = saved_facts._stamp(path)
    return json.dumps({path: {"seen": stamp, "made": stamp, "data": data}})


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a": ' * 100_000,
        json.dumps({"x": 1}),
        lambda p: _facts(p, reads=[[[], True]]),
        lambda p: _facts(p, reads=[[[[p, "f", [None, 0, 0, 0]]], True]]),
        lambda p: _facts(p, facts=[["f", "x", ["tensor", 10**9, "float32", False, None, True]]]),
        lambda p: _facts(p, facts=[["f", "x", ["function", None, None, False, 3, False]]]),
        lambda p: _facts(p, roots={"f": [[]]}),
        lambda p: _facts(p, captured=[["f"]]),
    ],
)
def test_kept_facts_of_another_form_are_passed_over(folder, text):
    path = os.path.realpath("healthy.py")
    (folder / ".dynfix_cache").mkdir()
    (folder / ".dynfix_cache/traced.json").write_text(text if isinstance(text, str) else text(path))
    assert saved_facts.stored([path], settings.load(".").root)[0] == {}
    assert listed(concise(".")[1])


def test_kept_results_of_another_form_are_passed_over(folder):
    concise(".")
    (stored,) = (folder / ".dynfix_cache").glob("*.json")
    known = json.loads(stored.read_text())
    links, entry = sorted(known.values(), key=lambda each: isinstance(each[0], dict))
    entry[0]["line"], entry[0]["fix"] = "1", {"edits": 3}
    stored.write_text(json.dumps(known))
    assert listed(concise(".")[1])
    for other in (3, [], [3], {"a": []}, [[]] * 9):
        stored.write_text(
            json.dumps({key: other if value == links else value for key, value in known.items()})
        )
        assert listed(concise(".")[1])


def test_kept_results_that_are_not_of_the_file_end_no_run(folder):
    concise(".")
    (stored,) = (folder / ".dynfix_cache").glob("*.json")
    known = json.loads(stored.read_text())
    edit = {"start": 2**30, "end": 2**30 + 5, "text": "x", "intent": "wrap"}
    for finding in next(each for each in known.values() if isinstance(each[0], dict)):
        finding |= {"column": 2**31 - 1, "cell": 7, "message": "\x1b\n::error::"}
        finding["fix"] = {**finding["fix"], "edits": [edit]} if finding["fix"] else None
    stored.write_text(json.dumps(known))
    for form in settings.FORMATS:
        code, out, _ = support.command("check", f"--output-format={form}", ".")
        assert code == 1 and "\x1b" not in out and len(out) < 20_000


# What is read


@pytest.mark.parametrize("named", [True, False])
def test_what_is_no_regular_file_is_one_line(folder, named):
    os.mkfifo("pipe.py")
    server = socket.socket(socket.AF_UNIX)
    server.bind("socket.py")
    server.close()
    (folder / "folder.py").mkdir()
    code, out, err = concise(*(["pipe.py", "socket.py", "healthy.py"] if named else ["."]))
    assert listed(out) and code == (2 if named else 1)
    assert (out + err).count("not a regular file, but a named pipe") == 1
    assert (out + err).count("a socket" if named else "but a socket") <= 1


def test_settings_and_patterns_that_are_no_files(folder):
    os.mkfifo("dynfix.toml")
    os.mkfifo(".gitignore")
    (folder / ".git").mkdir()
    assert listed(concise(".")[1])
    (folder / ".gitignore").unlink()
    (folder / ".gitignore").symlink_to("/dev/zero")
    assert listed(concise(".")[1])


@pytest.mark.parametrize("name", [b"bad\xff.py", b"\xfe.ipynb"])
def test_a_name_that_is_not_utf_8_is_one_failure(folder, name):
    try:
        (folder / os.fsdecode(name)).write_text(HEALTHY)
    except OSError:
        pytest.skip("the system has no such names")
    for form in settings.FORMATS:
        code, out, _ = support.command("check", f"--output-format={form}", ".")
        assert code == 2 and "healthy.py" in out and out.encode()
        assert "is not UTF-8" in out


@pytest.mark.parametrize("char", ["\x1b", "\x07", "\r", "\x9b", "\u202e", "\u2066", "\x85", "\x00"])
def test_control_characters_are_shown_not_done(folder, char):
    text = HEALTHY.replace("print(x)", f"print(x, '{char}')")
    if char not in "\r\x00":
        (folder / "text.py").write_text(text, encoding="utf-8")
    if char != "\x00":
        (folder / f"a{char}b.py").write_text(HEALTHY)
    for form in ("full", "concise", "grouped", "github", "junit"):
        code, out, err = support.command("check", "-v", f"--output-format={form}", ".")
        assert code == 1 and char not in out + err


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_diff_is_escaped_on_a_terminal_alone():
    result = runner.FileResult("a\n.py", before="\x1b\tü\r\n", after="")
    for stream, line in ((Terminal(), "-\\x1b\tü"), (io.StringIO(), "-\x1b\tü\r")):
        formats.show_diff(result, stream)
        assert stream.getvalue().split("\n")[:4] == [
            "--- a\\n.py",
            "+++ a\\n.py",
            "@@ -1 +0,0 @@",
            line,
        ]


def test_carets_stand_under_what_is_shown():
    found = support.found(
        "import torch\n@torch.compile\ndef f(x):\n    y = '\x1b', x.sum().item()\n"
    )
    text, carets = formats._marked(found[0], "    y = '\x1b', x.sum().item()")
    assert text[carets.index("^") :].startswith("x.sum().item()") and "\\x1b" in text
    text, carets = formats._marked(found[0], "    y = '\x1b', x.sum().item()" + "#" * 10**6)
    assert len(text) < 1100 and text[carets.index("^") :].startswith("x.sum().item()")


@pytest.mark.parametrize(
    "raw",
    [
        b"# coding: rot13\nimport torch\n",
        b"# coding: undefined\nimport torch\n",
        b"# coding: raw_unicode_escape\nimport torch\nx = '\\ud800'\n",
        "import torch\n".encode("utf-16"),
        b"import torch\n\0",
        b"\xef\xbb\xbf\xef\xbb\xbfimport torch\n",
        b"import torch\nx = " + b"-" * 20_000 + b"1\n",
        b"import torch\nx = " + b"(" * 5_000 + b")" * 5_000 + b"\n",
        b"import torch\n" + b"#" * (regular_files.LARGEST + 1),
    ],
)
def test_odd_bytes_are_one_line(folder, raw):
    (folder / "odd.py").write_bytes(raw)
    code, out, _ = concise(".")
    lines = [line for line in out.splitlines() if line.startswith("odd.py")]
    assert code == 2 and len(lines) == 1 and "internal" not in out and listed(out)


def test_deep_settings_are_one_line(folder):
    for text in (
        "x = " + "[" * 5_000,
        "[tool.dynfix]\njobs = 0x" + "f" * 9_000,
        "[tool.dynfix]\njobs=-1",
    ):
        (folder / "pyproject.toml").write_text(f"# dynfix\n{text}\n")
        code, out, err = concise(".")
        assert code == 2 and not out and err.count("\n") == 1 and len(err) < 400
    (folder / "pyproject.toml").write_text("x = " + "[" * 5_000)  # holds nothing of ours
    assert listed(concise(".")[1])


@pytest.mark.parametrize(
    ("line", "path", "fits"),
    [
        ("*a" * 40 + "b", "a" * 200, False),
        ("**/a" * 30 + "/b", "/".join("a" * 200), False),
        ("[z-a]", "z", False),
        ("a/**/b", "a/b", True),
        ("a/**/b", "a/x/y/b", True),
        ("a/**", "a", False),
        ("a/**", "a/b", True),
        ("[!a].py", "b.py", True),
        ("/x", "y/x", False),
        ("*.py", "y/x.py", True),
    ],
)
def test_patterns_are_matched_in_time(line, path, fits):
    assert bool(gitignore.IgnorePattern(line).matches(path.split("/"))) is fits


def test_a_folder_deeper_than_the_stack(folder):
    chain = [folder / ("d/" * n) for n in range(1, 1200)]
    for inner in chain:
        inner.mkdir()
    try:
        assert listed(concise(".")[1])
    finally:
        for inner in reversed(chain):  # pytest's own way to clear up is recursive
            inner.rmdir()


# What a fix keeps


def test_mode_owner_and_attributes_are_kept(folder):
    os.chmod("healthy.py", 0o640)
    owner = (os.getuid(), os.getgid())
    if os.geteuid() == 0:
        owner = (12345, 54321)
        os.chown("healthy.py", *owner)
    kept = False
    if hasattr(os, "setxattr"):
        try:
            os.setxattr("healthy.py", "user.note", b"mine")
            kept = True
        except OSError:
            pass
    assert support.command("fix", "healthy.py")[0] == 0
    about = os.stat("healthy.py")
    assert "is_compiling" in (folder / "healthy.py").read_text()
    assert stat.S_IMODE(about.st_mode) == 0o640 and (about.st_uid, about.st_gid) == owner
    assert not kept or os.getxattr("healthy.py", "user.note") == b"mine"


def test_a_file_with_other_names_is_left_as_it_is(folder):
    os.link("healthy.py", folder.parent / "twin.py")
    (folder / "other.py").write_text(HEALTHY)
    code, out, _ = support.command("fix", ".")
    assert code == 2 and "2 names (hard links)" in out
    assert (folder / "healthy.py").read_text() == HEALTHY and os.stat("healthy.py").st_nlink == 2
    assert "is_compiling" in (folder / "other.py").read_text()


def test_a_name_as_long_as_can_be(folder):
    name = "n" * 252 + ".py"
    (folder / name).write_text(HEALTHY)
    support.command("fix", name)
    assert "is_compiling" in (folder / name).read_text()


def test_a_file_that_changes_or_goes_is_not_written(folder):
    for change in (lambda p: p.write_text("x = 1\n"), lambda p: p.unlink(), lambda p: p.mkdir()):
        path = folder / "m.py"
        change(path)
        with pytest.raises(OSError):
            file_writes.write("m.py", b"y = 1\n", HEALTHY.encode())
        assert not path.is_file() or path.read_text() == "x = 1\n"
    assert sorted(os.listdir()) == ["healthy.py", "m.py"]


# Long expressions and chains


def _calls(text):
    number = 0

    def count(frame, event, argument):
        nonlocal number
        number += event == "call"

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(3 * limit)  # the command has a deeper stack
    sys.setprofile(count)
    try:
        support.codes(text)
        file_summary.summary(file_summary.read_program(ast.parse(text)), "f.py")
    finally:
        sys.setprofile(None)
        sys.setrecursionlimit(limit)
    return number


FORMS = {
    "sum": lambda n: "    c = " + " + ".join(["x"] * n),
    "and": lambda n: "    c = " + " and ".join(["c"] * n),
    "strings": lambda n: "    c = " + " + ".join(["'a'"] * n),
    "attributes": lambda n: "    c = c" + ".a" * n,
    "methods": lambda n: "    c = x" + ".relu()" * n,
    "not": lambda n: "    c = " + "not " * n + "(x > 0).any()",
    "minus": lambda n: "    c = " + "-" * n + "c",
    "list": lambda n: "    c = [" + ", ".join(["x"] * n) + "]",
    "text": lambda n: "    print(f'" + "{x}" * n + "')",
    "elif": lambda n: (
        "    if c:\n        c = 0"
        + "".join(f"\n    elif c == {i}:\n        c = {i}" for i in range(n))
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_long_code_takes_calls_in_proportion(name):
    few, many = (
        _calls(f"{hostile_inputs.HEAD}{FORMS[name](n)}\n{hostile_inputs.TAIL}") for n in (40, 160)
    )
    assert many < 6 * few


def test_a_long_chain_of_branches_is_reported(folder):
    arms = "".join(f"    elif x.sum() > {i}:\n        x = x * {i}\n" for i in range(100))
    text = f"{hostile_inputs.HEAD}    if x.sum() > 0:\n        x = -x\n{arms}    return x\n"
    found = support.found(text)
    assert found[0].kept == "its chain has more than 64 branches"
    assert len(found) == 100 and "not listed" in found[-1].message


# flake8


def test_flake8_gets_one_message(folder):
    flake8._load.cache_clear()
    (folder / "pyproject.toml").write_text("[tool.dynfix]\nselect = 3\n")
    for text in (HEALTHY, "import torch\nx = '\ud800'\n", f"import torch\nx = {'-' * 20_000}1\n"):
        ((line, column, message, _),) = flake8.Plugin(None, "healthy.py", [text]).run()
        assert (line, column) == (1, 0) and message.startswith("DYN999 the file is not checked: ")
        assert "internal" not in message and "\n" not in message
    flake8._load.cache_clear()
