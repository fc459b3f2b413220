"""What is said of a kernel: its source, the lines that it comes from, the bytes that it moves."""

import dataclasses
from typing import Any, TypeVar

from ...lowering.loops.dump import dump
from ...lowering.loops.polynomials import hint
from ...lowering.loops.storage import bytes_of, touched, written
from ...lowering.targets.cpp.cpp_target import printed

Facts = TypeVar("Facts", bound="KernelFacts")


@dataclasses.dataclass
class KernelFacts:
    """One kernel: its source, the user's lines, the bytes that a call reads and writes."""

    name: str
    code: str
    origins: list[str]
    loops: int
    read: int
    written: int
    on_gpu: bool

    @classmethod
    def of(cls: type[Facts], unit: Any, group: Any, buffers: Any) -> Facts:
        on_gpu = any(unit.layouts[b].device.type == "cuda" for b in buffers if b in unit.layouts)
        outputs = written(group)
        inputs = [b for b in touched(group) if b not in outputs]
        return cls(
            name=group.name,
            code=_code(group, on_gpu),
            origins=list(dict.fromkeys(o for nest in group.nests for o in nest.origins)),
            loops=len(group.nests),
            read=sum(int(hint(bytes_of(b))) for b in inputs),
            written=sum(int(hint(bytes_of(b))) for b in outputs),
            on_gpu=on_gpu,
        )

    def __str__(self) -> str:
        moved = f"reads {self.read:,} bytes, writes {self.written:,}"
        head = f"{self.name}: {self.loops} loop{'s' * (self.loops != 1)}, {moved}"
        return "\n  ".join((head, *self.origins))


def _code(group: Any, on_gpu: bool) -> str:
    return dump(group) if on_gpu or not hasattr(group, "nests") else str(printed(group).source)
