"""What torch draws in place of a number that Python or NumPy draws."""

import ast

_FORMS = {  # by the number of arguments
    ("random.random", 0): "{t}.rand(())",
    ("numpy.random.rand", 0): "{t}.rand(())",
    ("numpy.random.random", 0): "{t}.rand(())",
    ("numpy.random.randn", 0): "{t}.randn(())",
    ("random.uniform", 2): "{t}.empty(()).uniform_({0}, {1})",
    ("numpy.random.uniform", 0): "{t}.rand(())",
    ("numpy.random.uniform", 2): "{t}.empty(()).uniform_({0}, {1})",
    ("numpy.random.normal", 2): "{t}.empty(()).normal_({0}, {1})",
    ("random.gauss", 2): "{t}.empty(()).normal_({0}, {1})",
    ("numpy.random.beta", 2): "{t}.distributions.Beta({0}, {1}).sample()",
    ("random.betavariate", 2): "{t}.distributions.Beta({0}, {1}).sample()",
}


def torch_draw(call, context):
    """The source of a tensor of no axes that torch draws in place of a call; "" where there is
    none."""
    form = _FORMS.get((context.resolve(call.func) or "", len(call.args)))
    found = context.torch(call) if form else None
    plain = not call.keywords and not any(isinstance(a, ast.Starred) for a in call.args)
    if form is None or found is None or not plain:
        return ""
    return form.format(*map(context.segment, call.args), t=found[0])
