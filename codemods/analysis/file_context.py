"""What a rule sees of the file that it looks at."""

from ...rewriter.patterns.file_view import FileView
from ...rewriter.patterns.import_names import Names, by_type
from ...rewriter.patterns.kinds import ANY
from ..trace.trace_facts import qualified
from .definitions import Program
from .findings import ERROR, Finding
from .inference import Inference


class Context(FileView):
    """One file: its source, names, program and inference; parents of the nodes of captured
    functions."""

    def __init__(self, source, settings):
        self.settings, self.index = settings, by_type(source.tree)
        super().__init__(source, Names(source.tree, self.index))
        self.facts = settings.facts_of(source.path)
        named = qualified(source.tree) if self.facts else None
        self.program = Program(source.tree, self.names, self.index, named)
        self.inference = Inference(self.program, self.names, self.facts)

    # What a node is

    def kind(self, node):
        return self.inference.kinds.get(node, ANY)

    # What only one who ran the code can say

    def proved(self, first, second):
        """The text proves a side by its form alone (see where_safety)."""
        return None

    def total(self, *nodes):
        return False

    def overwritten(self, into, text):
        return "only one who ran the code can say"

    def runs(self, name, value):
        """Inference knows the name by its statement."""

    # Making findings and fixes

    def finding(self, rule, node, message=None, fix=None, help="", kept="", level=ERROR):
        source = self.source
        return Finding(
            rule.code,
            message or rule.message,
            source.path,
            node.lineno,
            source.column(node.lineno, node.col_offset),
            node.end_lineno,
            source.column(node.end_lineno, node.end_col_offset),
            fix,
            help or rule.help,
            kept,
            level,
        )
