"""Modules of torch's table, compiled and in eager. All of the table is slow, or
`python -m tests.operators.modules`."""

import pytest

pytest.importorskip("torch")

from .modules import check, modules

QUICK = ("nn.BatchNorm2d", "nn.GRU", "nn.MultiLabelMarginLoss", "nn.MultiheadAttention")
# The gradient's layout alone differs: an input that is used twice, once transposed.
LAYOUTS = ("nn.TransformerDecoderLayer",)


@pytest.mark.parametrize("name", QUICK)
def test_modules(name):
    found = check(name, most=2)
    assert found["samples"] and not found["differences"], found


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", modules())
def test_every_sample(name, training):
    found = check(name, training=training)["differences"]
    wrong = [text for text in found if not (name in LAYOUTS and ": strides" in text)]
    assert not wrong, wrong
