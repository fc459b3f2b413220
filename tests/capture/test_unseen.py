"""What could slip past a recorder: unseen makers and writers of tensors, modes and state that no
tensor operator shows, opaque calls."""

import datetime
import itertools
import os
import random
import time
import uuid

import dynfix
import numpy as np
import pytest
import torch
from helpers import Case, Fresh, X, Y, call, same, tensor

THREE = [(X,), (Y,), (X,)]
F = torch.nn.functional


def _numpy_view(x):
    y = x * 1
    y.numpy()[0] = 7.0
    return y * 2


def _detached_view(x):
    y = x * 2
    v = y.detach().numpy()
    v += 1
    return y + v.sum().item()


def _data(x):
    y = x * 2
    y.data = torch.ones(3) * x.sum()
    return y * 3


def _data_write(x):
    y = x * 2
    z = y.view(-1)
    y.data.add_(1)
    y.data[0] = 5
    return y, z, y._version


def _resize(x):
    out = torch.empty(0)
    torch.add(x, 1, out=out)
    return out * 2


def _out(x):
    out = torch.empty(3)
    r = torch.mul(x, 2, out=out)
    torch.add(out, r, out=out[:3])
    return out, r is out


def _out_input(x):
    torch.mul(x, 2, out=x)
    return x + 1


def _mask(x):
    y = x * 1
    y[y > 0] = 0
    y[0] += 1
    y[1:] = x[:-1]
    y[x < 0] *= 3
    return y


def _mask_input(x):
    x[x > 0] = 0
    return x.sum()


def _generator(x):
    g = torch.Generator().manual_seed(3)
    return x + torch.rand(3, generator=g)


def _rng_state(x):
    s = torch.get_rng_state()
    a = torch.rand(3)
    torch.set_rng_state(s)
    return x + a + torch.rand(3)


def _fork(x):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        a = torch.rand(3)
    return x + a + torch.rand(3)


def _inplace_views(x):
    y = x * 1
    a, b = y[:2], y[1:]
    a.add_(b.clone())
    b.mul_(2)
    y.t_() if y.dim() == 2 else y.unsqueeze_(0)
    return y, a, b


def _set(x):
    y = torch.empty(0)
    y.set_(x.clone().untyped_storage())
    return y


def _as_tensor(x):
    return (
        torch.as_tensor(x)
        + torch.tensor([1.0, 2, 3])
        + torch.asarray([1.0, 2, 3])
        + torch.Tensor([1, 2, 3])
        + torch.FloatTensor([1.0, 2, 3])
    )


def _new(x):
    return (
        x.new_tensor([1.0, 2, 3])
        + x.new([1.0, 2, 3])
        + x.new_ones(3)
        + torch.ones_like(x)
        + torch.empty_like(x).fill_(2)
        + torch.scalar_tensor(1)
    )


def _detach(x):
    y = (x * 2).detach()
    z = y.requires_grad_()
    return z * 2, z.is_leaf


def _parameter(x):
    p = torch.nn.Parameter(x.detach() * 2)
    return p * x, p


def _tensor_functions(x):
    return (
        torch.equal(x, x * 1),
        torch.allclose(x, x + 1e-9),
        torch.is_nonzero(x[0]),
        x.equal(x),
        x.is_same_size(x),
        torch.is_tensor(x),
        x.tolist(),
        len(x),
        3.0 in x,
    )


def _numbers(x):
    return (
        torch.result_type(x, 1),
        torch.finfo(x.dtype).eps,
        torch.iinfo(torch.int32).max,
        torch.promote_types(x.dtype, torch.int8),
        torch.is_floating_point(x),
        x.itemsize,
    )


def _threads(x):
    return x * torch.get_num_threads() + torch.initial_seed() % 100


def _iter(x):
    return [t * 2 for t in x], sum(t for t in x), tuple(x.unbind()), dict(enumerate(x))


def _nested_tensor_list(x):
    return (
        torch.stack([x, x * 2]),
        torch.cat((x, x)),
        torch.tensor([x[0], x[1]]),
        torch.einsum("i,i->", x, x),
        torch.meshgrid(x, x, indexing="ij"),
    )


def _functional(x):
    net = torch.nn.Linear(3, 3, bias=False)
    torch.nn.init.ones_(net.weight)
    return torch.func.functional_call(net, {"weight": torch.eye(3) * x}, (x,))


def _deep(x):
    import copy

    return copy.deepcopy(x) + 1, copy.copy(x) * 2, x.clone()


def _pickle(x):
    import io

    buffer = io.BytesIO()
    torch.save(x, buffer)
    return torch.load(io.BytesIO(buffer.getvalue())) + 1


def _sparse(x):
    return (x.to_sparse() * 2).to_dense() + torch.eye(3).to_sparse().to_dense().sum()


def _complex(x):
    z = torch.complex(x, x * 2)
    return z.real + z.imag, z.conj() * 2, z.abs(), torch.view_as_real(z)


def _list_out(x):
    return (
        torch.split(x, 2),
        torch.max(x, 0),
        torch.sort(x),
        x.topk(2),
        torch.linalg.svd(torch.outer(x, x) + torch.eye(3))[1],
        torch.frexp(x),
    )


def _setattr_tensor(x):
    y = x * 2
    y.tag = "mine"
    y.more = x + 1
    return y, y.tag, y.more * 2


def _frombuffer(x):
    return x + torch.frombuffer(bytearray(b"\x00\x00\x80?" * 3), dtype=torch.float32)


BODIES = [
    _numpy_view,
    _detached_view,
    _data,
    _data_write,
    _resize,
    _out,
    _out_input,
    _mask,
    _mask_input,
    _generator,
    _rng_state,
    _fork,
    _inplace_views,
    _set,
    _as_tensor,
    _new,
    _detach,
    _parameter,
    _tensor_functions,
    _numbers,
    _threads,
    _iter,
    _nested_tensor_list,
    _functional,
    _deep,
    _pickle,
    _sparse,
    _complex,
    _list_out,
    _setattr_tensor,
    _frombuffer,
    lambda x: torch.from_numpy(x.numpy() * 2) + 1,
    lambda x: torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x * 2)) + 1,
    lambda x: torch.from_dlpack(x * 2) + 1,
    lambda x: torch.tensor(x.numpy() * 2) + torch.as_tensor(np.ones(3)),
    lambda x: torch.manual_seed(4) and torch.rand(3) + x,
    lambda x: (
        torch.rand(3)
        + x
        + torch.randn_like(x)
        + torch.bernoulli(x.sigmoid())
        + torch.randperm(3)
        + torch.empty(3).uniform_()
        + F.dropout(x)
    ),
    lambda x: x.nonzero() * 2,
    lambda x: (
        torch.unique(x),
        x[x > 0],
        torch.where(x > 0),
        x.masked_select(x > 0),
        torch.bincount((x > 0).long()),
        x.repeat_interleave((x > 0).long()),
    ),
    lambda x: x[x > 0].sum() + x.nonzero().shape[0],
    lambda x: torch.ops.aten.add.Tensor(x, 1) + torch.ops.aten.mul(x, 2),
    lambda x: torch._foreach_add([x, x], 1),
    lambda x: x.__add__(1).__mul__(2) + x.__rsub__(3),
    lambda x: getattr(torch, "relu")(x) + getattr(x, "abs")() + torch.Tensor.neg(x),
    lambda x: x.apply_(lambda v: v + 1),
    lambda x: (x.share_memory_(), x.pin_memory if False else 0)[1] or x + 1,
    lambda x: x.data_ptr() == x.view(-1).data_ptr(),
    lambda x: (x * 2).untyped_storage().nbytes() + x,
    lambda x: x.__array__().sum() + x,
    lambda x: np.sum(x.numpy()) * x,
    lambda x: np.add(x.numpy(), 1),
    lambda x: torch.autograd.functional.jacobian(lambda v: v * v, x),
]


@pytest.mark.covering
@pytest.mark.parametrize(
    "index", range(len(BODIES)), ids=[f"{i}{body.__name__}" for i, body in enumerate(BODIES)]
)
@pytest.mark.parametrize("grad", [False, True], ids=["", "grad"])
def test_body(index, grad):
    body = BODIES[index]
    values = [(tensor(*v.tolist(), grad=grad),) for (v,) in THREE]
    same(lambda: lambda x: body(x), *values)


def test_opaque_calls_are_made_every_time():
    def make():
        random.seed(3), np.random.seed(3)
        rng, counter, it = random.Random(5), itertools.count(), iter(range(100))

        def f(x):
            return (
                x * random.random()
                + rng.randint(0, 9)
                + next(counter)
                + next(it)
                + np.random.rand()
                + random.choice([1, 2, 3])
                + it.__next__()
            )

        return Case(fn=f, seed=lambda: (random.seed(3), np.random.seed(3)))

    for part in (
        lambda x: x * random.random(),
        lambda x: x + np.random.rand(),
        lambda x: x[random.sample([0, 1, 2], 2)],
        lambda x: x * random.choice([1, 2, 3]),
        lambda x: x + random.gauss(0, 1),
    ):

        def one(part=part):
            random.seed(3), np.random.seed(3)

            def f(x, number):
                random.seed(number), np.random.seed(number)
                return part(x)

            return f

        same(one, *[(X, n) for n in range(4)])
    for made in (
        lambda: itertools.count(),
        lambda: iter(range(100)),
        lambda: (i for i in range(100)),
        lambda: zip(range(9), range(9)),
        lambda: enumerate("abcdef"),
        lambda: map(str, range(9)),
        lambda: random.Random(5),
        lambda: reversed([1, 2, 3, 4, 5, 6, 7]),
    ):

        def over(made=made):
            it = made()
            draw = it.random if isinstance(it, random.Random) else lambda: next(it)
            return lambda x: (x * 2, draw())

        same(over, *[(X,)] * 5)


def test_time_ids_and_files(tmp_path):
    import dynfix

    file = tmp_path / "k.txt"

    def f(x):
        return (
            x * 0,
            time.perf_counter(),
            uuid.uuid4().hex,
            datetime.datetime.now(),
            time.time(),
            object(),
            os.urandom(4),
        )

    compiled = dynfix.compile(f, backend="eager")
    results = [compiled(X) for _ in range(4)]
    for column in range(1, 7):
        assert len({str(r[column]) if column != 5 else id(r[column]) for r in results}) == 4

    def reads(x):
        with open(file) as stream:
            k = float(stream.read())
        return (
            x * k
            + len(file.read_text())
            + os.path.exists(file)
            + len(os.listdir(tmp_path))
            + float(os.environ.get("DYNFIX_TEST", "1"))
            + os.getpid() * 0
        )

    def write(text):
        return lambda _: file.write_text(text)

    write("2")(None)
    for body in (
        reads,
        lambda x: x * float(file.read_text()),
        lambda x: x * os.path.getsize(file),
        lambda x: x + len(os.listdir(tmp_path)),
        lambda x: x * float(os.environ.get("DYNFIX_TEST", "1")),
        lambda x: x + file.exists() + os.path.exists(tmp_path / "new"),
        lambda x: x + len(os.getcwd()),
    ):
        file.write_text("2")
        same(
            lambda body=body: lambda x: body(x),
            (X,),
            (X,),
            write("31"),
            (X,),
            lambda _: os.environ.update(DYNFIX_TEST="8"),
            (X,),
            lambda _: (tmp_path / "new").write_text(""),
            (X,),
        )
        os.environ.pop("DYNFIX_TEST", None)
        (tmp_path / "new").unlink()


def test_call_keyword_tensors():
    same(
        lambda: lambda x, y: torch.add(input=x, other=y, alpha=2) + torch.clamp(x, min=y),
        call(X, y=Y),
        call(Y, y=X),
        (Fresh(lambda: X.clone()), Y),
    )


def _given_other_memory():
    state = torch.zeros(3)

    def program(x):
        made = x * 2
        state.set_(made)
        return state + 1

    return Case(fn=program, watch=lambda: state)


def _swapped():
    state = torch.zeros(3)

    def program(x):
        made = x * 2
        torch.utils.swap_tensors(state, made)
        return state + 1, made

    return Case(fn=program, watch=lambda: state)


@pytest.mark.parametrize("make", [_given_other_memory, _swapped])
def test_tensors_that_become_others(make):
    same(make, (X,), (Y,), (tensor(1, 2),), (X,), (tensor(1, 2),), (Y,))


def test_a_subclass_is_asked_what_eager_asks_it():
    asked = []

    class Listens(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            asked.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    def f(x, y):
        return torch.stack([x * 2 + y, y]).sum(), x.shape

    compiled = dynfix.compile(f, backend="eager")
    for fn in (f, compiled, compiled, compiled):
        fn(X.clone().as_subclass(Listens), X)
    first = asked[: len(asked) // 4]
    assert asked == 4 * first and "mul" in first
