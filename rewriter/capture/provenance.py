"""Where objects come from: the access path of everything that the recorded call was given, and the
guards on what it read there."""

import collections
import itertools
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ...runtime.guards.guard import (
    ArrayContent,
    Attr,
    Check,
    Equals,
    Guard,
    HasKey,
    InstDict,
    Is,
    Item,
    Keys,
    Length,
    Members,
    Obj,
    Path,
    Referent,
    Stored,
    TypeIs,
)
from ...runtime.guards.guard_checks import is_placement
from .guarded_kinds import (
    BOUND_IN_C,
    BY_IDENTITY,
    BY_PARTS,
    BY_VALUE,
    BY_WHAT_IT_IS,
    CONSTANTS,
    FROZEN,
    HASHING,
    MAPPINGS,
    NO_OWNERS,
    PLAIN_KEYS,
    SEQUENCES,
    SINGLETONS,
    has_structure,
    is_constant,
    is_followed,
    parts_of_key,
    slots,
)
from .numbers.scalars import TRACED, plain

CONTENT_LIMIT = 20_000
_APART_LIMIT = 64
_NOWHERE = Obj(None, "nowhere")


class Unguardable(Exception):
    """A read whose later change no guard would see; the message names it."""


def item_path(obj: Any, path: Path, key: Any) -> Path:
    """The path of what the mapping `obj` holds at `key`, whatever its class's `__getitem__`
    gives."""
    own = isinstance(obj, dict) and isinstance(type(obj).__getitem__, types.FunctionType)
    return Stored(path, key) if own else Item(path, key)  # type: ignore[no-any-return]


def namespace(obj: Any) -> Any:
    """Where the attributes of `obj` are stored, so that `obj.name` and `obj.__dict__["name"]` are
    one place; `obj` itself, if that is not a dict of its own."""
    try:
        attributes = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return obj
    return attributes if type(attributes) is dict else obj


def share_memory(one: Any, other: Any) -> bool:
    """Whether two arrays may."""
    import numpy as np  # whoever has an array has loaded it

    return bool(np.may_share_memory(one, other))


class Provenance:
    """Paths by object identity (the objects are held while the recording lasts), guards in the
    order of the reads."""

    def __init__(self, origin: Callable[[], str], moving: Callable[[Any, Path], Any]) -> None:
        self.guards: dict[tuple[Path, Check], str] = {}
        self.aliases: dict[tuple[Path, Path], None] = {}
        self.distinct: dict[tuple[Path, ...], None] = {}
        self._origin, self._moving = origin, moving
        self._paths: dict[int, Path] = {}
        self._keep: list[Any] = []
        self._touched: dict[int, Any] = {}
        self._read: set[int] = set()
        self._deep: set[int] = set()
        self._dirty: set[tuple[int, Any]] = set()
        self._before: dict[int, Any] = {}
        self.arrays: list[tuple[Any, ArrayContent]] = []
        self.stored_to: list[Any] = []  # arrays
        self.lent: list[
            tuple[Any, torch.Tensor, bytes]
        ] = []  # arrays, inputs on them, what they held
        self._attributes: dict[int, tuple[str, ...]] = {}

    def path_of(self, obj: Any) -> Path | None:
        return self._paths.get(id(obj))

    def register(self, obj: Any, path: Path) -> None:
        """Remember how to reach `obj`; the first path stays."""
        if id(obj) not in self._paths:
            self._paths[id(obj)] = path
            self._keep.append(obj)

    def holds_cell(self, cell: types.CellType) -> bool:
        """Whether a function from outside closes over `cell`."""
        functions = (obj for obj in self._keep if isinstance(obj, types.FunctionType))
        outside = (fn for fn in functions if self.path_of(fn) is not None)
        return any(cell is each for fn in outside for each in fn.__closure__ or ())

    def guard(self, path: Path, check: Check) -> None:
        if (path, check) not in self.guards:
            self.guards[path, check] = self._origin()

    def guard_list(self) -> list[Guard]:
        return [Guard(path, check, origin) for (path, check), origin in self.guards.items()]

    # -- reads

    def loaded(self, value: Any, path: Path) -> Any:
        """`value` was read at `path`: guard what a later call could find changed there. A number
        known to change comes back traced."""
        if type(value) in TRACED:  # stored there by the call itself
            return value
        moving = self._moving(value, path) if type(value) in (int, float) else None
        if moving is not None:
            self.guard(path, TypeIs(type(value)))
            return moving
        return self._fixed(value, path)

    def _fixed(self, value: Any, path: Path) -> Any:
        kind = type(value)
        if kind in CONSTANTS or is_placement(value):
            self.guard(path, Equals(value))
        elif kind in SINGLETONS:
            self.guard(path, Is(value))
        elif kind is types.MethodType:
            self._bound(value, path)
        elif isinstance(value, BY_IDENTITY):
            self.guard(path, Is(value))
            self.register(value, Obj(value, path.source))
            if isinstance(value, BOUND_IN_C) and not isinstance(value.__self__, NO_OWNERS):
                self._fixed(value.__self__, Attr(path, "__self__"))
        else:
            self.guard(path, TypeIs(kind))
            self._reached(value, path)
            if kind is slice:  # nobody writes to one, and an index takes its ends unseen
                self._parts(value)
        return value

    def _bound(self, method: types.MethodType, path: Path) -> None:
        """A bound method: another one of the same function and object will do, but where two names
        had one."""
        self.guard(path, TypeIs(types.MethodType))
        known = self._paths.setdefault(id(method), path)
        if known != path:
            self.aliases[known, path] = None
        self._keep.append(method)
        self._fixed(method.__func__, Attr(path, "__func__"))
        self._fixed(method.__self__, Attr(path, "__self__"))

    def fixed(self, value: Any, path: Path) -> None:
        """`value` was read at `path` by code that keeps it as it is."""
        self._fixed(value, path)

    def _reached(self, value: Any, path: Path) -> None:
        known = self._paths.get(id(value))
        if known is None:
            self.register(value, path)
            if isinstance(value, torch.nn.Module):
                self.register_tree(value, path)
        elif isinstance(known, Obj):
            self.guard(path, Is(value))
        elif known is not path:
            self.aliases[known, path] = None

    def register_tree(self, module: torch.nn.Module, path: Path) -> None:
        """Paths of all parameters, buffers and submodules (slicing a ModuleList makes a module that
        has no path of its own)."""
        state = InstDict(path)
        for group in ("_parameters", "_buffers"):
            for name, tensor in module.__dict__.get(group, {}).items():
                if tensor is not None:
                    self.register(tensor, Item(Item(state, group), name))
        for name, child in module.__dict__.get("_modules", {}).items():
            if child is not None and id(child) not in self._paths:
                self.register(child, Item(Item(state, "_modules"), name))
                self.register_tree(child, Item(Item(state, "_modules"), name))

    def touch(self, obj: Any) -> Path | None:
        """The path of an object whose class is about to be relied upon."""
        path = self._paths.get(id(obj))
        if path is not None and id(obj) not in self._touched:
            self._touched[id(obj)] = obj
            if not isinstance(path, Obj):
                self.guard(path, TypeIs(type(obj)))
        return path

    def structure(self, obj: Any) -> None:
        """The elements of a container are about to be reached from rewritten code: guard its length
        or keys, and which elements it has."""
        path = self._paths.get(id(obj))
        if path is None and isinstance(obj, HASHING):
            self.assume_distinct_keys(obj)
        if path is None or id(obj) in self._read or is_followed(obj):
            return
        self._read.add(id(obj))
        if isinstance(obj, FROZEN):
            return self.guard(path, Is(obj))
        self.touch(obj)
        held = self._before.get(id(obj), obj)
        if isinstance(held, SEQUENCES):
            self._sequence(held, path)
            if isinstance(obj, collections.deque):
                self.guard(Attr(path, "maxlen"), Equals(obj.maxlen))
        elif isinstance(held, MAPPINGS):
            self._mapping(obj, held, path)
        elif isinstance(held, set | frozenset):
            self._pinned(held, path)
            self.guard(path, Members(tuple(held)))
        elif isinstance(held, BY_VALUE):
            self.guard(path, Is(held))
        elif ArrayContent.supports(held) and not self.is_lent(obj):
            self.arrays.append((obj, ArrayContent.of(obj)))
            self.guard(path, ArrayContent.of(held))
        else:
            raise Unguardable(f"the content of {path.source}, a {type(obj).__name__}")

    def is_lent(self, array: Any) -> bool:
        """Whether an input of the graph has memory of the array: what it holds is not known."""
        return any(share_memory(array, lent) for lent, *_ in self.lent)

    def content(self, obj: Any) -> None:
        """Code that is not rewritten is about to get `obj`: guard everything below it that it could
        read."""
        if isinstance(obj, BY_PARTS):
            return self._parts(obj)
        path = self._paths.get(id(obj))
        if path is None:
            return self._inside(obj)
        if id(obj) in self._deep or is_followed(obj) or is_placement(obj):
            return None
        self._deep.add(id(obj))
        if isinstance(obj, FROZEN):
            return self.structure(obj)
        if type(obj) is weakref.ref:
            self._fixed(obj(), Referent(path))
            return None
        if has_structure(obj):
            self.structure(obj)
            for part in _parts_of(obj):
                self.content(part)
        return self._fields(obj, path)

    def _inside(self, made: Any) -> None:
        """What an object holds that this call made."""
        seen, pending = set[int](), [made]
        while pending:
            each = pending.pop()
            if each is not made and (id(each) in self._paths or isinstance(each, BY_PARTS)):
                self.content(each)
            elif id(each) not in seen and _may_hold(each):
                seen.add(id(each))
                pending.extend(_parts_of(each))
                pending.extend(_fields_of(each))

    def _parts(self, obj: Any) -> None:
        """A partial or a slice: what it holds, by paths through it where it has one."""
        path = self._paths.get(id(obj))
        for name in (
            ("start", "stop", "step") if isinstance(obj, slice) else ("func", "args", "keywords")
        ):
            value = getattr(obj, name)
            self.content(value if path is None else self._fixed(value, Attr(path, name)))

    def _fields(self, obj: Any, path: Path) -> None:
        """The attributes of a Python object, in its `__dict__` and its slots."""
        if has_structure(obj) and type(obj).__module__ == "builtins":
            return
        self.touch(obj)
        attributes = getattr(obj, "__dict__", None)
        if isinstance(attributes, dict):
            self.keys(self._attributes.get(id(obj), attributes), InstDict(path))
            for name, value in list(attributes.items()):
                self._field(obj, name, value, Item(InstDict(path), name))
        for name in slots(type(obj)):
            if hasattr(obj, name):
                self._field(obj, name, getattr(obj, name), Attr(path, name))

    def _field(self, obj: Any, name: str, value: Any, path: Path) -> None:
        """What this call stored itself does not come from `path`."""
        self.content(value if self.is_own(obj, name) else self._fixed(value, path))

    def _sequence(self, held: Iterable[Any], path: Path) -> None:
        values = list(held)
        if len(values) > CONTENT_LIMIT:
            raise Unguardable(f"{path.source} holds {len(values)} elements")
        self.guard(path, Length(len(values)))
        for index, value in enumerate(values):
            self._fixed(value, Item(path, index))

    def _mapping(self, obj: Any, held: Any, path: Path) -> None:
        self.keys(held, path)
        for key, value in dict(held).items():
            self._fixed(value, item_path(obj, path, key))

    def keys(self, held: Any, path: Path) -> None:
        """Which keys a mapping has is about to be relied upon."""
        keys = tuple(held)
        if len(keys) > CONTENT_LIMIT:
            raise Unguardable(f"{path.source} has {len(keys)} keys")
        self._pinned(keys, path)
        self.guard(path, Keys(keys))

    def _pinned(self, keys: Iterable[Any], path: Path) -> None:
        """Objects that are guarded as the keys of what lies at `path`: where they were reached by
        another way, too, they have to be found there."""
        for key in (part for each in keys for part in parts_of_key(each)):
            if type(key) in CONSTANTS or type(key).__hash__ not in BY_WHAT_IT_IS:
                continue
            known = self._paths.get(id(key))
            if known is None:
                known = Obj(key, f"a key of {path.source}")
                self.register(key, known)
                if isinstance(key, torch.nn.Module):
                    self.register_tree(key, known)
            elif not isinstance(known, Obj):
                self.guard(known, Is(key))

    def lacks(self, obj: Any, key: Any) -> bool:
        """`key` was not found in a mapping from outside, or is asked for: guard whether it is
        there. False if `obj` is no such mapping."""
        path = self._paths.get(id(obj))
        if path is None or not isinstance(obj, MAPPINGS):
            return path is None
        self.touch(obj)
        held = self._before.get(id(obj), obj)
        if type(obj) is dict and type(key) in PLAIN_KEYS:
            self.guard(path, HasKey(key, key in held))
        else:
            self.keys(held, path)
        return True

    def arguments(self, values: Iterable[Any]) -> None:
        """Containers handed to code that is not rewritten are read as a whole."""
        for value in values:
            if isinstance(value, HASHING):
                self.assume_distinct_keys(value)
            if id(value) in self._paths:
                self.content(value)
            elif isinstance(value, list | tuple | set | frozenset):
                self.arguments(value)
            elif type(value) is dict:
                self.arguments(value.values())
            elif isinstance(value, BY_PARTS):
                self._parts(value)

    # -- which objects are which

    def assume_distinct(self, *objects: Any) -> None:
        """The objects, all from outside, were seen to be different ones: later calls where two of
        them are one are not this recording's."""
        paths = [path for obj in objects if (path := self.path_of(obj)) is not None]
        if len(paths) > 1 and not all(isinstance(path, Obj) for path in paths):
            self.distinct[tuple(paths)] = None

    def assume_distinct_keys(self, container: Any, *asked: Any) -> None:
        """What a dict or set of the call's own holds is looked at, or `asked` for: objects from
        outside that it tells by what they are, not by what they equal, were different ones."""
        if id(container) not in self._paths:
            keys = (part for key in (*container, *asked) for part in parts_of_key(key))
            known = {id(key): key for key in keys if type(key).__hash__ in BY_WHAT_IT_IS}
            self.assume_distinct(*known.values())
        else:
            for key in asked:
                self._asked(container, key)

    def _asked(self, container: Any, key: Any) -> None:
        """A dict or set from outside was asked for `key`: where it tells such keys by what they
        are, later calls have to ask for the same one, or for none of those that it holds."""
        parts = [part for part in parts_of_key(key) if self._may_be_another(part)]
        if not parts or self.is_own(container, key):
            return
        like = (each for each in container if type(each) is type(key) and each is not key)
        others = list(itertools.islice(like, _APART_LIMIT + 1))
        if parts == [key] and len(others) <= _APART_LIMIT and key not in container:
            paths = (self.path_of(each) or Obj(each, "a key") for each in others)
            self.distinct[(self._paths[id(key)], *paths)] = None
            return
        self.assume_distinct(key, *others[:_APART_LIMIT])
        for part in parts:
            self.guard(self._paths[id(part)], Is(part))

    def _may_be_another(self, part: Any) -> bool:
        """Whether what comes from outside is told by what it is, and unguarded so far."""
        return type(part).__hash__ in BY_WHAT_IT_IS and not isinstance(
            self._paths.get(id(part), _NOWHERE), Obj
        )

    def written_through(self, obj: Any) -> None:
        """`obj` was changed: what else was read here, and might be the same object in another call,
        was not."""
        if self.path_of(obj) is not None:
            kind = type(obj)
            others = [each for each in self._touched.values() if type(each) is kind]
            self.assume_distinct(obj, *(each for each in others if each is not obj))

    # -- writes

    def before_write(self, obj: Any) -> None:
        """A container is about to change: keep what it held, for the guards on it."""
        if id(obj) not in self._paths or id(obj) in self._before:
            return
        if isinstance(obj, SEQUENCES + MAPPINGS):
            self._before[id(obj)] = list(obj) if isinstance(obj, SEQUENCES) else dict(obj)
        elif ArrayContent.supports(obj):
            self._before[id(obj)] = obj.copy()
            self.stored_to.append(obj)

    def before_store(self, obj: Any) -> None:
        """An attribute is about to change: keep which there were, for the guards on them."""
        attributes = getattr(obj, "__dict__", None)
        if id(obj) in self._paths and isinstance(attributes, dict):
            self._attributes.setdefault(id(obj), tuple(attributes))

    def as_given(self, obj: Any) -> Any:
        """The container, or what it held before this call wrote it."""
        return self._before.get(id(obj), obj)

    def was_written(self, obj: Any) -> bool:
        return id(obj) in self._before

    def wrote(self, obj: Any, key: Any) -> None:
        """Attribute or item `key` of `obj` was stored in this call: reading it back is no read of
        the outside."""
        self._keep += (obj, namespace(obj))
        self._dirty.add((id(namespace(obj)), plain(key)))

    def took_back(self, obj: Any, key: Any) -> None:
        """What this call stored there is gone: what is found now is of the outside again."""
        self._dirty.discard((id(namespace(obj)), plain(key)))

    def is_own(self, obj: Any, key: Any) -> bool:
        return bool(self._dirty) and (id(namespace(obj)), plain(key)) in self._dirty


_OWN = __name__.partition(".")[0]


def _may_hold(made: Any) -> bool:
    """Whether what lies in an object may come from outside of the call."""
    kind = type(made)
    if is_constant(made) or is_followed(made) or kind in TRACED:
        return False
    return kind.__module__.partition(".")[0] not in (_OWN, "torch")


def _fields_of(obj: Any) -> Iterable[Any]:
    held = getattr(obj, "__dict__", None)
    yield from held.values() if isinstance(held, dict) else ()
    yield from (getattr(obj, name) for name in slots(type(obj)) if hasattr(obj, name))


def _parts_of(obj: Any) -> Iterable[Any]:
    """The values of a mapping, or the elements of another container."""
    if isinstance(obj, MAPPINGS):
        return obj.values()
    return obj if isinstance(obj, (*SEQUENCES, set, frozenset)) else ()
