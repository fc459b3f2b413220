"""A recording and its programs as data for later processes (`lowering/stored_recordings`). What
cannot be written so is recorded anew there."""

from typing import Any

from ...lowering import stored_graphs
from ...lowering.graph import graph_key
from ...lowering.stored_recordings import StoredRecordings, program_data
from ...runtime.cache.plain_data import Unstorable
from ...runtime.diagnostics import log
from ...runtime.package.recording_data import RecordingEncoder
from ...runtime.programs.entry import CacheEntry
from ...runtime.programs.recipes import Recipe
from ...runtime.programs.size_functions import SizeFunction
from ..capture.numbers.traced_sizes import SizeOf
from ..capture.recording import Recording
from ..capture.segments import Segment


def store(
    stored: StoredRecordings, key: str, fn: Any, recording: Recording, entry: CacheEntry
) -> None:
    """Keep the recording under the key, now or, where a program is made later, then."""
    waiting = [each for each in map(_place, entry.plan.steps) if each is not None]
    if waiting:
        waiting[0].when_stored = lambda: store(stored, key, fn, recording, entry)
        return
    try:
        stored.store(key, _data(fn, recording, entry))
    except Exception as reason:  # the entry serves this process in any case
        log.debug("a recording is not stored: %s", reason)


def _place(step: Any) -> stored_graphs.StoredGraph | None:
    """Where a program that is not whole yet will be: a backward is made when it is asked for."""
    place: stored_graphs.StoredGraph | None = getattr(step.program, "stored", None)
    is_settled = place is None or place.data is not None or place.refused is not None
    return None if is_settled else place


def _data(fn: Any, recording: Recording, entry: CacheEntry) -> dict[str, Any]:
    plan, guards, symbols = entry.plan, recording.guard_set.plan, recording.symbols
    if guards.state.function_modes or guards.state.dispatch_modes:
        raise Unstorable("modes of torch")
    if recording.only_here:
        raise Unstorable(recording.only_here)
    if any(device.type != "cpu" for device in plan.devices):
        raise Unstorable("a call on GPUs")

    def size_of(recipe: Recipe) -> SizeFunction | None:
        known = isinstance(recipe, SizeOf) and symbols is not None
        return symbols.of_form(recipe.form) if known else None  # type: ignore[union-attr, attr-defined]

    encoder = RecordingEncoder(fn, recording.guards, size_of)
    encode = encoder.encode
    data = {
        "nargs": guards.nargs,
        "kwnames": guards.kwnames,
        "guards": [encoder.guard(one) for one in recording.guards],
        "inputs": [encode(path)[1] for path in recording.guard_set.inputs],
        "disjoint": guards.disjoint,
        "twins": guards.twins,
        "state": encode(guards.state.values),
        "holds": None if symbols is None else encode(symbols.condition),
        "outcomes": [[n, encode(recipe), encoder.seen(seen)] for n, recipe, seen in plan.outcomes],
        "effects": [encoder.effect(one) for one in plan.effects],
        "output": encode(plan.output),
        "aliases": plan.aliases,
        "distinct": plan.distinct,
        "fed": [encode(recipe) for recipe in plan.fed],
        "random": plan.random,
        "devices": [encode(device) for device in plan.devices],
        "steps": [
            _step(segment, step)
            for segment, step in zip(recording.segments, plan.steps, strict=True)
        ],
    }
    return data | {
        "recipes": encoder.recipes,
        "paths": encoder.paths,
        "objects": encoder.objects,
    }


def _step(segment: Segment, step: Any) -> dict[str, Any]:
    return {
        "feeds": [[feed.segment, feed.index] for feed in step.feeds],
        "writes": step.writes,
        "histories": step.histories,
        "program": None
        if step.program is None
        else program_data(step.program, graph_key.origins_of(segment.module)),
    }
