"""Why a recording broke or stopped: every reason owns its rule code, so that capture can name the
rule without importing codemods."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Reason:
    """`code`: the rule that mends it; `summary`: one line; `hint`: the way out; `dynamo`: Dynamo's
    codes for the same break."""

    code: str
    summary: str
    hint: str
    dynamo: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Site:
    """A reason at a place. `line` is 1-based; `text` is the source line; `detail` says what was
    met."""

    reason: Reason
    file: str
    line: int
    text: str
    detail: str = ""

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return (
            f"{self.file}:{self.line}: {self.reason.code} {self.reason.summary}{detail}\n   "
            f" {self.text}\n  {self.reason.hint}"
        )


HOST_READ = Reason(
    "DYN101",
    "a tensor's value is read on the host",
    "keep it a tensor, or read it outside the compiled code",
    ("GB0124", "GB0033"),
)
TENSOR_IF = Reason(
    "DYN201",
    "a branch depends on a tensor's value",
    "use torch.where or torch.cond; `dynfix` can rewrite it",
    ("GB0170",),
)
DYNAMIC_SHAPE = Reason(
    "DYN501",
    "an operator's output shape depends on data",
    "use a masked form, or pass output_size=",
    ("GB0036",),
)
OPAQUE_CALL = Reason(
    "DYN601",
    "a call into code that cannot be seen",
    "wrap it with torch.library.custom_op or dynfix.allow_in_graph",
    ("GB0059",),
)
EXPLICIT = Reason(
    "DYN000",
    "a graph break was asked for",
    "remove the call of graph_break(), or the disable() of the function",
    ("GB0025",),
)
UNSUPPORTED = Reason(
    "DYN001",
    "the recorder does not understand this",
    "the statement runs as it is, between two graphs: move it out of the compiled code, or write it"
    " with what is captured",
    (),
)
NOT_REWRITABLE = Reason(
    "DYN002",
    "the source of a function cannot be rewritten",
    "define it in a file, or mark it with dynfix.disable",
    (),
)
SLIPPED = Reason(
    "DYN003",
    "a tensor was made or written where the recorder could not see",
    "keep tensor work in Python that has source",
    (),
)

# The rules of `dynfix` that the recorder has no break of its own for: what a finding answers, and
# the way out.
TOLIST = Reason(
    "DYN103",
    "a tensor is read into a list",
    "index with the tensor, or read the list before the compiled code",
    ("GB0033",),
)
IMPLICIT_INT = Reason(
    "DYN105",
    "a tensor is used as a Python int",
    "pass the number as an int, or mask",
    ("GB0033", "GB0124"),
)
TRUTH_FUNCTION = Reason(
    "DYN106",
    "a Python bool is made of tensors",
    "use (a == b).all(), which stays a tensor",
    ("GB0033",),
)
TENSOR_WHILE = Reason(
    "DYN204",
    "a loop's condition depends on a tensor's value",
    "use torch.while_loop",
    ("GB0170", "GB7000"),
)
RAISE_ON_TENSOR = Reason(
    "DYN208", "an exception depends on a tensor's value", "use torch._assert_async", ("GB0170",)
)
PRINT = Reason(
    "DYN301", "print in compiled code", "guard it with torch.compiler.is_compiling()", ("GB0059",)
)
LOGGING = Reason(
    "DYN302", "logging in compiled code", "guard it with torch.compiler.is_compiling()", ("GB0291",)
)
DEBUGGER = Reason("DYN304", "a debugger stop in compiled code", "remove it", ("GB0059",))
FILE_ACCESS = Reason(
    "DYN306",
    "a file is read or written in compiled code",
    "write outside the compiled code",
    ("GB0059",),
)
SET_ATTRIBUTE = Reason(
    "DYN401", "an attribute is set by name", "assign to the attribute", ("GB0254", "GB0467")
)
DYNAMIC_CODE = Reason(
    "DYN402", "code or names are made at run time", "write the code out", ("GB0059",)
)
PYTHON_RANDOM = Reason(
    "DYN701",
    "a random number is drawn outside torch",
    "draw it with torch, or outside",
    ("GB0033",),
)
CLOCK = Reason(
    "DYN703", "the clock is read in compiled code", "measure around the compiled call", ()
)
