"""The fenced blocks of the documentation, and their commands run again.

In a page, a block that begins with ```python NAME (or toml, yaml, ini) is a file of that name. A
block that begins with ```console holds commands behind `$ `, each with its output below. In an
output, a line `...` stands for any lines, and `...` within a line for any text. Other blocks are
for readers alone.

    python tests/support/doc_pages.py PAGE ...   # write what the commands print into the pages
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import forked

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```(\w+)(?: ([\w./-]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = re.compile(r"[|<>&;$*]")
_MODULES = {"python": [], "dynfix": ["-m", "dynfix"], "dynrun": ["-m", "dynfix.run"]}
_PATIENCE_S = 300


def pages() -> list[Path]:
    """The pages whose blocks are run."""
    return [ROOT / "README.md", ROOT / "docs/tutorial.md", *sorted(ROOT.glob("docs/howto/*.md"))]


def blocks(text: str) -> Iterator[tuple[str, str | None, str]]:
    """(language, name of a file, content) of each fenced block, in order."""
    return (match.groups() for match in _BLOCK.finditer(text))  # type: ignore[misc]


def commands(console: str) -> list[tuple[str, str]]:
    """(command, output) pairs of a console block."""
    parts = re.split(r"(?m)^\$ ", console)[1:]
    return [(command, output) for command, _, output in (p.partition("\n") for p in parts)]


def shown(page: Path, command: str) -> str:
    """The output that a page shows of the first such command."""
    console = "".join(c for kind, _, c in blocks(page.read_text("utf-8")) if kind == "console")
    return dict(reversed(commands(console)))[command]


def write_files(page: Path, folder: Path, *names: str) -> None:
    """Those files of a page, in `folder`."""
    for _, name, content in blocks(page.read_text("utf-8")):
        if name in names:
            _write(folder / name, content)


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")


def run_page(page: Path, folder: Path) -> Iterator[tuple[str, str, str]]:
    """(command, the output that the page shows, the real one) of each command, in order."""
    for language, name, content in blocks(page.read_text(encoding="utf-8")):
        if name:
            _write(folder / name, content)
        elif language == "console":
            for command, output in commands(content):
                yield command, output, run(command, folder)


def matches(output: str, real: str) -> bool:
    """Whether the real output is what a page shows, up to its `...` and spaces at line ends."""
    pattern = re.escape(_trimmed(output) + "\n")
    pattern = re.sub(r"(?m)^\\\.\\\.\\\.(\\\n|\n)", r"(?:.*\\n)*", pattern)
    pattern = pattern.replace(r"\.\.\.", ".*")
    return re.fullmatch(pattern, _trimmed(real) + "\n") is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip("\n")


def run(command: str, folder: Path) -> str:
    """What a command prints, both streams in one."""
    if _SHELL.search(command) or command.split()[0] not in _MODULES:
        return _in_shell(command, folder)
    program, *arguments = shlex.split(command)
    with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        forked.run(
            [sys.executable, *_MODULES[program], *arguments],
            cwd=folder,
            env={"OMP_NUM_THREADS": "1", **os.environ},
            stdout=out,
            stderr=out,
            loaded="doc_warm",
        )
        out.seek(0)
        return out.read()


def _in_shell(command: str, folder: Path) -> str:
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", "")))
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_PATIENCE_S,
        text=True,
        check=False,
    )
    return done.stdout


def rewrite(page: Path) -> None:
    """Write real outputs into a page, where they are not what it shows."""
    with tempfile.TemporaryDirectory() as folder:
        found = list(run_page(page, Path(folder)))
    text = page.read_text(encoding="utf-8")
    at = 0
    for command, output, real in found:
        before = f"$ {command}\n{output}"
        at = text.index(before, at)
        after = before if matches(output, real) else f"$ {command}\n{_trimmed(real)}\n"
        text = text[:at] + after + text[at + len(before) :]
        at += len(after)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    for given in sys.argv[1:]:
        rewrite(Path(given).resolve())
