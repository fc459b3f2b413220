"""The table of what is known of torch's operators by name, `operators.txt`: one row an operator;
and `returns.txt`, made of torch's stubs. torch is not loaded. What torch itself knows, by schemas
and tags, is asked of torch instead."""

from collections import defaultdict
from functools import cache
from pathlib import Path


def having(*properties: str) -> frozenset[str]:
    """The names that have one of the properties. Raises KeyError for one that the table does not
    explain."""
    explained, names = table()
    for each in properties:
        explained[each]
    return frozenset().union(*(names[each] for each in properties))


@cache
def table() -> tuple[dict[str, str], dict[str, set[str]]]:
    """({property: what it says of an operator}, {property: the names that have it})."""
    explained, names = dict[str, str](), defaultdict[str, set[str]](set)
    for line in Path(__file__).with_name("operators.txt").read_text("utf-8").splitlines():
        head, *rest = line.partition("  #")[0].split() or [""]
        if head == "@":
            explained[rest[0]] = " ".join(rest[1:])
        elif not line.startswith("#"):
            for each in rest:
                names[each].add(head)
    return explained, names


@cache
def returns(of: str) -> dict[str, str]:
    """{name: letters of what it returns, as the file explains them} of torch's "methods",
    "functions", or "functional" (`torch.nn.functional`). Raises KeyError for others."""
    text = Path(__file__).with_name("returns.txt").read_text("utf-8")
    parts = {part.split()[0]: part.split()[1:] for part in text.split("\n@ ")[1:]}
    return dict(word.split(":") for word in parts[of])
