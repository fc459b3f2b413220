"""One position written into a cache of 64 MiB: eager, dynfix and torch.compile, interleaved.

python benchmarks/cache_updates.py [--rounds N]
"""

import argparse
import functools
from collections.abc import Callable

import dynfix
import torch
from interleave import interleaved

SHAPE = (8, 2048, 1024)  # 64 MiB of float32
Update = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]


def by_slice(cache: torch.Tensor, position: torch.Tensor, new: torch.Tensor) -> None:
    cache[:, 3:4] = new


def by_index_copy(cache: torch.Tensor, position: torch.Tensor, new: torch.Tensor) -> None:
    cache.index_copy_(1, position, new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    given = parser.parse_args()
    torch.set_num_threads(1)
    position, new = torch.tensor([3]), torch.randn(SHAPE[0], 1, SHAPE[2])
    for update in (by_slice, by_index_copy):
        compiled: dict[str, Update] = {
            "dynfix": dynfix.compile(update),
            "eager": update,
            "torch": torch.compile(update),
        }
        with torch.no_grad():
            steps = {
                name: functools.partial(call, torch.zeros(SHAPE), position, new)
                for name, call in compiled.items()
            }
            times = interleaved(steps, given.rounds, warm=5)
        shown = ", ".join(f"{name} {time.median * 1e6:.1f} µs" for name, time in times.items())
        print(f"{update.__name__}: {shown}", flush=True)


if __name__ == "__main__":
    main()
