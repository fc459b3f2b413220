"""Tensors that leave a call with a history that its graph cannot give them: one whose backward has
run inside, or one that begins at a leaf made in the call."""

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from ...lowering.autograd.result_views import is_writable
from ...runtime.programs.recipes import Apply, CannotRebuild, ConstRecipe, Recipe
from .histories import nodes_after, nodes_behind
from .nested import tensors_in
from .values import Meta, TracedTensor, Tracker, has_history, storage_of, writes_of


class _Spent(torch.autograd.Function):
    """The identity, with a history that was used, or whose saved tensors were written. `why`: what
    a backward says."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, leaf: torch.Tensor, why: str) -> torch.Tensor:
        ctx.mark_dirty(tensor)  # a view could not be written afterwards
        ctx.why = why
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(ctx.why)


class _PartlySpent(torch.autograd.Function):
    """The identity, beside whose history there is a branch that was used, or whose saved tensors
    were written, to a leaf that nobody can reach: a backward that goes to all leaves raises."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, leaf: torch.Tensor, why: str) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        ctx.why = why
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        if torch._C._will_engine_execute_node(ctx.next_functions[1][0]):  # the leaf's
            raise RuntimeError(ctx.why)
        return (*gradients, None, None)


class _Unreachable(torch.autograd.Function):
    """The identity, with a history that ends at what nobody can reach."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None


def next_node() -> int:
    """The number of the node of autograd that this thread makes next; leaves have none."""
    with torch.inference_mode(False), torch.enable_grad():
        made: Any = torch.empty(0, device="cpu", requires_grad=True).view(0).grad_fn
    return int(made._sequence_nr()) + 1


def recipe(recorder: Any, tensor: torch.Tensor, value: TracedTensor) -> Recipe | None:
    """The recipe of a tensor that the call made, where its history needs one; None elsewhere. The
    same for each place where it stands. Raises CannotRebuild for a leaf."""
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        if value not in recorder.remade:
            recorder.remade[value] = Apply(_for_inference, (recorder.value_recipe(value),))
        return recorder.remade[value]  # type: ignore[no-any-return]
    if is_without_gradients(recorder, tensor):
        if value not in recorder.remade:
            inputs = recorder.tracker.live_inputs()
            if any(each.requires_grad for each, _ in inputs):
                traced = recorder.value_recipe(value)
            else:  # a program of such a call gives nothing with gradients
                traced = _detached(recorder, tensor, value)
            parts = (traced, ConstRecipe(tensor.requires_grad))
            recorder.remade[value] = Apply(_without_history, parts)
        return recorder.remade[value]  # type: ignore[no-any-return]
    own = tensor.is_leaf or (tensor._is_view() and _leads_nowhere(tensor))
    kept = own and recorder.options.backend != "eager"
    if not tensor.requires_grad or not (recorder.differentiates or kept):
        return None
    if value not in recorder.remade:
        recorder.remade[value] = _recipe(recorder, tensor, value)
    return recorder.remade[value]  # type: ignore[no-any-return]


def _recipe(recorder: Any, tensor: torch.Tensor, value: TracedTensor) -> Recipe | None:
    if tensor.is_leaf:
        raise CannotRebuild("a leaf tensor that the call makes is returned or stored")
    inputs = [each for each, _ in recorder.tracker.live_inputs()]
    behind = [each.grad_fn for each in inputs if each.grad_fn]  # kept, so that no other has its id
    given = {id(each) for each in (*inputs, *behind)}
    nodes = nodes_behind([tensor])
    spent = {node: why for node in nodes if (why := _why_spent(node))}
    if spent:
        (why, *_), lost = spent.values(), _leads_to(nodes_after(spent), given)
        if lost or not _leads_to(nodes, given):
            return Apply(_of(_Spent, why), (_detached(recorder, tensor, value),))
        return Apply(_siblings(why), (recorder.value_recipe(value),))
    if _leads_to(nodes, given):
        return None
    if any(node._sequence_nr() < recorder.first_node for node in nodes):
        return None  # an input that was written since
    return Apply(_of(_Unreachable), (_detached(recorder, tensor, value),))


def _leads_to(nodes: Iterable[Any], given: set[int]) -> bool:
    """Whether one of the nodes is that of an input, or adds to the gradient of one."""
    return any(
        id(each) in given
        for node in nodes
        for each in (node, getattr(node, "variable", None))
        if each is not None
    )


def _siblings(why: str) -> Any:
    def with_branch(tensor: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad(), torch.autograd._unsafe_preserve_version_counter(tensor):
            leaf = torch.empty(0, device="cpu", requires_grad=True)
            return _PartlySpent.apply(tensor, leaf, why)  # type: ignore[no-any-return,no-untyped-call]

    return with_branch


def _for_inference(tensor: torch.Tensor) -> torch.Tensor:
    """An inference tensor on the same memory."""
    with torch.inference_mode():
        return tensor.new_empty(0).set_(tensor.detach())  # type: ignore[call-overload,no-any-return,unused-ignore]


def _leads_nowhere(view: torch.Tensor) -> bool:
    """Whether the history is that of a view which was made without gradients of what has some:
    compiled code would make it again of that."""
    return _end_of(view) is None


def _end_of(view: torch.Tensor) -> Any:
    """The node at which a history without branches ends."""
    node: Any = view.grad_fn
    while node is not None and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    return node


def is_without_gradients(recorder: Any, tensor: torch.Tensor) -> bool:
    """Whether this is a view that was made where no gradients were recorded, of what has some."""
    if not tensor.is_leaf or not tensor._is_view() or is_writable(tensor):
        return False
    return any(each.requires_grad for each in (tensor, *recorder.tracker.sharing(tensor)))


def is_cut_off(recorder: Any, tensor: torch.Tensor) -> bool:
    """Whether this is such a view, or has the history of a view of one: compiled code would make it
    again of what has gradients."""
    if is_without_gradients(recorder, tensor):
        return True
    if not tensor._is_view() or tensor.grad_fn is None:
        return False
    end = _end_of(tensor)
    leaf = getattr(end, "variable", None)
    return end is None or (leaf is not None and is_without_gradients(recorder, leaf))


def _without_history(view: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    """A view that was made where no gradients were recorded: a leaf, which requires them where its
    base does."""
    if view.requires_grad != requires_grad:
        view = view.detach().requires_grad_(requires_grad)
    with torch.no_grad():
        return view.view_as(view)


def _of(function: Any, *more: Any) -> Any:
    def with_history(tensor: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            given, leaf = tensor.detach(), torch.empty(0, device="cpu", requires_grad=True)
            with torch.autograd._unsafe_preserve_version_counter(given):  # nothing is written
                return function.apply(given, leaf, *more)  # type: ignore[no-any-return]

    return with_history


def _detached(recorder: Any, tensor: torch.Tensor, value: TracedTensor) -> Recipe:
    segment = recorder.segments[value.home]
    node = segment.call("call_method", "detach", (value.node,), {}, recorder.origin())
    made = TracedTensor(value.home, node, -1, Meta.of(tensor.detach()), beside=value)
    return recorder.value_recipe(made)  # type: ignore[no-any-return]


def need_nothing_of(tensor: torch.Tensor, tracker: Tracker) -> bool:
    """Whether no backward that may still come, through any tensor that the recording knows, adds to
    the gradient of `tensor` or reads what it holds."""
    histories = [each for each in tracker.live() if has_history(each)]
    seen = [(weakref.ref(each), writes_of(each)) for each in histories]
    if tracker.needed is None or not _are_same(tracker.needed[0], seen):
        tracker.needed = seen, *_needed([each for each in histories if not _is_spent(each)])
    _, leaves, memory = tracker.needed
    return id(tensor) not in leaves and storage_of(tensor) not in memory


def _are_same(before: list[Any], now: list[Any]) -> bool:
    """Whether two lists of weak references with numbers are one: references to one object are
    one."""
    pairs = zip(before, now, strict=False)
    return len(before) == len(now) and all(a is b and m == n for (a, m), (b, n) in pairs)


def _needed(tensors: list[torch.Tensor]) -> tuple[set[int], set[int]]:
    """What a backward of the tensors needs: (leaves, storages), by their identity."""
    nodes = nodes_behind(tensors)
    leaves = {id(leaf) for node in nodes if (leaf := getattr(node, "variable", None)) is not None}
    return leaves, {storage_of(each) for node in nodes for each in _saved(node)}


def _saved(node: Any) -> Iterator[torch.Tensor]:
    """The tensors that a node of autograd keeps for its backward."""
    for name in dir(node):
        if name.startswith("_saved_") or name == "saved_tensors":
            found = getattr(node, name)
            yield from tensors_in(found)


def _is_spent(tensor: torch.Tensor) -> bool:
    return any(map(_why_spent, nodes_behind([tensor])))


def _why_spent(node: Any) -> str:
    """What a backward through the node would raise, since what it needs was freed or written."""
    try:
        for _ in _saved(node):
            pass
    except RuntimeError as error:
        return str(error)
    return ""
