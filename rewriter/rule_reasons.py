"""The reasons that a rule of the codemod looks for, and what a reason is. Data alone."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Reason:
    """`name`: a word for lists; `message`: what was found, in one line; `help`: the way out;
    `dynamo`: Dynamo's codes for the same break. Of a reason that no rule looks for in source text,
    `no_rule` says why, and `about` is its page."""

    code: str
    name: str
    message: str
    help: str
    dynamo: tuple[str, ...] = ()
    no_rule: str = ""
    about: str = ""


OF_RULES = (
    Reason(
        "DYN101",
        "item",
        "a tensor's value is read on the host",
        "keep it a tensor, or read it outside the compiled code",
        ("GB0124", "GB0033"),
    ),
    Reason(
        "DYN102",
        "host-number",
        "`float()`, `int()` or `bool()` reads a tensor's value on the host",
        "keep it a tensor, or read it outside the compiled code",
        ("GB0124",),
    ),
    Reason(
        "DYN103",
        "tolist",
        "`.tolist()` reads a tensor on the host",
        "index with the tensor itself, or read the list before the compiled code and pass it in",
        ("GB0033",),
    ),
    Reason(
        "DYN104",
        "host-copy",
        "a tensor is copied to the host, and NumPy goes on there",
        "compute with torch, on the tensor's device, or make the function a "
        "torch.library.custom_op",
        ("GB0033", "GB0109", "GB0294"),
    ),
    Reason(
        "DYN105",
        "implicit-int",
        "a tensor is used as a Python int",
        "pass the number as an int, or work at the largest size with a mask",
        ("GB0033", "GB0124"),
    ),
    Reason(
        "DYN106",
        "truth-function",
        "a Python bool is made of tensors",
        "use (a == b).all() or torch.isclose(a, b).all(), which stay tensors",
        ("GB0033",),
    ),
    Reason(
        "DYN107",
        "number-buffer",
        "a buffer that holds a Python int is used as a number",
        "keep the int as an attribute of its own",
        ("GB0033",),
    ),
    Reason(
        "DYN108",
        "tensor-text",
        "text is made of a tensor's value, which breaks the graph",
        "make the text outside the compiled code, or with an f-string that is only kept",
        ("GB0059", "GB0569", "GB9648"),
    ),
    Reason(
        "DYN110",
        "read-ahead",
        "what is read here depends on inputs alone, yet is read inside the graph",
        "read it before the compiled call, and hand it in",
        ("GB0033", "GB0036", "GB0124"),
    ),
    Reason(
        "DYN201",
        "tensor-if",
        "the branch depends on a tensor's value",
        "use torch.where or torch.cond (`dynfix` can rewrite it), or read the value outside "
        "the compiled code",
        ("GB0170",),
    ),
    Reason(
        "DYN202",
        "tensor-ternary",
        "the conditional expression depends on a tensor's value",
        "use torch.where or torch.cond",
        ("GB0170",),
    ),
    Reason(
        "DYN203",
        "chained-comparison",
        "a chained comparison reads a tensor's value on the host",
        "join two comparisons with torch.logical_and",
        ("GB0170",),
    ),
    Reason(
        "DYN204",
        "tensor-while",
        "the loop's condition depends on a tensor's value",
        "use torch.while_loop, or a fixed number of turns with a mask",
        ("GB0170", "GB7000"),
    ),
    Reason(
        "DYN205",
        "tensor-for",
        "a loop over a tensor is unrolled, one turn for each element",
        "work on the whole tensor at once, or use torch.func.vmap",
        (),
    ),
    Reason(
        "DYN206",
        "tensor-assert",
        "an assertion reads a tensor's value on the host",
        "use a constant text, or check outside the compiled code",
        ("GB0170",),
    ),
    Reason(
        "DYN207",
        "builtin-on-tensor",
        "a builtin compares tensors on the host",
        "use the tensor operator of that name",
        ("GB0170",),
    ),
    Reason(
        "DYN208",
        "raise-on-tensor",
        "an exception depends on a tensor's value",
        "use torch._assert_async, or check outside the compiled code",
        ("GB0170",),
    ),
    Reason(
        "DYN209",
        "runtime-check",
        "a check reads a tensor's value on the host",
        "check outside the compiled code, or only when not torch.compiler.is_compiling()",
        ("GB0124",),
    ),
    Reason(
        "DYN210",
        "accumulating-loop",
        "a Python loop adds to a tensor step by step",
        "it is unrolled into one graph: nothing breaks, but the graph grows with the range",
        (),
    ),
    Reason(
        "DYN211",
        "bool-operator",
        "`and`, `or` or `not` reads a tensor's value on the host",
        "use torch.logical_and, torch.logical_or or torch.logical_not",
        ("GB0170", "GB0033"),
    ),
    Reason(
        "DYN301",
        "print",
        "print in compiled code",
        "print outside the compiled code, or only when not torch.compiler.is_compiling()",
        ("GB0059",),
    ),
    Reason(
        "DYN302",
        "logging",
        "logging in compiled code",
        "log outside the compiled code, or only when not torch.compiler.is_compiling()",
        ("GB0291",),
    ),
    Reason(
        "DYN303",
        "warning",
        "a warning in compiled code",
        "warn outside the compiled code, or only when not torch.compiler.is_compiling()",
        ("GB0059",),
    ),
    Reason(
        "DYN304",
        "debugger",
        "a debugger stop in compiled code",
        "remove it, or use torch._dynamo's comptime.breakpoint()",
        ("GB0059",),
    ),
    Reason(
        "DYN305",
        "progress-bar",
        "a progress bar in compiled code",
        "iterate over the plain iterable, and show progress outside the compiled code",
        ("GB0059",),
    ),
    Reason(
        "DYN306",
        "file-access",
        "a file is read or written in compiled code",
        "return the tensors, and write them outside the compiled code",
        ("GB0059",),
    ),
    Reason(
        "DYN307",
        "attribute-counter",
        "a number of the module changes at every call, which compiles again for each value",
        "count outside the compiled code, or in a buffer with `add_(1)`, or set "
        "torch._dynamo.config.allow_unspec_int_on_nn_module",
        (),
    ),
    Reason(
        "DYN308",
        "kept-on-self",
        "a list of the module grows at every call, which compiles again for each length",
        "return the value and collect it outside the compiled code, or keep only the last one"
        " in an attribute",
        (),
    ),
    Reason(
        "DYN401",
        "setattr",
        "an attribute is set by name",
        "assign to the attribute, or keep such values in a dict",
        ("GB0254", "GB0467"),
    ),
    Reason(
        "DYN402",
        "dynamic-code",
        "code or names are made at run time",
        "write the code out, or pass the value in",
        ("GB0059",),
    ),
    Reason(
        "DYN403",
        "introspection",
        "code is inspected in compiled code",
        "ask when the model is made, and keep the answer",
        ("GB0059",),
    ),
    Reason(
        "DYN404",
        "copied-tensor",
        "a tensor is copied with the copy module",
        "use .clone(), with .detach() where no gradient should flow",
        (),
    ),
    Reason(
        "DYN405",
        "object-identity",
        "the identity of a tensor is used in compiled code",
        "use a key of your own: a name, an index",
        ("GB0059",),
    ),
    Reason(
        "DYN406",
        "dict-attribute",
        "an attribute is looked up among a dict's items",
        'look it up as an item, config["width"]',
        ("GB0256",),
    ),
    Reason(
        "DYN407",
        "generator",
        "an iterator from outside is advanced in compiled code",
        "advance it outside the compiled code, and pass the value in",
        ("GB4347", "GB0811", "GB0253", "GB0003"),
    ),
    Reason(
        "DYN408",
        "context-manager",
        "a context manager that cannot be traced",
        "enter it around the compiled call",
        ("GB0142", "GB0008", "GB0208", "GB0262", "GB0007"),
    ),
    Reason(
        "DYN409",
        "except-branch",
        "the exception of a tensor operator is not caught in compiled code",
        "ask for what would fail before (shapes, strides, dtypes), with an `if`",
        ("GB4315",),
    ),
    Reason(
        "DYN501",
        "dynamic-shape",
        "the result's shape depends on data",
        "work on the full tensor with torch.where or a mask, or pass output_size=",
        ("GB0036",),
    ),
    Reason(
        "DYN502",
        "shape-branch",
        "the branch compares a size with a number: each side is a graph of its own",
        "choose at construction, or mark the dimension with torch._dynamo.mark_dynamic / "
        "dynamic=True",
        (),
    ),
    Reason(
        "DYN503",
        "missing-size",
        "without its size named, the result's shape depends on data",
        "name the size: output_size= for repeat_interleave, num_classes= for one_hot; count "
        "into zeros for bincount",
        ("GB0036", "GB0246"),
    ),
    Reason(
        "DYN504",
        "masked-write",
        "a masked write gathers as many elements as the mask has",
        "write y[...] = torch.where(mask, x, y)",
        ("GB0036",),
    ),
    Reason(
        "DYN505",
        "in-place-view",
        "an input's shape is changed in place",
        "use the method without the underscore, and its result",
        ("GB0148",),
    ),
    Reason(
        "DYN506",
        "scoped-capture",
        "numbers or shapes that depend on data break this forward's graph",
        "compile it with torch._dynamo.config.capture_scalar_outputs and "
        "capture_dynamic_output_shape_ops",
        ("GB0033", "GB0036", "GB0124"),
    ),
    Reason(
        "DYN507",
        "drawn-roll",
        "`torch.roll` is given a number that Python's `random` draws",
        "pick the positions (torch.arange(n) - shift) % n with index_select",
        ("GB0124",),
    ),
    Reason(
        "DYN508",
        "size-loop",
        "a loop as long as an axis is unrolled: a new graph for each size",
        "work on the whole axis at once, or use torch.func.vmap",
        (),
    ),
    Reason(
        "DYN601",
        "foreign-call",
        "a call into code that cannot be traced",
        "wrap it with torch.library.custom_op (with register_fake) or dynfix.allow_in_graph, "
        "or call it outside the compiled code",
        ("GB0059", "GB0007"),
    ),
    Reason(
        "DYN602",
        "numpy-scalar",
        "a NumPy scalar is a tensor to Dynamo",
        "make it a Python number: .item(), or the math module",
        ("GB0170", "GB0033"),
    ),
    Reason(
        "DYN603",
        "numpy-finfo",
        "a dtype's limits are asked of NumPy",
        "use torch.finfo",
        ("GB0149",),
    ),
    Reason(
        "DYN604",
        "constant-helper",
        "a constant tensor is made with NumPy in compiled code",
        "make it when the model is made, or mark the function with "
        "torch.compiler.assume_constant_result",
        ("GB0007", "GB0008"),
    ),
    Reason(
        "DYN605",
        "constant-block",
        "a tensor is made of sizes alone, in a way that breaks the graph",
        "make it in a function marked with torch.compiler.assume_constant_result",
        ("GB0036", "GB0033"),
    ),
    Reason(
        "DYN606",
        "custom-op",
        "a function works on a tensor outside torch",
        "make it a torch.library.custom_op with a register_fake function",
        ("GB0059", "GB0007"),
    ),
    Reason(
        "DYN701",
        "python-random",
        "a random number is drawn outside torch",
        "draw it with torch, or outside the compiled code",
        ("GB0033",),
    ),
    Reason(
        "DYN703",
        "clock",
        "the clock is read in compiled code",
        "measure around the compiled call",
        (),
    ),
    Reason(
        "DYN704",
        "seed",
        "a generator is seeded in compiled code",
        "seed before the compiled code",
        (),
    ),
    Reason(
        "DYN901",
        "compile-inside",
        "torch.compile is called again and again",
        "compile once, where the model is made",
        (),
    ),
    Reason(
        "DYN902",
        "wrong-mode",
        "torch.compile has no such mode",
        "the modes are default, reduce-overhead, max-autotune, max-autotune-no-cudagraphs, lite",
        (),
    ),
    Reason(
        "DYN903",
        "swallowed-fullgraph",
        "an error of fullgraph=True is caught and hidden",
        "catch what the code itself may raise, or leave out fullgraph=True",
        (),
    ),
    Reason(
        "DYN904",
        "deprecated-dynamo",
        "a private name that has a public successor",
        "use torch.compiler",
        (),
    ),
    Reason(
        "DYN905",
        "legacy-variable",
        "`Variable(...)` cannot be traced",
        "use .detach(), which does the same",
        ("GB0007",),
    ),
    Reason(
        "DYN906",
        "recurrent-layer",
        "Dynamo breaks at recurrent layers by default",
        "set torch._dynamo.config.allow_rnn = True",
        ("GB0014",),
    ),
    Reason(
        "DYN907",
        "new-leaf",
        "a tensor is made with requires_grad",
        "use .requires_grad_() on the new tensor",
        ("GB0225",),
    ),
)
