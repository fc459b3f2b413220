"""DYN110 where what is read needs the shape or dtype of an embedding's result."""

import sys

import pytest

torch = pytest.importorskip("torch")
if sys.version_info < (3, 11):
    pytest.skip("frames do not tell their place there", allow_module_level=True)

from . import support
from .test_read_ahead import breaks, load

pytestmark = pytest.mark.usefixtures("forked_runs")

MODEL = """import functools
import logging

import torch
from torch import nn

logger = logging.getLogger(__name__)


@functools.lru_cache(None)
def warning_once(self, *args):
    self.warning(*args)


logging.Logger.warning_once = warning_once


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 4)

    def padded(self, ids, rows, mask):
        more = -ids.shape[1] % 4
        if more > 0:
            logger.warning_once("padded")
            rows = torch.cat([rows, self.table(ids.new_full((ids.shape[0], more), 0))], dim=1)
            mask = nn.functional.pad(mask, (0, more))
        return rows, mask

    def chosen(self, mask, picked):
        return mask * picked

    def forward(self, ids, mask=None, picked=None):
        rows = self.table(ids)
        if mask is None:
            mask = torch.ones(rows.size()[:-1], device=rows.device, dtype=torch.long)
        if picked is not None:
            mask = self.chosen(mask, picked)
        rows, mask = self.padded(ids, rows, mask)
        weights = mask.to(rows.dtype)
        any_left = (weights > 0).flatten().any().item()
        return rows * weights[..., None] if any_left else rows * 3
"""
SCRIPT = "import torch\nfrom model import Model\nModel()(torch.ones(2, 3, dtype=torch.long))\n"
MASKS = [None, [[1, 0, 0], [0, 2, 1]], [[0, 0, 0], [0, 0, 0]]]
IDS = torch.tensor([[1, 2, 3], [4, 5, 9]])


@pytest.fixture(scope="module")
def fixed(tmp_path_factory):
    """The module after a traced run."""
    folder, monkeypatch = tmp_path_factory.mktemp("lookups"), pytest.MonkeyPatch()
    (folder / "model.py").write_text(MODEL)
    (folder / "run.py").write_text(SCRIPT)
    monkeypatch.chdir(folder)
    support.command("--unsafe-fixes", "--trace", "run.py", "--select", "DYN110", ".")
    monkeypatch.undo()
    return load(folder, monkeypatch)


def compared(model, prepare=lambda model: None):
    """The results of eager and compiled calls with each mask, masks picked and not."""
    torch._dynamo.reset()
    prepare(model)
    compiled = torch.compile(model, backend="eager")
    for given in MASKS:
        mask = None if given is None else torch.tensor(given)
        for picked in (None, torch.tensor([[1, 1, 0], [0, 1, 1]])):
            yield model(IDS, mask, picked), compiled(IDS, mask, picked)


def test_one_graph_and_equal(fixed):
    model = fixed.Model()
    ids = torch.tensor([[1, 2, 3, 4]])  # nothing is padded, and no message told
    assert breaks(model, (ids,)) == breaks(model, (ids, torch.tensor([[0, 1, 0, 0]]))) == 0
    assert all(torch.equal(*both) for both in compared(model))


def test_a_message_told_once_is_told_once(fixed, caplog):
    fixed.warning_once.cache_clear()
    torch._dynamo.reset()
    compiled = torch.compile(fixed.Model(), backend="eager")
    for mask in MASKS:
        compiled(IDS, mask and torch.tensor(mask))
    assert [r.message for r in caplog.records if r.name == "model"] == ["padded"]


def _hooked(model):
    model.seen = []
    model.table.register_forward_hook(lambda module, given, result: model.seen.append(1))


def _patched(model):
    model.seen = []
    forward = model.table.forward
    model.table.forward = lambda ids: (model.seen.append(1), forward(ids).double())[1]


class _Counting(torch.nn.Embedding):
    def forward(self, ids):
        self.seen.append(1)
        return super().forward(ids).half()


def _derived(model):
    model.table = _Counting(10, 4)
    model.seen = model.table.seen = []


@pytest.mark.parametrize("prepare", [_hooked, _patched, _derived])
def test_an_embedding_that_does_more_is_called_where_it_stands(fixed, prepare):
    """Its calls are as many as in eager, and the results eager's."""
    model, counts = fixed.Model(), []
    for expected, result in compared(model, prepare):
        assert torch.equal(expected, result)
        counts.append(len(model.seen))
    assert counts == [4 * (i + 1) for i in range(len(counts))]


def test_a_lookup_that_writes_stays(fixed):
    """With `max_norm` a lookup writes into the weight."""
    model = fixed.Model()
    model.table.max_norm = 0.5
    for ids in ([[1, 2, 3]], [[7, 8, 9]]):
        assert not fixed.Model._forward_host_values(model, torch.tensor(ids))


IN_VAIN = """
    def forward(self, ids, mask, flag=None):
        rows = self.table(ids)
        BEFORE
        rows, mask = self.padded(ids, rows, mask)
        return rows[mask.sum().item() :]
"""


@pytest.mark.parametrize("before", ["", "if torch.rand(1) > 2:\n            return rows"])
def test_no_message_is_told_in_vain(tmp_path, monkeypatch, before):
    """Where it is not known ahead whether a message is told, the read stays."""
    head = MODEL[: MODEL.index("    def chosen")]
    (tmp_path / "model.py").write_text(head + IN_VAIN.replace("BEFORE", before))
    call = "Model()(torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.long))"
    (tmp_path / "run.py").write_text(f"import torch\nfrom model import Model\n{call}\n")
    monkeypatch.chdir(tmp_path)
    flags = ("--unsafe-fixes", "--no-verify", "--trace", "run.py", "--select", "DYN110")
    support.command(*flags, ".")
    assert ("read_ahead" in (tmp_path / "model.py").read_text()) == (not before)
