"""DYN8: rules that are off by default, for code that moves to newer names and forms of torch."""

import pytest
import torch
from dynfix.codemods.cli.settings import Settings
from dynfix.codemods.rules import RULES

from . import support

MIGRATIONS = [r.code for r in RULES if r.reason.opt_in]
ATTENTION = {
    "parts of a class": """
class Model(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.scale = width ** -0.5
        self.drop = nn.Dropout(0.0)
        self.qkv = nn.Linear(8, 24)

    def forward(self, q, k, v, mask):
        q, k, v = self.qkv(q).chunk(3, -1)
        attn = (q @ k.transpose(-2, -1)) * self.scale
        attn = attn.softmax(dim=-1)
        return (attn @ v).transpose(1, 2)
""",
    "an added mask": """
def model(q, k, v, mask):
    scores = torch.matmul(q, k.transpose(-1, -2))
    scores = scores / math.sqrt(8)
    if mask is not None:
        scores += mask.float()
    probs = nn.functional.softmax(scores.float(), dim=-1).type_as(q)
    probs = F.dropout(probs, p=0.0, training=True)
    context = torch.matmul(probs, v)
    return context
""",
    "a mask on the other side": """
def model(q, k, v, mask):
    a = q @ k.transpose(2, 3)
    a = mask.float() + a * (1.0 / math.sqrt(q.size(-1)))
    a = a.softmax(-1)
    return a @ v
""",
    "masks that hide": """
def model(q, k, v, mask):
    a = q @ k.permute(0, 1, 3, 2)
    a.masked_fill_(~mask, float("-inf"))
    a = torch.where(mask == True, a, -1e30)
    return F.softmax(a, dim=-1, dtype=torch.float32).to(q.dtype) @ v
""",
    "einsum": """
def model(q, k, v, mask):
    e = torch.einsum("nqhd,nkhd->nhqk", [q.transpose(1, 2), k.transpose(1, 2)])
    a = torch.softmax(e / (8 ** 0.5), dim=3)
    return torch.einsum("nhql,nlhd->nqhd", [a, v.transpose(1, 2)])
""",
    "einsum, the key first": """
def model(q, k, v, mask):
    s = torch.einsum("bhjd,bhid->bhij", k, q)
    return torch.einsum("bhij,bhjd->bihd", s.softmax(-1), v)
""",
    "one name for all": """
def model(q, k, v, mask):
    for _ in range(2):
        k_t = k.transpose(-2, -1)
        x = q @ k_t
        x = x.softmax(-1)
        x = x @ v
        q = x
    return q
""",
    "batched products": """
def model(q, k, v, mask):
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    w = torch.bmm(q, k.transpose(1, 2)) / math.sqrt(q.shape[-1])
    return torch.bmm(F.softmax(w, dim=2), v)
""",
}
HEAD = "import math\n\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def results(text):
    """The model's result and gradients."""
    names = {"__name__": "model"}
    torch.manual_seed(0)
    exec(compile(text, "model.py", "exec"), names)
    model = names["Model"]() if "Model" in names else names["model"]
    q, k, v = (torch.randn(2, 3, 5, 8, requires_grad=True) for _ in range(3))
    mask = torch.rand(2, 1, 5, 5) > 0.4
    mask[..., 0] = True
    out = model(q, k, v, mask)
    return [out, *torch.autograd.grad(out.square().sum(), [q, *([] if "Model" in names else [k])])]


@pytest.mark.parametrize("body", ATTENTION.values(), ids=ATTENTION)
def test_attention_gives_the_same(body):
    text = HEAD + "\n" + body
    after = support.fixed(text, unsafe=True, select=("DYN804",)).source.text
    assert "scaled_dot_product_attention" in after and "softmax" not in after.partition("def ")[2]
    for first, second in zip(results(text), results(after), strict=True):
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-4)


LEFT = {
    "return a @ v, a": "line 10 uses `a`, too",
    "return (lambda: a.sum())() + a @ v": "line 10 uses `a`, too",
    "q = q + 1\n    return a @ v + q": "line 10 changes what it is made of",
    "q.mul_(2)\n    return a @ v": "line 10 changes what it is made of",
}


@pytest.mark.parametrize("end", LEFT)
def test_attention_that_is_left_alone(end):
    lines = f"    a = q @ k.mT\n    a = a.softmax(-1)\n    {end}\n"
    text = f"{HEAD}\ndef model(q, k, v):\n{lines}"
    kept = [f.kept for f in support.found(text, select=("DYN804",))]
    assert kept == [LEFT[end]]
    assert support.fixed(text, unsafe=True, select=("DYN804",)).source.text == text


UNCLEAR = {
    "(q @ k.mT + mask) / 3": "the mask is added before the scores are scaled",
    "(q @ k.mT) * mask": "the scale is not known to be a Python number",
    "(q @ k.mT).masked_fill(mask > 0, 0)": "what masked scores are filled with is not known to be"
    " far below all",
    "q @ k.mT + (mask > 0)": "what is added to the scores is not in floating point",
    "q.float() @ k.float().mT": "query, key and value may have several dtypes",
}


@pytest.mark.parametrize("scores", UNCLEAR)
def test_scores_that_are_not_understood(scores):
    text = f"{HEAD}\ndef model(q, k, v, mask):\n    return F.softmax({scores}, dim=-1) @ v\n"
    assert [f.kept for f in support.found(text, select=("DYN804",))] == [UNCLEAR[scores]]


LOSS = """
import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, vocab_size=50):
        super().__init__()
        self.lm_head = nn.Linear(8, vocab_size)

    def forward(self, x, target):
        logits = self.lm_head(x)
"""
LOSSES = {
    "return F.cross_entropy(logits.view(-1, 50), target.view(-1), ignore_index=-1)": True,
    "return F.cross_entropy(logits[..., :-1, :].reshape(-1, 50), target[..., 1:].reshape(-1))": True,
    "return F.cross_entropy(logits.flatten(0, 1), target.flatten(), label_smoothing=0.1)": True,
    "return F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction='sum')": False,
    "return logits, F.cross_entropy(logits.flatten(0, 1), target.flatten())": False,
    "return F.cross_entropy(logits.flatten(0, 1), F.one_hot(target, 50).flatten(0, 1).float())": False,
}


def test_two_losses_of_a_file():
    """Both are computed by the one function that is written into it."""
    end = "return F.cross_entropy(logits.flatten(0, 1), target.flatten())"
    text = f"{LOSS}        {end}\n\n    def other(self, x, target):\n"
    text += f"        logits = self.lm_head(x)\n        {end}\n"
    after = support.fixed(text, unsafe=True, select=("DYN805",)).source.text
    assert after.count("return chunked_cross_entropy") == 2
    assert after.count("def chunked_cross_entropy") == 1


@pytest.mark.parametrize("end", LOSSES)
def test_losses(end):
    text = f"{LOSS}        {end}\n"
    after = support.fixed(text, unsafe=True, select=("DYN805",)).source.text
    assert (after != text) is LOSSES[end]
    if after == text:
        assert support.found(text, select=("DYN805",))[0].kept
        return
    found = []
    for each in (text, after):
        names = {"__name__": "model"}
        exec(compile(each, "model.py", "exec"), names)
        torch.manual_seed(0)
        model, x = names["Model"](), torch.randn(3, 7, 8, requires_grad=True)
        target = torch.randint(0, 50, (3, 7))
        target[0, 1] = -1 if "ignore" in end else -100
        loss = model(x, target)
        found.append([loss, *torch.autograd.grad(loss, [x, *model.parameters()])])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("code", MIGRATIONS)
def test_migrations_are_off_by_default(code):
    for on in ({"select": ("DYN8",)}, {"extend_select": (code,)}):
        assert Settings(**on).selects(code, "model.py")
    for off in ({}, {"select": ("DYN",)}, {"extend_select": ("DYN",)}, {"select": ("DYN9",)}):
        assert not Settings(**off).selects(code, "model.py")


OLD_NAMES = "import torch\nfrom torch.cuda.amp import GradScaler, custom_fwd\n\nx = custom_fwd(GradScaler())\n"


@pytest.mark.parametrize(
    ("target", "named"), [("2.2", []), ("2.3", ["GradScaler"]), ("", ["GradScaler", "custom_fwd"])]
)
def test_names_that_the_oldest_torch_lacks_are_left_alone(target, named):
    found = support.found(OLD_NAMES, select=("DYN802",), target_torch=target)
    assert [n for n in ("GradScaler", "custom_fwd") for f in found if n in f.message] == named


def test_a_scripted_model_that_is_saved_in_another_function_stays():
    text = "import torch\n\n\ndef make(m):\n    net = torch.jit.script(m).eval()\n    return net\n"
    saved = f"{text}\n\nmake(3).save('m.pt')\n"
    assert "torch.compile(m)" in support.fixed(text, True, select=("DYN801",)).source.text
    assert support.fixed(saved, True, select=("DYN801",)).source.text == saved
    (found,) = support.found(saved, select=("DYN801",))
    assert found.kept == "line 9 uses `.save` of the result: see torch.export"


def test_what_a_package_gives_away_keeps_its_name():
    text = "from functorch import vmap\n\n__all__ = ['vmap']\n"
    (found,) = support.found(text, select=("DYN803",))
    assert found.fix is None and found.kept == "other files may import `vmap` from this one"
