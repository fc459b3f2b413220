"""What one run of `dynrun` did, in words: for `--explain`, and for the summary at the end."""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ...runtime.cache.run_history import COMPILED, EAGER, MET, RECORDED
from ..lock.stable_text import as_in_source

LITTLE = 0.05  # seconds that nothing is said of
SHOWN = 12  # breaks, and reasons to record again, that a summary shows


def rank_prefix() -> str:
    """`[rank 3] ` in a process that torchrun started."""
    rank = os.environ.get("RANK")
    return f"[rank {rank}] " if rank is not None and "WORLD_SIZE" in os.environ else ""


def ranked(path: str) -> str:
    """`path`, or `path` with the rank before its ending in a process that torchrun started."""
    stem, ending = os.path.splitext(path)
    rank = rank_prefix().strip("[] ").replace(" ", "")
    return f"{stem}.{rank}{ending}" if rank else path


def say(text: str, file: Any = None) -> None:
    """Every line with the rank's prefix, in one write, so that processes do not interleave."""
    prefix = rank_prefix()
    out = file or sys.stderr
    out.write("".join(f"{prefix}{line}\n" for line in text.splitlines()))
    out.flush()


def say_line(message: str) -> None:
    """The first line of a message, if standard error can take it."""
    with contextlib.suppress(OSError, ValueError, AttributeError, IndexError):
        say(f"dynrun: {message.splitlines()[0]}")


def report(captured: list[tuple[str, Any]], left: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Of every function: recordings, graphs, breaks with their places. `left`: modules that are
    compiled in a training step alone."""
    called = [(name, entry) for name, entry in captured if entry.all_recordings]
    lines = [f"dynrun: {len(called)} captured"]
    for name, entry in called:
        lines += _recorded(name, entry)
    lines += [
        f"  {name}: eager outside of its training step, where it took {known.seconds:.1f} s"
        for name, known in left.items()
    ]
    return "\n".join(lines)


def _recorded(name: str, entry: Any) -> Iterator[str]:
    sites = _sites(entry)
    graphs = sum(len(recording.segments) for recording in entry.all_recordings)
    yield f"  {name}: {len(entry.all_recordings)} recorded, {graphs} graphs, {len(sites)} breaks"
    met: dict[Any, list[Any]] = {}  # a place in a loop breaks at each turn
    for site in sites:
        met.setdefault((site.file, site.line, site.reason.code), []).append(site)
    for alike in met.values():
        first, *more = str(alike[0]).splitlines()
        times = f" ({len(alike)} times)" if len(alike) > 1 else ""
        yield "\n    ".join([f"    {first}{times}", *more])
    for change in dict.fromkeys(c for r in entry.all_recordings for c in r.rewritten):
        yield f"    {change.file}:{change.line}: {change.code} rewritten"
        yield from (f"      - {line}" for line in change.before.splitlines())
        yield from (f"      + {line}" for line in change.after.splitlines())
    for why in entry.recompiles:
        yield f"    recorded again: {as_in_source(why)}"


def summary(captured: list[tuple[str, Any]], background: Any) -> str:
    """The last words on a terminal, with rich's markup."""
    entries = [(name, entry) for name, entry in captured if entry.all_recordings]
    graphs = sum(len(r.segments) for _, e in entries for r in e.all_recordings)
    sites = list(
        {(s.file, s.line, s.reason.code): s for _, e in entries for s in _sites(e)}.values()
    )
    seconds = sum(sum(r.compile_times.values()) for _, e in entries for r in e.all_recordings)
    again = [(name, as_in_source(why)) for name, entry in entries for why in entry.recompiles]
    lines = [
        f"[bold]dynrun[/bold]: {counted(len(entries), 'function')},"
        f" {counted(graphs, 'graph')}, {counted(len(sites), 'break')},"
        f" {counted(len(again), 'recompile')}, {seconds:.1f} s of compiling"
    ]
    if background is not None:
        lines.append(f"  {_verdict(background)}")
    for name, entry in entries:
        lines += [f"  {_escaped(name)}: {state}" for state in _states(entry)]
    lines += [_break(site) for site in sites[:SHOWN]]
    lines += [f"  recompiled {_escaped(name)}: {_escaped(why)}" for name, why in again[:SHOWN]]
    left = max(0, len(sites) - SHOWN) + max(0, len(again) - SHOWN)
    return "\n".join([*lines, *([f"  and {left} more (--explain shows all)"] if left else [])])


def _verdict(background: Any) -> str:
    """What was gained, or why nothing was, and what the next run does."""
    learnt, account = background.met(), background.account
    named: dict[str, list[str]] = {}
    for name, facts in learnt.items():
        named.setdefault(facts.state, []).append(name)
    if COMPILED in named:
        return _balance(account.gained, account.lost)
    if RECORDED in named:
        done = "the next run of this command begins with them"
        what = f"the kernels of {_some(named[RECORDED])}"
        return f"nothing was gained yet: the run ended before {what} served; {done}"
    lost = f", which cost {account.lost:.1f} s" if account.lost > LITTLE else ""
    paying = [name for name in named.get(MET, ()) if background.would_pay(learnt[name])]
    if paying:
        then = f"the next run of this command begins at once with {_some(paying)}"
        return f"nothing was compiled{lost}: the run was too short for that to pay; {then}"
    if EAGER in named and not any(learnt[name].seconds > LITTLE for name in named.get(MET, ())):
        return f"nothing was gained{lost}: eager is as fast, or it cannot be captured"
    return f"nothing was compiled{lost}: the run was too short, or too light, for compiling to pay"


def _balance(gained: float, lost: float) -> str:
    balance, parts = gained - lost, f"{gained:.1f} s gained, {lost:.1f} s lost to compiling"
    if balance >= 0:
        return f"about {balance:.1f} s faster than python: {parts}"
    then = "the next run of this command is faster from its start"
    return f"about {-balance:.1f} s slower than python: {parts}; {then}"


def _some(names: list[str]) -> str:
    shown = ", ".join(name.rpartition(".")[2] if ":" not in name else name for name in names[:2])
    return _escaped(shown) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _states(entry: Any) -> Iterator[str]:
    """One line for each recording that was timed, built or dropped."""
    for tried in entry.switchovers:
        state, eager, compiled = tried.state.name, tried.eager_seconds, tried.compiled_seconds
        if tried.trials and state == "EAGER":
            yield f"eager was as fast ({_ms(eager)} against {_ms(compiled)} compiled)"
        elif tried.trials:
            yield f"[green]{_ms(compiled)}[/green] a call, {_ms(eager)} in eager"
        elif state == "EAGER":
            yield "could not be compiled: eager"
        else:
            yield "eager: its kernels were not ready, or not timed, before the end"


def _break(site: Any) -> str:
    reason = site.reason
    way_out = reason.help + ("" if reason.no_rule else f" (`dynfix rule {reason.code}`)")
    place = f"{os.path.relpath(site.file) if os.path.isabs(site.file) else site.file}:{site.line}"
    found = f"{reason.code} {_escaped(reason.message)}"
    return f"  [yellow]{_escaped(place)}[/yellow] {found}: {_escaped(way_out)}"


def _sites(entry: Any) -> list[Any]:
    return [site for recording in entry.all_recordings for site in recording.sites]


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms"


def counted(number: int, word: str) -> str:
    """`2 graphs`."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def _escaped(text: str) -> str:
    return text.replace("[", "\\[")
