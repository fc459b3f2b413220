"""What the recorder needs of the rewriter."""

import types
from collections.abc import Callable
from typing import Any

from ..capture import places
from ..capture.trace import Recorder
from ..instrument import emit
from ..source.live_source import NotRewritable
from ..tracing_ops.calls import call_ops, making, stand_ins
from ..tracing_ops.operators import Forms


class Inliner:
    """What the recorder needs of the rewriter: calls, rewritten functions, callbacks."""

    NotRewritable = NotRewritable
    call = staticmethod(call_ops.call)
    construct = staticmethod(making.construct)
    answered = staticmethod(stand_ins.answered)
    is_rewritten = staticmethod(emit.is_rewritten)

    @staticmethod
    def rewrite(fn: types.FunctionType) -> types.FunctionType:
        return emit.rewrite(fn, Forms)

    @staticmethod
    def made_in_call(rec: Recorder, obj: Any) -> bool:
        """Whether a function is a closure or lambda that rewritten code made in the call that `rec`
        records."""
        if not isinstance(obj, types.FunctionType) or not emit.is_rewritten(obj.__code__):
            return False
        operators = emit.operators_of(obj)
        if operators is None:
            return rec.known.path_of(obj) is None
        return bool(operators.serial == rec.serial)

    @staticmethod
    def original_of(fn: types.FunctionType) -> types.FunctionType:
        """The user's own function for one that another call made. Raises NotRewritable."""
        found = emit.original_of(fn)
        if found is None:
            code = fn.__code__
            why = "defined at a line with several functions, which cannot be told from each other"
            raise NotRewritable(why, code.co_filename, code.co_firstlineno)
        return found

    @staticmethod
    def holds_operators(cell: types.CellType) -> bool:
        """Whether the cell is the one that a rewritten function has beside the user's."""
        try:
            return isinstance(cell.cell_contents, Forms)
        except ValueError:  # it is empty
            return False

    @staticmethod
    def callback(rec: Recorder, fn: Any) -> Callable[..., Any]:
        """`fn` for C code that calls back: it runs as called from rewritten source."""
        return lambda *args, **kwargs: rec.call(fn, args, kwargs)


places.use(emit.rewritten_codes, emit.rewritten_files)
