"""Which versions of torch this package is tested with. setup.cfg, tox.ini and the pages say the
same, which a test compares. Loads no torch."""

import re

OLDEST, NEWEST = (2, 11), (2, 14)
TESTED = f"torch {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"


def _parts(version: str) -> tuple[int, ...]:
    """Its first two numbers; none of a version of another form."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()


def too_old(version: str) -> str | None:
    """Why torch of this version cannot be used, and what to do; None if it can."""
    if not () < _parts(version) < OLDEST:
        return None
    return (
        f"dynfix needs torch {OLDEST[0]}.{OLDEST[1]} or later; torch {version} is installed:"
        " pip install -U 'dynfix[torch]'"
    )


def untested(version: str) -> str | None:
    """What to say of a torch newer than the newest tested one; None of one that is not."""
    if () < _parts(version) <= NEWEST:
        return None
    return (
        f"dynfix is tested with {TESTED}; torch {version} is installed. Compare results with eager"
        f" (dynrun --verify), or pip install 'torch<{NEWEST[0]}.{NEWEST[1] + 1}'"
    )
