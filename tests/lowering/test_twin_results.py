"""Views with a gradient beside what lies as they do without one."""

import dynfix
import pytest
import torch


def detached(y):
    v = y.t()
    return v, v.detach()


def twice_detached(y):
    v = y.t()
    return v, v.detach().detach(), v.data


def turned_twice(y):
    v = y.t()
    return v, v.detach().t(), v.detach().reshape(v.shape)


def without_gradients(y):
    v = y.t()
    with torch.no_grad():
        return v, v.view(v.shape)


def written(y):
    v = y.t()
    v.mul_(2)
    d = v.detach()
    d.add_(1)
    return v, d, y.detach().t()


def parts(y):
    v = y[:, 1:]
    return v, v.detach(), v.detach()[:, 1:]


def of_complex(y):
    v = torch.complex(y, y).real
    return v, v.detach()


def as_integers(y):
    """Of another dtype: eager."""
    v = y.t()
    return v, v.view(torch.int32)


PROGRAMS = (
    *(detached, twice_detached, turned_twice, without_gradients, written, parts, of_complex),
    as_integers,
)


def distance(results):
    return results[0].data_ptr() - results[-1].data_ptr()


@pytest.mark.covering
@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_is_eagers(program, writes):
    def make():
        count = torch.zeros(2)

        def call(x):
            if writes:
                count.add_(1)
            return program(x * 2)

        return call, count

    (plain, plain_count), (fn, count) = make(), make()
    compiled = dynfix.compile(fn)
    for seed, size in enumerate((4, 4, 3, 5)):
        torch.manual_seed(seed)
        leaf = torch.randn(size, size, requires_grad=True)
        other = leaf.detach().clone().requires_grad_()
        found, wanted = compiled(other), plain(leaf)
        for mine, theirs in zip(found, wanted, strict=True):
            torch.testing.assert_close(mine, theirs)
            assert mine.stride() == theirs.stride() and mine.requires_grad == theirs.requires_grad
        assert distance(found) == distance(wanted)
        found[0].square().sum().backward()
        wanted[0].square().sum().backward()
        torch.testing.assert_close(other.grad, leaf.grad)
        assert torch.equal(count, plain_count)


@pytest.mark.parametrize("program", PROGRAMS[:-1])
def test_they_are_compiled(program, recwarn):
    count = torch.zeros(2)

    @dynfix.compile
    def call(x):
        count.add_(1)
        return program(x * 2)

    for _ in range(3):
        call(torch.randn(4, 4, requires_grad=True))
    assert not [each for each in recwarn if "eager" in str(each.message)]


def test_views_of_what_is_joined_without_a_view():
    """Torch's own record of how `kron` leads to its result holds no sizes."""

    def f(x):
        whole = torch.kron(x, x)
        return whole[..., ::2], whole.permute(1, 0, 2), whole.expand(2, 25, 25, 9), whole.view(-1)

    call = dynfix.compile(f, options={"strict": True}, dynamic=False)
    for turn in range(4):
        x = torch.randn(5, 5, 3, dtype=torch.float64, requires_grad=True)
        found, expected = call(x), f(x)
        if turn % 2:
            with torch.no_grad():
                found[0][1].zero_()
                expected[0][1].zero_()
        torch.testing.assert_close(found, expected)
        assert [each.stride() for each in found] == [each.stride() for each in expected]
        weights = [torch.randn_like(each) for each in found]
        ours, theirs = (torch.autograd.grad(each, x, weights) for each in (found, expected))
        torch.testing.assert_close(ours, theirs)


def detached_and_written(y, x):
    v = y.detach()
    v.mul_(x)
    return y, v, v[:, None], v[1:]


def of_a_detached_part(y, x):
    v = y.t()[0].detach()[1:].detach()
    v.copy_(x[0, 1:])
    return y, v[:, None], v[1:]


def as_another_dtype_and_back(y, x):
    v = y.view(torch.int32).view(torch.float32)
    v.mul_(x)
    return v[:, None], y


def real_numbers_of_detached_complex(y, x):
    c = torch.complex(y, y)
    v = torch.view_as_real(c.detach())
    v.mul_(x[..., None])
    return c, v[0], v[1:]


@pytest.mark.covering
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        detached_and_written,
        of_a_detached_part,
        as_another_dtype_and_back,
        real_numbers_of_detached_complex,
    ],
)
def test_views_of_what_was_detached_and_written_have_its_gradient(program, dynamic):
    def call(given, x):
        return program(given * 2, x)

    compiled = dynfix.compile(call, options={"strict": True}, dynamic=dynamic)
    for size in (4, 4, 4, *((3, 5) if dynamic else ())):
        given, x = torch.randn(size, size), torch.randn(size, size, requires_grad=True)
        found, wanted = compiled(given, x), call(given, x)
        torch.testing.assert_close(found, wanted)
        for mine, theirs in zip(found, wanted, strict=True):
            assert mine.requires_grad == theirs.requires_grad
            if theirs.requires_grad:
                gradients = (
                    torch.autograd.grad(t.sum(), x, retain_graph=True) for t in (mine, theirs)
                )
                torch.testing.assert_close(*gradients)
