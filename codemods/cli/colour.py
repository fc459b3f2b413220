"""Whether output is coloured: https://no-color.org, FORCE_COLOR, TERM, and a terminal."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def coloured(stream: Any) -> bool:
    """NO_COLOR goes first, then FORCE_COLOR; else a terminal that is not TERM=dumb has colours."""
    if os.environ.get("NO_COLOR"):
        return False
    forced = os.environ.get("FORCE_COLOR", "")
    if forced:
        return forced not in ("0", "false")
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def painter(stream: Any) -> Callable[[str, str], str]:
    """Marks up text for a stream; rich is loaded only where there are colours."""
    if not coloured(stream):
        return lambda text, style: text
    from rich.style import Style

    return lambda text, style: Style.parse(style).render(text)
