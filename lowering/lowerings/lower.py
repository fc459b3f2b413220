"""From a core-ATen graph to loop nests and extern calls."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node

from ...runtime.errors import LoweringError
from ..host_scalars import APART
from ..loops.ir import Buffer
from ..loops.kernel_graph import (
    KERNEL_DEVICES,
    KERNEL_DTYPES,
    ExternCall,
    Item,
    Layout,
    Ref,
    Symbol,
    Unit,
    extent,
    leaves,
)
from ..loops.polynomials import is_known
from ..loops.symint import GraphSymbols
from ..recurrent_operators import CALLED, KEEPING
from . import (
    lower_adaptive,
    lower_index,
    lower_max_pool,
    lower_padding,
    lower_pointwise,
    lower_pool,
    lower_random,
    lower_reduction,
    lower_scatter,
)
from .lower_attention import attention
from .lower_convolutions import with_wider_groups
from .lower_depthwise import depthwise_in_loops, turned_depthwise
from .lower_implicit_gemm import implicit_gemm
from .lower_products import aligned_product, wants_alignment, with_room
from .lower_writes import Write, write_back
from .lowering_context import LoweringContext
from .registry import LOWERINGS, Unsupported

aten = torch.ops.aten
TABLES = (
    lower_adaptive,
    lower_pointwise,
    lower_reduction,
    lower_index,
    lower_max_pool,
    lower_scatter,
    lower_padding,
    lower_pool,
    lower_random,
)  # imported for the lowerings that they register
# Products and convolutions in another form than the library's call, where that is faster.
OTHER_FORMS = (
    with_room,
    with_wider_groups,
    turned_depthwise,
    depthwise_in_loops,
    implicit_gemm,
)
_VIEWS = frozenset(
    {aten._unsafe_view.default, aten._reshape_alias.default, aten.lift_fresh.default}
)


def lower_graph(
    gm: GraphModule, name: str, symbolic_loops: bool = True, ordered: bool = True
) -> Unit:
    """The unit of a functional core-ATen graph whose nodes carry fake values in `meta["val"]`.
    symbolic_loops: whether the target's kernels can have sizes that only a call knows; ordered:
    whether they can store at positions from memory, one after the other; else such nodes are extern
    calls."""
    lowering = GraphLowering(gm, name, symbolic_loops, ordered)
    for node in gm.graph.nodes:
        lowering.visit(node)
    return lowering.unit()


def origin(node: Node) -> str:
    """Where the node comes from: "model.py:41  y = x.relu()", or the operator's name."""
    trace = node.meta.get("origin") or node.meta.get("stack_trace")
    if not trace:
        return str(node.target)
    lines = [line.strip() for line in str(trace).strip().splitlines() if line.strip()]
    if len(lines) >= 2 and lines[-2].startswith("File "):
        place = lines[-2].split(",")
        file = place[0].removeprefix("File ").strip('"').rsplit("/", 1)[-1]
        return f"{file}:{place[1].strip().removeprefix('line ')}  {lines[-1]}"
    return lines[-1]


def _is_negative(value: Any) -> bool:
    """Whether these are the negatives of what memory shows."""
    return isinstance(value, torch.Tensor) and value.is_neg()


def _works_on(target: Any) -> bool:
    """Whether the call only begins: a collective reads its argument until it is waited for, and
    waiting gives the tensor that is waited for."""
    return getattr(target, "namespace", "") in ("_c10d_functional", "_c10d_functional_autograd")


class GraphLowering:
    def __init__(self, gm: GraphModule, name: str, symbolic_loops: bool, ordered: bool) -> None:
        self.gm, self.name, self.symbolic_loops = gm, name, symbolic_loops
        placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
        self.symbols = GraphSymbols(
            [(f"arg{k}", node.meta.get("val")) for k, node in enumerate(placeholders)]
        )
        self.ctx = LoweringContext(self.symbols, ordered)
        self.values: dict[Node, Any] = {}
        self.inputs: list[Any] = []
        self.outputs: tuple[Any, ...] = ()
        self.constants: dict[Buffer, torch.Tensor] = {}
        self.writes: list[Write] = []

    def unit(self) -> Unit:
        ctx = self.ctx
        variables = tuple(self.symbols.variables)
        return Unit(
            self.name,
            tuple(self.inputs),
            self.outputs,
            tuple(ctx.items),
            ctx.layouts,
            self.constants,
            variables,
        )

    def visit(self, node: Node) -> None:
        self.ctx.origin = origin(node)
        try:
            getattr(self, "visit_" + node.op)(node)
        except (LoweringError, Unsupported):
            raise
        except Exception as error:
            raise LoweringError(
                f"{node.target} could not be lowered ({self.ctx.origin}): {error}"
            ) from error

    def visit_placeholder(self, node: Node) -> None:
        value = node.meta.get("val")
        name = f"arg{len(self.inputs)}"
        made = None if value is None else self._variable(name, value)
        self.values[node] = made
        self.inputs.append(made if made is None or isinstance(made, Ref) else Symbol(name))

    def _variable(self, name: str, value: Any) -> Any:
        """A strided tensor as a `Ref`, a size as such; what has no known form as a name that extern
        calls pass on."""
        try:
            if isinstance(value, torch.Tensor) and value.layout == torch.strided:
                return self._named(name, value)
            if isinstance(value, torch.SymInt):
                return self.symbols.size(value)
        except Unsupported:
            pass
        return Symbol(name)

    def visit_get_attr(self, node: Node) -> None:
        value = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            self.values[node] = value
            return
        ref = self._named(f"const{len(self.constants)}", value)
        self.constants[ref.buffer] = value
        self.values[node] = ref

    def _named(self, name: str, value: torch.Tensor) -> Ref:
        shape, strides = self.symbols.shape(value), self.symbols.strides(value)
        buffer = Buffer(name, value.dtype, extent(shape, strides))
        self.ctx.layouts[buffer] = Layout(shape, strides, value.device)
        return Ref(buffer, shape, strides)

    def visit_output(self, node: Node) -> None:
        outputs = tuple(self.resolve(arg) for arg in node.args[0])  # type: ignore[union-attr]
        self.outputs = write_back(self.ctx, self.writes, outputs)

    def resolve(self, arg: Any) -> Any:
        """An fx argument with nodes replaced by what they were lowered to."""
        if isinstance(arg, Node):
            return self.values[arg]
        if isinstance(arg, list | tuple):
            return (
                type(arg)(self.resolve(item) for item in arg)
                if type(arg) in (list, tuple)
                else [*map(self.resolve, arg)]
            )
        if isinstance(arg, dict):
            return {key: self.resolve(item) for key, item in arg.items()}
        return (
            slice(*map(self.resolve, (arg.start, arg.stop, arg.step)))
            if isinstance(arg, slice)
            else arg
        )

    def visit_call_function(self, node: Node) -> None:
        target: Any = node.target
        source = self.values.get(node.args[0])  # type: ignore[arg-type]
        if getattr(target, "__name__", "") == "getitem" and isinstance(source, tuple):
            self.values[node] = source[node.args[1]]  # type: ignore[index]
            return
        if target is aten.copy_.default:
            self._write(node)
            return
        made = self._number(node)
        if made is None:
            made = (
                (self._view(node) if self._is_view(target) else None)
                or self._loops(node)
                or self._extern(node, target)
            )
        self.values[node] = made

    def _write(self, node: Node) -> None:
        """AOTAutograd's copy of a new value to an input, which comes after everything else."""
        target, source = self.resolve(node.args[:2])
        static = self.symbolic_loops or self._is_static(node)
        shown = not any(map(_is_negative, self._examples(node)))
        self.writes.append(
            Write(target, source, self.ctx.origin, static and shown and self._one_device(node))
        )
        self.values[node] = source

    def _number(self, node: Node) -> Any:
        """The size that the node computes: nothing needs to run for it."""
        value = node.meta.get("val")
        made = self._variable("", value) if isinstance(value, torch.SymInt) else None
        return None if isinstance(made, Symbol) else made

    def _examples(self, node: Node) -> list[Any]:
        return [node.meta.get("val"), *(source.meta.get("val") for source in node.all_input_nodes)]

    @staticmethod
    def _is_view(target: Any) -> bool:
        return target in _VIEWS or (isinstance(target, torch._ops.OpOverload) and target.is_view)

    def _view(self, node: Node) -> Any:
        """A view of a strided tensor: what the fake tensors say of its strides, over the same
        buffer."""
        base_node = node.args[0]
        base = self.values.get(base_node)  # type: ignore[arg-type]
        if not isinstance(base, Ref):
            return None
        base_value, value = base_node.meta["val"], node.meta["val"]  # type: ignore[union-attr]
        try:
            if isinstance(value, list | tuple):
                views = [self._view_of(base, base_value, item) for item in value]
                return tuple(views) if all(view is not None for view in views) else None
            return self._view_of(base, base_value, value)
        except Unsupported:
            return None

    def _view_of(self, base: Ref, base_value: torch.Tensor, value: torch.Tensor) -> Ref | None:
        if value.dtype != base.dtype or value.layout != torch.strided:
            return None
        if value.is_conj() != base_value.is_conj() or value.is_neg() != base_value.is_neg():
            return None
        if base.strides != self.symbols.strides(base_value) and base.numel != 0:
            return None
        moved = self.symbols.size(value.storage_offset()) - self.symbols.size(
            base_value.storage_offset()
        )
        return Ref(
            base.buffer, self.symbols.shape(value), self.symbols.strides(value), base.offset + moved
        )

    def _loops(self, node: Node) -> Any:
        """The node as loop nests, or None if it has no such form."""
        lowering = LOWERINGS.get(node.target)
        if lowering is None or not self._one_device(node) or self._is_foreign(node):
            return None
        args, kwargs = self.resolve(node.args), self.resolve(node.kwargs)
        if any(isinstance(leaf, Symbol) for leaf in leaves((args, kwargs))):
            return None
        mark = len(self.ctx.items)
        try:
            if not self.symbolic_loops and not self._is_static(node):
                return None
            return lowering(self.ctx, node, *args, **kwargs)
        except Unsupported:
            del self.ctx.items[mark:]
            return None

    def _is_static(self, node: Node) -> bool:
        values = [
            leaf
            for leaf in leaves(self._examples(node))
            if isinstance(leaf, torch.Tensor | torch.SymInt)
        ]
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        numbers = [n for t in tensors for n in (*self.symbols.shape(t), *self.symbols.strides(t))]
        return all(map(is_known, numbers)) and len(tensors) == len(values)

    def _is_foreign(self, node: Node) -> bool:
        """Whether numbers that kernels do not have are taken or given, or negatives that memory
        does not show."""
        tensors = (v for v in leaves(self._examples(node)) if isinstance(v, torch.Tensor))
        return any(each.dtype not in KERNEL_DTYPES or _is_negative(each) for each in tensors)

    def _one_device(self, node: Node) -> bool:
        """Whether all its tensors are on one device, which kernels are made for: those of the meta
        device have no memory."""
        tensors = (v for v in leaves(self._examples(node)) if isinstance(v, torch.Tensor))
        devices = {each.device for each in tensors}
        return len(devices) == 1 and all(device.type in KERNEL_DEVICES for device in devices)

    def _extern(self, node: Node, target: Callable[..., Any]) -> Any:
        args, kwargs = self.resolve(node.args), self.resolve(node.kwargs)
        if wants_alignment(node) and all(isinstance(arg, Ref) for arg in args):
            return aligned_product(self.ctx, node, args)
        made = attention(self.ctx, node, args, self._inner)
        if made is not None:
            return made
        for other_form in OTHER_FORMS:
            made = other_form(self.ctx, node, args)
            if made is not None:
                return made
        schema = getattr(target, "_schema", None)
        aliases = schema is not None and any(
            result.alias_info is not None for result in schema.returns
        )
        aliases |= target in KEEPING or target is APART or _works_on(target)
        result = self._extern_result(node.meta.get("val"))
        target = CALLED.get(target) or target
        self.ctx.items.append(ExternCall(target, args, kwargs, result, self.ctx.origin, aliases))
        return result

    def _inner(self, gm: GraphModule, given: Sequence[Any]) -> tuple[list[Any], list[Item]]:
        """What a graph inside of this one gives of such inputs, and its loops and calls."""
        own = GraphLowering(gm, self.name, self.symbolic_loops, self.ctx.ordered)
        own.symbols, own.constants = self.symbols, self.constants
        own.ctx = self.ctx.inner()
        places = [node for node in gm.graph.nodes if node.op == "placeholder"]
        own.values.update(zip(places, given, strict=True))
        for node, ref in own.values.items():
            if isinstance(ref, Ref) and ref.buffer.scope == "local":
                own.ctx.layouts[ref.buffer] = Layout((), (), node.meta["val"].device)
        for node in gm.graph.nodes:
            if node.op not in ("placeholder", "output"):
                own.visit(node)
        outputs: Any = gm.graph.output_node().args[0]
        outputs = outputs if isinstance(outputs, list | tuple) else (outputs,)
        return [*map(own.resolve, outputs)], own.ctx.items

    def _extern_result(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return tuple(self._extern_result(item) for item in value)
        if value is None:
            return None
        return self._variable(
            self.ctx.fresh("ext" if isinstance(value, torch.Tensor) else "sym"), value
        )
