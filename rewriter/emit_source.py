"""`dynrun --emit-source DIR`: the rewritten text of every function that is reached, one readable
file each."""

import os
import re
from collections.abc import Callable
from types import FunctionType
from typing import Any

from . import emit


def install(folder: str) -> None:
    """From now on write what the rewriter makes to `folder`, which is made if it is not there."""
    os.makedirs(folder, exist_ok=True)
    written: set[int] = set()
    rewrite = emit.rewrite

    def rewrite_and_write(
        fn: FunctionType, forms_factory: Callable[[FunctionType], Any]
    ) -> FunctionType:
        new = rewrite(fn, forms_factory)
        if new is not fn and id(fn.__code__) not in written:
            written.add(id(fn.__code__))
            write(fn, folder)
        return new

    emit.rewrite = rewrite_and_write


def write(fn: FunctionType, folder: str) -> str:
    """Write the rewritten text of `fn`; the path, which holds its module, name and line."""
    code = fn.__code__
    name = re.sub(r"[^\w.-]", "_", f"{fn.__module__}.{fn.__qualname__}.{code.co_firstlineno}.py")
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"# {code.co_filename}:{code.co_firstlineno}, as it runs while it is recorded\n")
        file.write(emit.rewritten_source(fn).rstrip("\n") + "\n")
    return path
