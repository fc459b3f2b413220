"""The lowering alone, as a backend of torch.compile: `torch.compile(model, backend="dynfix")`."""

from collections.abc import Mapping
from typing import Any

import torch

from ..runtime.environment.supported_torch import warn_if_untested
from ..runtime.errors import OptionError
from ..runtime.options import Options, check_names, list_mode_options, list_options
from . import joint


def dynfix(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile a graph that Dynamo captured. `mode` and `options` as those of `dynfix.compile`.
    Raises OptionError for unknown ones, LoweringError, BuildError."""
    warn_if_untested()
    if mode is not None and options is not None:
        raise OptionError("either mode or options can be given, not both")
    check_names(options or {}, list_options())
    chosen = {**(list_mode_options(mode) if mode is not None else {}), **(options or {})}
    return joint.compile_graph(gm, example_inputs, Options().replace(**chosen))
