"""What runs in the process that compiles for another one (`build_process`)."""

import contextlib
import os
import signal
import sys
import threading
from typing import Any

import torch
from torch._functorch import config as functorch_config

from ...lowering.autograd import missing_gradients
from ...lowering.graph import graph_transfer
from ...runtime import compilers
from ...runtime.cache import entries
from ...runtime.environment.machine import MACHINE
from . import segment_programs
from .build_process import KEY, LENGTH, REFUSED, STORED
from .thread_modes import set_process_settings

LOOK = 0.5  # seconds between two looks at whether the other process is there


def main() -> None:
    """Compile what standard input gives, until it ends."""
    given, answers, parent = map(int, sys.argv[1:4])
    os.nice(19)
    compilers.be_gentle_as_a_group(os.getpid())
    compilers.be_gentle()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_after, args=(parent, float(sys.argv[4])), daemon=True).start()
    torch.set_num_threads(1)
    segment_programs.compiler()
    while True:
        length = int.from_bytes(_read(given, LENGTH), "little")
        data = _read(given, length)
        if not length or len(data) < length:
            break
        key = data[:KEY].decode()
        answer = STORED if _is_compiled(key, data[KEY:]) else REFUSED
        with contextlib.suppress(OSError):  # it has ended: its next run finds what it asked for
            os.write(answers, answer + key.encode())
    os._exit(0)


def _read(handle: int, length: int) -> bytes:
    parts = []
    while length > 0:
        part = os.read(handle, min(length, 1 << 16))
        if not part:
            return b""
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def _is_compiled(key: str, data: bytes) -> bool:
    """Whether the graph has that key here as well, and its programs are stored now."""
    try:
        graph, (metas, options, modes, settings) = graph_transfer.from_bytes(data)
        set_process_settings(settings)
        with modes.entered():
            kept = segment_programs.stored_graph(graph, metas, options)
            if kept is None or kept.key != key:
                return False
            if entries.read(key) is None:
                with missing_gradients.ahead_of_calls(), _with_its_backward():
                    segment_programs.compile_ahead(graph, metas, options, kept)
        return entries.read(key) is not None
    except Exception:
        return False


def _with_its_backward() -> contextlib.AbstractContextManager[Any]:
    """Inside, a backward is compiled with its forward. The key of a program is taken before."""
    name = "force_non_lazy_backward_lowering"
    known = hasattr(functorch_config, name)
    return functorch_config.patch({name: True}) if known else contextlib.nullcontext()


def _end_after(parent: int, seconds: float) -> None:
    """End so long after the other process, with every compiler that runs."""
    end = 0.0
    while not end or MACHINE.now() < end:
        MACHINE.sleep(LOOK)
        if not end and not _is_alive(parent):
            end = MACHINE.now() + seconds
    compilers.end_compilers()
    os._exit(1)


def _is_alive(process: int) -> bool:
    with contextlib.suppress(PermissionError):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
    return True
