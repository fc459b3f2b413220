"""The end of a recording: from what the recorder wrote down to segments, guards, outcomes, effects
and an output recipe."""

import dataclasses
import types
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ...lowering.autograd.result_views import is_one_of_several
from ...runtime.guards.guard import Guard, GuardSet, Obj, Path, Tensor, TensorMeta
from ...runtime.programs import recipes
from ...runtime.programs.containers import of_sequence
from ...runtime.programs.entry import CacheEntry, ReplayPlan
from ...runtime.programs.recipes import (
    Apply,
    CannotRebuild,
    ConstRecipe,
    Input,
    Recipe,
    RecipeMaker,
)
from ...runtime.programs.steps import CALL_INPUT, GraphStep, Redo
from .. import catalogue
from . import made_histories, rehearsal, tensor_classes
from .effects import dressings
from .guarded_kinds import BY_IDENTITY, is_constant
from .numbers import constant_values, moving_arrays, open_shapes, scalars, traced_arrays
from .numbers.symbolic import RecordedSymbols, make_static
from .reads import HISTORY
from .segments import Segment
from .stops import Decision
from .trace import Recorder
from .values import Meta, TracedTensor, is_opaque, is_plain, storage_of


@dataclasses.dataclass(eq=False)
class Recording:
    """One recorded call. `outcomes`: (segments that must have run, recipe, value seen); `aliases`:
    pairs of inputs that were one object; `distinct`: groups of inputs that were different ones,
    where that mattered; `sites`: its graph breaks; `symbols`: its symbolic sizes,
    if inputs have any; `static_metas`: what those inputs were; `numbers`: the integers among the
    inputs that graphs take, as they were; `fed`: the floats that Python makes for the graphs;
    `rewritten`: what patterns changed in its functions; `only_here`: why it stands for no call of
    another process, '' where it may."""

    segments: tuple[Segment, ...]
    outcomes: tuple[tuple[int, Recipe, Any], ...]
    effects: tuple[Redo, ...]
    output: Recipe
    guard_set: GuardSet
    guards: tuple[Guard, ...]
    aliases: tuple[tuple[int, int], ...]
    distinct: tuple[tuple[int, ...], ...]
    sites: tuple[catalogue.BreakSite, ...]
    symbols: RecordedSymbols | None = None
    static_metas: dict[Path, TensorMeta] = dataclasses.field(default_factory=dict)
    numbers: dict[int, int] = dataclasses.field(default_factory=dict)
    fed: tuple[Recipe, ...] = ()
    compile_times: dict[str, float] = dataclasses.field(default_factory=dict)
    rewritten: tuple[Any, ...] = ()
    only_here: str = ""
    _guards_hold: bool | None = None

    def entry(
        self, programs: tuple[Callable[..., Any], ...], eager: Callable[..., Any]
    ) -> CacheEntry:
        """What serves later calls with the compiled segments. `eager`: the user's own function."""
        steps = (
            GraphStep(
                program if segment.ops else None, segment.feeds, segment.writes, segment.histories
            )
            for segment, program in zip(self.segments, programs, strict=True)
        )
        plan = ReplayPlan(
            steps=tuple(steps),
            outcomes=self.outcomes,
            effects=self.effects,
            output=self.output,
            aliases=self.aliases,
            distinct=self.distinct,
            fed=self.fed,
            holds=self.symbols.holds if self.symbols is not None else None,
            random=any(segment.random for segment in self.segments),
            devices=tuple(
                {
                    meta.device
                    for segment in self.segments
                    for meta in segment.metas
                    if isinstance(meta, Meta)
                }
            ),
        )
        return CacheEntry(self.guard_set, plan, eager)

    def serves(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether its guards hold now."""
        return self.guard_set.match(args, kwargs) is not None

    def why_not(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """What is other in a call for which the guards hold than in the recorded one."""
        inputs = self.guard_set.match(args, kwargs) or []
        found = [
            self._differs(inputs, recipe, seen)
            for _, recipe, seen in self.outcomes
            if not (recipe.graph or recipe.drawn or isinstance(recipe, recipes.HostCall))
        ]
        if self.symbols is not None and inputs and not self.symbols.holds(inputs):
            found += [self._differs(inputs, Input(i), seen) for i, seen in self.numbers.items()]
            found += [self._sizes(inputs, path) for path in self.static_metas]
        return next(filter(None, found), f"another way was taken, by {self._decided_by()}")

    def _decided_by(self) -> str:
        """What was asked during the call, and decides whether it stands for another one."""
        calls = (one for _, one, _ in self.outcomes if isinstance(one, recipes.HostCall))
        names = dict.fromkeys(f"{getattr(c.function, '__name__', c.function)}()" for c in calls)
        return ", ".join(names) or "the values of tensors"

    def _differs(self, inputs: list[Any], recipe: recipes.Recipe, seen: Any) -> str:
        """ "cur was 3, is 4 (model.py:41)"; "" where nothing differs, or nobody can tell."""
        read = sorted(_inputs_of(recipe))
        try:
            value = recipe.make(recipes.Env(inputs, 0)) if inputs and read else seen
        except Exception:
            return ""
        if type(value) is type(seen) and value == seen:
            return ""
        paths = [self.guard_set.inputs[index] for index in read]
        of = ", ".join(path.source for path in paths)
        what = of if isinstance(recipe, Input) else f"what follows from {of}"
        return f"{what} was {seen!r:.40}, is {value!r:.40}{self._line(paths)}"

    def _sizes(self, inputs: list[Any], path: Path) -> str:
        value, was = inputs[self.guard_set.inputs.index(path)], self.static_metas[path].sizes
        if tuple(value.shape) == tuple(was):
            return ""
        shapes = f"was of shape {list(was)}, is {list(value.shape)}"
        return f"{path.source} {shapes}{self._line([path])}"

    def _line(self, paths: list[Path]) -> str:
        """Where the first of them was read."""
        places = (guard.origin for guard in self.guards if guard.path in paths and guard.origin)
        place = next(places, "")
        return f" ({place})" if place else ""

    def guards_hold(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether its guards held when the recorded call was over: what was found the first time,
        when it is."""
        if self._guards_hold is None:
            self._guards_hold = self.serves(args, kwargs)
        return self._guards_hold

    def make_static(self) -> None:
        """Stand for calls with the sizes of the recorded one alone."""
        make_static(self.segments)
        if self.symbols is not None:
            self.symbols.give_up()
        kept = (outcome for outcome in self.outcomes if not outcome[1].sizes)
        self.outcomes = (*kept, *((0, Input(index), seen) for index, seen in self.numbers.items()))
        self.guards = tuple(self._static(guard) for guard in self.guards)
        plan = self.guard_set.plan
        self.guard_set = GuardSet(
            self.guards,
            self.guard_set.inputs,
            plan.nargs,
            plan.kwnames,
            distinct=plan.distinct,
            disjoint=plan.disjoint,
            twins=plan.twins,
            state=plan.state,
        )
        self.symbols = None

    def _static(self, guard: Guard) -> Guard:
        if guard.path in self.static_metas and isinstance(guard.check, Tensor):
            return Guard(guard.path, Tensor(self.static_metas[guard.path]), guard.origin)
        return guard

    def reads_same(self, other: "Recording") -> bool:
        """Whether both rely on the same things, but for the metadata of tensors."""
        mine, others = (
            {
                (guard.path.source, guard.check)
                for guard in recording.guards
                if not isinstance(guard.check, Tensor)
            }
            for recording in (self, other)
        )
        return mine == others

    @property
    def graphs(self) -> list[torch.fx.GraphModule]:
        return [segment.module for segment in self.segments if segment.ops]


class Failed:
    """A call that was not captured: its sites, and nothing else."""

    segments: tuple[Segment, ...] = ()
    guards: tuple[Any, ...] = ()
    graphs: tuple[Any, ...] = ()
    rewritten: tuple[Any, ...] = ()

    def __init__(self, sites: tuple[catalogue.BreakSite, ...]) -> None:
        self.sites = sites
        self.compile_times: dict[str, float] = {}


def _inputs_of(recipe: recipes.Recipe) -> set[int]:
    """Indices of the call's inputs that a recipe looks at."""
    if isinstance(recipe, Input):
        return {recipe.index}
    parts = recipe.arguments if isinstance(recipe, recipes.Apply) else ()
    return set().union(*map(_inputs_of, parts))


def finish(
    recorder: Recorder, result: Any, nargs: int, kwnames: tuple[str, ...], state: Any
) -> Recording | None:
    """The Recording of a call that gave `result`, or None when it cannot be described: then
    `recorder.stopped` says why."""
    with torch._C.DisableTorchFunctionSubclass():
        return _finished(recorder, result, nargs, kwnames, state)


def _finished(
    recorder: Recorder, result: Any, nargs: int, kwnames: tuple[str, ...], state: Any
) -> Recording | None:
    _last_checks(recorder)
    if not recorder.active:
        return None
    if recorder.raised and _may_differentiate(recorder):
        raised = set(map(id, recorder.raised))
        recorder.effects[:] = [each for each in recorder.effects if id(each) not in raised]
    try:
        recording = _assemble(recorder, result, nargs, kwnames, state)
        return recording if recorder.active else None
    except CannotRebuild as error:
        recorder.stop(catalogue.UNSUPPORTED, str(error))
        return None


def _last_checks(recorder: Recorder) -> None:
    if recorder.tracker.unseen_writes():
        recorder.stop(
            catalogue.SLIPPED,
            "a tensor was written, or got a gradient history, in code that is not traced",
        )
    elif any(each.written(recorder) for each in (constant_values, moving_arrays, traced_arrays)):
        recorder.stop(catalogue.UNSUPPORTED, "an array is written that shares a tensor's memory")
    elif torch.is_grad_enabled() != recorder.grad_mode or recorder.open_contexts:
        recorder.stop(catalogue.UNSUPPORTED, "the call leaves grad mode or autocast changed")
    elif not all(_is_leaf_here(recorder, value) for value in recorder.made_parameters):
        detail = "a Parameter made in the call is used after a graph break"
        recorder.stop(catalogue.UNSUPPORTED, detail)
    elif any(_content(cell) is not was for hook in recorder.hooks for cell, was in hook.cells):
        recorder.stop(catalogue.UNSUPPORTED, "a variable that a hook reads is assigned again")
    elif recorder.reshaped and _may_differentiate(recorder):
        # the input counts the change after the graph has kept it
        detail = "the backward may need an input whose shape was changed in place"
        recorder.stop(catalogue.UNSUPPORTED, detail)
    elif _overlaps(recorder) and not _runs_as_it_is(recorder):
        recorder.stop(
            catalogue.UNSUPPORTED, "an input is written whose memory another input shares"
        )
    elif _returns_parts(recorder):
        detail = "one of several views of an input is stored, and written without gradients"
        recorder.stop(catalogue.UNSUPPORTED, detail)


def _may_differentiate(recorder: Recorder) -> bool:
    inputs = (tensor for tensor, _ in recorder.tracker.live_inputs())
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _is_leaf_here(recorder: Recorder, value: TracedTensor) -> bool:
    """Make a Parameter that the call made, and uses, a leaf of its graph. False where another graph
    uses it."""
    if not _is_used(recorder, value):
        return True
    if value.home < 0 or any(value in dict(each.taken()) for each in recorder.segments):
        return False
    segment = recorder.segments[value.home]
    with segment.graph.inserting_after(value.node):
        leaf = segment.graph.call_method("requires_grad_", (value.node,))
    leaf.meta["origin"] = leaf.meta["stack_trace"] = value.node.meta["origin"]
    recorder.differentiates = True
    return True


def _is_used(recorder: Recorder, value: TracedTensor) -> bool:
    """Whether an operator takes the value, or a later segment does."""
    taken = (each for segment in recorder.segments for each, _ in segment.taken())
    return bool(value.node.users) or value in taken


def _runs_as_it_is(recorder: Recorder) -> bool:
    """Whether the graph can be run as it stands, which writes what eager writes wherever inputs
    lie. What was read of them before is not looked through."""
    if not open_shapes.may_stay(recorder) or recorder.outcomes or recorder.effects:
        return False
    if len(recorder.segments) > 1 or recorder.reshaped:
        return False
    recorder.segment.open = recorder.overlapping = True
    return True


def _overlaps(recorder: Recorder) -> bool:
    written = {
        value
        for segment in recorder.segments
        for value in segment.written
        if value.home == CALL_INPUT
    }
    reshaped = [(recorder.tracker.tensor(now), was) for now, was in recorder.reshaped.items()]
    live = [(tensor, value) for tensor, value in reshaped if tensor is not None]
    inputs = [*recorder.tracker.live_inputs(), *live]
    homes: dict[int, set[Any]] = {}
    for tensor, value in inputs:
        homes.setdefault(storage_of(tensor), set()).add(value)
    return any(len(values) > 1 and values & written for values in homes.values())


def _returns_parts(recorder: Recorder) -> bool:
    """Whether one of several views that an operator gave of an input lives on, with a gradient,
    where the input was written without gradients: AOTAutograd gives a copy."""
    written = {value for segment in recorder.segments for value in segment.written}
    written -= {value for segment in recorder.segments for value in segment.historied}
    unseen = {storage_of(x) for x, value in recorder.tracker.live_inputs() if value in written}
    if not unseen or recorder.options.backend == "eager":
        return False
    live = (each for each in recorder.tracker.live() if storage_of(each) in unseen)
    return any(each.requires_grad and is_one_of_several(each) for each in live)


def _assemble(
    recorder: Recorder, result: Any, nargs: int, kwnames: tuple[str, ...], state: Any
) -> Recording:
    maker = RecipeMaker(lambda obj: leaf(recorder, obj))
    output = maker.recipe(result)
    effects = tuple(effect.settle(maker) for effect in recorder.effects)
    effects += dressings(recorder.dressed, maker)
    rehearsal.check(maker)
    aliases = tuple(
        (recorder.input_index(a), recorder.input_index(b)) for a, b in recorder.known.aliases
    )
    for effect in recorder.effects:
        recorder.known.written_through(effect.owner)
    distinct = tuple(
        dict.fromkeys(
            tuple(sorted({recorder.input_index(path) for path in group}))
            for group in recorder.known.distinct
        )
    )
    written = sorted(
        {v.index for seg in recorder.segments for v in seg.written if v.home == CALL_INPUT}
    )
    segments = close(recorder)
    guards = tuple(recorder.known.guard_list())
    guard_set = GuardSet(
        guards,
        list(recorder.inputs),
        nargs,
        kwnames,
        disjoint=() if recorder.overlapping else written,
        twins=sorted({twin for _, twin in aliases}),
        state=state,
    )
    written_to = _written_history(recorder, segments)
    if written_to is not None:
        recorder.stop_if_cut(catalogue.UNSUPPORTED, HISTORY, written_to)
    if not all(map(recorder.is_only_detached, recorder.detached)):
        recorder.stop(catalogue.UNSUPPORTED, "an input has a history that the results go on with")
    hook = next((each for each in recorder.hooks if _leaves(recorder, each)), None)
    if hook is not None:
        recorder.stop(catalogue.UNSUPPORTED, hook.site.site.detail, hook.site)
    numbers = {index: given.seen for index, given in recorder.numbers.items()}
    symbols = (
        RecordedSymbols(recorder.dynamic_inputs, numbers)
        if recorder.dynamic_inputs or numbers
        else None
    )
    if symbols is not None:
        symbols.slipped = recorder.sizes_inside
    return Recording(
        segments,
        tuple(recorder.outcomes),
        effects,
        output,
        guard_set,
        guards,
        aliases,
        distinct,
        tuple(recorder.sites),
        symbols,
        recorder.static_metas,
        numbers,
        tuple(recorder.fed),
        only_here=recorder.only_here,
    )


def _leaves(recorder: Recorder, hook: Any) -> bool:
    """Whether the hooked tensor is a result: hooks that it gets later, and `retain_grad()`, would
    see a gradient before the hook does."""
    value = hook.value
    given = value in recorder.segments[value.home].outputs or recorder.remade.get(value)
    return bool(given) and value.node is hook.node and recorder.options.backend != "eager"


def _written_history(recorder: Recorder, segments: tuple[Segment, ...]) -> Decision | None:
    """A call that may yet turn out to be another recording's must not have written to a gradient
    history: that cannot be put back. Where it does so first."""
    last = max((after for after, _, _ in recorder.outcomes), default=0)
    found = (index for index, each in enumerate(segments[:last]) if each.writes_history())
    return next((recorder.histories[index] for index in found), None)


def close(recorder: Recorder) -> tuple[Segment, ...]:
    """Finish the graphs, last first, so that each knows what later ones import from it."""
    feeds = [builder.imports_from(recorder.segments) for builder in recorder.segments]
    if recorder.options.backend != "eager":  # its backward may keep what it gives
        for builder in recorder.segments:
            for value in builder.written:
                if 0 <= value.home != builder.index:
                    recorder.segments[value.home].copied.add(value)
    return tuple(
        builder.finish(feed) for builder, feed in zip(recorder.segments, feeds, strict=True)
    )


def leaf(recorder: Recorder, obj: Any) -> Recipe | None:
    """The recipe of what is not made of parts: a tensor, a traced scalar, an object with an access
    path, a function or class."""
    if isinstance(obj, torch.Tensor):
        return _tensor(recorder, obj)
    if type(obj) in scalars.TRACED:
        return obj.recipe if scalars.live_in(recorder, obj) else ConstRecipe(scalars.plain(obj))
    if type(obj) is torch.Size:
        return Apply(
            partial(of_sequence, torch.Size),
            tuple(leaf(recorder, size) or ConstRecipe(size) for size in obj),
        )
    if is_constant(obj):
        return ConstRecipe(obj)
    path = recorder.known.path_of(obj)
    if path is not None:
        return ConstRecipe(obj) if isinstance(path, Obj) else Input(recorder.input_index(path))
    made = traced_arrays.entry(recorder, obj)
    if made is not None:
        return traced_arrays.recipe(recorder, made, partial(_tensor, recorder))
    unknown = recorder.arrays_of or recorder.known.arrays or recorder.arrays
    if constant_values.is_array(obj) and unknown:
        raise CannotRebuild("an array that may share memory with another one is returned or stored")
    if type(obj) is types.MethodType:
        return _method(recorder, obj)
    if type(obj) is types.CellType:
        outside = recorder.known.holds_cell(obj) or recorder.rewriter.holds_operators(obj)
        return ConstRecipe(obj) if outside else None
    if may_be_made(recorder, obj):
        raise CannotRebuild(
            "a class that the call defines, or an object of it, is returned or stored"
        )
    if isinstance(obj, BY_IDENTITY) and not _is_made(recorder, obj):
        return ConstRecipe(obj)
    if isinstance(obj, types.FunctionType) and not recorder.rewriter.made_in_call(recorder, obj):
        raise CannotRebuild("a function without source text is made in the call and stored")
    return None


def may_be_made(recorder: Recorder, obj: Any) -> bool:
    """Whether a class statement that ran in the call has given such a class; each call has its
    own."""
    return isinstance(obj, type) and obj.__qualname__.startswith(tuple(recorder.class_scopes))


def _is_made(recorder: Recorder, obj: Any) -> bool:
    """Whether a function or class was made in the call; torch's own Python makes functions, too."""
    closure = isinstance(obj, types.FunctionType) and bool(obj.__closure__)
    return closure or recorder.rewriter.made_in_call(recorder, obj)


def _method(recorder: Recorder, obj: Any) -> Recipe | None:
    owner = leaf(recorder, obj.__self__)
    return None if owner is None else Apply(types.MethodType, (ConstRecipe(obj.__func__), owner))


def _tensor(recorder: Recorder, tensor: torch.Tensor) -> Recipe:
    if recorder.on_arrays and storage_of(tensor) in recorder.on_arrays:
        raise CannotRebuild("a tensor on the memory of an array from outside is returned or stored")
    tracked = recorder.tracker.get(tensor)
    made = tracked is not None and tracked.value.home >= 0
    if tracked is not None and made and isinstance(tensor, torch.nn.Parameter):
        if type(tensor) is not torch.nn.Parameter or _is_used(recorder, tracked.value):
            raise CannotRebuild("a Parameter made in the call is used there")
        return _parameter(recorder, tensor, tracked.value)
    if tracked is not None and tracked.value in recorder.reshaped:
        return recorder.value_recipe(recorder.reshaped[tracked.value])
    if tracked is not None and not (is_plain(tensor) or is_opaque(tensor)):
        return _of_class(recorder, tensor, tracked.value)
    if tracked is not None:
        special = made_histories.recipe(recorder, tensor, tracked.value) if made else None
        return special or recorder.value_recipe(tracked.value)
    path = recorder.known.path_of(tensor)
    if path is None:
        raise CannotRebuild("a tensor of unknown origin is returned or stored")
    return Input(recorder.input_index(path))


def _of_class(recorder: Recorder, tensor: torch.Tensor, value: TracedTensor) -> Recipe:
    """A tensor of a subclass: the one that the call was given, or what the graph gives, with its
    class."""
    path = recorder.known.path_of(tensor)
    if path is not None and value.home == CALL_INPUT:
        return Input(recorder.input_index(path))
    if value not in recorder.remade:
        cls = type(tensor)
        recorder.remade[value] = Apply(
            lambda made: tensor_classes.with_class(made, cls), (recorder.value_recipe(value),)
        )
    return recorder.remade[value]  # type: ignore[no-any-return]


def _parameter(recorder: Recorder, tensor: torch.Tensor, value: TracedTensor) -> Recipe:
    """The recipe of a Parameter that the call made: the same for each place where it stands."""
    if value not in recorder.remade:
        learns = ConstRecipe(tensor.requires_grad)
        parts = (recorder.value_recipe(value), learns)
        recorder.remade[value] = Apply(torch.nn.Parameter, parts)
    return recorder.remade[value]  # type: ignore[no-any-return]
