"""A compiled module is its original with another `__call__`; everything else is shared, and the
original is eager."""

import copy
import io
import pickle

import dynfix
import pytest
import torch
from torch import nn


class Net(nn.Module):
    """Counts its calls in a plain attribute, so that running twice would show."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.register_buffer("scale", torch.tensor(2.0))
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return torch.relu(self.body(x)) * self.scale


@pytest.fixture
def pair():
    torch.manual_seed(0)
    net = Net()
    return net, dynfix.compile(net)


X = torch.arange(8.0).reshape(2, 4)


def test_the_original_is_left_as_it_was(pair):
    net, compiled = pair
    assert compiled is not net
    assert type(net) is Net and type(compiled) is not Net
    assert "__call__" not in vars(Net) and not [name for name in vars(net) if "dynfix" in name]


def test_it_is_an_object_of_the_users_class(pair):
    net, compiled = pair
    assert isinstance(compiled, Net)
    assert type(compiled).__name__ == "Net" and type(compiled).__module__ == Net.__module__
    assert repr(compiled) == repr(net)


def test_three_calls_equal_eager(pair):
    net, compiled = pair
    for _ in range(3):
        torch.testing.assert_close(compiled(X), copy.deepcopy(net)(X))
    assert net.calls == compiled.calls == 3


def test_state_is_shared_both_ways(pair):
    net, compiled = pair
    assert vars(compiled) is vars(net)
    compiled.added = 5
    net.other = 6
    assert (net.added, compiled.other) == (5, 6)
    del compiled.added
    assert not hasattr(net, "added")


def test_state_dict_has_the_users_keys(pair):
    net, compiled = pair
    assert list(compiled.state_dict()) == ["scale", "body.weight", "body.bias"]
    fresh = Net()
    fresh.load_state_dict(compiled.state_dict())
    torch.testing.assert_close(fresh(X), compiled(X))
    compiled.load_state_dict({**net.state_dict(), "scale": torch.tensor(3.0)})
    assert net.scale == 3.0


def test_what_torch_compiles_result_saved_can_be_loaded(pair):
    net, compiled = pair
    saved = Net().state_dict()
    old = type(saved)((f"_orig_mod.{key}", value) for key, value in saved.items())
    old._metadata = {
        f"_orig_mod.{key}" if key else "": value for key, value in saved._metadata.items()
    }
    keys = list(old), list(old._metadata)
    assert str(compiled.load_state_dict(old)) == "<All keys matched successfully>"
    assert keys == (list(old), list(old._metadata))
    assert all(net.state_dict()[key].equal(value) for key, value in saved.items())
    assert str(compiled.load_state_dict(saved)) == "<All keys matched successfully>"


def test_loading_state_changes_the_next_answer(pair):
    net, compiled = pair
    before = [compiled(X) for _ in range(3)]
    compiled.load_state_dict({**net.state_dict(), "scale": torch.tensor(20.0)})
    torch.testing.assert_close(compiled(X), before[0] * 10)


def test_train_eval_and_requires_grad(pair):
    net, compiled = pair
    assert compiled.eval() is compiled and not net.training and not net.body.training
    assert compiled.train().training and net.training
    compiled.requires_grad_(False)
    assert not net.body.weight.requires_grad


def test_to_changes_both_and_the_next_answer(pair):
    net, compiled = pair
    for _ in range(3):
        compiled(X)
    assert compiled.to(torch.float64) is compiled
    assert net.body.weight.dtype == torch.float64
    assert compiled(X.double()).dtype == torch.float64
    torch.testing.assert_close(compiled(X.double()), Net.forward(net, X.double()))


def test_gradients(pair):
    net, compiled = pair
    compiled(X).sum().backward()
    got = [p.grad.clone() for p in compiled.parameters()]
    net.zero_grad()
    net(X).sum().backward()
    torch.testing.assert_close(got, [p.grad for p in net.parameters()])


def test_hooks_run_once_a_call(pair):
    _, compiled = pair
    seen = []
    compiled.register_forward_pre_hook(lambda m, args: seen.append("pre"))
    handle = compiled.register_forward_hook(lambda m, args, out: out + 1)
    compiled.body.register_forward_hook(lambda m, args, out: seen.append("body"))
    plain = Net.forward(copy.deepcopy(compiled), X)
    seen.clear()
    for _ in range(3):
        torch.testing.assert_close(compiled(X), plain + 1)
    assert seen == ["pre", "body"] * 3
    handle.remove()
    torch.testing.assert_close(compiled(X), plain)


def test_backward_hooks(pair):
    _, compiled = pair
    seen = []
    compiled.register_full_backward_hook(lambda m, gi, go: seen.append(go[0].shape))
    for _ in range(3):
        compiled(X.clone().requires_grad_()).sum().backward()
    assert seen == [torch.Size([2, 3])] * 3


def test_deepcopy_is_compiled_and_independent(pair):
    net, compiled = pair
    twin = copy.deepcopy(compiled)
    assert type(twin) is type(compiled) and vars(twin) is not vars(net)
    with torch.no_grad():
        twin.body.weight.zero_()
    assert net.body.weight.abs().sum() > 0
    assert twin._dynfix_entry is not compiled._dynfix_entry
    torch.testing.assert_close(twin(X), torch.relu(net.body.bias).expand(2, 3) * 2)


def test_deepcopy_inside_another_module(pair):
    _, compiled = pair
    outer = nn.Sequential(compiled, nn.ReLU())
    twin = copy.deepcopy(outer)
    assert type(twin[0]) is type(compiled) and twin[0] is not compiled
    torch.testing.assert_close(twin(X), outer(X))


def test_copy_shares_parameters(pair):
    net, compiled = pair
    twin = copy.copy(compiled)
    assert type(twin) is type(compiled) and vars(twin) is not vars(net)
    assert twin.body.weight is net.body.weight


def test_pickle_goes_by_the_base_class():
    net = Net()
    compiled = dynfix.compile(net, dynamic=False, backend="eager")
    twin, original = pickle.loads(pickle.dumps((compiled, net)))
    assert type(original) is Net and vars(twin) is vars(original)
    assert (
        twin._dynfix_again.keywords["backend"] == "eager"
        and twin._dynfix_again.keywords["dynamic"] is False
    )
    torch.testing.assert_close(twin(X), net(X))


def test_torch_save_and_load(pair):
    net, compiled = pair
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    twin = torch.load(file, weights_only=False)
    assert type(twin) is type(compiled)
    torch.testing.assert_close(twin(X), net(X))


def test_functional_call(pair):
    net, compiled = pair
    other = {name: torch.ones_like(p) for name, p in net.named_parameters()}
    for _ in range(3):
        got = torch.func.functional_call(compiled, other, (X,))
        torch.testing.assert_close(got, torch.func.functional_call(net, other, (X,)))
        torch.testing.assert_close(compiled(X), net(X))


def test_training_follows_eager():
    torch.manual_seed(0)
    eager = Net()
    compiled = dynfix.compile(copy.deepcopy(eager))
    losses = []
    for model in (eager, compiled):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(X).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
    torch.testing.assert_close(losses[:5], losses[5:])


def test_distributed_data_parallel(tmp_path, pair):
    net, compiled = pair
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        wrapped = nn.parallel.DistributedDataParallel(compiled)
        for _ in range(3):
            wrapped.zero_grad()
            wrapped(X).sum().backward()
        got = [p.grad.clone() for p in net.parameters()]
        assert list(wrapped.state_dict()) == [f"module.{name}" for name in net.state_dict()]
        del wrapped  # what holds the group last waits for its threads, which may wait for Python
    finally:
        torch.distributed.destroy_process_group()
    net.zero_grad()
    net(X).sum().backward()
    torch.testing.assert_close(got, [p.grad for p in net.parameters()])


def test_compiling_again_replaces_the_arguments(pair):
    net, compiled = pair
    again = dynfix.compile(compiled, backend="eager")
    assert again._dynfix_original is net and again._dynfix_again.keywords["backend"] == "eager"
    torch.testing.assert_close(again(X), net(X))


def test_a_module_with_slots_and_its_own_new():
    class Slotted(nn.Linear):
        __slots__ = ("note",)

    net = Slotted(4, 3)
    net.note = "kept"
    compiled = dynfix.compile(net)
    assert compiled.note == "kept"
    torch.testing.assert_close(compiled(X), net(X))


def test_a_module_class_compiles_its_objects():
    @dynfix.compile(backend="eager")
    class Local(nn.Module):
        def forward(self, x):
            return x * 2

    net = Local()
    assert type(net) is Local
    for _ in range(3):
        torch.testing.assert_close(net(X), X * 2)


def test_forward_decorated_in_its_class():
    class Local(nn.Module):
        def __init__(self, k):
            super().__init__()
            self.k = k

        @dynfix.compile(backend="eager")
        def forward(self, x):
            return x * self.k

    two, three = Local(2), Local(3)
    for _ in range(3):
        torch.testing.assert_close(two(X), X * 2)
        torch.testing.assert_close(three(X), X * 3)


def test_an_error_in_forward_is_the_users_own(pair):
    _, compiled = pair
    for _ in range(3):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            compiled(torch.ones(2, 7))
    with pytest.raises(TypeError, match="forward"):
        compiled()
