"""Notebooks: what is read, what is changed, and that nothing else is."""

import json

import pytest
from dynfix.codemods.cli import notebook, runner
from dynfix.codemods.cli.settings import Settings

from . import support

MODEL = """class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        y = self.fc(x)
        print("é", y.shape)
        if y.sum() > 0:
            y = y * 2
        return y"""
FIXED = MODEL.replace(
    '        print("é", y.shape)\n',
    '        if not torch.compiler.is_compiling():\n            print("é", y.shape)\n',
).replace(
    "        if y.sum() > 0:\n            y = y * 2\n",
    "        y = torch.where(y.sum() > 0, y * 2, y)\n",
)
SETUP = """%matplotlib inline
!pip install torch \\
    --quiet  # it's (never [closed
import torch
from torch import nn
files = !ls "*.py
torch.nn?
text = '''
%not a magic
'''"""
CELLS = [
    ("markdown", "# if x.sum() > 0:\n%time"),
    ("code", SETUP),
    ("code", "%%bash\nfor f in *; do echo $f; done"),
    ("code", MODEL),
    ("code", ""),
    ("code", "model = Model()\nmodel(torch.ones(2, 4));"),
]


def made(cells=CELLS, listed=True, language="python", **extra):
    """A notebook as plain data."""
    rows = []
    for kind, text in cells:
        row = {"cell_type": kind, "id": f"c{len(rows)}", "metadata": {"z": 1, "a": [1.50, 1e3]}}
        if kind == "code":
            row |= {
                "execution_count": None,
                "outputs": [{"text": ["source", "é \u2028"], "source": ["not this"]}],
            }
        rows.append({**row, "source": text.splitlines(keepends=True) if listed else text})
    kernel = {"kernelspec": {"name": "k", "language": language}}
    return {"cells": rows, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5, **extra}


STYLES = [
    {"indent": 1, "ensure_ascii": False},
    {"indent": 1, "ensure_ascii": True},
    {"indent": 4, "ensure_ascii": True},
    {"indent": "\t", "ensure_ascii": False},
    {"separators": (",", ":")},
    {},
]


def handled(raw, fixing=True, path="n.ipynb", **settings):
    return runner.handle(path, raw, Settings(**settings), fixing)


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("style", STYLES, ids=str)
@pytest.mark.parametrize("end", ["", "\n"])
def test_only_the_source_of_a_cell_changes(style, listed, end):
    raw = (json.dumps(made(listed=listed), **style) + end).encode()
    changed = [(k, FIXED if t == MODEL else t) for k, t in CELLS]
    result = handled(raw)
    assert result.raw == (json.dumps(made(changed, listed), **style) + end).encode()
    assert result.left == ()
    again = handled(result.raw)
    assert (again.raw, again.applied) == (None, ())


def test_line_ends_of_the_file_and_a_byte_order_mark_stay():
    raw = b"\xef\xbb\xbf" + json.dumps(made(), indent=1).replace("\n", "\r\n").encode()
    fixed = handled(raw).raw
    assert fixed.startswith(b"\xef\xbb\xbf{\r\n")
    assert fixed.count(b"\n") == fixed.count(b"\r\n")
    assert json.loads(fixed.decode("utf-8-sig"))["cells"][3]["source"] == FIXED.splitlines(
        keepends=True
    )


def test_escapes_of_lines_that_stay_are_kept():
    line = r'"t = \"\u00e9 \/ \ud83d\ude00\"\n"'
    raw = json.dumps(made(), indent=1).replace(
        '"class Model(nn.Module):\\n"', f'{line},\n    "class Model(nn.Module):\\n"'
    )
    assert line in handled(raw.encode()).raw.decode()


def test_places_and_rules():
    raw = json.dumps(made()).encode()
    found = handled(raw, fixing=False).left
    assert [(f.place, f.code) for f in found] == [
        ("n.ipynb:cell 4:8:9", "DYN301"),
        ("n.ipynb:cell 4:9:12", "DYN201"),
    ]
    edit = found[1].fix.edits[0]
    assert MODEL[edit.start : edit.end].startswith("if y.sum() > 0:")
    assert [f.code for f in handled(raw, fixing=False, ignore=("DYN3",)).left] == ["DYN201"]


def test_places_below_a_magic_of_several_lines():
    magic = "!a \\\n  b\n%time c\n"
    found = handled(
        json.dumps(made([("code", SETUP), ("code", magic + MODEL)])).encode(), fixing=False
    ).left
    assert [(f.cell, f.line) for f in found] == [(2, 11), (2, 12)]
    edit = found[1].fix.edits[0]
    assert (magic + MODEL)[edit.start : edit.end].startswith("if y.sum() > 0:")


def test_suppressed():
    silent = MODEL.replace("y.shape)", "y.shape)  # noqa: DYN301").replace(
        "        if", "        # dynfix: off\n        if"
    )
    result = handled(json.dumps(made([("code", SETUP), ("code", silent)])).encode())
    assert (result.raw, result.left) == (None, ())


def test_a_cell_with_a_magic_of_its_own_is_reported_not_changed():
    timed = "%%time\n" + MODEL
    result = handled(json.dumps(made([("code", SETUP), ("code", timed)])).encode())
    assert result.raw is None
    assert {f.kept for f in result.left} == {"the cell begins with a magic"}
    assert [f.line for f in result.left] == [9, 10]


def test_an_import_that_a_fix_needs():
    first = "# notes\nfrom torch import nn"
    result = handled(
        json.dumps(made([("code", "%load_ext x"), ("code", first), ("code", MODEL)])).encode()
    )
    cells = notebook.cell_texts(result.after)
    assert cells[1] == "%load_ext x"
    assert cells[2] == "# notes\nimport torch\nfrom torch import nn"
    assert "torch.where" in cells[3]


def test_what_is_not_python_is_left_alone():
    assert handled(json.dumps(made(language="R")).encode()) == runner.FileResult("n.ipynb")
    sql = made()
    sql["cells"][3]["metadata"] = {"vscode": {"languageId": "sql"}}
    assert handled(json.dumps(sql).encode()).raw is None
    assert handled(b"") == runner.FileResult("n.ipynb")


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b'{"cells": [', "not a notebook: Expecting value"),
        (b"[]", "not a notebook: no object with a list of cells"),
        (b'{"nbformat": 3}', "notebooks of format 4 are read, not of format 3"),
        (b'{"nbformat": 4, "cells": [{"cell_type": "code"}]}', "cell 1 has no source"),
        (
            b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": [1]}]}',
            "cell 1 has no source",
        ),
        (b"\xff", "byte 0xff is not utf-8"),
        (b"[" * 200_000, "not a notebook: nested too deeply"),
    ],
)
def test_what_is_no_notebook_is_one_line(raw, error):
    assert handled(raw).error.message == error


def test_a_cell_that_is_no_python():
    result = handled(json.dumps(made([("code", "x = 1"), ("code", "y = 2\nls -l ??? (")])).encode())
    assert result.error.message.startswith("SyntaxError: ")
    assert result.error.place == "n.ipynb:cell 2:2:7"


MAGICS = [
    "%time x",
    "!ls",
    "?x",
    "x?",
    "x.y??",
    "x = !ls",
    "a, b = %sql 1",
    "    %time x",
    ",f a",
    ";f a",
    "/f a",
]
PLAIN = [
    "x = '?'",
    "# why?",
    "x = a %b",
    "print('?')",
    "x = y",
    "",
    "f(';');",
    "a = '!ls'",
    "b = 3 != 4",
]


@pytest.mark.parametrize("line", MAGICS)
def test_a_magic_is_turned_back(line):
    cell = notebook.NotebookCell(1, line, 0, 0, None)
    marks = notebook.Marks([line])
    masked = marks.masked(cell)
    assert "get_ipython()" in masked
    assert marks.restored(masked) == line


@pytest.mark.parametrize("line", PLAIN)
def test_python_is_no_magic(line):
    assert notebook.Marks([line]).masked(notebook.NotebookCell(1, line, 0, 0, None)) == line


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "n.ipynb").write_text(json.dumps(made(), indent=1) + "\n")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints/n-checkpoint.ipynb").write_text(json.dumps(made()))
    return tmp_path


def test_the_command(folder):
    code, out, err = support.command("--check")
    assert code == 1
    assert "--> n.ipynb:cell 4:9:12\n" in out
    assert "9 |         if y.sum() > 0:\n" in out
    assert "Found 2 problems." in err
    _, out, _ = support.command("--diff")
    assert out.startswith("--- n.ipynb:cell 4\n+++ n.ipynb:cell 4\n")
    assert "+        y = torch.where(y.sum() > 0, y * 2, y)\n" in out
    assert support.command(".")[0] == 0
    assert json.loads((folder / "n.ipynb").read_text())["cells"][3]["source"] == FIXED.splitlines(
        keepends=True
    )
    before = (folder / "n.ipynb").read_bytes()
    assert support.command(".")[0] == 0
    assert (folder / "n.ipynb").read_bytes() == before


def test_formats(folder):
    shown = {
        name: support.command("--check", "--output-format", name)[1]
        for name in ("json", "github", "sarif", "rdjson")
    }
    assert json.loads(shown["json"])[0]["cell"] == 4
    assert (
        "file=n.ipynb,line=1,col=1,endLine=1,endColumn=1::n.ipynb:cell 4:8:9: DYN301"
        in shown["github"]
    )
    assert all("cell 4:8:9" in shown[name] for name in ("sarif", "rdjson"))
    assert "cell 4:8:9 DYN301" in support.command("--check", "--output-format", "grouped")[1]


def test_comments_are_added(folder):
    assert support.command("--add-noqa", ".")[0] == 0
    cell = "".join(json.loads((folder / "n.ipynb").read_text())["cells"][3]["source"])
    assert 'print("é", y.shape)  # noqa: DYN301\n        if y.sum() > 0:  # noqa: DYN201\n' in cell
    assert support.command("--check")[0] == 0


def test_an_error_is_one_line(folder):
    (folder / "n.ipynb").write_text("{")
    code, out, err = support.command("--check")
    assert code == 2
    assert out.startswith("n.ipynb:1:2: not a notebook: Expecting property name")
    assert len(out.splitlines()) == 1 and "All clear" not in err
