"""What calls may do is one table; patterns and rules ask it by policy."""

import ast

import pytest
from dynfix.rewriter.analysis import call_effects as effects

NONE, ANYTHING = effects.ONLY_COMPUTES, effects.CallEffect.ANYTHING
CALLS = {
    "torch.add(x, 1)": NONE,
    "math.sqrt(2)": NONE,
    "numpy.zeros(3)": NONE,
    "torch.cuda.is_available()": NONE,
    "torch.add(x, 1, out=y)": effects.CallEffect.WRITES,
    "torch.nn.init.zeros_(x)": effects.CallEffect.WRITES,
    "torch.rand(3)": effects.CallEffect.DRAWS,
    "numpy.random.rand(3)": effects.CallEffect.DRAWS | effects.CallEffect.STATE,
    "torch.manual_seed(0)": effects.CallEffect.STATE,
    "torch.set_num_threads(1)": effects.CallEffect.STATE,
    "torch.cuda.synchronize()": effects.CallEffect.STATE,
    "torch.utils.checkpoint.checkpoint(f, x)": effects.CallEffect.STATE,
    "torch.cond(p, f, g)": ANYTHING,
    "unknown.function(x)": ANYTHING,
}


@pytest.mark.parametrize("text", CALLS)
def test_what_a_function_may_do(text):
    call = ast.parse(text, mode="eval").body
    assert effects.of_function(call, ast.unparse(call.func)) == CALLS[text]


def test_policies_allow_what_they_name():
    allowed = {
        "ONLY_COMPUTES": "clone",
        "MAY_DRAW": "clone bernoulli",
        "MAY_READ": "clone item",
        "MAY_WRITE": "clone item add_",
    }
    for policy, names in allowed.items():
        found = [
            name
            for name in ("clone", "bernoulli", "item", "add_", "backward", "requires_grad_", "map_")
            if effects.allows(getattr(effects, policy), effects.of_method(name))
        ]
        assert found == names.split(), policy
