"""Checkouts that mean harm, one for each seed: names that look like options, bytes that are no
Python, links and settings planted where the command reads and writes. `made(seed, folder)` plants
one; `wrong(case, …)` says what a run of the command on it should not have done."""

import contextlib
import hashlib
import json
import os
import random
import re
import socket
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from pathlib import Path

HEALTHY = """import torch


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor):
        print(x)
        if x.sum() > 0:
            x = x * 2
        return x
"""
HEAD = "import torch\n\n\n@torch.compile\ndef f(x, c):\n"
TAIL = "    if x.sum() > 0:\n        x = x * 2\n    return x\n"
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_JSON = ("json", "gitlab", "sarif", "rdjson")
_FORMATS = ("full", "concise", "grouped", *_JSON, "json-lines", "github", "junit")


@dataclass
class Case:
    """A planted checkout, how the command is called there, and whether it may refuse to run (its
    settings are wrong, or a word may be an option or a file)."""

    folder: Path
    outside: Path
    argv: list[str] = field(default_factory=list)
    healthy: list[str] = field(default_factory=list)
    may_refuse: bool = False
    before: dict = field(default_factory=dict)


# Names

OPTIONS = """--trace=evil.py --config=evil.py --verify=evil:f.py --output-format=x.py -j9.py -vq.py
--exit-zero=x.py --no-cache.py --stdin-filename=a.py --explain=DYN101.py --per-file-ignores=a.py
--add-noqa=1.py --select=X.py --unsafe-fixes=.py -h.py --version=.py --show-settings.ipynb""".split()
UNCLEAR = "--trace --add-noqa --check -q --exit-zero -- - --unsafe-fixes --verify -h -".split()
PLAIN = [
    *(
        "@evil.py",
        "a\nb.py",
        "a\rb.py",
        "\x1b[31mred\x07.py",
        "\x9b31m.py",
        "right\u202eyp.py",
        " .py",
    ),
    *("%s%n.py", "{0}.py", "$(touch ran).py", "`touch ran`.py", ";touch ran;.py", "'\".py", "*.py"),
    *("torch.py", "argparse.py", "sitecustomize.py", "conftest.py", "dynfix.py", "::error::x.py"),
    *("<b>&.py", "[x].py", "!a.py", "#a.py", "~.py", "a" * 250 + ".py", "\u00e9" * 120 + ".py"),
    *(
        os.fsdecode(b"bad\xff.py"),
        os.fsdecode(b"\x80\xfe.ipynb"),
        "check",
        "fix",
        "rule",
        "a\tb.py",
    ),
    *("a.ipynb", "\u2028.py", "\ufeffa.py", "C:\\x.py", "a,b:c.py", "%0A::error::.py", "..py"),
]


# Contents


def _code(inside):
    return (HEAD + inside + TAIL).encode("utf-8", "surrogatepass")


def _chain(r):
    n, c = r.choice((30, 30, 30, 300, 1500)), r.choice
    forms = (
        *(
            (" + ".join(["x"] * n)),
            " and ".join(["c"] * n),
            " < ".join(["c"] * n),
            "x" + ".relu()" * n,
        ),
        *("c" + ".a" * n, "c" + "[0]" * n, "-" * n + "c", "not " * n + "c", "lambda: " * n + "c"),
        *(
            "(" * n + "c" + ")" * n,
            "[" * n + "]" * n,
            "g(" * n + ")" * n,
            "{" * n,
            "c if c else " * n + "c",
        ),
        *(
            "[" + ", ".join(["c"] * n) + "]",
            " ** ".join(["c"] * n),
            "f'" + "{c}" * n + "'",
            "'a' " * n,
        ),
        *("await " * n + "c", "*" * n + "c", "c" * n * 50, "9" * n * 10, "x[" * n + "0" + "]" * n),
        *(
            "c := " * n + "c",
            " or ".join(["x.any()"] * min(n, 300)),
            "print(" * min(n, 90) + "x" + ")" * 90,
        ),
    )
    return _code(f"    c = {c(forms)}\n")


def _branches(r):
    n, test = r.choice((20, 20, 20, 400)), r.choice(("c == {}", "x.sum() > {}", "c"))
    arms = "".join(f"    elif {test.format(i)}:\n        c = {i}\n" for i in range(n))
    return _code("    if c:\n        c = 0\n" + arms)


def _deep_blocks(r):
    word = r.choice(
        ("if c:", "for _ in c:", "with c:", "def g():", "class A:", "try:", "while x.any():")
    )
    n = r.choice((10, 60, 99, 120))
    return _code("".join(f"{' ' * (4 + i)}{word}\n" for i in range(n)) + f"{' ' * (4 + n)}pass\n")


def _encoded(r):
    names = """latin-1 utf-16 utf-32 utf-7 rot13 hex base64 zlib idna punycode undefined mbcs cp037
    raw_unicode_escape unicode_escape utf-8-sig ascii no-such-codec euc_jp iso2022_jp \x00 utf_8_\x1b""".split()
    text = f"# -*- coding: {r.choice(names)} -*-\nimport torch\nx = '\u00e9\\ud800'\n"
    return text.encode(r.choice(("utf-8", "latin-1", "utf-16", "utf-32", "utf-7")))


def _torn(r):
    raw = bytearray(HEALTHY.encode())
    for _ in range(r.randint(1, 4)):
        at = r.randrange(len(raw))
        piece = r.choice(
            (b"\0", b"\xff", b"\r", b"\x0c", b"\x1b]0;x\x07", b"\\", b'"""', b"\t", b"\xef\xbb\xbf")
        )
        raw[at : at + r.choice((0, 1, 20))] = piece
    return bytes(raw)


def _bytes(r):
    return bytes(r.randrange(256) for _ in range(r.choice((0, 1, 40, 600))))


def _shown(r):
    char = r.choice(
        ("\x1b[2J", "\x07", "\x9b31m", "\u202e", "\u2066", "\x85", "\u2028", "\x7f", "\x0c")
    )
    return HEALTHY.replace("print(x)", f"print('{char}', x.sum().item())  # {char} noqa").encode()


def _line(r):
    return _code(f"    c = '{'a' * r.choice((10_000, 2_000_000))}'; c = x.sum().item()\n")


def _comments(r):
    word = r.choice(
        ("# noqa", "# noqa: DYN101,DYN3", "# dynfix: off", "# dynfix: skip-file", "#noqa:DYN")
    )
    return HEALTHY.replace("\n", f"  {word}{r.choice(' ,:')}\n").encode()


def _json(r, depth=0):
    kinds = ("null", "true", "-1", "1e999", '"a\\ud800"', "[]", "{}", '""', "9" * 30, "NaN", "0.5")
    if depth > 3 or r.random() < 0.4:
        return r.choice(kinds)
    parts = [_json(r, depth + 1) for _ in range(r.randint(0, 3))]
    if r.random() < 0.5:
        return f"[{', '.join(parts)}]"
    keys = ("cells", "source", "metadata", "cell_type", "nbformat", "kernelspec", "name", "vscode")
    return "{" + ", ".join(f'"{r.choice(keys)}": {p}' for p in parts) + "}"


def _notebook(r):
    source = json.dumps(
        r.choice((HEALTHY, [HEALTHY], ["%magic\n", "x = 1"], 3, None, [1], "!ls\n" * 9))
    )
    cell = f'{{"cell_type": "code", "metadata": {_json(r)}, "source": {source}, "outputs": []}}'
    forms = (
        *(f'{{"nbformat": 4, "metadata": {_json(r)}, "cells": [{cell}]}}', _json(r), "[" * 3000),
        *(f'{{"nbformat": 4, "metadata": {{}}, "cells": [{cell}, {_json(r)}]}}', cell, "{" + cell),
        *(
            '{"a":' * 3000 + "1" + "}" * 3000,
            '{"nbformat": 4, "cells": ' + "[" * 3000 + "]" * 3000 + "}",
        ),
        *(
            '{"nbformat": 4, "cells": {}}',
            f'{{"nbformat": 4, "cells": [{cell}], "cells": 3}}',
            "\ufeff{}",
        ),
    )
    text = r.choice(forms)
    return text[: r.choice((len(text), len(text), r.randrange(len(text) + 1)))].encode()


CONTENTS = [
    _chain,
    _branches,
    _deep_blocks,
    _encoded,
    _torn,
    _bytes,
    _shown,
    _line,
    _comments,
    _notebook,
]


# What is planted beside


def _settings(r, case):
    wrong = (
        *(
            "[tool.dynfix]\nselect = 3\n",
            "[tool.dynfix]\njobs = -1\n",
            "[tool.dynfix]\nexclude = [1]\n",
        ),
        *(
            "[tool.dynfix]\nx = " + "[" * 3000 + "]" * 3000,
            "[tool.dynfix\n",
            "[tool]\ndynfix = 1\n",
        ),
        *(
            "[tool.dynfix]\njobs = 0x" + "f" * 6000 + "\n",
            '[tool.dynfix]\n"\x1b" = 1\n',
            "dynfix\0",
        ),
        *(
            '[tool.dynfix]\noutput-format = "\\u202e"\n',
            "[tool.dynfix]\nper-file-ignores = [[1]]\n",
        ),
        *(
            "[tool.dynfix]\nselect = ['\\u001b']\n",
            "[tool.dynfix]\ncache = 'maybe'\n",
            "\xff[tool.dynfix]",
        ),
    )
    fine = (
        *(
            "[tool.dynfix]\nextend-exclude = ['" + "*a" * 30 + "b', '[z-a]', '[', '**/**/x']\n",
            "\xff\xfe",
        ),
        *(
            "[tool.dynfix]\njobs = 9999\n",
            "[" * 3000,
            "[tool.other]\nx = [[[[\n",
            "[tool.dynfix]\n",
        ),
    )
    name, bad = r.choice(("pyproject.toml", "dynfix.toml", "setup.cfg")), r.random() < 0.5
    text = r.choice(wrong if bad else fine)
    if name != "pyproject.toml":
        text = text.replace("[tool.dynfix]\n", "" if name == "dynfix.toml" else "[dynfix]\n")
    (case.folder / name).write_bytes(text.encode("latin-1"))
    case.may_refuse = case.may_refuse or bad or name != "pyproject.toml"


def _ignore(r, case):
    if r.random() < 0.3:
        with contextlib.suppress(FileExistsError):
            os.symlink(
                r.choice(("/dev/zero", ".gitignore", str(case.outside))), case.folder / ".gitignore"
            )
        return
    lines = (
        "*a" * 40 + "b",
        "**/" * 40 + "q",
        "[z-a]x",
        "[",
        "!",
        "\\",
        "/",
        "!!x",
        "[[:alpha:]]q",
        "\0",
    )
    (case.folder / ".git").mkdir(exist_ok=True)
    (case.folder / ".gitignore").write_text("\n".join(r.sample(lines, 4)), encoding="utf-8")


def _cache(r, case):
    cache = case.folder / ".dynfix_cache"
    if r.random() < 0.3:
        os.symlink(case.outside, cache)
        return
    cache.mkdir()
    for name in (".gitignore", "traced.json"):
        if r.random() < 0.5:
            os.symlink(
                case.outside / r.choice(("victim.txt", "new.txt", "facts.json")), cache / name
            )
    if not (cache / "traced.json").is_symlink():
        (cache / "traced.json").write_text(_facts(r, case), encoding="utf-8")


def _facts(r, case):
    """Facts of a healthy file with its own stamp, wrong in one place."""
    if r.random() < 0.3:
        return r.choice(("[" * 100_000, '{"a":' * 50_000, "", "\0", "null", _json(r)))
    path = str((case.folder / case.healthy[0]).resolve())
    stamp = hashlib.sha256(HEALTHY.encode()).hexdigest()
    place = [path, "Model.forward", [7, 11, 7, 18]]
    fact = ["Model.forward", "x", ["tensor", 1, "float32", False, None, True]]
    way = [[path, "Model.forward", "x.sum()"]]
    data = {"facts": [fact], "captured": ["Model.forward"], "reads": [[[place], True]]}
    data["roots"] = {"Model.forward": [way]}
    entry = {"seen": stamp, "made": stamp, "data": data}
    text = json.dumps({path: entry})
    spots = [m.span() for m in re.finditer(r'"[^"]*"|-?\d+|true|false|null|\[\]', text)]
    start, end = r.choice(spots)
    return (
        text[:start]
        + r.choice((_json(r), "99999999999", '"/etc/passwd"', text[start:end]))
        + text[end:]
    )


def _links(r, case):
    targets = (
        case.outside / "victim.py",
        "loop.py",
        "/dev/zero",
        "/dev/tty",
        "missing.py",
        "/proc/self/mem",
        "..",
    )
    for name in r.sample(("link.py", "loop.py", "link.ipynb", "deep.py"), 2):
        with contextlib.suppress(FileExistsError):
            os.symlink(r.choice(targets), case.folder / name)


def _specials(r, case):
    with contextlib.suppress(OSError):
        os.mkfifo(case.folder / "pipe.py")
        (case.folder / "folder.py").mkdir()
        os.link(case.outside / "victim.py", case.folder / "hard.py")
        server = socket.socket(socket.AF_UNIX)
        here = os.getcwd()
        os.chdir(case.folder)  # the name of a socket is short
        server.bind("socket.py")
        os.chdir(here)
        server.close()


PLANTED = [_settings, _ignore, _cache, _links, _specials]


# One case


def made(seed, folder):
    r = random.Random(seed)
    case = Case(folder / "checkout", folder / "outside")
    case.folder.mkdir(parents=True)
    case.outside.mkdir()
    ran = f"open({str(case.outside / 'ran')!r}, 'w').close()\n"
    (case.folder / "evil.py").write_text(ran + HEALTHY)
    (case.outside / "victim.py").write_text(HEALTHY)
    (case.outside / "victim.txt").write_text("keep\n")
    case.healthy = ["healthy.py", "healthy2.py"]
    names = [*case.healthy, "evil.py", *r.sample(PLAIN, 4), *r.sample(OPTIONS, 2)]
    names += [r.choice(UNCLEAR)] if r.random() < 0.1 else []
    for name in names:
        _write(case.folder / name, r)
    for name in case.healthy:
        (case.folder / name).write_text(HEALTHY)
    for plant in r.sample(PLANTED, r.randint(0, 3)):
        plant(r, case)
    named = [*names, *("pipe.py", "link.py", "folder.py", "socket.py", "hard.py")][
        : r.choice((8, 20))
    ]
    case.argv = _argv(r, case, named)
    case.before = snapshot(case.outside)
    return case


def _write(path, r):
    with contextlib.suppress(OSError):  # some systems have no such names
        path.write_bytes(r.choice(CONTENTS)(r) if path.name != "evil.py" else path.read_bytes())


def _argv(r, case, names):
    argv = [r.choice(("check", "check", "fix"))]
    argv += ["--force-exclude"] if r.random() < 0.5 else []
    argv += [f"--output-format={r.choice(_FORMATS)}"] if r.random() < 0.6 else []
    more = (
        "--unsafe-fixes",
        "--diff",
        "-v",
        "-q",
        "--no-cache",
        "--isolated",
        "--jobs=1",
        "--add-noqa",
    )
    argv += r.sample(more, r.randint(0, 2))
    argv += ["--jobs=1"]
    how = r.random()
    if how < 0.3:
        return [*argv, "--", *names]
    case.may_refuse = case.may_refuse or not {*UNCLEAR}.isdisjoint(names)
    if how < 0.6:
        return [*argv, "."]
    return [*argv, *names]


def snapshot(folder):
    return {
        str(path.relative_to(folder)): (path.lstat().st_mode, path.is_file() and path.read_bytes())
        for path in sorted(folder.rglob("*"))
    }


# What should not have happened


def wrong(case, code, out, err):
    """Each thing that the run did wrong."""
    found = [] if code in (0, 1, 2) else [f"exit code {code}"]
    found += [word for word in ("Traceback", "internal error") if word in out + err]
    if snapshot(case.outside) != case.before:
        found.append("something outside was changed")
    if (case.folder / "ran").exists():
        found.append("a name was run")
    lines = err.splitlines()
    refused = code == 2 and not out and len(lines) == 1 and lines[0].startswith("dynfix: ")
    if refused and not case.may_refuse:
        found.append(f"refused: {err[:200]}")
    if not refused:
        found += _unlisted(case, out, err) + _malformed(case, out, err)
    return found


def _word(case, name):
    return name in case.argv


def _unlisted(case, out, err):
    """Healthy files without their findings, or their fixes."""
    if _word(case, "--add-noqa"):
        return []
    fixing = case.argv[0] == "fix" and not _word(case, "--diff")
    missing = []
    for name in case.healthy:
        if fixing:
            fixed = "is_compiling" in (case.folder / name).read_text()
            missing += [] if fixed else [f"{name} was not fixed"]
        else:
            missing += [] if name in out + err else [f"{name} is not listed"]
    return missing


def _malformed(case, out, err):
    if _word(case, "--add-noqa") or _word(case, "--diff"):
        return []
    form = next(
        (a.partition("=")[2] for a in case.argv if a.startswith("--output-format=")), "full"
    )
    if _UNSEEN.search(err):
        return [f"control characters on stderr: {err!r}"]
    try:
        if form in _JSON:
            json.dumps(json.loads(out), ensure_ascii=False).encode()
        elif form == "json-lines":
            [json.loads(line) for line in out.splitlines()]
        elif form == "junit":
            ElementTree.fromstring(out)
        elif _UNSEEN.search(out):
            return [f"control characters in {form}: {_UNSEEN.search(out)}"]
    except (ValueError, ElementTree.ParseError) as error:
        return [f"no {form}: {error}"]
    return []
