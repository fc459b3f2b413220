"""What the page docs/walkthrough.md holds: its files, and its commands with their output."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "walkthrough.md"
_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"`(?P<name>[\w./-]+\.(?:py|yaml))`")


def write_files(folder):
    """The page's Python files; each is named last before its block."""
    text = PAGE.read_text()
    for block in _BLOCK.finditer(text):
        if block["language"] == "python":
            paragraph = text[: block.start()].rstrip().rpartition("\n\n")[2]
            (folder / _NAMED.search(paragraph)["name"]).write_text(block["text"])


def steps():
    """(command, output) of every command on the page, in order."""
    console = "".join(
        b["text"] for b in _BLOCK.finditer(PAGE.read_text()) if b["language"] == "console"
    )
    parts = re.split(r"(?m)^\$ ", console)[1:]
    return [(command, output.rstrip()) for command, _, output in (p.partition("\n") for p in parts)]


def output_of(start):
    """The output of the first command that starts so."""
    return next(output for command, output in steps() if f"{command}\n".startswith(start))
