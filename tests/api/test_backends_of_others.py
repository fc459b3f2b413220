"""Backends that other packages bring, and ours for Dynamo."""

import dynfix
import pytest
import torch
from dynfix.lowering.dynamo_backend import dynfix as dynamo_backend


@pytest.mark.parametrize(
    ("name", "package"), [("openvino", "openvino"), ("ipex", "intel-extension-for-pytorch")]
)
def test_a_missing_package_is_named(name, package):
    with pytest.raises(
        dynfix.OptionError, match=f"'{name}' needs a package: pip install {package}"
    ):
        dynfix.compile(lambda x: x, backend=name)


def test_what_a_package_announces_to_torch_is_taken(tmp_path, monkeypatch):
    (tmp_path / "announcing.py").write_text(
        "def twice(gm, inputs):\n    return lambda *a: [2 * r for r in gm(*a)]\n"
    )
    info = tmp_path / "announcing-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: announcing\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torch_dynamo_backends]\ntwice = announcing:twice\n")
    monkeypatch.syspath_prepend(tmp_path)
    torch._dynamo.backends.registry._lazy_import.cache_clear()
    torch._dynamo.backends.registry._discover_entrypoint_backends.cache_clear()
    assert "twice" in dynfix.list_backends()
    compiled = dynfix.compile(lambda x: x + 1, backend="twice")
    x = torch.ones(2)
    compiled(x)
    assert compiled(x).tolist() == [4.0, 4.0]


def test_the_lowering_serves_dynamo():
    """torch.compile captures, this package makes the kernels: forward and backward."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    compiled = torch.compile(net, backend=dynamo_backend, options={"fusion": True})
    for n in (3, 3, 5):
        x, y = (torch.randn(n, 4).requires_grad_() for _ in range(2))
        y.data.copy_(x.data)
        compiled(x).square().sum().backward()
        net(y).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
    with pytest.raises(dynfix.OptionError, match="unknown option 'no'"):
        dynamo_backend(None, [], options={"no": 1})
