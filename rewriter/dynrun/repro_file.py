"""`repro.py`: a graph that is compiled wrongly, as a program that fails when it is run alone."""

import base64
import contextlib
import inspect
import re
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...runtime.options import Options, list_options
from ..frontend import api
from .differences import Difference, compare, in_double, observe

_PACKAGE = api.__name__.partition(".")[0]

_PAGE = '''"""Compiled by dynfix, this graph differs from eager. Found by `dynrun --verify`:
{difference}

It fails as long as that is so: `python {name}`. It holds {data}."""

{imports}
from dynfix.rewriter.dynrun.repro_file import check, tensor


def graph({parameters}):
{body}


inputs = [
{inputs}]
check(graph, inputs{settings})
'''


def written(
    module: torch.fx.GraphModule,
    inputs: Sequence[Any],
    difference: Difference,
    options: Options,
    path: str,
    dynamic: bool | None = None,
) -> str:
    """The text of the file at `path`. Raises ValueError where the graph calls what cannot be
    imported."""
    code = module.graph.python_code("self")
    lines = inspect.cleandoc(code.src).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("def forward("))
    used = {
        n: v for n, v in code.globals.items() if re.search(rf"\b{n}\b", code.src) and n != "torch"
    }
    origins = {str(n): n.meta["origin"] for n in module.graph.nodes if "origin" in n.meta}
    body = [_with_origin(line, origins) for line in lines[start + 1 :] if line.strip()]
    return _PAGE.format(
        difference=_safe(str(difference)),
        name=_safe(path),
        data="values of the run" if inputs else "no data",
        imports="\n".join(sorted({"import torch", *_imports(used)})),
        parameters=", ".join(n.name for n in module.graph.nodes if n.op == "placeholder"),
        body="\n".join(body),
        inputs="".join(f"    {_input(value)},\n" for value in inputs),
        settings="".join(f", {k}={v!r}" for k, v in _settings(options, dynamic).items()),
    )


def _settings(options: Options, dynamic: bool | None) -> dict[str, Any]:
    """Arguments of `check` that are not its defaults."""
    casts = [
        (kind, str(torch.get_autocast_dtype(kind)).removeprefix("torch."))
        for kind in ("cpu", "cuda")
        if torch.is_autocast_enabled(kind)
    ]
    backend = options.backend if isinstance(options.backend, str) else "native"
    settings: tuple[tuple[str, Any, Any], ...] = (
        ("backend", backend, "native"),
        ("options", _changed(options), {}),
        ("dynamic", dynamic, None),
        ("autocast", casts, []),
        ("grad", torch.is_grad_enabled(), True),
    )
    return {name: value for name, value, usual in settings if value != usual}


def _changed(options: Options) -> dict[str, Any]:
    values = {name: getattr(options, name) for name in list_options()}
    return {name: v for name, v in values.items() if v != getattr(Options(), name)}


def _safe(text: str) -> str:
    return text.replace("\\", "/").replace('"""', "'''")


def _with_origin(line: str, origins: Mapping[str, str]) -> str:
    origin = origins.get(line.strip().split(" = ")[0].split(":")[0])
    line = line.split(";  ")[0]
    return f"{line}  # {origin.splitlines()[0]}" if origin else line


def _imports(names: Mapping[str, Any]) -> list[str]:
    found = []
    for name, value in names.items():
        if isinstance(value, types.ModuleType):
            found.append(f"import {value.__name__}" + ("" if "." in name else f" as {name}"))
        elif isinstance(value, float):
            found.append(f"{name} = float({str(value)!r})")
        elif value is type(None):
            found.append(f"{name} = type(None)")
        else:
            found.append(_import(name, value))
    return found


def _import(name: str, value: Any) -> str:
    module = getattr(value, "__module__", None)
    own = getattr(value, "__qualname__", getattr(value, "__name__", ""))
    if not module or not own.isidentifier() or module == "__main__":
        raise ValueError(f"the graph calls {value!r}, which cannot be imported")
    return f"from {module} import {own} as {name}"


def _input(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    flat = value.detach().cpu().contiguous().flatten()
    data = base64.b85encode(zlib.compress(flat.view(torch.uint8).numpy().tobytes(), 9)).decode()
    size, stride = tuple(value.shape), tuple(value.stride())
    more = f", {str(value.device)!r}, {value.requires_grad}"
    return f"tensor({size}, {stride}, {value.dtype}{more},\n        {data!r})"


def tensor(
    size: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    device: str,
    requires_grad: bool,
    data: str,
) -> torch.Tensor:
    """A tensor as it was in the run; `data`: its elements in order, compressed."""
    raw = bytearray(zlib.decompress(base64.b85decode(data)))
    flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    made = torch.empty_strided(size, stride, dtype=dtype)
    target = made if 0 not in stride else torch.empty(size, dtype=dtype)
    target.copy_(flat.reshape(size))
    if target is not made:  # an expanded tensor: each element once
        first = tuple(slice(0, 1) if s == 0 else slice(None) for s in stride)
        made = target[first].clone().expand(size)
    return made.to(device).requires_grad_(requires_grad)


def check(
    graph: Callable[..., Any],
    inputs: Sequence[Any],
    backend: str = "native",
    options: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
    autocast: Sequence[tuple[str, str]] = (),
    grad: bool = True,
) -> None:
    """Raise AssertionError where `graph`, compiled, differs from eager on `inputs`. `autocast`:
    kinds of devices and dtypes."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(grad))
        for kind, dtype in autocast:
            stack.enter_context(torch.autocast(kind, getattr(torch, dtype)))
        _check(graph, inputs, backend, options, dynamic)


def _check(
    graph: Callable[..., Any],
    inputs: Sequence[Any],
    backend: str,
    options: Mapping[str, Any] | None,
    dynamic: bool | None,
) -> None:
    builtin = backend in ("native", "eager", "aot_eager")
    own = [value for value in graph.__globals__.values() if _is_own(value)]
    api.allow_in_graph(own)
    compiled = api.compile(
        graph, backend=backend, options=dict(options or {}) if builtin else None, dynamic=dynamic
    )
    observe(compiled, inputs)  # recorded here, and served below
    got = observe(compiled, inputs)
    if not any(entry.hits for entry in compiled._dynfix_entry._dispatcher.entries):
        raise AssertionError("the call ran in eager: the compiled graph raises, or there is none")
    tracer = torch.fx.Tracer(autowrap_functions=tuple(own))
    traced = tracer.trace(graph)  # which makes the root
    module = torch.fx.GraphModule(tracer.root, traced)
    found = compare(
        observe(graph, inputs), got, lambda moved: in_double(module, inputs, (), moved=moved)
    )
    if found is not None:
        raise AssertionError(str(found))
    print("the compiled graph gives eager's results")


def _is_own(value: Any) -> bool:
    """Whether it is what a recording writes into graphs: a function of this package's lowering."""
    name = getattr(value, "__module__", None) or ""
    return isinstance(value, types.FunctionType) and name.startswith(f"{_PACKAGE}.lowering.")
