"""Training steps in the source of a script, compiled whole: what the script prints, binds and raises
is python's."""

import os
import sys
import textwrap

import driven_steps
import forked
import pytest
from driven_steps import START
from dynfix.rewriter.graph_breaks.step_driver import with_drivers

equal = driven_steps.equal

LOOP = """
    for epoch in range(3):
        net.train()
        for i in range(0, 22, 6):
            x, y = X[i : i + 6], Y[i : i + 6]
            optimizer.zero_grad()
            out = net(x)
            loss = F.cross_entropy(out, y)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            scheduler.step()
            print(loss.item(), optimizer.param_groups[0]["lr"])
        net.eval()
        with torch.no_grad():
            print((net(X).argmax(1) == Y).sum())
    print(loss.item(), out.shape, [p.sum().item() for p in net.parameters()], net[0].weight.grad)
"""


def test_a_loop_with_clipping_scheduler_and_validation(equal):
    session = equal(
        "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)\n"
        + textwrap.dedent(LOOP)
    )
    (entry,) = session.entries.values()
    assert [len(r.segments) for r in entry.recordings] == [1, 1]  # and one for the last batch
    assert session.hits()[0] >= 6


def test_a_function_that_accumulates(equal):
    session = equal("""
        def train(model, batches, k=2):
            losses = []
            optimizer.zero_grad()
            for i, (x, y) in enumerate(batches):
                loss = F.cross_entropy(model(x), y) / k
                loss.backward()
                if (i + 1) % k == 0:
                    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                losses.append(loss.item())
            return losses, norm

        batches = [(X[i : i + 5], Y[i : i + 5]) for i in range(0, 20, 5)]
        for _ in range(4):
            print(train(net, batches), net[0].weight.grad)
    """)
    assert session.hits()[0] >= 6


ACCUMULATED = """
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.9**n)
    batches = [(X[i : i + 5], Y[i : i + 5]) for i in range(16)]

    def train(k=2):
        updates, rates = 0, []
        for i, (x, y) in enumerate(batches):
            loss = F.cross_entropy(net(x), y) / k
            loss.backward()
            if (i + 1) % k == 0:
                norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                REST
                print(i, norm, *rates[-1:])
                if updates == 7:
                    return updates
            print(loss.item(), net[0].weight.grad is None)
        return -updates

    print(train(), train(), optimizer.param_groups[0]["lr"], scheduler.last_epoch)
"""


@pytest.mark.parametrize(
    "rest",
    [
        ["scheduler.step()", "optimizer.zero_grad()", "updates += 1"],
        ["optimizer.zero_grad()", "rates += scheduler.get_last_lr()", "updates = updates + 1"],
        ["optimizer.zero_grad()", "updates += (", "1)  # of them", "scheduler.step()"],
    ],
)
def test_what_stands_behind_an_update_in_an_if_runs_in_place(equal, rest):
    session = equal(ACCUMULATED.replace("REST", ("\n" + 16 * " ").join(rest)))
    (entry,) = session.entries.values()
    assert [len(r.segments) for r in entry.recordings] == [1, 1]  # gradients are there, or not
    assert session.hits()[0] >= 20


def test_an_update_behind_a_loop_that_accumulates(equal):
    session = equal("""
        for i in range(7):
            for k in range(3):
                loss = F.cross_entropy(net(X[k : k + 9]), Y[k : k + 9]) / 3
                loss.backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            print(loss.item(), norm, net[0].weight.grad)
        print([p.sum().item() for p in net.parameters()])
    """)
    _, update = session.entries
    assert update.endswith(":14-16")
    assert session.hits()[0] >= 12 and session.hits()[1] >= 4


def test_two_models_and_a_read_between(equal):
    session = equal("""
        maker = nn.Linear(2, 6)
        other = torch.optim.SGD(maker.parameters(), lr=0.1, momentum=0.9)
        for _ in range(6):
            net.zero_grad()
            real = F.cross_entropy(net(X), Y)
            real.backward()
            seen = real.item()
            fake = maker(torch.randn(4, 2))
            false = F.cross_entropy(net(fake.detach()), Y[:4])
            false.backward()
            optimizer.step()
            maker.zero_grad()
            loss = -F.cross_entropy(net(fake), Y[:4])
            loss.backward()
            other.step()
            print(seen, false.item(), loss.item())
    """)
    assert session.hits() == [3]


def test_a_method_with_private_names(equal):
    session = equal("""
        class Trainer:
            def __init__(self, model):
                self.model, self.taken, self.__optimizer = model, 0, optimizer
            def step(self, x, y):
                out = self.model(x)
                self.loss = F.cross_entropy(out, y)
                self.__optimizer.zero_grad(set_to_none=True)
                self.loss.backward()
                self.__optimizer.step()
                self.taken += 1
                return out.argmax(1)
        trainer = Trainer(net)
        for _ in range(6):
            print(trainer.step(X, Y).sum(), trainer.loss.item(), trainer.taken)
    """)
    assert session.hits() == [3]


def test_names_that_functions_of_the_file_read_and_store(equal):
    session = equal("""
        noted = 0
        def note():
            global noted
            noted += 1
            return f"{loss.item():.5f}" if noted > 1 else ""
        for _ in range(6):
            before = note()
            out = net(X)
            loss = F.cross_entropy(out, Y)
            optimizer.zero_grad()
            loss.backward()
            between = note()
            optimizer.step()
            print(before, between, noted)
    """)
    assert session.hits()[0] > 0


@pytest.mark.parametrize("leave", ["continue", "break", "return loss.item()"])
def test_a_step_that_leaves(equal, leave):
    equal(f"""
        def train():
            for i in range(9):
                x = X * float("nan") if i in (4, 6) else X
                loss = F.cross_entropy(net(x), Y)
                if not torch.isfinite(loss):
                    print("skipped", i)
                    {leave}
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(loss.item())
            return loss.item()
        print(train())
    """)


def test_an_error_in_a_step_has_its_lines_and_variables(equal):
    text = """
        class Net(nn.Linear):
            def forward(self, x):
                if x.shape[0] == 3:
                    raise ValueError("three")
                return super().forward(x)
        net = Net(6, 3)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        def train(rows):
            for n in rows:
                try:
                    mark = f"mark {n}"
                    loss = F.cross_entropy(net(X[:n]), Y[:n])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                except ValueError as error:
                    print(repr(error), error.__traceback__.tb_lineno, mark)
            print(loss.item())
        train([4, 3, 4, 3, 4, 4, 3])
        for n in (4, 4, 4, 3):
            loss = F.cross_entropy(net(X[:n]), Y[:n])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    """
    assert len(equal(text).entries) == 2


def test_variables_that_only_locals_reads(equal):
    equal(
        START
        + textwrap.dedent("""
        def train(n):
            for i in range(n):
                x = X[:6] + i
                optimizer.zero_grad()
                loss = net(x).square().mean()
                loss.backward()
                optimizer.step()
            return sorted(locals())
        print(train(4))
    """)
    )


def test_names_that_only_sound_like_looking_around(equal):
    session = equal(
        START
        + textwrap.dedent("""
        class Loss:
            def eval(self, y, t):
                return (y - t).square().mean()
        judge = Loss()
        for i in range(8):
            x = torch.stack([X[j] + i for j in range(4)])
            loss = judge.eval(net(x), torch.stack([x[:, 0]] * 3, 1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"{loss.item():.4f}")
    """)
    )
    assert sum(session.hits()) > 3


def test_what_cannot_be_captured_stays_in_its_place(equal):
    session = equal("""
        for _ in range(4):
            loss = F.cross_entropy(net(X), Y)
            print(len(open(torch.__file__).read()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        def seen():
            for _ in range(3):
                loss = F.cross_entropy(net(X), Y)
                print(sorted(locals()))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        seen()
    """)
    (entry,) = session.entries.values()
    assert entry.is_eager() and not session.hits()[0]


def test_a_scaler_and_autocast(equal):
    session = equal("""
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)
        for x in [X, X, X, X, X / 0, X, X / 0, X]:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(net(x), Y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            print(loss.item(), scaler.get_scale(), optimizer.state[net[0].weight]["step"])
    """)
    (entry,) = session.entries.values()
    assert [len(r.segments) for r in entry.recordings] == [1, 1]  # and one for a skipped update
    assert session.hits() == [4]


def test_a_step_that_is_another_each_time_is_left_alone(equal):
    """An optimizer whose own count decides."""
    session = equal("""
        shifts = {n: n % 5 for n in range(99)}
        class Mine(torch.optim.SGD):
            count = 0
            @torch.no_grad()
            def step(self):
                self.count += 1
                for p in net.parameters():
                    p.sub_(p.grad.roll(shifts[self.count]))
        optimizer = Mine(net.parameters(), lr=0.1)
        for _ in range(12):
            loss = F.cross_entropy(net(X), Y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item())
    """)
    (entry,) = session.entries.values()
    assert entry.is_eager() and len(entry.recordings) < 8


def test_a_count_that_the_graph_takes_is_one_recording(equal):
    session = equal("""
        class Mine(torch.optim.SGD):
            count = 0
            @torch.no_grad()
            def step(self):
                self.count += 1
                for p in net.parameters():
                    p.sub_(p.grad.roll(self.count % 97))
        optimizer = Mine(net.parameters(), lr=0.1)
        for _ in range(12):
            loss = F.cross_entropy(net(X), Y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(loss.item())
    """)
    (entry,) = session.entries.values()
    assert not entry.is_eager() and len(entry.recordings) <= 3


def test_indices_in_an_array_that_changes_are_one_recording(equal):
    text = """
        import numpy as np
        order = np.arange(22)
        np.random.seed(0)
        for epoch in range(3):
            np.random.shuffle(order)
            for start in range(0, 20, 4):
                rows = order[start:start + 4]
                loss = F.cross_entropy(net(X[rows]), Y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(loss.item())
    """
    (entry,) = equal(text, eager_calls=3).entries.values()
    assert not entry.is_eager() and len(entry.recordings) == 1


def test_a_backward_that_is_watched_is_pythons(equal):
    equal("""
        for i in range(6):
            with torch.autograd.set_detect_anomaly(i == 4):
                try:
                    loss = F.cross_entropy(net(X / 0 if i == 4 else X).sqrt(), Y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                except RuntimeError as error:
                    print(str(error)[:30])
            print(torch.isfinite(loss).item())
    """)


def test_a_loss_that_a_function_reads_and_a_break_before_the_backward(equal):
    session = equal("""
        def seen():
            return loss.item()
        for _ in range(6):
            loss = F.cross_entropy(net(X), Y)
            if seen() > 1e6:
                break
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(seen())
    """)
    (place,) = session.entries
    assert place == "script.py:13-18"  # from the forward on


def test_a_file_without_a_step_is_pythons():
    found = []
    assert with_drivers(b"x = 1\n", "f.py", found.append) is None
    assert with_drivers(b"loss.backward()\noptimizer.step()\n", "f.py", found.append) is None
    assert with_drivers(b"for x in y: (\nloss.backward()\n", "f.py", found.append) is None
    assert not found


MAIN = "import sys; from dynfix.rewriter.dynrun.main import main; sys.argv[0] = 'dynrun'; sys.exit(main())"


def test_the_command_names_the_step(tmp_path):
    """A script, and a module of the user's that it imports."""
    (tmp_path / "training.py").write_text(START + textwrap.dedent("""
        def train(n):
            for _ in range(n):
                loss = F.cross_entropy(net(X), Y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            return loss
    """))  # fmt: skip
    (tmp_path / "script.py").write_text("import training\nprint(training.train(4).item())\n")
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    runs = [
        forked.run(
            [sys.executable, *options, "script.py"],
            cwd=tmp_path, env=env, capture_output=True, text=True,
        )
        for options in ([], ["-c", MAIN, "--explain", "--compile", "step", "--backend", "eager"])
    ]  # fmt: skip
    assert runs[0].stdout == runs[1].stdout and not runs[1].returncode
    assert runs[1].stderr == (
        "dynrun: 1 captured\n  training step (training.py:12-15): 1 recorded, 1 graphs, 0 breaks\n"
    )
