"""`dynrun --report FILE`: one page that holds everything it shows, and asks no network."""

import json
import os
import re
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2

from ... import __version__
from ..lock.stable_text import as_in_source

LARGEST = 4_500_000  # bytes of the page; what takes most room is left out beyond that
LINES = 4000  # of one file
COSTS = 20  # that are shown, of a step
_PLACE = re.compile(r"^(?P<file>.+?):(?P<line>\d+)(?::|$)")
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})
_OWN = str(Path(__file__).absolute().parents[2]) + os.sep


def write_report(
    path: str, script: Sequence[str], captured: Sequence[Any], collector: Any, costs: Any = None
) -> None:
    """Write the page to `path`. `costs`: of a step. Raises OSError."""
    data = page_data(script, captured, collector, costs)
    text = page(data)
    for part in ("guards", "code", "events", "graphs"):
        if len(text.encode()) > LARGEST:
            _leave_out(data, part)
            text = page(data)
    Path(path).write_text(text, encoding="utf-8")


def page(data: dict[str, Any]) -> str:
    """The page as text."""
    folder = os.path.dirname(os.path.abspath(__file__))
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder), autoescape=True, trim_blocks=True
    )
    return environment.get_template("report.html").render(data=data, json=embedded(data))


def embedded(data: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends the element."""
    text = json.dumps(data, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def page_data(
    script: Sequence[str],
    captured: Sequence[tuple[str, Any]],
    collector: Any,
    costs: Any = None,
) -> dict[str, Any]:
    """What the page shows, as plain data."""
    entries = [(name, entry) for name, entry in captured if entry.all_recordings]
    kernels = [] if collector is None else collector.kernel_list()
    return {
        "command": " ".join(script),
        "made": time.strftime("%Y-%m-%d %H:%M"),
        "version": f"dynfix {__version__}, Python {sys.version.split()[0]}{_torch()}",
        "functions": [_function(name, entry) for name, entry in entries],
        "step": "" if costs is None else f"{costs.step}: {costs.ms:.2f} ms",
        "costs": [] if costs is None else [_cost(cost) for cost in costs.costs[:COSTS]],
        "files": _files(entries, kernels, script),
        "graphs": [] if collector is None else collector.graphs,
        "kernels": kernels,
        "events": [] if collector is None else collector.events,
        "events_left_out": 0 if collector is None else collector.left_out,
        "left_out": [],
    }


def _torch() -> str:
    torch = sys.modules.get("torch")
    return "" if torch is None else f", torch {torch.__version__}"


def _function(name: str, entry: Any) -> dict[str, Any]:
    recordings = entry.all_recordings
    return {
        "name": name,
        "recorded": len(recordings),
        "graphs": sum(len(r.segments) for r in recordings),
        "compile_seconds": sum(sum(r.compile_times.values()) for r in recordings),
        "breaks": [
            {
                "place": f"{site.file}:{site.line}",
                "code": site.reason.code,
                "what": site.reason.message + (f" ({site.detail})" if site.detail else ""),
                "help": site.reason.help,
            }
            for recording in recordings
            for site in recording.sites
        ],
        "recompiles": [as_in_source(why) for why in entry.recompiles],
        "guards": sum(len(r.guards) for r in recordings),
    }


def _cost(cost: Any) -> dict[str, Any]:
    place = f"{_short(cost.file)}:{cost.line}" if cost.file else cost.function
    return {"place": place, "what": f"{cost.kind}: {cost.reason}", "ms": round(cost.ms, 3)}


# -- the source with its margin


def _files(
    entries: Iterable[tuple[str, Any]], kernels: Sequence[Any], script: Sequence[str]
) -> list[dict[str, Any]]:
    """The script, the user's other files, and the libraries'; not Python's own."""
    notes: dict[str, dict[int, list[dict[str, Any]]]] = {}
    if script and os.path.isfile(script[0]):
        notes[os.path.abspath(script[0])] = {}

    def note(place: str, kind: str, text: str, to: int | None = None) -> None:
        found = _PLACE.match(place)
        if found is None or os.path.abspath(found["file"]).startswith(_OWN):
            return
        lines = notes.setdefault(os.path.abspath(found["file"]), {})
        added = {"kind": kind, "text": text, "to": to}
        if added not in lines.setdefault(int(found["line"]), []):
            lines[int(found["line"])].append(added)

    for _, entry in entries:
        for recording in entry.all_recordings:
            for site in recording.sites:
                what = f"{site.reason.code} {site.reason.message}. {site.reason.help}"
                note(f"{site.file}:{site.line}", "break", what)
            for guard in recording.guards:
                note(str(guard.origin or ""), "guard", f"{guard.path.source}: {guard.check}")
            for change in recording.rewritten:
                what = f"{change.code}: recorded as\n{change.after}"
                note(f"{change.file}:{change.line}", "rewritten", what)
    for number, kernel in enumerate(kernels):
        for origin in kernel["origins"]:
            note(origin, "kernel", f"kernel {number}: {kernel['name']} ({kernel['graph']})", number)
    texts = ((path, _text(path), lines) for path, lines in notes.items())
    files = [
        {"name": _short(path), "library": _is_installed(path), "lines": text, "notes": lines}
        for path, text, lines in texts
        if text and not _is_pythons(path)
    ]
    first = files[:1] if script and os.path.isfile(script[0]) else []
    rest = files[len(first) :]
    return first + sorted(rest, key=lambda file: (file["library"], file["name"]))


def _short(path: str) -> str:
    """From the working folder, or from the folder of installed packages."""
    for folder in _INSTALLED:
        if path.startswith(folder + os.sep):
            return path[len(folder) + 1 :]
    return os.path.relpath(path)


def _is_installed(path: str) -> bool:
    return any(path.startswith(folder + os.sep) for folder in _INSTALLED)


def _is_pythons(path: str) -> bool:
    return not _is_installed(path) and path.startswith(sysconfig.get_path("stdlib") + os.sep)


def _text(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()[:LINES]
    except OSError:
        return []


def _leave_out(data: dict[str, Any], part: str) -> None:
    """Make the page smaller by what it can best do without."""
    if part == "code":
        for kernel in data["kernels"]:
            kernel["code"] = kernel["code"][:400]
    elif part == "graphs":
        data["graphs"] = data["graphs"][:8]
    elif part == "events":
        data["events_left_out"] += max(0, len(data["events"]) - 500)
        data["events"] = data["events"][:500]
    else:
        for file in data["files"]:
            file["notes"] = {
                line: [n for n in notes if n["kind"] != "guard"] or notes[:1]
                for line, notes in file["notes"].items()
            }
    data["left_out"].append(part)
