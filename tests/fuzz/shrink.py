"""A failing graph made small, and as a script of its own."""

import dataclasses
import re

from .judge import differences, usable


def fails(graph, dynamic):
    """What differs, or nothing; a graph that eager does not run is no failure."""
    try:
        if not usable(graph):
            return []
    except Exception:  # lines were removed that others need
        return []
    return differences([graph], dynamic)[0]


def shrunk(graph, dynamic):
    """The smallest graph found that differs still."""
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(graph):
            if fails(smaller, dynamic):
                graph, changed = smaller, True
                break
    return graph


def _smaller(graph):
    """Graphs with less in them, those with much less first."""
    lines, outputs = graph.lines, graph.outputs
    if len(outputs) > 1:
        for name in outputs:
            yield dataclasses.replace(graph, outputs=(name,))
        for name in outputs:
            yield dataclasses.replace(graph, outputs=tuple(o for o in outputs if o != name))
    if graph.gradients:
        yield dataclasses.replace(graph, gradients=False)
    for place in reversed(range(len(lines))):
        yield _without(graph, place)
    used = " ".join((*lines, *outputs, *(text for _, text in graph.inputs)))
    kept = tuple(pair for pair in graph.inputs if re.search(rf"\b{pair[0]}\b", used))
    if kept != graph.inputs:
        yield dataclasses.replace(graph, inputs=kept)


def _without(graph, place):
    """The graph without a line and what is made from its result, which its first operand
    replaces."""
    name, _, rest = graph.lines[place].partition(" = ")
    operand = re.search(r"\b[av]\d+\b", rest)
    if not re.fullmatch(r"v\d+", name):
        return dataclasses.replace(graph, lines=graph.lines[:place] + graph.lines[place + 1 :])
    other = operand.group() if operand else "a0"
    lines = [re.sub(rf"\b{name}\b", other, line) for line in graph.lines[place + 1 :]]
    outputs = [other if o == name else o for o in graph.outputs]
    return dataclasses.replace(
        graph,
        lines=(*graph.lines[:place], *lines),
        outputs=tuple(dict.fromkeys(outputs)),
    )


SCRIPT = '''"""{found}"""
import dynfix
import torch
from torch.nn import functional as F

{text}

def make(code, *shape):
    dtype = {{{types}}}[code]
    if code == "b":
        return torch.rand(shape).to({device!r}) > 0.5
    if code in "liuws":
        return torch.randint(0, 9, shape).to({device!r}, dtype)
    return torch.randn(shape, dtype=torch.float64).to({device!r}, dtype)


compiled = dynfix.compile(call, dynamic={dynamic}, mode={mode!r})
for turn, (n, m) in enumerate({sizes}):
    made = []
    for function in (compiled, call):
        torch.manual_seed(turn)
{inputs}
        result = function({names})
        grads = []
        if {gradients}:
            roots = [r for r in result if r.requires_grad]
            leaves = [a for a in ({names},) if a.requires_grad and a.is_leaf]
            if roots and leaves:
                ones = [torch.ones_like(r) for r in roots]
                grads = torch.autograd.grad(roots, leaves, ones, allow_unused=True)
        made.append((result, grads, [{names}]))
    print(turn, *made, sep="\\n")
'''


def script(graph, dynamic, found, types, device, mode):
    names = ", ".join(name for name, _ in graph.inputs)
    return SCRIPT.format(
        found=f"seed {graph.seed}: {found}",
        text=graph.text("call"),
        types=", ".join(f'"{code}": {name}' for code, name in types.items()),
        dynamic=dynamic,
        device=device,
        mode=mode,
        sizes=graph.sizes,
        inputs="\n".join(f"        {name} = {text}" for name, text in graph.inputs),
        names=names,
        gradients=graph.gradients,
    )
