"""Bytes: what stands outside an edit stays as it is, whatever the file is written in."""

import pytest
from dynfix.codemods.cli import check
from dynfix.codemods.cli.settings import Settings
from dynfix.rewriter.source.source_file import SourceError, SourceFile
from dynfix.rewriter.source.spans import Edit, apply

from . import support

TEXT = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.h = nn.Linear(4, 4)

    def forward(self, x):  # é
        y = self.h(x)
        print('é', y)   # trailing
        return y ;
"""
DONE = TEXT.replace(
    "        print('é', y)   # trailing",
    "        if not torch.compiler.is_compiling():\n            print('é', y)   # trailing",
)


def fixed_bytes(raw):
    return check.fix(SourceFile.from_bytes(raw, "model.py"), Settings()).source.to_bytes()


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("form", ["utf-8", "utf-8-sig", "latin-1", "no last newline"])
def test_encodings_and_line_endings(newline, form):
    encoding = form if form in ("utf-8-sig", "latin-1") else "utf-8"
    head = "# -*- coding: latin-1 -*-\n" if form == "latin-1" else ""

    def raw(text):
        text = text.rstrip("\n") if form == "no last newline" else text
        return (head + text).replace("\n", newline).encode(encoding)

    assert fixed_bytes(raw(TEXT)) == raw(DONE)
    assert fixed_bytes(raw(DONE)) == raw(DONE)


def test_mixed_line_endings_stay():
    raw = TEXT.replace("nn.Module):\n", "nn.Module):\r\n").encode()
    assert fixed_bytes(raw).count(b"\r\n") == 1 + fixed_bytes(raw).count(b"is_compiling():\r\n")


def test_form_feed_and_unicode_separators():
    """Characters that str.splitlines takes for line ends, and Python does not."""
    text = TEXT.replace("'é'", "'\u2028\x0c\x1c'").replace("class", "\x0cclass")
    assert support.fixed(text).source.text == DONE.replace("'é'", "'\u2028\x0c\x1c'").replace(
        "class", "\x0cclass"
    )


def test_tabs():
    text = TEXT.replace("    ", "\t")
    assert support.fixed(text).source.text == DONE.replace("    ", "\t")


@pytest.mark.parametrize(
    ("raw", "message", "line"),
    [
        (b"def f(:\n", "SyntaxError", 1),
        (b"x = 1\ny = '\xff'\n", "0xff is not utf-8", 2),
        (b"# coding: klingon\n", "unknown encoding", 1),
        (b"x = 1\n\x00\n", "null", 1),
        (b"(" * 2000, "Error", 1),
    ],
)
def test_what_cannot_be_read(raw, message, line):
    with pytest.raises(SourceError) as error:
        SourceFile.from_bytes(raw, "bad.py")
    assert message in error.value.message
    assert error.value.line == line
    assert "\n" not in error.value.message


def test_edits_that_overlap_are_refused():
    assert apply("abcdef", [Edit(4, 5, "E"), Edit(0, 1, "A")]) == "AbcdEf"
    with pytest.raises(ValueError, match="overlap"):
        apply("abcdef", [Edit(0, 3, ""), Edit(2, 4, "")])


@pytest.mark.parametrize(
    ("head", "want"),
    [
        ("", "import torch\n\n"),
        ('"""Doc."""\n', '"""Doc."""\n\nimport torch\n'),
        ("import os\nimport zlib\n", "import os\nimport torch\nimport zlib\n"),
        ("import zlib\n", "import torch\nimport zlib\n"),
        ("from torch import nn\n", "import torch\nfrom torch import nn\n"),
        (
            "#!/usr/bin/env python\n# License\n",
            "#!/usr/bin/env python\n# License\nimport torch\n\n",
        ),
        (
            "from __future__ import annotations\n",
            "from __future__ import annotations\n\nimport torch\n",
        ),
    ],
)
def test_the_import_goes_where_a_sorter_puts_it(head, want):
    body = "class M(torch.nn.Module):\n    def forward(self, x):\n        print(1)\n".replace(
        "torch.nn", "torch_.nn"
    )
    body = (
        "from torch import nn\n" * ("torch" not in head)
        + "X = 'torch'\n"
        + body.replace("torch_.nn", "nn")
    )
    result = support.fixed(head + body).source.text
    assert result.count("import torch\n") == 1
    assert "if not torch.compiler.is_compiling():" in result
    if "from torch" in head:
        assert result.startswith(want)


def test_a_local_name_torch_prevents_the_fix():
    text = TEXT.replace("def forward(self, x)", "def forward(self, x, torch=None)")
    result = support.fixed(text)
    assert result.source.text == text
    assert "hidden" in result.left[0].kept


def test_implicit_ints_are_found_where_they_stand():
    """Bounds of slices and sizes, not indices, nor Python ints beside them."""
    text = (support.FIXTURES / "DYN105" / "bounds.in.py").read_text()
    places = [(f.line, f.column) for f in support.found(text) if f.code == "DYN105"]
    assert places == [(6, 16), (7, 11), (7, 18), (9, 19), (9, 38), (9, 58), (9, 76)]
