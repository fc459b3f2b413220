"""The texts that `exec`, `eval` and `python -c` compile, which stand in no file: kept as the
interpreter tells of them (https://docs.python.org/3/library/audit_events.html, "compile")."""

import sys  # and nothing else: under `python -m dynfix`, the folder's own modules come first as yet

MAX_CHARACTERS = 1 << 24  # of all texts that are kept
LONGEST = 100_000  # of one text
_MADE = ("<unknown>", "<frozen")  # by `ast.parse`, and what the interpreter brings along

_texts: dict[tuple[str, str], None] = {}  # (file, text), the latest last
_characters = 0


def keep() -> None:
    """Keep what is compiled from now on, and what `python -c` was given."""
    given = getattr(sys, "orig_argv", [])
    if "-c" in given[:-1]:
        _texts["<string>", given[given.index("-c") + 1]] = None
    sys.addaudithook(_heard)


def _heard(event: str, args: tuple[object, ...]) -> None:
    if event == "compile":
        try:
            _compiled(*args)
        except Exception:  # which would be raised where the user compiles
            return


def _compiled(text: object, file: object) -> None:
    if isinstance(file, bytes):
        file = file.decode(errors="replace")
    if not isinstance(file, str) or file[:1] != "<" or file.startswith(_MADE):
        return
    if not isinstance(text, str | bytes) or len(text) > LONGEST:
        return
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    if "def " in text or "lambda" in text:
        global _characters
        if (file, text) in _texts:
            del _texts[file, text]
        else:
            _characters += len(text)
        _texts[file, text] = None
        while _characters > MAX_CHARACTERS:
            oldest = next(iter(_texts))
            del _texts[oldest]
            _characters -= len(oldest[1])


def of(file: str, name: str) -> list[str]:
    """The texts under a file's name in which a function may stand, the latest first."""
    named = "lambda" if name == "<lambda>" else f"def {name}"
    return [text for at, text in reversed([*_texts]) if at == file and named in text]
