"""The language server, asked over stdio by pygls' own client."""

import asyncio
import itertools
import json
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest

pytest.importorskip("pygls")
from dynfix.codemods.server import language_server
from dynfix.codemods.trace import saved_facts
from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient
from pygls.workspace import Workspace

from . import support

TEXT = """import torch


class M(torch.nn.Module):
    def forward(self, x: torch.Tensor):
        print("é𝄞", x)  # two units of UTF-16 for the second
        m = x.sum() > 0 and x.min() < 0
        return x, m
"""


class Editor(LanguageClient):
    """Keeps what the server publishes."""

    def __init__(self):
        super().__init__("editor", "1")
        self.published = asyncio.Queue()

        @self.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        def published(params):
            self.published.put_nowait(params)

    async def diagnostics(self):
        return [*(await asyncio.wait_for(self.published.get(), 60)).diagnostics]

    def open(self, uri, text):
        item = lsp.TextDocumentItem(uri=uri, language_id="python", version=1, text=text)
        self.text_document_did_open(lsp.DidOpenTextDocumentParams(item))

    def type(self, uri, version, text):
        changes = [lsp.TextDocumentContentChangeWholeDocument(text)]
        document = lsp.VersionedTextDocumentIdentifier(uri=uri, version=version)
        self.text_document_did_change(
            lsp.DidChangeTextDocumentParams(text_document=document, content_changes=changes)
        )

    async def actions(self, uri, line, *only):
        place = lsp.Range(lsp.Position(line, 0), lsp.Position(line, 99))
        context = lsp.CodeActionContext(diagnostics=[], only=list(only) or None)
        document = lsp.TextDocumentIdentifier(uri)
        params = lsp.CodeActionParams(text_document=document, range=place, context=context)
        return await self.text_document_code_action_async(params)


@asynccontextmanager
async def editor(folder):
    client = Editor()
    await client.start_io(sys.executable, "-m", "dynfix.codemods.cli.command", "server", cwd=folder)
    params = lsp.InitializeParams(lsp.ClientCapabilities(), root_uri=folder.as_uri())
    answer = await client.initialize_async(params)
    client.initialized(lsp.InitializedParams())
    try:
        yield client, answer.capabilities
    finally:  # a test that fails must not wait for a server that goes on
        await client.shutdown_async(None)
        client.exit(None)
        await client.stop()


def applied(text, action):
    """A text after an action's edits, whose columns count UTF-16 units."""
    (change,) = action.edit.document_changes
    lines = text.splitlines(keepends=True)

    def offset(position):
        line = lines[position.line] if position.line < len(lines) else ""
        units = line.encode("utf-16-le")[: 2 * position.character]
        return sum(map(len, lines[: position.line])) + len(units.decode("utf-16-le"))

    for edit in sorted(change.edits, key=lambda e: -offset(e.range.start)):
        start, end = offset(edit.range.start), offset(edit.range.end)
        text = text[:start] + edit.new_text + text[end:]
    return text


def test_a_session(tmp_path):
    asyncio.run(session(tmp_path))


async def session(folder):
    path = folder / "m.py"
    path.write_text("import torch\n")  # what is typed is not saved
    (folder / "pyproject.toml").write_text("[tool.dynfix]\nignore = ['DYN9']\n")
    uri = path.as_uri()
    async with editor(folder) as (client, able):
        assert able.hover_provider and able.code_action_provider.code_action_kinds
        client.open(uri, TEXT)
        found = await client.diagnostics()
        assert [(d.code, d.range.start.line) for d in found] == [("DYN301", 5), ("DYN211", 6)]
        assert found[0].range.end.character == len('        print("é𝄞", x)') + 1
        await quick_fixes(client, uri)
        await pages(client, uri)

        client.type(uri, 2, TEXT + "def f(:\n")  # no Python: the last findings stand
        client.type(uri, 3, TEXT.replace("        print", "        # print"))
        assert [d.code for d in await client.diagnostics()] == ["DYN211"]
        client.text_document_did_close(
            lsp.DidCloseTextDocumentParams(lsp.TextDocumentIdentifier(uri))
        )
        assert await client.diagnostics() == []
        assert path.read_text() == "import torch\n"


PUBLISHED = lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS
PLACE = {"start": {"line": 0, "character": 0}, "end": {"line": 9, "character": 0}}
UNKNOWN = {"textDocument": {"uri": "file:///nowhere.py"}}
MALFORMED = [
    ("codeAction", {}),
    ("codeAction", None),
    ("codeAction", [1, 2]),
    ("codeAction", {**UNKNOWN, "range": "x", "context": {"diagnostics": []}}),
    ("codeAction", {**UNKNOWN, "range": {"start": {"line": -1, "character": 0}}, "context": {}}),
    ("hover", UNKNOWN),
    ("hover", {**UNKNOWN, "position": {"line": "a", "character": 0}}),
    ("codeLens", {}),
]
UNANSWERABLE = [
    ("codeAction", {**UNKNOWN, "range": PLACE, "context": {"diagnostics": []}}, []),
    ("hover", {**UNKNOWN, "position": PLACE["start"]}, None),
    ("codeLens", UNKNOWN, []),
]


class Wire:
    """The server's pipes, for messages that no client would make."""

    def __init__(self, folder):
        command = [sys.executable, "-m", "dynfix.codemods.cli.command", "server"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.server = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL, **pipes)
        self.numbers, self.said = itertools.count(1), []

    def send(self, message):
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.server.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.server.stdin.flush()

    def read(self):
        length = int(self.server.stdout.readline().split(b":")[1])
        while self.server.stdout.readline() != b"\r\n":
            pass
        return json.loads(self.server.stdout.read(length))

    def note(self, name, params):
        self.send({"jsonrpc": "2.0", "method": name, "params": params})

    def ask(self, name, params):
        """The answer; what comes before it is kept."""
        number = next(self.numbers)
        self.send({"jsonrpc": "2.0", "id": number, "method": name, "params": params})
        while (answer := self.read()).get("id") != number:
            self.said.append(answer)
        return answer


def test_odd_requests_are_answered(tmp_path):
    wire = Wire(tmp_path)
    wire.ask("initialize", {"processId": None, "rootUri": None, "capabilities": {}})
    for name, params in MALFORMED:
        assert wire.ask(f"textDocument/{name}", params)["error"]["code"] == -32602
    for name, params, answer in UNANSWERABLE:
        assert wire.ask(f"textDocument/{name}", params)["result"] == answer
    wire.send(b"{bad}")
    wire.send([])
    wire.note("textDocument/didChange", {"textDocument": {"uri": "file:///never.py", "version": 3}})
    wire.note("textDocument/didSave", UNKNOWN)
    wire.note("textDocument/didClose", UNKNOWN)
    opened = [("file:///a%00b.py", "python"), ("file:///a%20b.py", "python")]
    for uri, language in [*opened, ("file:///a.txt", "plaintext")]:
        document = {"uri": uri, "languageId": language, "version": 1, "text": TEXT}
        wire.note("textDocument/didOpen", {"textDocument": document})
        asked = {"textDocument": {"uri": uri}, "position": {"line": 5, "character": 9}}
        answer = wire.ask("textDocument/hover", asked)["result"]
        assert (answer is not None) is (language == "python")
    assert wire.ask("textDocument/nothing", {})["error"]["code"] == -32601
    assert wire.ask("shutdown", None)["result"] is None
    assert wire.ask("textDocument/codeLens", UNKNOWN)["error"]["code"] == -32600
    wire.note("exit", None)
    assert wire.server.wait(30) == 0
    told = [m["params"]["message"] for m in wire.said if m["method"] != PUBLISHED]
    assert len(told) >= len(MALFORMED) and not any("nternal" in each for each in told)
    assert {m["method"] for m in wire.said} == {PUBLISHED, "window/logMessage"}


def test_the_last_run_stands_above_what_it_called(tmp_path):
    text = f"import torch\n\n\ndef other(x):\n    return x\n\n\n{TEXT.partition('import torch')[2].strip()}\n"
    path = tmp_path / "m.py"
    path.write_text(text)
    key = path.resolve()
    saved_facts.keep_costs({f"{key}:M": (12.345, 2), f"{key}:other": (0.5, 0)}, str(tmp_path))
    (tmp_path / "dynfix.toml").write_text("ignore = ['DYN9']\n")
    asyncio.run(last_run(path, text))


async def last_run(path, text):
    uri = path.as_uri()
    document = lsp.TextDocumentIdentifier(uri)
    async with editor(path.parent) as (client, able):
        assert able.code_lens_provider is not None
        client.open(uri, text)
        assert len(await client.diagnostics()) == 2
        params = lsp.CodeLensParams(document)
        found = await client.text_document_code_lens_async(params)
        forward = text[: text.index("    def forward")].count("\n")
        told = ["last run: 0.5 ms a call in eager, no graph break"]
        told.append("last run: 12.3 ms a call in eager, 2 graph breaks")
        shown = [(lens.range.start.line, lens.command.title) for lens in found]
        assert shown == list(zip([3, forward], told, strict=True))

        async def page(line):
            place = lsp.HoverParams(document, lsp.Position(line, 12))
            hover = await client.text_document_hover_async(place)
            return hover and hover.contents.value

        assert await page(forward) == f"{told[1]}\n"
        finding = await page(forward + 1)
        assert finding.startswith("## DYN301 print") and finding.endswith(f"{told[1]}\n")
        path.write_text(text + "# changed since\n")
        client.type(uri, 2, text + "# changed since\n")
        await client.diagnostics()
        assert await client.text_document_code_lens_async(params) == ()


async def quick_fixes(client, uri):
    fixes = {5: False, 6: True}
    for line, unsafe in fixes.items():
        (fix,) = await client.actions(uri, line, lsp.CodeActionKind.QuickFix)
        assert fix.is_preferred is not unsafe and ("(unsafe: " in fix.title) is unsafe
        after = applied(TEXT, fix)
        assert len(support.codes(after)) == 1 and after != TEXT
    (every,) = await client.actions(uri, 0, lsp.CodeActionKind.SourceFixAll)
    assert every.title == "dynfix: apply all safe fixes (1)"
    assert applied(TEXT, every) == support.fixed(TEXT).source.text


async def pages(client, uri):
    async def page(line, column):
        document = lsp.TextDocumentIdentifier(uri)
        return await client.text_document_hover_async(
            lsp.HoverParams(text_document=document, position=lsp.Position(line, column))
        )

    assert (await page(6, 14)).contents.value.startswith("## DYN211 ")
    assert await page(0, 2) is None


class Heard(language_server.Server):
    """Keeps what it says to the editor; `texts` are the open documents."""

    def __init__(self, texts):
        super().__init__()
        self.protocol._workspace = workspace = Workspace(None)
        self.said, self.published = [], []
        for uri, text in texts.items():
            workspace.put_text_document(lsp.TextDocumentItem(uri, "python", 1, text))

    def window_log_message(self, params):
        self.said.append(params.message)

    def text_document_publish_diagnostics(self, params):
        self.published.append(params)


def test_what_cannot_be_looked_at_is_one_message(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/dynfix.toml").write_text("select = 3\n")
    uris = [(tmp_path / name).as_uri() for name in ("deep.py", "inner/m.py", "odd.py", "good.py")]
    deep, odd = f"import torch\nx = {'-' * 20_000}1\n", "import torch\nx = '\ud800'\n"
    server = Heard(dict(zip(uris, (deep, TEXT, odd, TEXT), strict=True)))
    for uri in [*uris, "file:///a%00b.py"]:
        server.current(uri)
    assert len(server.said) == 2 and len(server.published) == 1
    assert "nested too deeply" in server.said[0] and "select must be a list" in server.said[1]
    assert not any("\n" in said or "internal" in said for said in server.said)
    assert [d.code for d in server.published[0].diagnostics] == ["DYN301", "DYN211"]
