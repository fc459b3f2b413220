"""Forms in which training steps are written: each is found, and is one program."""

import driven_steps
import pytest
from dynfix.rewriter.dynrun.step_calls import SAMPLE_INTERVAL_S, SAMPLED
from simulated import Simulated

equal = driven_steps.equal


def test_statements_that_share_a_line(equal):
    session = equal("""
        other = nn.Linear(3, 1)
        second = torch.optim.SGD(other.parameters(), lr=0.1)
        for _ in range(6):
            out = net(X)
            loss = F.cross_entropy(out, Y) + other(out).square().mean()
            optimizer.zero_grad(); second.zero_grad()
            loss.backward()
            optimizer.step(); second.step()
            print(loss.item(), other.weight.sum().item())
    """)
    (entry,) = session.entries.values()
    assert len(entry.recordings) <= 2 and session.hits()[0] >= 3


def test_a_long_way_from_the_forward_to_the_backward(equal):
    lines = [f"part{n} = out[:, {n % 3}].mean() * {n}" for n in range(17)]
    total = " + ".join(f"part{n}" for n in range(17))
    session = equal(
        "for i in range(6):\n    x = X + i\n    out = net(x)\n"
        + "".join(f"    {line}\n" for line in lines)
        + f"    loss = {total}\n    optimizer.zero_grad()\n    loss.backward()\n"
        + "    optimizer.step()\n    print(loss.item())\n"
    )
    assert session.hits()[0] >= 3


def test_optimizers_in_a_list(equal):
    session = equal("""
        other = nn.Linear(3, 1)
        both = [optimizer, torch.optim.SGD(other.parameters(), lr=0.1)]
        rates = [torch.optim.lr_scheduler.ExponentialLR(each, 0.9) for each in both]
        for i in range(8):
            for each in both:
                each.zero_grad()
            out = net(X)
            loss = F.cross_entropy(out, Y) + other(out).square().mean()
            loss.backward()
            for each in both:
                each.step()
            for each in rates:
                each.step()
            print(loss.item(), other.weight.sum().item(), rates[0].get_last_lr())
    """)
    ((place, entry),) = session.entries.items()
    assert place == "script.py:16-20"  # the schedulers stand outside
    assert len(entry.recordings) <= 3 and session.hits()[0] >= 3


def test_what_a_model_has_kept_is_history(equal):
    """Actions of an episode, whose probabilities are differentiated at its end."""
    session = equal("""
        net.kept = []
        def finish(rewards):
            total = []
            for kept, reward in zip(net.kept, rewards):
                total.append(-kept[0] * reward)
            optimizer.zero_grad()
            loss = torch.stack(total).sum()
            loss.backward()
            optimizer.step()
            del net.kept[:]
            return loss.item()
        for i in range(4):
            for n in range(3):
                net.kept.append((net(X[n]).log_softmax(-1)[0], n))
            print(finish([1.0, 0.5, 0.2]))
    """)
    assert not session.entries  # no call is recorded for nothing


class Beside:
    """A run that is never long enough."""

    def __init__(self):
        self.asked, self.uses, self.known = [], [], ""

    def is_known_as_eager(self, name):
        return name == self.known

    def wants(self, name, calls, seconds):
        self.asked.append((calls, seconds))
        return False


class Ticking(Simulated):
    """A millisecond passes whenever somebody asks."""

    def now(self):
        self.clock += 0.001
        return self.clock


def test_most_steps_are_not_looked_at(monkeypatch, equal):
    """While nothing can be compiled yet; all of them count."""
    background = Beside()
    monkeypatch.setattr(driven_steps.Session, "background", background)
    text = """
        for i in range(900):
            loss = F.cross_entropy(net(X), Y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(loss.item())
    """
    equal(text, machine=Ticking())
    assert SAMPLED / 4 < len(background.asked) <= 2 * SAMPLED + 0.9 / SAMPLE_INTERVAL_S
    (calls, seconds) = background.asked[-1]
    assert calls > 800 and seconds == pytest.approx(0.001 * calls)
    ((use,),) = ([*uses()] for uses in background.uses)
    assert use.name == "script.py:11-14" and use.calls >= calls and not use.given_up


@pytest.mark.parametrize(("known", "claims"), [("", True), ("script.py:11-14", False)])
def test_a_step_that_did_not_pay_leaves_its_modules_to_themselves(
    monkeypatch, equal, known, claims
):
    background, seen = Beside(), []
    background.known = known
    monkeypatch.setattr(driven_steps.Session, "background", background)
    monkeypatch.setattr(driven_steps, "seen", seen, raising=False)
    text = """
        for i in range(20):
            loss = F.cross_entropy(net(X), Y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        import builtins, driven_steps
        steps = getattr(builtins, driven_steps.DRIVER, None)
        driven_steps.seen.append(steps is not None and steps.claims(net))
    """
    equal(text)
    assert seen[-1] is claims and bool(background.asked) is claims


def test_two_threads_in_one_step(equal):
    """Each takes what it asked for."""
    equal("""
        import copy, threading
        base = nn.Linear(6, 3)
        def train(seen):
            layer = copy.deepcopy(base)
            own = torch.optim.SGD(layer.parameters(), lr=0.1)
            for i in range(40):
                out = layer(X)
                loss = F.cross_entropy(out, Y)
                own.zero_grad()
                loss.backward()
                own.step()
                seen.append(loss.item())
        train([])
        all = [[] for _ in range(4)]
        train(all[0])
        threads = [threading.Thread(target=train, args=(seen,)) for seen in all[1:]]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        print(all.count(all[0]), len(all[0]), sum(all[0]))
    """)
