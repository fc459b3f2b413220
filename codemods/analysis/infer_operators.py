"""What an operator of torch gives: dtype, shape, and whether the tensor is a new one."""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import Any

from ...lowering.opinfo import having
from ...rewriter.analysis import torch_facts as tables
from ...rewriter.analysis.kinds import (
    ANY,
    BOOL,
    FLOAT,
    INT,
    LIST,
    NDARRAY,
    NUMBER,
    SIMPLE,
    SIZE,
    TENSOR,
    TENSORS,
    Kind,
)
from .assumed_tensors import picks_axes
from .infer_expressions import Expressions

_LETTERS = {"I": INT, "F": FLOAT, "B": BOOL, "N": NUMBER, "S": SIZE}


class Operators(Expressions):
    """Methods of tensors, and functions of torch that act as they do."""

    def _method(self, node: Any, base: Any, name: str) -> Any:
        """A method of a tensor."""
        if name == "item":
            what = {"bool": BOOL, "int": INT, "float": FLOAT}.get(
                self.tokens.category(base.dtype), NUMBER
            )
            return Kind(what, host=True)
        if name == "tolist":
            return Kind(
                LIST if base.rank != 0 else NUMBER,
                host=True,
                item=Kind(NUMBER, host=True) if base.rank == 1 else None,
            )
        if name == "numpy":
            return Kind(NDARRAY, host=True)
        if name == "size":
            return SIMPLE[SIZE] if node.args or node.keywords else Kind(SIZE, cls="shape")
        if name in ("numel", "dim", "nelement", "ndimension"):
            return SIMPLE[SIZE if name in ("numel", "nelement") else INT]
        letters = tables.METHOD.get(name)
        if letters is None:
            return ANY
        return self.result(name, letters.rstrip("!"), base, node.args, node)

    def result(self, name: str, letters: Any, base: Any, args: Any, node: Any) -> Any:
        """What the operation `name` on the tensor `base` gives; `args` are the others."""
        if not set(letters) & set("TU"):
            return SIMPLE[_LETTERS[letters]] if letters in _LETTERS else ANY
        if letters == "U" or (set(letters) == set("TU") and self._gives_pair(name, args, node)):
            return Kind(TENSORS, parts=self._pair(name, base, args, node))
        named = {k.arg for k in node.keywords}
        if base.is_tensor and name in tables.RETURNS_ITSELF:
            return replace(base, optional=False)
        if not base.is_tensor:
            whole = name in tables.REDUCTIONS and not args and not named
            kind = self.tokens.tensor(fresh=True, rank=0 if whole else None)
        else:
            kind = self._shaped(name, base, args, node)
        makes = name in tables.MAKES and not {"out", "inplace", None} & named
        if name in tables.CASTS:
            makes = self.tokens.category(base.dtype) not in (None, tables.CASTS[name][1])
        if not kind.is_tensor or not makes:
            return replace(kind, made=None)
        taken = [k for k in (base, *map(self.kind, args)) if k.is_tensor]
        dense = all(k.strided for k in taken) and bool(taken)
        whole = name in tables.REDUCTIONS and not args and not named
        return self.new(kind, strided=dense or whole or name in tables.STRIDED)

    def _gives_pair(self, name: str, args: Any, node: Any) -> Any:
        if name in tables.ALWAYS_PAIR:
            return True
        named = any(
            k.arg in ("dim", "return_inverse", "return_counts", "return_indices")
            for k in node.keywords
        )
        if not args or self.kind(args[0]).is_tensor:
            return named
        rows = isinstance(args[0], ast.Subscript) and picks_axes(args[0].slice)  # no number
        return named or (name in tables.PAIR_WITH_DIM and not rows)

    def _shaped(self, name: str, base: Any, args: Any, node: Any) -> Any:
        tokens, fresh = self.tokens, not name.endswith("_") or base.fresh
        if name in ("size",) or name.endswith("__"):
            return ANY
        if name in tables.REDUCTIONS:
            return self._reduced(name, base, args, node)
        if name in tables.CASTS:
            return replace(
                base, dtype=tokens.known(*tables.CASTS[name]), fresh=False, optional=False
            )
        typed = any(k.arg == "dtype" for k in node.keywords)
        if name in tables.SAME:
            alias = name in ("detach", "contiguous", "requires_grad_", "relu_", "clamp_", "dropout")
            dtype = tokens.fresh() if typed else self._kept_dtype(name, base, args, node)
            order = self._order(name, base, node)
            return replace(
                base, dtype=dtype, fresh=fresh and not alias, optional=False, order=order
            )
        if name in tables.SAME_FLOAT and not typed:
            dtype, order = self._float_dtype(name, base), self._order(name, base, node)
            return replace(base, dtype=dtype, fresh=True, optional=False, order=order)
        if name in tables.BINARY and args and len(args) == 1 and not node.keywords:
            return self.binary(_OPERATORS[tables.BINARY[name]], base, self.kind(args[0]))
        if name in tables.BOOL_RESULT:
            return self._truth_table(base, args)
        if name == "t" and not args:
            return replace(tokens.tensor(rank=base.rank), dtype=base.dtype, device=base.device)
        kind = tokens.tensor(fresh=True, rank=self._rank_of(name, base, args))
        kind = replace(kind, device=base.device)
        if name in tables.INT_RESULT:
            return replace(kind, dtype=tokens.int64)
        kept = name in tables.KEEPS or (name == "view" and kind.rank is not None)
        return replace(kind, dtype=base.dtype) if kept else kind

    def _pair(self, name: str, base: Any, args: Any, node: Any) -> tuple[Kind, ...]:
        """(values, indices) of an operator that searches along an axis."""
        if not base.is_tensor or name not in _SEARCHES:
            return ()
        rank = base.rank if name in ("sort", "topk", "cummax", "cummin") else None
        rank = self._less_axes(base, args, node) if name in _SEARCHED else rank
        values = replace(self.tokens.tensor(rank=rank), dtype=base.dtype)
        return values, replace(self.tokens.tensor(rank=rank), dtype=self.tokens.int64)

    def _rank_of(self, name: str, base: Any, args: Any) -> int | None:
        """The rank of what an operator gives that moves, adds or cuts axes."""
        if name in _SAME_RANK:
            return base.rank
        if name in _STEPS and base.rank is not None:
            return max(base.rank + _STEPS[name], 0)
        if name == "flatten" and not args:
            return 1
        if name not in _BY_SIZES or not args:
            return None
        sizes = args[0].elts if isinstance(args[0], (ast.Tuple, ast.List)) else args
        plain = all(self._is_one_size(s) for s in sizes)
        return len(sizes) if plain and (sizes is args or len(args) == 1) else None

    def _is_one_size(self, node: ast.expr) -> bool:
        kind = self.kind(node)
        return (
            kind.what in (INT, SIZE) and kind.cls != "shape" and not isinstance(node, ast.Starred)
        )

    def _less_axes(self, base: Any, args: Any, node: Any) -> int | None:
        """The rank behind a reduction along one axis."""
        named = {k.arg: k.value for k in node.keywords}
        at = args[0] if args else named.get("dim")
        one = at is not None and self.kind(at).what == INT
        kept = args[1] if len(args) > 1 else named.get("keepdim", ast.Constant(False))
        if base.rank is None or not one or type(getattr(kept, "value", None)) is not bool:
            return None
        return base.rank if kept.value else max(base.rank - 1, 0)

    def _order(self, name: str, base: Any, node: Any) -> Any:
        if any(k.arg == "memory_format" for k in node.keywords):
            return self.tokens.fresh()
        if name == "contiguous":
            return self.tokens.of("order", "contiguous")
        return self.tokens.fresh() if name in tables.REORDERS else base.order

    def _truth_table(self, base: Any, args: Any) -> Any:
        other = self.kind(args[0]) if args else SIMPLE[INT]
        shape, rank, low = self.tokens.broadcast(base, other)
        order = self.tokens.order_of(base, other)
        return Kind(
            TENSOR, self.tokens.bool, shape, base.device, rank, low, fresh=True, order=order
        )

    def _reduced(self, name: str, base: Any, args: Any, node: Any) -> Any:
        """A reduction: to a scalar where no axis is named."""
        tokens = self.tokens
        norm = name == "norm" and all(k.arg == "p" for k in node.keywords) and len(args) <= 1
        whole = (not args and not node.keywords) or norm
        pairwise = name in ("max", "min") and args and self.kind(args[0]).is_tensor
        if pairwise:
            return self.binary(ast.Add(), base, self.kind(args[0]))
        dtype = self._reduced_dtype(name, base)
        along = name not in ("norm", "std", "var")  # these take other numbers first
        rank = 0 if whole else self._less_axes(base, args, node) if along else None
        return replace(tokens.tensor(rank=rank, fresh=True), device=base.device, dtype=dtype)

    def _kept_dtype(self, name: str, base: Any, args: Any, node: Any) -> Any:
        """The dtype of an operator of SAME: mostly the tensor's own."""
        tokens, category = self.tokens, self.tokens.category(base.dtype)
        if name in tables.SUMS_UP:
            return self._summed_dtype(name, base)
        numbers = name in tables.KEEPS_NUMBERS and category in ("int", "float")
        if name.startswith("cl") and name != "clone":
            bounds = [self.kind(n) for n in (*args, *(k.value for k in node.keywords))]
            whole = all(b.what in (INT, BOOL, SIZE, "none") and not b.optional for b in bounds)
            real = all(b.is_number or b.what == "none" for b in bounds)
            numbers = (category == "int" and whole) or (category == "float" and real)
        return base.dtype if name in tables.KEEPS or numbers else tokens.fresh()

    def _float_dtype(self, name: str, base: Any) -> Any:
        """The dtype of an operator that makes floats; of its own choice under autocast."""
        tokens, category = self.tokens, self.tokens.category(base.dtype)
        if name in tables.REAL_ONLY and category in (None, "inexact"):
            return tokens.some("float")
        token = tokens.float_of(base.dtype)
        return tokens.of_category(token) if name in tables.AUTOCAST else token

    def _summed_dtype(self, name: str, base: Any) -> Any:
        category = self.tokens.category(base.dtype)
        if category in ("int", "bool"):
            return self.tokens.int64
        return self.tokens.some(category or "number")

    def _reduced_dtype(self, name: str, base: Any) -> Any:
        tokens = self.tokens
        category = tokens.category(base.dtype)
        if name in tables.BYTES_STAY:
            other = category in ("bool", "float", "inexact") or base.dtype == tokens.int64
            return tokens.bool if other else tokens.fresh()
        if name in tables.BOOL_RESULT:
            return tokens.bool
        if name in tables.INT_RESULT:
            return tokens.int64
        if name in tables.SUMS_UP:
            return self._summed_dtype(name, base)
        if name in ("max", "min", "amax", "amin", "median", "nanmedian"):
            return base.dtype
        if category == "float":
            return tokens.some("float") if name in tables.AUTOCAST else base.dtype
        return tokens.some("inexact")


# Which axis is which, or where things lie along it, and not how many there are.
_SAME_RANK = having("keeps_rank")
_STEPS = {"unsqueeze": 1, "select": -1}
_BY_SIZES = frozenset(["permute", "view", "reshape", "expand", "repeat"])
_SEARCHED = frozenset(["max", "min", "median", "mode", "kthvalue"])  # along an axis, which goes
_SEARCHES = _SEARCHED | {"sort", "topk", "cummax", "cummin"}
_OPERATORS = {"+": ast.Add(), "-": ast.Sub(), "*": ast.Mult(), "/": ast.Div()}
