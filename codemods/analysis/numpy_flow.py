"""What becomes of a tensor on its way through NumPy and SciPy in a short function: of which
parameter the result has the shape, dtype and device, and which library functions it meets."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...rewriter.analysis.torch_facts import DTYPE_NAMES, DTYPES, NUMPY_ELEMENTWISE

if TYPE_CHECKING:
    from .definitions import Function
    from .file_context import FileContext


def _words(prefix: Any, text: str) -> Any:
    return frozenset(prefix + name for name in text.split())


# New arrays of the first argument's shape and dtype, in C order.
KEEPS = _words(
    "scipy.ndimage.",
    """
        gaussian_filter gaussian_filter1d uniform_filter uniform_filter1d median_filter
        maximum_filter maximum_filter1d
        minimum_filter minimum_filter1d percentile_filter rank_filter convolve convolve1d correlate
        correlate1d sobel prewitt
        laplace gaussian_laplace gaussian_gradient_magnitude grey_dilation grey_erosion grey_opening
        grey_closing
        morphological_gradient black_tophat white_tophat
        """,
) | _words("scipy.signal.", "medfilt medfilt2d")
# Elementwise; of float32 float32, of float64 float64.
FLOATS = _words(
    "scipy.special.",
    """
    ellipk ellipe ellipkm1 spence dawsn rgamma log_expit exprel exp1 expi bei ber kei ker erfcinv
    cbrt exp10 cosm1
    jv yv kv iv jve yve kve ive agm boxcox boxcox1p inv_boxcox inv_boxcox1p owens_t
    """,
)
# Of the first argument's shape, and of this dtype.
NAMED = {"numpy.interp": "float64", "numpy.digitize": "int64", "numpy.isin": "bool"}
# What torch has itself, and an operator is not needed for.
IN_TORCH = _words(
    "scipy.special.",
    """
    digamma psi entr erf erfc erfcx erfinv exp2 expit expm1 gammainc gammaincc gammaln i0 i0e i1 i1e
    log1p log_ndtr logit
    softmax log_softmax logsumexp multigammaln ndtr ndtri polygamma sinc xlog1py xlogy zeta j0 j1 y0
    y1 k0 k1 k0e k1e
    """,
)
LIBRARIES = frozenset("scipy PIL cv2 pandas skimage".split())
_SAME_FUNCTIONS = (
    "numpy.asarray",
    "numpy.array",
    "numpy.ascontiguousarray",
    "torch.from_numpy",
    "torch.as_tensor",
    "torch.tensor",
)
_COPIES = ("numpy.array", "torch.tensor")
_SAME_METHODS = (
    "detach",
    "cpu",
    "contiguous",
    "clone",
    "copy",
    "numpy",
    "float",
    "double",
    "to",
    "type_as",
    "astype",
)
_CASTS = {"float": "float32", "double": "float64"}


class Unfollowed(Exception):
    """The text does not tell; the message says why."""


class InTorch(Unfollowed):
    """torch has the function."""


@dataclass(frozen=True)
class Array:
    """A tensor or an array. `shape`, `device`: those of this parameter (`device` may be "cpu");
    `dtype`: ("of", parameter) or ("is", name); None where not known. `fresh`: in no parameter's
    memory; `c_order`: surely contiguous."""

    host: bool
    shape: str | None = None
    dtype: tuple | None = None
    device: str | None = None
    fresh: bool = False
    c_order: bool = False


class NumpyFlow:
    """Follows the statements of one function; `tensors` are its parameters that are tensors,
    `numbers` the others. `met`: the library functions that torch.compile cannot trace; `floating`:
    parameters that are taken to be float32 or float64."""

    def __init__(
        self, context: FileContext, function: Function, tensors: list[str], numbers: list[str]
    ) -> None:
        self.context, self.function, self.numbers = context, function, set(numbers)
        self.env = {name: Array(False, name, ("of", name), name) for name in tensors}
        self.met, self.floating = [], set()

    def result(self) -> Array | None:
        """The Array that the function returns; Unfollowed where it does more than assign and
        return."""
        body = self.function.node.body
        for statement in body[:-1]:
            self._statement(statement)
        last = body[-1]
        if not isinstance(last, ast.Return) or last.value is None:
            raise Unfollowed("its body is more than assignments and a return")
        return self.value(last.value)

    def _statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        if (
            not isinstance(node, ast.Assign)
            or len(node.targets) != 1
            or not isinstance(node.targets[0], ast.Name)
        ):
            raise Unfollowed("its body is more than assignments and a return")
        name, value = node.targets[0].id, self.value(node.value)
        self.numbers.discard(name)
        self.env.pop(name, None)
        if value is None:
            self.numbers.add(name)
        else:
            self.env[name] = value

    # Expressions: an Array, or None for a Python number or another plain value

    def value(self, node: ast.expr) -> Array | None:
        handler = getattr(self, f"_on_{type(node).__name__}", None)
        if handler is None:
            raise Unfollowed(f"`{self.context.segment(node)}` is not followed")
        return handler(node)

    def _on_Constant(self, node: ast.Constant) -> None:
        return None

    def _on_Name(self, node: ast.Name) -> Array | None:
        if node.id in self.env or node.id in self.numbers:
            return self.env.get(node.id)
        raise Unfollowed(f"`{node.id}` is not followed")

    def _on_Tuple(self, node: ast.List) -> None:
        if any(self.value(e) is not None for e in node.elts):
            raise Unfollowed("it puts tensors together")

    _on_List = _on_Tuple

    def _on_Attribute(self, node: Any) -> None:
        """A size, dtype or device of a parameter, or a library's constant."""
        known = (
            isinstance(node.value, ast.Name)
            and node.value.id in self.env
            and node.attr in ("shape", "dtype", "device")
        )
        if not known and not (self.context.resolve(node) or "").startswith(("numpy.", "torch.")):
            raise Unfollowed(f"`{self.context.segment(node)}` is not followed")

    def _on_UnaryOp(self, node: Any) -> Any:
        value = self.value(node.operand)
        return value and self._elementwise([value])

    def _on_BinOp(self, node: ast.BinOp) -> Array | None:
        values = [v for v in (self.value(node.left), self.value(node.right)) if v is not None]
        return self._elementwise(values) if values else None

    def _elementwise(self, values: list[Array]) -> Array | None:
        """Of arrays that agree, or of one and Python numbers."""
        if len({(v.host, v.shape, v.dtype, v.device) for v in values}) != 1:
            raise Unfollowed("it combines tensors that may differ in shape or dtype")
        value = values[0]
        self._float(value)
        return replace(value, fresh=True, c_order=all(v.c_order for v in values))

    def _float(self, value: Array) -> None:
        if value.dtype and value.dtype[0] != "is":
            self.floating.add(value.dtype[1])

    def _on_Call(self, node: ast.Call) -> Array | None:
        if isinstance(node.func, ast.Attribute):
            root = self.context.resolve(node.func)
            base = None if root and self._imported(root) else self.value(node.func.value)
            if base is not None:
                return self._method(node, base)
        return self._named(node, self.context.resolve(node.func) or "")

    def _imported(self, name: str) -> bool:
        return name.split(".")[0] in {
            full.split(".")[0] for full in self.context.names.aliases.values()
        }

    def _named(self, node: ast.Call, name: str) -> Array | None:
        values = [self.value(a) for a in node.args]
        arrays = [v for v in values if v is not None]
        for keyword in node.keywords:
            if self.value(keyword.value) is not None or keyword.arg in ("output", "out", None):
                raise Unfollowed("a result is written into an argument")
        if name in _SAME_FUNCTIONS and values[:1] == arrays[:1] and len(arrays) == 1:
            return self._same(node, name, arrays[0])
        if ".random" in name or name.split(".")[0] in ("random", "torch"):
            raise Unfollowed(f"`{name}` is not followed")
        if not arrays and (
            name in ("int", "float", "len", "max", "min") or name.startswith("math.")
        ):
            return None
        return self._library(node, name, arrays, values[0] if values else None)

    def _same(self, node: ast.Call, name: str, value: Array) -> Array:
        value = replace(value, host=name.startswith("numpy."), fresh=value.fresh or name in _COPIES)
        value = replace(
            value, c_order=value.c_order or name in ("torch.tensor", "numpy.ascontiguousarray")
        )
        for keyword in node.keywords:
            if keyword.arg not in ("dtype", "device"):
                raise Unfollowed(f"`{name}` is not followed")
            value = self._cast(keyword.value, value)
        return value

    def _library(self, node: ast.Call, name: str, arrays: list[Array], first: Array | None) -> Any:
        """Beside the first, arrays are weights, bins and the like: they change neither shape nor
        dtype."""
        root = name.split(".")[0]
        if root not in LIBRARIES and root != "numpy":
            raise Unfollowed(f"`{name or self.context.segment(node.func)}` is not followed")
        if arrays and (root != "numpy" or name in KEEPS or name in NAMED):
            self.met.append(name)
        if name in KEEPS and first is not None:
            return replace(first, host=True, fresh=True, c_order=True)
        if name in NAMED and first is not None:
            return replace(first, host=True, dtype=("is", NAMED[name]), fresh=True, c_order=False)
        if not arrays:
            return Array(True)
        if name in FLOATS or (name[6:] in NUMPY_ELEMENTWISE and root == "numpy"):
            return self._elementwise([replace(a, host=True) for a in arrays])
        return Array(True)

    # Methods

    def _method(self, node: ast.Call, base: Array) -> Array:
        name = node.func.attr
        if (
            name in ("reshape", "view", "reshape_as", "view_as")
            and len(node.args) == 1
            and not node.keywords
        ):
            return replace(base, shape=self._shape(node.args[0]))
        if name not in _SAME_METHODS:
            if base.host and base.shape is None:
                return Array(True)
            raise Unfollowed(f"`.{name}()` is not followed")
        value = replace(
            base,
            host=name in ("numpy", "astype", "copy"),
            fresh=base.fresh or name in ("clone", "copy", "astype"),
        )
        if name == "cpu":
            value = replace(value, device="cpu")
        if name in _CASTS:
            value = replace(value, dtype=("is", _CASTS[name]))
        for part in [*node.args, *(k.value for k in node.keywords)]:
            value = self._cast(part, value)
        return replace(value, c_order=value.c_order or name == "contiguous")

    def _shape(self, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute) and node.attr == "shape":
            node = node.value
        value = self.env.get(node.id) if isinstance(node, ast.Name) else None
        if value is None or value.shape is None:
            raise Unfollowed("its result's shape is not known from the text")
        return value.shape

    def _cast(self, node: ast.expr, value: Array) -> Array:
        """`value` as an argument of `.to` and the like makes it."""
        name = self.context.resolve(node) or ""
        last = name.rpartition(".")[2]
        if name.startswith(("torch.", "numpy.")) and last in DTYPES:
            return replace(value, dtype=("is", DTYPE_NAMES.get(last, last)))
        own = node.value if isinstance(node, ast.Attribute) else node
        like = self.env.get(own.id) if isinstance(own, ast.Name) else None
        if (
            like is None
            or like.shape is None
            or (isinstance(node, ast.Attribute) and node.attr not in ("dtype", "device"))
        ):
            raise Unfollowed(f"`{self.context.segment(node)}` is not followed")
        both = not isinstance(node, ast.Attribute)
        value = replace(value, dtype=like.dtype) if both or node.attr == "dtype" else value
        return replace(value, device=like.device) if both or node.attr == "device" else value
