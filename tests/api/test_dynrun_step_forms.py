"""Forms in which training steps are written: each is found, and is one program."""

import driven_steps

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
