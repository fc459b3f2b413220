"""What fixed programs import from dynfix: decorators of a captured `forward`.

A fixed file imports them under `try`, with a fallback that leaves the function as it is: without
dynfix it runs as it was written, and breaks where it did."""

import functools
from collections.abc import Callable
from typing import Any

import torch

VALUES = "host_values"
SUPPRESS_ERRORS = True  # where Dynamo fails on a symbol, the frame runs in eager; else it is raised
Method = Callable[..., Any]


def read_ahead(read: Method) -> Callable[[Method], Method]:
    """Have `read` compute, before the captured call and on the host, what the method takes as
    `host_values`. Where `read` raises, or the call is part of another graph, the method reads for
    itself; so it does in eager, and where hooks of all modules are set."""

    modules = torch.nn.modules.module
    # what compiles frames on this thread; a torch that does not tell is taken for eager
    callback = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            # asked here and in no function of its own, which Dynamo would compile
            within = torch.compiler.is_compiling() or VALUES in kwargs
            eager = "_dynamo" not in torch.__dict__ or callback is None or callback() is None
            hooked = modules._global_forward_pre_hooks or modules._global_forward_hooks
            if within or eager or hooked:
                return method(self, *args, **kwargs)
            try:
                values = torch.compiler.disable(read)(self, *args, **kwargs)
            except Exception:  # raised again where it belongs
                values = {}
            return method(self, *args, **{VALUES: values}, **kwargs)

        return _unseen(call)

    return decorate


def captures_reads(forward: Method) -> Method:
    """`forward`, below which torch.compile captures numbers and shapes that are read from
    tensors."""

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        dynamo = None if torch.compiler.is_compiling() else torch.__dict__.get("_dynamo")
        if dynamo is None:
            return forward(*args, **kwargs)
        with dynamo.config.patch(
            capture_scalar_outputs=True,
            capture_dynamic_output_shape_ops=True,
            suppress_errors=SUPPRESS_ERRORS,
        ):
            return forward(*args, **kwargs)

    return _unseen(run)


def _unseen(function: Any) -> Any:
    """`function` as plain Python to Dynamo, which goes on with what it calls. Where torch's
    internals are others than known, Dynamo sees the function, and breaks at it."""
    frames = torch._C._dynamo.eval_frame
    try:
        strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.DEFAULT)
        frames.set_code_exec_strategy(function.__code__, strategy)
    except AttributeError:
        pass
    return function
