"""What AOTAutograd puts around compiled graphs, as plain data, and put around again.

torch keeps of one compilation `ViewAndMutationMeta` (which inputs are written, which outputs are
views, what the backward is given) and builds its runtime wrappers from that; its own cache does so
from a pickle. Here the same metadata is data, made of torch's classes that are listed.
"""

import dataclasses
import enum
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C import _functionalization

from ...runtime.cache.plain_data import Damaged, Decoder, Encoder, Unstorable
from ...runtime.errors import LoweringError
from .aot_calls import RuntimeWrapper, Wrapped, post_compile, watched
from .aot_parts import descriptors, functional_utils, runtime_wrappers, schemas
from .direct_calls import program_in
from .fast_wrappers import lean_call, plain_writes

_numbers = itertools.count(1 << 20)  # of functions that AOTAutograd did not make


def keep_saved(one: Wrapped) -> None:
    """Let a backward be run again: programs leave what they are given as it is."""
    one.metadata.bw_donated_idxs = []


def check_replayed(graph: torch.fx.GraphModule, metadata: Any, inputs: Sequence[Any]) -> None:
    """Views are made again of their base by the same operators; where symbols are among their
    arguments, or the base is given another shape, torch goes by the layout of the new value
    instead, which need not be that of an input which the graph writes, and keeps the base's dtype.
    Raises LoweringError there."""
    symbolic = any(isinstance(t, torch.Tensor) and t._has_symbolic_sizes_strides for t in inputs)
    kinds = schemas.OutputType
    for made in metadata.output_info:
        views = getattr(made, "view_meta_sequence", None)
        if views and _reads_conjugates(views.sequence):
            raise LoweringError("a view of a conjugate's parts would be made of the conjugate")
        replayed = views and not any(one.has_symbolic_inputs for one in views.sequence)
        if replayed or made.output_type in (kinds.non_alias, kinds.is_input):
            continue
        of_input = made.output_type is kinds.alias_of_input
        if symbolic and of_input and metadata.input_info[made.base_idx].mutates_data:
            raise LoweringError("a view of an input that is written has symbolic sizes")
        if (symbolic or of_input) and any(map(_views_as_dtype, graph.graph.nodes)):
            raise LoweringError("a view in another dtype may be returned, made by its layout alone")


def _reads_conjugates(views: Sequence[Any]) -> bool:
    """Whether the parts of complex numbers are read while these are conjugated, which torch refuses
    outside of a graph: `imag` of what is no more known as a conjugate behind a write to one."""
    conjugated = False
    for one in views:
        name = type(one).__name__
        conjugated ^= name == "_conj_ViewMeta"
        if conjugated and name == "view_as_real_ViewMeta":
            return True
    return False


def _views_as_dtype(node: torch.fx.Node) -> bool:
    given = (*node.args, *node.kwargs.values())
    named = getattr(node.target, "__name__", node.target)
    return str(named).startswith("view") and any(isinstance(one, torch.dtype) for one in given)


def to_data(
    wrapped: Sequence[Wrapped], compiled: Callable[..., Any], first: Callable[..., Any]
) -> dict[str, Any]:
    """What AOTAutograd built around the program `first`, which is called by `compiled`. Raises
    Unstorable where anything else stands between them: subclasses, inputs given twice, tokens,
    states of generators."""
    if len(wrapped) != 1 or getattr(compiled, "__wrapped__", None) is not wrapped[0].call:
        raise Unstorable("more than AOTAutograd's wrapper for plain tensors")
    (one,) = wrapped
    function = one.made_of.__self__ if one.differentiates else None
    inner = one.made_of if function is None else function.compiled_fw
    if not (one.metadata.tokens or one.metadata.is_rng_op_functionalized):
        inner = program_in(inner)
    if inner is not first or getattr(function, "maybe_subclass_metadata", None) is not None:
        raise Unstorable("a program that is not called as it is")
    return {
        "plain": plain_writes(one),
        "metadata": _Metadata().encode(one.metadata),
        "detached": list(one.detached),
        "differentiates": one.differentiates,
        "without_autocast": one.without_autocast,
        "symints": getattr(function, "num_symints_saved_for_bw", 0),
    }


def from_data(
    data: dict[str, Any], forward: Callable[..., Any], backward: Callable[..., Any] | None
) -> Callable[..., Any]:
    """The function that AOTAutograd gave, `(*inputs) -> results`, around loaded programs."""
    metadata = _MetadataBack().decode(data["metadata"])
    if not isinstance(metadata, schemas.ViewAndMutationMeta):
        raise Damaged("no metadata")
    metadata.bw_donated_idxs = []
    config: Any = _config()
    detached, without_autocast = data["detached"], data["without_autocast"]
    if not data["differentiates"]:
        wrapper = RuntimeWrapper(detached, trace_joint=False, disable_amp=without_autocast)
        call = post_compile(wrapper, forward, config, runtime_metadata=metadata)
        return lambda *inputs: call(list(inputs))
    if backward is None:
        raise Damaged("no backward")
    with watched() as wrapped:
        call = _differentiable(
            compiled_fw_func=forward,
            compiled_bw_func=backward,
            maybe_subclass_meta=None,
            num_symints_saved_for_bw=data["symints"],
            backward_state_indices=[],
            disable_amp=without_autocast,
            indices_of_inps_to_detach=detached,
            lazy_backward_info=None,
            bw_compiler=None,
            aot_config=config,
            fw_metadata=metadata,
            try_save_cache_entry=None,
        )
    return lean_call(wrapped[0]) or (lambda *inputs: call(list(inputs)))


def _config() -> Any:
    """The settings that wrappers read at run time."""
    settings: dict[str, Any] = {
        field.name: None
        for field in dataclasses.fields(schemas.AOTConfig)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    settings |= {"num_params_buffers": 0, "aot_id": next(_numbers)}
    return schemas.AOTConfig(**settings | {"keep_inference_input_mutations": True})


def _differentiable(**parts: Any) -> Callable[..., Any]:
    """`AOTDispatchAutograd.post_compile`, which takes a record from torch 2.13 on."""
    record = getattr(runtime_wrappers, "AOTDispatchAutogradCompileSpec", None)
    made: Any = runtime_wrappers.AOTDispatchAutograd.post_compile
    if record is not None:
        return made(record(**parts))  # type: ignore[no-any-return]
    parts["num_symints_saved_for_bw_"] = parts.pop("num_symints_saved_for_bw")
    del parts["bw_compiler"]
    return made(**parts)  # type: ignore[no-any-return]


# -- metadata

_TYPES: dict[str, type] = {
    cls.__name__: cls
    for cls in (torch.Tensor, torch.nn.Parameter, int, float, bool, torch.SymInt, type(None))
} | {"FunctionalTensor": torch._subclasses.functional_tensor.FunctionalTensor}


# How torch makes an output again from what it is a view of.
_Views: Any = getattr(functional_utils, "ViewMetaSequence", None)
_Mode: Any = getattr(_functionalization, "InverseReturnMode", None)


def _listed(name: str) -> Any:
    """A data class or enumeration of the two modules that metadata is made of."""
    for module in (schemas, descriptors):
        found = getattr(module, name, None)
        if isinstance(found, type) and found.__module__ == module.__name__:
            return found
    raise Damaged(f"there is no {name}")


class _Metadata(Encoder):
    def __init__(self) -> None:
        super().__init__(_no_launch)

    def _other(self, value: Any) -> Any:
        cls = type(value)
        if isinstance(value, type) and _TYPES.get(value.__name__) is value:
            return ["type", value.__name__]
        if _Views is not None and cls is _Views:
            views = ([type(one).__name__, self.encode(one.as_tuple())] for one in value.sequence)
            return ["views", *views]
        if _Mode is not None and cls is _Mode:
            return ["mode", value.name]
        if cls.__module__ in (schemas.__name__, descriptors.__name__):
            if isinstance(value, enum.Enum):
                return ["enum", cls.__name__, value.name]
            if dataclasses.is_dataclass(value):
                return ["record", cls.__name__, self.encode(vars(value))]
        return super()._other(value)


class _MetadataBack(Decoder):
    def __init__(self) -> None:
        super().__init__(_no_launch)

    def _type(self, name: str) -> Any:
        return _TYPES[name]

    def _enum(self, cls: str, name: str) -> Any:
        found = _listed(cls)
        if not issubclass(found, enum.Enum):
            raise Damaged(cls)
        return found[name]

    def _views(self, *views: list[Any]) -> Any:
        """Without the sizes and strides that they lead to, which only tracing compares."""
        made = object.__new__(_Views)
        made.sequence, made.metadata = [], None
        for name, parts in views:
            if not name.endswith("_ViewMeta"):
                raise Damaged(name)
            made.sequence.append(getattr(_functionalization, name)(self.decode(parts)))
        return made

    def _mode(self, name: str) -> Any:
        return _Mode.__members__[name]

    def _record(self, cls: str, fields: Any) -> Any:
        """As it was, with what was derived or set later."""
        found = _listed(cls)
        if not dataclasses.is_dataclass(found):
            raise Damaged(cls)
        made = object.__new__(found)  # type: ignore[arg-type]
        vars(made).update(self.decode(fields))
        return made


def _no_launch(data: Any) -> Any:
    raise Damaged("a kernel in metadata")
