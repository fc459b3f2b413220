"""What is known of the values that the other files of a project give."""

from __future__ import annotations

import ast
from collections import OrderedDict

from ...rewriter.source.regular_files import read
from ...rewriter.source.source_file import SourceError, SourceFile
from .file_links import CallSite, FileLinks
from .file_summary import read_program
from .inference import Inference

_MOST_LOADED = 256  # files whose trees are in memory at once


class Neighbours:
    """`of(path)`: the links of a file; `inference(path)`: what is known of its values, its text
    read when first asked for. Paths are real ones."""

    def __init__(self, links: dict[str, FileLinks]) -> None:
        self.links = links
        self._loaded: OrderedDict[str, tuple[Inference, Inference] | None] = OrderedDict()

    def of(self, path: str) -> FileLinks | None:
        return self.links.get(path)

    def inference(self, path: str, suppose: bool = False) -> Inference | None:
        """`suppose`: with inputs taken to be what their use and their calls suggest."""
        if path not in self._loaded:
            self._loaded[path] = self._load(path)
            if len(self._loaded) > _MOST_LOADED:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(path)
        found = self._loaded[path]
        return found[suppose] if found is not None else None

    def place(self, site: CallSite, own: Inference) -> tuple[Inference, CallSite] | None:
        """What is known of the file that a call stands in."""
        if self.links.get(site.path) is own.program.links:
            return own, site
        found = self.inference(site.path, own.suppose)
        return (found, site) if found is not None else None

    def _load(self, path: str) -> tuple[Inference, Inference] | None:
        try:
            tree = SourceFile.from_bytes(read(path), path).tree
        except (OSError, SourceError, RecursionError, MemoryError):  # changed since, or deep
            return None
        program = read_program(tree) if isinstance(tree, ast.Module) else None
        if program is None:
            return None
        program.link(self.links.get(path, FileLinks()))
        known, supposed = (Inference(program, program.names, None, self) for _ in range(2))
        supposed.suppose = True
        return known, supposed
