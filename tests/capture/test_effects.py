"""What a call does to the outside is done at every call, once, in order: containers, attributes,
globals, cells, prints, buffers, inputs."""

import collections

import dynfix
import torch
from helpers import FOUR, Case, Fresh, X, Y, call, module_from, one_graph, same, tensor, watching


def test_list_writes():
    def body(s, x):
        s.log.append(x * 2)
        s.log.insert(0, 1)
        s.log.extend([x.sum(), "a"])
        s.log += [3]
        s.log.reverse()
        del s.log[0]
        return x + 1

    same(watching(body, log=list), *FOUR)


def test_list_writes_that_read():
    def body(s, x):
        last = s.log.pop()
        s.log.append(last + 1)
        s.log[0] = x * 2
        s.log.sort(key=lambda v: 0)
        s.log.remove(7)
        s.log.append(7)
        return x + last

    same(watching(body, log=lambda: [5, 7, 1]), *FOUR)


def test_list_slices():
    def body(s, x):
        s.log[1:2] = [x, x]
        s.log[-1:] = []
        s.log[:0] = (0,)
        del s.log[::2]
        return x

    same(watching(body, log=lambda: [5, 7, 1]), *FOUR)


def test_dict_writes():
    def body(s, x):
        s.d["a"] = x * 2
        s.d.setdefault("b", []).append(1)
        s.d.update(c=x, d=2)
        s.d |= {"e": 1}
        s.d["n"] = s.d.get("n", 0) + 1
        s.d.pop("d")
        del s.d["e"]
        return x + s.d["a"]

    same(watching(body, d=dict), *FOUR)


def test_fresh_dict_is_filled():
    def f(x, d, items, s):
        d["y"] = x + 1
        d.setdefault("z", []).append(d["y"])
        items.append(d)
        s.add(3)
        return d, items

    same(lambda: f, *[(v, {}, [], set()) for v in (X, Y, X)])
    same(lambda: f, *[(v, {"z": []}, [1], {1}) for v in (X, Y, X)])


def test_defaultdict_argument_gets_its_default():
    def f(x, d):
        d["a"].append(x)
        return d["b"], x * 2

    same(lambda: f, *[(v, collections.defaultdict(list)) for v in (X, Y, X)])
    same(lambda: lambda x, d: x * d["k"], *[(v, collections.defaultdict(int)) for v in (X, Y, X)])


def test_other_containers():
    def body(s, x):
        s.q.append(x)
        s.q.appendleft(2)
        s.q.rotate(1)
        s.st.add(len("abc"))
        s.st.discard(9)
        s.st |= {4}
        s.od["k"] = x
        s.od.move_to_end("first")
        s.c["w"] += 1
        s.c.update("ww")
        return x

    same(
        watching(
            body,
            q=lambda: collections.deque(maxlen=3),
            st=lambda: {9},
            od=lambda: collections.OrderedDict(first=1),
            c=collections.Counter,
        ),
        *FOUR,
    )


def test_what_is_stored_is_filled_or_copied_later():
    def body(s, x):
        temp = [1]
        s.log.append(temp)
        s.flat.extend(temp)
        s.d.update({"t": temp})
        s.flat += temp
        temp.append(x + 1)
        m = {"k": 1}
        s.d.update(m)
        m["late"] = 2
        s.flat[:0] = temp[:1]
        temp.clear()
        temp.append("last")
        return temp

    same(watching(body, log=list, flat=list, d=dict), *FOUR)


def test_attribute_stores():
    def body(s, x):
        s.y = x * 2
        s.n += 1
        s.both = (s.y, s.n)
        s.z = s.w = [s.y]
        if hasattr(s, "temp"):
            del s.temp
        else:
            s.temp = 1
        return s.y + 1

    same(watching(body, n=0), *FOUR, *FOUR)


def test_user_setattr_property_and_descriptor():
    class Described:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, obj, cls):
            obj.gets += 1
            return obj.__dict__.get(self.name, 1.0)

        def __set__(self, obj, value):
            obj.sets += 1
            obj.__dict__[self.name] = value

    class Tracked:
        d = Described()

        def __init__(self):
            self.__dict__.update(names=[], gets=0, sets=0, _p=1.0)

        def __setattr__(self, name, value):
            self.names.append(name)
            object.__setattr__(self, name, value)

        @property
        def p(self):
            self.names.append("get p")
            return self._p

        @p.setter
        def p(self, value):
            self._p = value + 1

    def make():
        t = Tracked()

        def f(x):
            t.a = x.shape[0]
            t.p = 5
            t.d = 2.0
            return x * t.p + t.d

        return Case(fn=f, watch=lambda: vars(t))

    same(make, *FOUR)


def test_descriptor_with_side_effects():
    class Counted:
        def __get__(self, obj, cls):
            obj.gets += 1
            return obj.k

    class Thing:
        v = Counted()

        def __init__(self):
            self.gets, self.k = 0, 2.0

    def make():
        t = Thing()
        return Case(fn=lambda x: x * t.v, watch=lambda: vars(t), t=t)

    same(make, *FOUR, lambda c: setattr(c.t, "k", 3.0), *FOUR)


def test_getattribute_with_side_effects():
    class Thing:
        def __init__(self):
            self.seen, self.k = [], 2.0

        def __getattribute__(self, name):
            if name == "k":
                object.__getattribute__(self, "seen").append(name)
            return object.__getattribute__(self, name)

    def make():
        t = Thing()
        return Case(fn=lambda x: x * t.k, watch=lambda: object.__getattribute__(t, "__dict__"))

    same(make, *FOUR)


def test_class_and_module_attributes(tmp_path):
    text = """
class Counter:
    total, last = 0, None
    def __init__(self): type(self).total += 1
N, LAST, SEEN = 0, None, []
def bump(x):
    global N, LAST
    N += 1
    LAST = x * 2
    SEEN.append(N)
    return LAST
def f(x):
    global NEW
    Counter.last = x.shape
    Counter()
    NEW = bump(x)
    globals()["VIA"] = N + 1
    return NEW + N
"""

    def make():
        m = module_from(tmp_path, text)
        return Case(
            fn=m.f,
            watch=lambda: (m.N, m.LAST, m.SEEN, m.NEW, m.Counter.total, m.Counter.last, m.VIA),
        )

    same(make, *FOUR)


def test_globals_and_eval_read(tmp_path):
    text = """
K = 2.0
def f(x): return x * globals()["K"] + eval("K") + vars()["x"].sum() + locals()["x"].sum()
def g(x):
    exec("global K; K = K + 1")
    return x * K
"""

    def make():
        m = module_from(tmp_path, text)
        return Case(fn=m.f, m=m)

    same(make, (X,), (X,), lambda c: setattr(c.m, "K", 3.0), (X,))

    def make_exec():
        m = module_from(tmp_path, text)
        return Case(fn=m.g, watch=lambda: m.K)

    same(make_exec, *FOUR)


def test_nonlocal_stores():
    def make():
        n, last, seen = 0, None, []

        def bump(x):
            nonlocal n
            n += 1
            return x * n

        def f(x):
            nonlocal last
            last = bump(x)
            seen.append(last)
            return last + 1

        return Case(fn=f, watch=lambda: (n, last, seen))

    same(make, *FOUR)


def test_mutable_default_argument():
    def make():
        def helper(x, seen=[], *, d={}):  # noqa: B006
            seen.append(x.shape[0])
            d["last"] = x
            return x + len(seen)

        return Case(
            fn=lambda x: helper(x), watch=lambda: (helper.__defaults__, helper.__kwdefaults__)
        )

    same(make, *FOUR)


def test_function_attributes():
    def make():
        def f(x):
            f.calls += 1
            f.last = x * 2
            return x + f.calls

        f.calls = 0
        return Case(fn=f, watch=lambda: (f.calls, f.last))

    same(make, *FOUR)


def test_overridden_container_methods():
    class Log(list):
        n = 0

        def append(self, v):
            self.n += 1
            super().append(("logged", v))

    class Table(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key, [value, len(self)])

        def __missing__(self, key):
            self[key] = 0
            return self[key]

    def body(s, x):
        s.l.append(x)
        s.t["a"] = x
        return x + s.t["zz"][1]

    same(watching(body, l=Log, t=Table), *FOUR)


def test_effects_then_exception():
    def make():
        seen = []

        def f(x, limit):
            seen.append("start")
            print("start")
            x.add_(1)
            if len(x) > limit:
                raise ValueError(f"too long: {len(x)}")
            seen.append("end")
            return x * 2

        return Case(fn=f, watch=lambda: seen)

    same(make, (X, 9), (X, 9), (X, 1), (X, 9), (X, 1), (X, 1))


def test_same_object_twice():
    def body(s, x):
        y = x + 1
        pair = [y]
        s.a, s.b = pair, pair
        s.log.append(pair)
        return pair, y, {"pair": pair}

    fn = same(watching(body, log=list), *FOUR)
    one_graph(fn)


def test_counter_and_cache_patterns():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cache, self.steps, self.seen = {}, 0, []

        def forward(self, x, key=None):
            if key is not None and key in self.cache:
                return self.cache[key]
            y = x * 2
            if key is not None:
                self.cache[key] = y
            self.steps = self.steps + 1
            self.seen.append(key)
            return y + self.steps

    same(Model, (X,), (X, "a"), (X, "a"), (Y, "a"), (Y, "b"), (Y, "b"), (X,))


def test_frozen_kwargs():
    def f(x, **kw):
        kw["new"] = x
        kw.pop("a", None)
        return kw

    same(
        lambda: f,
        call(X, a=1),
        call(X, a=1, b=2),
        call(Y, a=1),
        call(Y),
        call(X, a=Fresh(lambda: tensor(1))),
    )


def test_deleters_of_the_user():
    class Told:
        def __init__(self):
            self.log, self.a, self._b = [], 1, 2

        def __delattr__(self, name):
            self.log.append(("del", name))
            object.__delattr__(self, name)

        @property
        def b(self):
            return self._b

        @b.deleter
        def b(self):
            self.log.append("b")
            self._b = None

    def body(s, x):
        told = Told()
        del told.a, told.b
        for each in (told, s.told):
            each.c = x.sum()
            if len(s.told.log) % 2:
                del each.c
            del each.b
        return x + len(told.log), told

    same(watching(body, told=Told), *FOUR)


def test_items_that_methods_store_and_delete():
    """As the statements do: what stood there before is no guard."""

    class Items(Case):
        def __init__(self):
            self.table, self.row = {}, [0.0, 1.0]
            self.fn, self.watch = self.run, lambda: (self.table, self.row)

        def run(self, x, k):
            self.table.__setitem__("mean", x.mean().item())
            self.row.__setitem__(-1, x.sum().item())
            self.table.__setitem__(f"new{k}", k)
            self.table.__delitem__(f"new{k}")
            return x * 2

    same(Items, *(call(X + k, 1) for k in range(5)))
    made = Items()
    fn = dynfix.compile(made.run, backend="eager")
    for k in range(6):
        fn(X + k + 3, 1)
    assert len(fn._dynfix_entry.recordings) == 1


def test_methods_of_sets_and_lists_that_are_operators_in_place():
    def body(s, x, k):
        s.st.symmetric_difference_update([k, 100])
        s.st.__ixor__({k})
        s.other.intersection_update({1, 2, k})
        s.other.difference_update([k - 1])
        s.d.__ior__({k: 2})
        s.values.__iadd__([k])
        s.values.__imul__(2)
        return x * len(s.st) + len(s.values), s.d

    make = watching(
        body, st=lambda: {8, 1}, other=lambda: {1, 2, 3}, d=lambda: {0: 1}, values=lambda: [1]
    )
    same(make, *[(torch.ones(2), 2)] * 4)
    same(make, *[(torch.ones(2), k) for k in (2, 3, 4, 3)])
