"""What is alive when a compiled training step needs most memory, by buffer and source line.

    python benchmarks/live_memory.py MODEL [--most 20]

MODEL is one of `cpu_memory.py`'s. For each program: the item at which tensors of its own, inputs
that are not let go of yet and the arena take most, and the largest of them.
"""

import argparse
from collections import Counter

import dynfix
from cpu_memory import MODELS
from dynfix.lowering import pipeline
from dynfix.lowering.loops import storage
from dynfix.lowering.loops.ir import Buffer
from dynfix.lowering.loops.kernel_graph import ExternCall, Unit
from dynfix.lowering.loops.polynomials import hint
from dynfix.lowering.loops.storage import Storage, bytes_of


def live_sets(unit: Unit, planned: Storage) -> list[set[Buffer]]:
    """For each item the tensors, beside those in the arena, that hold memory while it runs."""
    first, last = storage.lifetimes(unit)
    given, results = unit.given_buffers(), unit.outputs_buffers()
    sets: list[set[Buffer]] = [set() for _ in unit.items]
    shared = {*planned.reuse, *planned.asks}  # in memory that another buffer has
    for buffer in {*first, *given} - set(planned.arena) - set(unit.constants):
        start = 0 if buffer in given else first[buffer] + (buffer in shared)
        end = len(sets) - 1 if buffer in results else last.get(buffer, -1)
        for place in range(start, end + 1):
            sets[place].add(buffer)
    return sets


def makers(unit: Unit) -> dict[Buffer, str]:
    """Where each buffer comes from: the user's line, and what computes it."""
    found: dict[Buffer, str] = {}
    for item in unit.items:
        if isinstance(item, ExternCall):
            found.update(dict.fromkeys(item.writes(), f"{item.origin} ({item.target})"))
        else:
            origin = next((o for nest in item.nests for o in nest.origins), "")
            found.update(dict.fromkeys(storage.written(item), f"{origin} ({item.name})"))
    return found


def show(unit: Unit, planned: Storage, most: int) -> None:
    sets = live_sets(unit, planned)
    totals = [sum(hint(bytes_of(b)) for b in live) for live in sets]
    place = max(range(len(totals)), key=totals.__getitem__)
    arena = hint(planned.arena_size) / 1e6
    print(
        f"{unit.name}: {totals[place] / 1e6:.1f} MB at item {place} of {len(sets)},"
        f" arena {arena:.1f} MB"
    )
    origins, given, results = makers(unit), unit.given_buffers(), unit.outputs_buffers()
    alike: Counter[tuple[int, str]] = Counter()
    for buffer in sets[place]:
        kind = "input" if buffer in given else "result" if buffer in results else "own"
        shape = tuple(map(hint, unit.layouts[buffer].shape))
        text = f"{kind} {buffer.dtype} {shape} {origins.get(buffer, '')}"
        alike[hint(bytes_of(buffer)), text] += 1
    largest = sorted(alike.items(), key=lambda entry: -entry[0][0] * entry[1])
    for (size, text), count in largest[:most]:
        print(f"  {count} x {size / 1e6:.2f} MB: {text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--most", type=int, default=20)
    options = parser.parse_args()
    plan = storage.plan

    def watched(unit: Unit, *args: object) -> Storage:
        planned = plan(unit, *args)  # type: ignore[arg-type]
        show(unit, planned, options.most)
        return planned

    storage.plan = watched  # type: ignore[assignment]
    pipeline.watchers.append(lambda unit, launches: launches)  # nothing is loaded from the cache
    model, given = MODELS[options.model]()
    call = dynfix.compile(model.train())
    for _ in range(2):
        call(**given)[0].backward()


if __name__ == "__main__":
    main()
