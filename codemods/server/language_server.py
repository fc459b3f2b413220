"""`dynfix server`: the rules in an editor, by the Language Server Protocol on stdin and stdout.

Diagnostics follow the text as it is typed; each fix is a quick fix, safe ones preferred; the safe
ones together are `source.fixAll.dynfix`; hovering shows the rule's page; above a function that the
last traced run called stands what it took, and its graph breaks. Needs pygls."""

from __future__ import annotations

import ast
import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams, JsonRpcInvalidRequest
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, default_converter
from pygls.uris import to_fs_path
from pygls.workspace import PositionCodec

from ... import __version__
from ...rewriter.source.source_file import SourceError, SourceFile
from ...rewriter.source.spans import Edit, Safety
from ..analysis.findings import NOTE, Finding
from ..cli import check, deep_stack
from ..cli.deep_stack import reason
from ..cli.formats import advice
from ..cli.settings import Settings, load
from ..cli.terminal import seen
from ..rules import BY_CODE
from ..trace import saved_facts
from ..trace.trace_facts import qualified

_PAUSE = 0.15  # seconds without a key before the text is looked at
FIX_ALL = "source.fixAll.dynfix"


@dataclass(frozen=True)
class Checked:
    """A document's text with what was found in it; places count from 1, in characters."""

    version: int | None
    source: SourceFile
    settings: Settings
    findings: list[Finding]
    codec: PositionCodec
    costs: dict[str, tuple[float, int]]  # of the last run, by the qualified name

    def position(self, line: int, column: int) -> lsp.Position:
        """A place in the client's units: UTF-16, where nothing else is agreed on."""
        here = lsp.Position(line - 1, column - 1)
        return self.codec.position_to_client_units(self._lines, here)

    @cached_property
    def _lines(self) -> list[str]:
        return [self.source.line(n) for n in range(1, len(self.source.starts) + 1)]

    def range_of(self, finding: Finding) -> lsp.Range:
        end = self.position(finding.end_line, finding.end_column)
        return lsp.Range(self.position(finding.line, finding.column), end)

    def line(self, number: int) -> lsp.Range:
        end = len(self.source.line(number)) + 1
        return lsp.Range(self.position(number, 1), self.position(number, end))

    @cached_property
    def costed(self) -> list[tuple[ast.AST, str]]:
        """The functions, and the forwards of classes, of which the last run tells something."""
        found = []
        for node, name in qualified(self.source.tree).items():
            owner, _, last = name.rpartition(".")
            cost = self.costs.get(name, self.costs.get(owner) if last == "forward" else None)
            if cost is not None:
                found.append((node, _cost_text(*cost)))
        return found

    def text_edit(self, edit: Edit) -> lsp.TextEdit:
        start, end = (self.position(*self.source.place(at)) for at in (edit.start, edit.end))
        return lsp.TextEdit(lsp.Range(start, end), edit.text)

    def touched(self, area: lsp.Range) -> list[Finding]:
        """The findings that overlap a range."""
        found = [(f, self.range_of(f)) for f in self.findings]
        return [
            f
            for f, r in found
            if _key(r.start) <= _key(area.end) and _key(area.start) <= _key(r.end)
        ]


def _cost_text(milliseconds: float, breaks: int) -> str:
    number = "no graph break" if not breaks else f"{breaks} graph break{'s' * (breaks > 1)}"
    return f"last run: {milliseconds:.3g} ms a call in eager, {number}"


def _key(position: lsp.Position) -> tuple[int, int]:
    return position.line, position.character


class Protocol(LanguageServerProtocol):
    """Every request is answered: one that is malformed, or comes after the end, with an error."""

    def structure_message(self, data: Any) -> Any:
        try:
            return super().structure_message(data)
        except JsonRpcException:  # of any sort: the fault is the message's
            error = JsonRpcInvalidParams(f"the parameters of {data.get('method')} are malformed")
            if "method" in data and isinstance(data.get("id"), (int, str)):
                self._send_response(data["id"], error=error.to_response_error())
            raise error from None

    def handle_message(self, message: Any) -> None:
        if not hasattr(message, "jsonrpc"):
            raise JsonRpcInvalidRequest("a message of JSON-RPC 2.0 is an object")
        if self._shutdown and hasattr(message, "id"):
            self._send_response(message.id, error=JsonRpcInvalidRequest().to_response_error())
        super().handle_message(message)


class Server(LanguageServer):
    """`checked`: what was found in each open document, by its URI."""

    def __init__(self) -> None:
        super().__init__(
            "dynfix", __version__, protocol_cls=Protocol, converter_factory=default_converter
        )
        self.checked: dict[str, Checked] = {}

    def report_server_error(self, error: Exception, source: Any) -> None:
        """A message that was not understood is one line in the editor's log, and no window."""
        self.log(f"a message from the editor was passed over: {error or type(error).__name__}")

    def log(self, text: str) -> None:
        message = f"dynfix: {seen(text)}"
        self.window_log_message(lsp.LogMessageParams(type=lsp.MessageType.Error, message=message))

    def is_open(self, uri: str) -> bool:
        """Whether the editor shows a Python text under a URI."""
        document = self.workspace.text_documents.get(unquote(uri))  # as pygls names them
        return document is not None and document.language_id in (None, "", "python")

    def look(self, uri: str) -> None:
        """Check a document and publish what is found; a text that is no Python, which it often is
        while someone types, leaves the last findings."""
        if not self.is_open(uri):
            return
        document = self.workspace.get_text_document(uri)
        checked = self.tried(_check, document, _path(uri))
        if checked is None:
            return
        self.checked[uri] = checked
        diagnostics = [_diagnostic(f, checked) for f in checked.findings]
        params = lsp.PublishDiagnosticsParams(
            uri=uri, diagnostics=diagnostics, version=document.version
        )
        self.text_document_publish_diagnostics(params)

    def tried(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(*args)`; None, and one message to the editor, where that cannot be done."""
        try:
            return deep_stack.called(function, *args)
        except SourceError:
            return None  # it often is no Python while someone types
        except Exception as error:
            self.log(reason(error))
        return None

    def current(self, uri: str) -> Checked | None:
        """What was found in the text that the editor shows; None where that is not known, or the
        editor has no such text open."""
        if not self.is_open(uri):
            return None
        version = self.workspace.get_text_document(uri).version
        if uri not in self.checked or self.checked[uri].version != version:
            self.look(uri)
        checked = self.checked.get(uri)
        return checked if checked is not None and checked.version == version else None


def _path(uri: str) -> str:
    """The file behind a URI, or a name that no file has."""
    path = to_fs_path(uri) or uri
    return "unsaved.py" if "\0" in path else path


def _check(document: Any, path: str) -> Checked:
    settings = load(os.path.dirname(path) or ".")
    source = SourceFile(document.source, path)
    found = [] if settings.excludes(path) else check.findings(source, settings)
    costs = saved_facts.costs(path, settings.root) if settings.cache else {}
    return Checked(document.version, source, settings, found, document.position_codec, costs)


def _diagnostic(finding: Finding, checked: Checked) -> lsp.Diagnostic:
    note = finding.level == NOTE
    return lsp.Diagnostic(
        range=checked.range_of(finding),
        message="\n".join([finding.message, *advice(finding)]),
        severity=lsp.DiagnosticSeverity.Information if note else lsp.DiagnosticSeverity.Warning,
        code=finding.code,
        source="dynfix",
        tags=[lsp.DiagnosticTag.Unnecessary] if finding.code == "DYN900" else None,
    )


def _quick_fix(uri: str, finding: Finding, checked: Checked) -> lsp.CodeAction | None:
    edits = check.splices(checked.source, [finding.fix]) if finding.fix else None
    if not edits:
        return None
    safe = finding.fix.safety is Safety.SAFE
    unsafe = "" if safe else f" (unsafe: {finding.fix.why})"
    return lsp.CodeAction(
        title=f"{finding.code}: {finding.fix.title}{unsafe}",
        kind=lsp.CodeActionKind.QuickFix,
        diagnostics=[_diagnostic(finding, checked)],
        is_preferred=safe,
        edit=_workspace_edit(uri, checked, edits),
    )


def _workspace_edit(uri: str, checked: Checked, edits: list[Edit]) -> lsp.WorkspaceEdit:
    document = lsp.OptionalVersionedTextDocumentIdentifier(uri=uri, version=checked.version)
    changes = [checked.text_edit(e) for e in edits]
    return lsp.WorkspaceEdit(
        document_changes=[lsp.TextDocumentEdit(text_document=document, edits=changes)]
    )


def _fix_all(uri: str, checked: Checked) -> lsp.CodeAction | None:
    """All safe fixes, as one edit of what lies between the first and the last change."""
    settings = replace(checked.settings, unsafe_fixes=False)
    fixed = check.fix(checked.source, settings)
    old, new = checked.source.text, fixed.source.text
    if old == new:
        return None
    start = _common(old, new)
    tail = _common(old[start:][::-1], new[start:][::-1])
    edit = Edit(start, len(old) - tail, new[start : len(new) - tail])
    title = f"dynfix: apply all safe fixes ({len(fixed.applied)})"
    return lsp.CodeAction(title, FIX_ALL, edit=_workspace_edit(uri, checked, [edit]))


def _common(first: str, second: str) -> int:
    """How many characters two texts begin with in common."""
    pairs = zip(first, second, strict=False)
    differ = (i for i, (a, b) in enumerate(pairs) if a != b)
    return next(differ, min(len(first), len(second)))


def _hover(position: lsp.Position, checked: Checked) -> lsp.Hover | None:
    """The pages of the rules that found something there, and what the last run tells of the
    function."""
    found = checked.touched(lsp.Range(position, position))
    pages = [BY_CODE[code].document() for code in dict.fromkeys(f.code for f in found)]
    line = position.line + 1
    within = [
        (node, text)
        for node, text in checked.costed
        if line == node.lineno or (found and node.lineno <= line <= node.end_lineno)
    ]
    pages += [f"{text}\n" for _, text in within[-1:]]
    if not pages:
        return None
    area = checked.range_of(found[0]) if found else checked.line(line)
    content = lsp.MarkupContent(kind=lsp.MarkupKind.Markdown, value="\n".join(pages))
    return lsp.Hover(contents=content, range=area)


def _wanted(kind: str, only: Any) -> bool:
    return only is None or any(kind == o or kind.startswith(f"{o}.") for o in only)


def made() -> Server:
    """The server with its features."""
    server = Server()

    @server.feature(lsp.TEXT_DOCUMENT_DID_OPEN)
    def opened(params: lsp.DidOpenTextDocumentParams) -> None:
        server.look(params.text_document.uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_SAVE)
    def saved(params: lsp.DidSaveTextDocumentParams) -> None:
        server.look(params.text_document.uri)  # the settings may be others, too

    @server.feature(lsp.TEXT_DOCUMENT_DID_CHANGE)
    async def changed(params: lsp.DidChangeTextDocumentParams) -> None:
        await asyncio.sleep(_PAUSE)
        uri, version = params.text_document.uri, params.text_document.version
        if server.workspace.get_text_document(uri).version == version:
            server.look(uri)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def closed(params: lsp.DidCloseTextDocumentParams) -> None:
        uri = params.text_document.uri
        server.checked.pop(uri, None)
        server.text_document_publish_diagnostics(
            lsp.PublishDiagnosticsParams(uri=uri, diagnostics=[])
        )

    kinds = [lsp.CodeActionKind.QuickFix, FIX_ALL]

    @server.feature(lsp.TEXT_DOCUMENT_CODE_ACTION, lsp.CodeActionOptions(code_action_kinds=kinds))
    def actions(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        uri, only = params.text_document.uri, params.context.only
        checked = server.current(uri)
        if checked is None:
            return []
        found: list[lsp.CodeAction | None] = []
        if _wanted(lsp.CodeActionKind.QuickFix, only):
            touched = checked.touched(params.range)
            found += [server.tried(_quick_fix, uri, f, checked) for f in touched]
        if _wanted(FIX_ALL, only):
            found.append(server.tried(_fix_all, uri, checked))
        return [action for action in found if action is not None]

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def hover(params: lsp.HoverParams) -> lsp.Hover | None:
        checked = server.current(params.text_document.uri)
        return None if checked is None else server.tried(_hover, params.position, checked)

    @server.feature(lsp.TEXT_DOCUMENT_CODE_LENS)
    def lenses(params: lsp.CodeLensParams) -> list[lsp.CodeLens]:
        checked = server.current(params.text_document.uri)
        costed = checked.costed if checked is not None else []
        return [
            lsp.CodeLens(checked.line(node.lineno), lsp.Command(title=text, command=""))
            for node, text in costed
        ]

    return server


def serve() -> int:
    """Serve until the client says goodbye."""
    made().start_io()
    return 0
