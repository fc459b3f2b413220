"""Text that others wrote, on its way to a terminal: what would move the cursor, set a colour, turn
the direction of writing or end a line is shown, and not done."""

from __future__ import annotations

import re
import sys

# C0 and C1 controls, marks that turn the direction of writing, separators of lines, what is no
# character, and bytes of a file's name that are not UTF-8 (Python has those as lone surrogates)
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)


def seen(text: str, but: str = "") -> str:
    """`text` with what cannot be seen as Python writes it in a string: `\\x1b`; the characters of
    `but` as they are."""
    return _UNSEEN.sub(lambda m: m.group() if m.group() in but else _escape(m.group()), text)


def _escape(char: str) -> str:
    if "\udc80" <= char <= "\udcff":
        return f"\\x{ord(char) - 0xDC00:02x}"  # a byte
    return char.encode("unicode_escape").decode()


def say(message: str, command: str = "dynfix") -> None:
    """One line of a command's own on stderr."""
    print(f"{command}: {seen(message)}", file=sys.stderr)


def unicode(text: str) -> str:
    """Of a file's name, what a program that reads Unicode can read."""
    return text.encode(errors="backslashreplace").decode()


def never_fail() -> None:
    """What the streams' encoding has not is escaped there, and ends no run."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
