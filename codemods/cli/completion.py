"""`dynfix completion SHELL`: a script that completes commands, options and what they take."""

from __future__ import annotations

import argparse
import sys

from ...rewriter.catalogue import REASONS
from .command_line import COMMANDS, parser
from .settings import SettingsError

_BASH = """\
_dynfix() {{
    local now=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=""
    case $before in
{cases}
    esac
    if [[ -z $words && $now == -* ]]; then
        words="{options}"
    elif [[ -z $words && $COMP_CWORD -eq 1 ]]; then
        words="{commands}"
    fi
    COMPREPLY=($(compgen -W "$words" -- "$now"))
    [[ $now == -* ]] || COMPREPLY+=($(compgen -f -- "$now"))
}}
complete -o filenames -F _dynfix dynfix
"""


def script(shell: str) -> str:
    """The script for "bash", "zsh" or "fish"; SettingsError for another shell."""
    made = {"bash": _bash, "zsh": _zsh, "fish": _fish}.get(shell)
    if made is None:
        raise SettingsError(f"completion is for bash, zsh and fish, not {shell or 'no shell'!r}")
    return made()


def main(argv: list[str]) -> int:
    """Print the script for the shell that is named."""
    sys.stdout.write(script(argv[0] if argv else ""))
    return 0


def _actions() -> list[argparse.Action]:
    return [a for a in parser("")._actions if a.option_strings]


def _taken() -> dict[str, list[str]]:
    """{word: what may follow it}."""
    taken = {o: [*map(str, a.choices)] for a in _actions() if a.choices for o in a.option_strings}
    codes = dict.fromkeys(("--select", "--ignore", "--extend-select", "--explain", "rule"))
    shells = {"completion": ["bash", "zsh", "fish"]}
    return {**taken, **{word: list(REASONS) for word in codes}, **shells}


def _bash() -> str:
    cases = "\n".join(
        f'        {word}) words="{" ".join(follow)}";;' for word, follow in _taken().items()
    )
    options = " ".join(o for a in _actions() for o in a.option_strings)
    return _BASH.format(cases=cases, options=options, commands=" ".join(COMMANDS))


def _zsh() -> str:
    return f"#compdef dynfix\nautoload -U +X bashcompinit && bashcompinit\n{_bash()}"


def _fish() -> str:
    lines = [
        f"complete -c dynfix -n __fish_use_subcommand -a {name} -d {_quoted(text)}"
        for name, text in COMMANDS.items()
    ]
    taken = _taken()
    for action in _actions():
        names = [
            f"-l {o[2:]}" if o.startswith("--") else f"-s {o[1:]}" for o in action.option_strings
        ]
        follow = taken.get(action.option_strings[-1], [])
        values = f" -x -a {_quoted(' '.join(follow))}" if follow else ""
        lines.append(
            f"complete -c dynfix {' '.join(names)}{values} -d {_quoted(action.help or '')}"
        )
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
