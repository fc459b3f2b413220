"""Settings: one frozen record, made once from the configuration file and the command line."""

from __future__ import annotations

import fnmatch
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from ...rewriter.catalogue import REASONS
from ...rewriter.source.regular_files import read
from ...rewriter.source.spans import Safety
from ..analysis.findings import CommandError

if TYPE_CHECKING:
    from ..analysis.file_links import FileLinks
    from ..analysis.findings import Finding
    from ..analysis.neighbours import Neighbours
    from ..trace.trace_facts import TraceFacts


FORMATS = (
    "full",
    "concise",
    "grouped",
    "json",
    "json-lines",
    "github",
    "gitlab",
    "sarif",
    "junit",
    "rdjson",
)
SCOPES = ("forward", "compiled", "all")
_EXCLUDE = (
    ".git",
    ".hg",
    ".tox",
    ".nox",
    ".venv",
    "venv",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    "build",
    "dist",
    "node_modules",
    ".eggs",
    ".dynfix_cache",
    ".ipynb_checkpoints",
    "site-packages",
)


_EVERY = "DYN"  # the prefix of all rules
_ALIKE = 0.73  # of two words, where one may be meant by the other: 1 for equal ones
_LARGEST = 4 << 20  # bytes of a configuration file


class SettingsError(CommandError):
    """A setting that is not known, or has no such value."""


@dataclass(frozen=True)
class Settings:
    """`select`, `ignore` and the like hold codes or prefixes of codes; `per_file_ignores` holds
    (pattern, codes)."""

    select: tuple = ("DYN",)
    extend_select: tuple = ()
    ignore: tuple = ()
    per_file_ignores: tuple = ()
    fixable: tuple = ("DYN",)
    unfixable: tuple = ()
    exclude: tuple = _EXCLUDE
    extend_exclude: tuple = ()
    force_exclude: bool = False
    respect_gitignore: bool = True
    unsafe_fixes: bool = False
    scope: str = "forward"
    entry: tuple = ()
    target_torch: str = ""
    output_format: str = "full"
    jobs: int = 0
    cache: bool = True
    exit_zero: bool = False
    exit_zero_on_unsafe: bool = False
    root: str = "."
    source: str = "defaults"
    facts: dict = field(
        default_factory=dict, compare=False, repr=False
    )  # {real path: Facts} of a traced run
    facts_key: str = ""  # of kept ones
    verified: bool = False  # what is fixed with facts is run, compiled and in eager, and compared
    eager_kept: bool = False  # of unsafe fixes, only those of what compiled code alone runs
    operators: bool = False  # of unsafe fixes, only operators that run in eager
    broken: dict = field(default_factory=dict, compare=False, repr=False)  # {real path: lines}
    project: Neighbours | None = field(default=None, compare=False, repr=False)

    def selects(self, code: str, path: str) -> bool:
        """Whether the rule `code` looks at the file at `path`; the longest matching prefix
        decides. One that is opt-in needs a longer prefix than that of all rules."""
        chosen = max(_length(code, self.select), _length(code, self.extend_select))
        if REASONS[code].opt_in and chosen <= len(_EVERY):
            return False
        if chosen == 0 or _length(code, self.ignore) >= chosen:
            return False
        return not any(
            _length(code, codes)
            for pattern, codes in self.per_file_ignores
            if self._matches(path, (pattern,))
        )

    def targets_before(self, version: str) -> bool:
        """Whether the code has to run with a torch older than `version`."""
        return bool(self.target_torch) and numbers(self.target_torch) < numbers(version)

    def fixes(self, code: str) -> bool:
        return _length(code, self.fixable) > _length(code, self.unfixable)

    def wants(self, finding: Finding) -> bool:
        """Whether its fix, if it has one, is to be made."""
        if finding.fix is None or not self.fixes(finding.code):
            return False
        fix = finding.fix
        if self.operators and not fix.operator and (fix.ran or fix.safety is Safety.UNSAFE):
            return False
        unsafe = self.unsafe_fixes and (fix.compiled or not self.eager_kept)
        return fix.safety is Safety.SAFE or unsafe

    def _matches(self, path: str, patterns: tuple[str, ...]) -> bool:
        """Whether `path` (its name, or its place below the settings' folder) fits a pattern."""
        relative = os.path.relpath(path, self.root).replace(os.sep, "/")
        fits = _fitting(patterns)
        return bool(fits(os.path.basename(path)) or fits(relative))

    def excludes(self, path: str) -> bool:
        return self._matches(path, (*self.exclude, *self.extend_exclude))

    def facts_of(self, path: str) -> TraceFacts | None:
        """The Facts of the file at `path`, or None."""
        return self.facts.get(os.path.realpath(path)) if self.facts else None

    def links_of(self, path: str) -> FileLinks | None:
        """What the rest of the project tells of the file at `path`; None where it is not known."""
        return self.project.of(os.path.realpath(path)) if self.project else None

    def narrowed(self, path: str) -> Settings:
        """The same with the facts of one file alone, and without the project, which each worker
        process has: what it is sent."""
        facts = self.facts_of(path)
        alone = {os.path.realpath(path): facts} if facts else {}
        return replace(self, facts=alone, project=None)

    def key(self) -> str:
        """What results depend on."""
        names = (
            "root",
            "select",
            "extend_select",
            "ignore",
            "per_file_ignores",
            "scope",
            "entry",
            "target_torch",
        )
        names += ("fixable", "unfixable", "facts_key")
        return repr([getattr(self, name) for name in names])


@cache
def _fitting(patterns: tuple[str, ...]) -> Callable[[str], re.Match[str] | None]:
    """Whether a name fits one of the patterns, as `fnmatch` has it."""
    one = re.compile("|".join(map(fnmatch.translate, map(os.path.normcase, patterns))) or "(?!)")
    return lambda name: one.match(os.path.normcase(name))


def meant(word: str, known: Iterable[str]) -> str:
    """`; did you mean …?` where one of `known` begins or ends with `word`, or is spelt nearly as it
    is."""
    import difflib  # only where a word is not known

    known, bare = sorted(known), word.strip("-")
    longer = [e for e in known if e.startswith(word)]
    longer += [e for e in known if e.endswith(f"-{bare}")]
    near = difflib.get_close_matches(word, known, 1, _ALIKE)
    close = [*(longer if len(bare) > 2 else ()), *near]
    return f"; did you mean {close[0]}?" if close else ""


def meant_rule(word: str) -> str:
    """The same for a rule's code, or its name."""
    named = {reason.name: code for code, reason in REASONS.items()}
    if word.lower() in named:
        return f"; did you mean {named[word.lower()]}?"
    return meant(word.upper(), REASONS) or meant(word.lower(), named)


def _length(code: str, prefixes: tuple[str, ...]) -> int:
    return max((len(p) for p in prefixes if code.startswith(p)), default=0)


_KINDS = {
    f.name: type(f.default)
    for f in fields(Settings)
    if f.name
    not in (
        "root",
        "source",
        "facts",
        "facts_key",
        "verified",
        "eager_kept",
        "operators",
        "broken",
        "project",
    )
}


_MOST_JOBS = 10_000
_KIND_WORDS = {
    bool: "true or false",
    int: f"a number, 0 or more, less than {_MOST_JOBS}",
    str: "a string",
}


def convert(name: str, value: dict[str, list[str]] | list[str] | str, where: str) -> Any:
    """A setting's value of the right type; SettingsError names `where` it was read."""
    name = name.replace("-", "_")
    if name not in _KINDS:
        known = [each.replace("_", "-") for each in _KINDS]
        name = name.replace("_", "-")
        raise SettingsError(f"{where}: unknown setting {name[:80]!r}{meant(name, known)}")
    if name == "per_file_ignores":
        return name, _per_file(value, where)
    kind = _KINDS[name]
    if kind is tuple:
        return name, _codes(name, value, where)
    if kind is bool and isinstance(value, str):
        value = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(
            value.lower(), value
        )
    if kind is int and isinstance(value, str) and value.isdecimal() and len(value) < 10:
        value = int(value)
    if type(value) is not kind or (kind is int and not 0 <= value < _MOST_JOBS):
        raise SettingsError(f"{where}: {name} must be {_KIND_WORDS[kind]}, not {_shown(value)}")
    return name, _allowed(name, value, where)


def _shown(value: Any) -> str:
    """A wrong value, cut short: it may be nested deeply, or have more digits than are printed."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        return f"such a {type(value).__name__}"
    return text if len(text) < 80 else f"{text[:80]}…"


def numbers(version: str) -> tuple[int, ...]:
    """`2.13` as (2, 13)."""
    return tuple(int(part) for part in version.split("."))


def _allowed(name: str, value: Any, where: Any) -> Any:
    if (
        name == "target_torch"
        and value
        and not re.fullmatch(r"\d{1,3}\.\d{1,3}(\.\d{1,3})?", value)
    ):
        raise SettingsError(f"{where}: target-torch must be a version such as 2.13, not {value!r}")
    allowed = {"scope": SCOPES, "output_format": FORMATS}.get(name)
    if allowed and value not in allowed:
        known = ", ".join(allowed)
        close = meant(value, allowed)
        raise SettingsError(f"{where}: {name} must be one of {known}, not {_shown(value)}{close}")
    return value


def _codes(name: str, value: Any, where: str) -> Any:
    items = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)) or not all(isinstance(i, str) for i in items):
        raise SettingsError(f"{where}: {name} must be a list of strings, not {_shown(value)}")
    if "exclude" in name:
        return tuple(i.rstrip("/") for i in items)
    if name == "entry":
        wrong = next((i for i in items if not re.fullmatch(r"[\w.]+:[\w.]+", i)), None)
        if wrong is not None:
            raise SettingsError(f"{where}: entry must be MODULE:NAME, not {_shown(wrong)}")
        return tuple(items)
    items = tuple("DYN" if i.upper() == "ALL" else i.upper() for i in items)
    known = [reason.code for reason in REASONS.values() if not reason.no_rule]
    for item in items:
        if not any(code.startswith(item) for code in known):
            raise SettingsError(f"{where}: no rule has the code {item[:80]}{meant_rule(item)}")
    return items


def _per_file(value: Any, where: str) -> Any:
    if isinstance(value, str):
        pairs = [
            line.partition(":") for line in value.replace(",", "\n").splitlines() if line.strip()
        ]
        table = {}
        for pattern, _, codes in pairs:
            if not pattern.strip() or not codes.strip():
                raise SettingsError(
                    f"{where}: per_file_ignores must be PATTERN:CODE, not {_shown(value)}"
                )
            table.setdefault(pattern.strip(), []).extend(codes.split())
        value = table
    if not isinstance(value, dict):
        raise SettingsError(f"{where}: per_file_ignores must map patterns to codes")
    return tuple(
        (pattern, _codes("per_file_ignores", codes, where)) for pattern, codes in value.items()
    )


def _read(path: str, asked: bool = False) -> Any:
    """The settings in a configuration file as a dict; None where it holds none of ours."""
    name = os.path.basename(path)
    try:
        raw = read(path, _LARGEST)
        if b"dynfix" not in raw and name != "dynfix.toml" and not asked:
            return None  # whatever is wrong with it is no concern of ours
        text = raw.decode("utf-8")
        if name == "setup.cfg":
            return _ini(text) if "[dynfix" in text else None
        prefix = ("tool", "dynfix") if name == "pyproject.toml" else ()
        return (tables(text, prefix) if not prefix or "dynfix" in text else None) or None
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    except (RecursionError, MemoryError):
        raise SettingsError(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise SettingsError(f"{path}: {[*str(error).splitlines(), 'no settings'][0]}") from None


def _ini(text: str) -> dict[str, str] | None:
    import configparser  # only where there is such a file of ours

    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise ValueError(str(error)) from None
    return dict(parser["dynfix"]) if parser.has_section("dynfix") else None


def find(start: str) -> tuple[str | None, dict[str, Any]]:
    """(path, values) of the nearest configuration file at or above the folder `start`."""
    folder, below = start, ""
    while folder != below:
        for name in ("dynfix.toml", "pyproject.toml", "setup.cfg"):
            path = os.path.join(folder, name)
            values = _read(path) if os.path.isfile(path) else None
            if values is not None:
                return path, values
        folder, below = os.path.dirname(folder), folder
    return None, {}


def load(start: str, config: str | None = None) -> Settings:
    """Settings for files below `start`: from `config`, or the nearest configuration file, or the
    defaults."""
    start = os.path.realpath(start)
    path, values = (config, _read(config) or {}) if config else find(start)
    if path is None:
        return Settings(root=start)
    converted = dict(convert(name, value, path) for name, value in values.items())
    root = os.path.dirname(os.path.realpath(path))
    return replace(Settings(root=root, source=path), **converted)


# The tables of a TOML file, as the settings need them.


class TomlError(ValueError):
    """The text is no TOML, or the table that is asked for is none."""


def tables(text: str, prefix: Any) -> dict[str, Any]:
    """The table `prefix` of a TOML document as nested dicts; {} where there is none."""
    if sys.version_info >= (3, 11):  # imported only where there is TOML to read
        import tomllib
    else:
        import tomli as tomllib
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TomlError(str(error)) from None
    for part in prefix:
        table = table.get(part, {})
        if not isinstance(table, dict):
            raise TomlError(f"{part} is no table")
    return table
