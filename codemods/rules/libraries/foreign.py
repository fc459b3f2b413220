"""DYN601: a call into code that cannot be traced, on a tensor's data."""

from __future__ import annotations

import ast
import importlib.machinery
import os
from collections.abc import Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...analysis.project_graph import Modules
from ..base import Rule

if TYPE_CHECKING:
    from ...analysis.file_context import FileContext
    from ...analysis.findings import Finding


# What Dynamo skips by its own lists, and packages that compute in C or in other processes.
_OPAQUE = frozenset(
    """
    PIL cv2 ctranslate2 cupy editdistance faiss h5py hypothesis jax json librosa matplotlib marshal
    multiprocessing networkx nltk numba onnx onnxruntime onnx_tf open3d pandas pickle pycocotools
    pyworld sacrebleu scipy shapely skimage sklearn soundfile subprocess tabulate tensorflow
    tensorrt torch2trt tqdm tree trimesh tvm wandb xarray
    """.split()
)
# Of torch itself: what Dynamo does not follow into.
_SKIPPED = frozenset(
    """
    torch.nn.utils.rnn.pack_padded_sequence torch.nn.utils.rnn.pad_packed_sequence
    torch.sparse_coo_tensor torch.sparse_csr_tensor torch.autograd.grad
    """.split()
)
_EXTENSIONS = (*importlib.machinery.EXTENSION_SUFFIXES, ".pyx", ".pyd", ".so")


class ForeignLibraryCall(Rule):
    """
    A tensor that leaves for a library in C, or for plain Python data (`json`, `scipy`, `PIL`,
    `cv2`, `pandas`), cannot be traced there. Wrap the call with `torch.library.custom_op` and give
    it a fake function that says what shape comes out, or, where it is made of torch calls alone,
    mark it with `torch.compiler.allow_in_graph`. Dynamo leaves out some functions of torch, too:
    packed sequences, sparse tensors that are made in the graph, and `torch.autograd.grad` (unless
    `torch._dynamo.config.trace_autograd_ops` is set): call them outside of it. Python source, the
    project's own or a package's, is traced, and not reported.
    """

    code = "DYN601"
    nodes = (ast.Call,)
    before = """
import json

import torch


@torch.compile
def step(x: torch.Tensor):
    text = json.dumps(x.tolist())
    return torch.relu(x) + len(text)
"""

    def check(self, node: Any, context: FileContext) -> Iterable[Finding]:
        name = context.resolve(node.func)
        if not name or not _imported(name, context):
            return
        if name in _SKIPPED:
            yield context.finding(self, node, f"`{name}` cannot be traced")
            return
        if not _is_opaque(name, context.source.path):
            return
        kinds = [context.kind(a) for a in node.args]
        kinds += [context.kind(k.value) for k in node.keywords]
        if any(k.is_tensor or k.host or k.what in ("tensors", "ndarray") for k in kinds):
            yield context.finding(
                self, node, f"a tensor goes into `{name}`, which cannot be traced"
            )


def _imported(name: str, context: FileContext) -> bool:
    known = context.names.aliases.values()
    return any(name == full or name.startswith(f"{full}.") for full in known)


@lru_cache(maxsize=4096)
def _is_opaque(name: str, path: str) -> bool:
    """Whether the file at `path` gets under this name what no tracer can follow: it is of a listed
    package, or of a compiled extension beside the file."""
    known = _ON_DISK.find(os.path.realpath(path), name)
    if known is None:
        return name.split(".")[0] in _OPAQUE
    file, rest = known
    folder = os.path.dirname(file or "")
    module = os.path.join(folder, rest.split(".")[0])
    inside = bool(rest) and os.path.basename(file or "") == "__init__.py"
    return inside and any(os.path.exists(module + end) for end in _EXTENSIONS)


_ON_DISK = Modules(*(lru_cache(maxsize=65536)(test) for test in (os.path.isfile, os.path.isdir)))
