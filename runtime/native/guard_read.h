// Reading one step of an access path, with CPython's semantics and without its detours where they can be proven away.
#pragma once

#include <Python.h>

#include <initializer_list>
#include <utility>

namespace dynfix {

// An owned reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* owned) : p(owned) {}
  Ref(Ref&& o) noexcept : p(o.p) { o.p = nullptr; }
  Ref(const Ref&) = delete;
  ~Ref() { Py_XDECREF(p); }
  Ref& operator=(Ref&& o) noexcept {
    std::swap(p, o.p);
    return *this;
  }
  static Ref copy(PyObject* borrowed) {
    Py_XINCREF(borrowed);
    return Ref(borrowed);
  }
  PyObject* release() {
    PyObject* out = p;
    p = nullptr;
    return out;
  }
  PyObject* p = nullptr;
};

// Python objects that fast paths compare with; set once by `setup`, never freed.
struct Names {
  // interned strings
  PyObject *dict, *getattr, *getattribute, *getitem, *len, *parameters, *buffers, *modules, *abs_index, *item_by_idx;
  // torch's and Python's own functions, as they stand in their classes
  PyObject *object_getattribute, *module_getattr;
  PyObject *list_getitem, *list_len, *list_index, *sequential_getitem, *sequential_len, *sequential_index;
};
inline Names names;

inline bool looks_up_plainly(PyTypeObject* type) {
  return _PyType_Lookup(type, names.getattribute) == names.object_getattribute;
}

// A key of an exact dict, borrowed, or null without an error set.
inline PyObject* quiet_item(PyObject* dict, PyObject* key) {
  PyObject* found = PyDict_GetItemWithError(dict, key);
  if (!found && PyErr_Occurred()) PyErr_Clear();
  return found;
}

// The version of a dict: another number after every change of what it holds (not of what those objects hold), never used again for any dict.
// 0 where there is none: Python 3.13 dropped it, and `versions` is cleared where the start-up test finds a store that it does not count.
inline bool versions = PY_VERSION_HEX < 0x030D0000;

inline uint64_t dict_version(PyObject* dict) {
#if PY_VERSION_HEX < 0x030D0000
  return versions ? ((PyDictObject*)dict)->ma_version_tag : 0;
#else
  return 0;
#endif
}

// What a dict gave for a key, valid while the dict has that version. `value` is borrowed: an unchanged dict holds it.
struct DictMemo {
  PyObject* dict = nullptr;
  uint64_t version = 0;
  PyObject* value = nullptr;

  bool holds(PyObject* now) const { return dict == now && version && dict_version(now) == version; }

  // The value of `key` in an exact dict, borrowed, or null without an error set.
  PyObject* get(PyObject* now, PyObject* key) {
    if (holds(now)) return value;
    uint64_t before = dict_version(now);  // before the lookup, which may run a key's __eq__
    PyObject* found = quiet_item(now, key);
    *this = {now, before, found};
    return found;
  }
};

// The version of a type: changes when an attribute of it or of a base changes. 0 while it has none.
inline unsigned type_version(PyTypeObject* type) { return type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG ? type->tp_version_tag : 0; }

// What is known of one type while it has this version: `kind` is what the asker made of it.
struct TypeMemo {
  PyTypeObject* type = nullptr;
  unsigned version = 0;
  int kind = 0;

  template <typename Classify>
  int of(PyTypeObject* now, Classify classify) {
    if (type == now && version && type_version(now) == version) return kind;
    int found = classify(now);
    *this = {now, type_version(now), found};  // the lookups of `classify` gave it a version
    return found;
  }
};

// Whether `__dict__` is CPython's own instance dict, below `__getattribute__`: a type may define `__dict__` itself, and a class has a proxy there.
inline int has_own_dict(PyTypeObject* type) {
  if (PyType_IsSubtype(type, &PyType_Type)) return 0;
  PyObject* descriptor = _PyType_Lookup(type, names.dict);
  return descriptor && Py_IS_TYPE(descriptor, &PyGetSetDescr_Type);
}

// Whether that is also what `obj.__dict__` gives.
inline int has_plain_dict(PyTypeObject* type) { return looks_up_plainly(type) && has_own_dict(type); }

// `object.__getattribute__(obj, "__dict__")`, owned.
inline PyObject* instance_dict(PyObject* obj, TypeMemo& memo) {
  if (memo.of(Py_TYPE(obj), has_own_dict)) return PyObject_GenericGetDict(obj, nullptr);
  return PyObject_GenericGetAttr(obj, names.dict);
}

// How instances of one type find one name.
enum Lookup { GENERAL, INSTANCE, REGISTERED };

inline int lookup_of(PyTypeObject* type, PyObject* name) {
  if (!has_plain_dict(type) || _PyType_Lookup(type, name)) return GENERAL;
  PyObject* getattr = _PyType_Lookup(type, names.getattr);
  if (getattr) return getattr == names.module_getattr ? REGISTERED : GENERAL;
  return type->tp_getattro == PyObject_GenericGetAttr ? INSTANCE : GENERAL;
}

// What one step has learnt of the objects it met last.
struct StepMemo {
  TypeMemo type;
  DictMemo own, table[3], entry[3];  // in the instance dict; of nn.Module's three tables: the table, and the name in it
};

// What nn.Module.__getattr__ would find for a name that is not in the instance dict; null without an error if it cannot be told here.
inline PyObject* registered(PyObject* dict, PyObject* name, StepMemo& memo) {
  PyObject* const groups[] = {names.parameters, names.buffers, names.modules};
  for (int i = 0; i < 3; i++) {
    PyObject* table = memo.table[i].get(dict, groups[i]);
    if (!table) continue;
    if (!PyDict_CheckExact(table)) return nullptr;
    if (PyObject* found = memo.entry[i].get(table, name)) return found;
  }
  return nullptr;
}

// `getattr(obj, name)`. For an instance attribute of a plain class, and for what an nn.Module registered, without raising and catching on the way.
inline PyObject* read_attr(PyObject* obj, PyObject* name, StepMemo& memo) {
  int lookup = memo.type.of(Py_TYPE(obj), [name](PyTypeObject* type) { return lookup_of(type, name); });
  if (lookup != GENERAL) {
    Ref dict(PyObject_GenericGetDict(obj, nullptr));
    if (dict.p && PyDict_CheckExact(dict.p)) {
      PyObject* found = memo.own.get(dict.p, name);
      if (!found && lookup == REGISTERED) found = registered(dict.p, name, memo);
      if (found) return Py_NewRef(found);
    }
    PyErr_Clear();
  }
  return PyObject_GetAttr(obj, name);
}

// The index-th key, or value, of an exact dict, owned; null without an error beyond its end.
inline PyObject* dict_at(PyObject* dict, Py_ssize_t index, bool value) {
  PyObject *key, *item;
  Py_ssize_t at = 0;
  for (Py_ssize_t i = 0; PyDict_Next(dict, &at, &key, &item); i++)
    if (i == index) return Py_NewRef(value ? item : key);
  return nullptr;
}

enum Container { OTHER, LIST, SEQUENTIAL };

// Which of torch's containers a type is, with torch's own methods.
inline int container_of(PyTypeObject* type) {
  if (!has_plain_dict(type) || _PyType_Lookup(type, names.modules)) return OTHER;
  PyObject *getitem = _PyType_Lookup(type, names.getitem), *len = _PyType_Lookup(type, names.len);
  if (getitem == names.list_getitem && len == names.list_len && _PyType_Lookup(type, names.abs_index) == names.list_index) return LIST;
  if (getitem == names.sequential_getitem && len == names.sequential_len &&
      _PyType_Lookup(type, names.item_by_idx) == names.sequential_index)
    return SEQUENTIAL;
  return OTHER;
}

// `container[index]` of ModuleList (by the key `text`) and Sequential (by position); null without an error otherwise.
inline PyObject* container_item(PyObject* obj, Py_ssize_t index, PyObject* text, StepMemo& memo) {
  int kind = memo.type.of(Py_TYPE(obj), container_of);
  if (kind == OTHER) return nullptr;
  Ref dict(PyObject_GenericGetDict(obj, nullptr));
  PyErr_Clear();
  if (!dict.p || !PyDict_CheckExact(dict.p)) return nullptr;
  PyObject* modules = memo.table[0].get(dict.p, names.modules);
  if (!modules || !PyDict_CheckExact(modules) || index >= PyDict_GET_SIZE(modules)) return nullptr;
  if (kind == LIST) return Py_XNewRef(memo.entry[0].get(modules, text));
  if (memo.entry[0].holds(modules)) return Py_NewRef(memo.entry[0].value);
  PyObject* found = dict_at(modules, index, true);
  memo.entry[0] = {modules, dict_version(modules), found};
  return found;
}

// Whether `base[name]` of a dict of this type is what the dict holds, if it holds the name.
inline bool reads_as_dict(PyTypeObject* type) { return type->tp_as_mapping && type->tp_as_mapping->mp_subscript == PyDict_Type.tp_as_mapping->mp_subscript; }

// `base[key]`; for a key that is an exact int, `index` is its value and `text` its decimal spelling, else index is -1.
inline PyObject* read_item(PyObject* base, PyObject* key, Py_ssize_t index, PyObject* text, StepMemo& memo) {
  if (PyDict_Check(base) && reads_as_dict(Py_TYPE(base))) {
    if (PyObject* found = memo.own.get(base, key)) return Py_NewRef(found);
    return PyDict_CheckExact(base) ? PyObject_GetItem(base, key) : nullptr;  // raises; a defaultdict would store it
  }
  if (PyDict_Check(base) && PyDict_Contains(base, key) != 1) return nullptr;  // a defaultdict would store it
  if (index >= 0) {
    if (PyList_CheckExact(base)) return index < PyList_GET_SIZE(base) ? Py_NewRef(PyList_GET_ITEM(base, index)) : nullptr;
    if (PyTuple_CheckExact(base)) return index < PyTuple_GET_SIZE(base) ? Py_NewRef(PyTuple_GET_ITEM(base, index)) : nullptr;
    if (PyObject* found = container_item(base, index, text, memo)) return found;
  }
  return PyObject_GetItem(base, key);
}

// `base.__closure__[index].cell_contents` of a Python function; null without an error for anything else.
inline PyObject* read_cell(PyObject* base, Py_ssize_t index) {
  PyObject* closure = PyFunction_Check(base) ? PyFunction_GET_CLOSURE(base) : nullptr;
  if (!closure || index < 0 || index >= PyTuple_GET_SIZE(closure)) return nullptr;
  return PyCell_Get(PyTuple_GET_ITEM(closure, index));
}

}  // namespace dynfix
