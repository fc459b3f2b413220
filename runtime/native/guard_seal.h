// A seal: what the last full walk found, as conditions on memory that are checked without running Python.
//
// A step is sealed if what it reads is decided by sealed conditions on its base: that a dict still has its version (or, at another version, still holds
// the same objects under the names that matter), an object its type and instance dict, a type its version, a list its items. Every condition is on memory
// as it is now, parents before children, so a pointer is followed only where a condition has just shown that the object is there. A condition never asks
// what an address used to hold: it checks the type before anything else, and constants are owned, so that no other can come to their address.
// All other steps (properties, arguments that are others at each call) are read as always, after the conditions.
#pragma once

#include "guard_lines.h"
#include "guard_walk.h"

#include <unordered_map>

namespace dynfix {
namespace {

enum Condition { ARGUMENT, NAMED, OBJECT, TYPE, TABLE, SIZE, ELEMENT, FUNCTION, CELL_HOLDS, FACTS };

struct Entry {
  PyObject* name;   // owned by the plan
  PyObject* value;  // null: there is none
};

// What is relied upon of one dict. whole: its order too.
struct Table {
  std::vector<Entry> entries;
  const Check* keys = nullptr;
  bool whole = false;
};

// What is relied upon of a function.
struct Parts {
  PyObject *code, *defaults, *keywords;
};

struct Op {
  int kind;
  int number = 0;  // an index, a length; of a TABLE or FUNCTION: which of the seal's
  PyObject* object = nullptr;
  PyTypeObject* type = nullptr;
  union {
    PyObject* expected = nullptr;  // OBJECT: its instance dict, or null if it does not matter
    const TensorFacts* facts;      // FACTS
  };
  uint64_t version = 0;  // of the type, or of the dict; 0: does not matter, or there is none
};

// A step that is read, or a sealed one that is checked, as by a walk.
struct Live {
  Py_ssize_t step;
  std::vector<Py_ssize_t> checks;
};

struct Seal {
  std::vector<Op> ops;
  std::vector<Table> tables;
  std::vector<Parts> functions;
  std::vector<PyObject*> values;      // of each sealed step, borrowed; null: not sealed
  std::vector<Py_ssize_t> bases;      // sealed steps that live steps read from, or that have live checks
  std::vector<Live> live;             // in order
  std::vector<Py_ssize_t> slots;      // for each step of `bases` and `live`: the place of its value in a match; -1 for all others
  std::vector<PyObject*> owned;
  Lines lines;                        // what a match reads

  ~Seal() {
    for (PyObject* one : owned) Py_DECREF(one);
  }
};

bool is_table(PyObject* dict) { return PyDict_CheckExact(dict) || PyODict_CheckExact(dict); }

// Whether no lookup in a dict can run Python: all of its keys are plain strings.
bool has_plain_keys(PyObject* dict) {
  PyObject *key, *item;
  for (Py_ssize_t at = 0; PyDict_Next(dict, &at, &key, &item);)
    if (!PyUnicode_CheckExact(key)) return false;
  return true;
}

// The dict that an object of a type with a plain `__dict__`, or a module, has now; borrowed, null if it was not made yet.
PyObject* dict_of(PyObject* object) {
  PyObject** place = _PyObject_GetDictPtr(object);
  return place ? *place : nullptr;
}

bool keeps_dict(PyTypeObject* type) { return type == &PyModule_Type || has_own_dict(type); }

// Whether another version of a dict still has what matters. Runs no Python.
bool still_holds(Op& op, const Table& table) {
  PyObject* dict = op.object;
  if (table.whole || !has_plain_keys(dict)) return false;
  for (const Entry& entry : table.entries)
    if (PyDict_GetItemWithError(dict, entry.name) != entry.value) return false;
  if (table.keys && keys(*table.keys, dict) != 1) return false;
  op.version = dict_version(dict);
  return true;
}

PyObject* nth_value(PyObject* dict, Py_ssize_t index) {
  PyObject *key, *item;
  Py_ssize_t at = 0;
  for (Py_ssize_t i = 0; PyDict_Next(dict, &at, &key, &item); i++)
    if (i == index) return item;
  return nullptr;
}

bool element_holds(const Op& op) {
  if (!Py_IS_TYPE(op.object, op.type)) return false;
  if (PyList_CheckExact(op.object)) return op.number < PyList_GET_SIZE(op.object) && PyList_GET_ITEM(op.object, op.number) == op.expected;
  return op.number < PyTuple_GET_SIZE(op.object) && PyTuple_GET_ITEM(op.object, op.number) == op.expected;
}

bool function_holds(const Op& op, const Parts& parts) {
  return Py_IS_TYPE(op.object, op.type) && PyFunction_GET_CODE(op.object) == parts.code && PyFunction_GET_DEFAULTS(op.object) == parts.defaults &&
         PyFunction_GET_KW_DEFAULTS(op.object) == parts.keywords;
}

bool cell_holds(const Op& op) {
  PyObject* closure = Py_IS_TYPE(op.object, op.type) ? PyFunction_GET_CLOSURE(op.object) : nullptr;
  return closure && op.number < PyTuple_GET_SIZE(closure) && PyCell_GET(PyTuple_GET_ITEM(closure, op.number)) == op.expected;
}

bool holds(Op& op, const Seal& seal, PyObject* const* call) {
  switch (op.kind) {
    case ARGUMENT: return PyTuple_GET_ITEM(call[0], op.number) == op.object;
    case NAMED: return nth_value(call[1], op.number) == op.object;
    case OBJECT:
      return Py_IS_TYPE(op.object, op.type) && (!op.version || type_version(op.type) == op.version) &&
             (!op.expected || dict_of(op.object) == op.expected);
    case TYPE: return PyType_Check(op.object) && type_version((PyTypeObject*)op.object) == op.version;
    case TABLE:
      return Py_IS_TYPE(op.object, op.type) &&
             ((op.version && dict_version(op.object) == op.version) || still_holds(op, seal.tables[op.number]));
    case SIZE: return Py_IS_TYPE(op.object, op.type) && length(op.object) == op.number;
    case ELEMENT: return element_holds(op);
    case FUNCTION: return function_holds(op, seal.functions[op.number]);
    case CELL_HOLDS: return cell_holds(op);
    case FACTS: return Py_IS_TYPE(op.object, op.type) && op.facts->match(impl_of(op.object));
  }
  return false;
}

// Makes a seal of the values of a walk that matched. Nothing in here runs Python; what cannot be told without stays live.
class Sealer {
 public:
  Sealer(Guards* self, PyObject* const* call, const Values& values) : self(self), call(call), values(values), seal(std::make_shared<Seal>()) {}

  // Null if something is no longer as the walk found it.
  std::shared_ptr<Seal> make() {
    size_t n = self->steps.size();
    seal->values.assign(n, nullptr);
    seal->slots.assign(n, -1);
    for (size_t i = 0; i < n && !broken; i++) place(i);
    size_t next = seal->bases.size();
    for (const Live& live : seal->live)
      if (seal->slots[live.step] < 0) seal->slots[live.step] = next++;
    add_lines();
    return broken ? nullptr : seal;
  }

 private:
  void add_lines() {
    Lines& lines = seal->lines;
    for (size_t i = 0; i < self->steps.size(); i++) lines.add_object(values[i], (PyTypeObject*)known.tensor_base);
    for (const Check& check : self->checks)
      if (check.tensor) lines.add_facts(*check.tensor);
    for (const Live& live : seal->live) {
      lines.add(&self->steps[live.step], sizeof(Step));
      lines.add(live.checks.data(), live.checks.size() * sizeof(Py_ssize_t));
      for (Py_ssize_t check : live.checks) lines.add(&self->checks[check], sizeof(Check));
    }
    lines.finish();
  }

  void place(Py_ssize_t i) {
    const Step& step = self->steps[i];
    bool sealed = step.restless < 2 && is_sealed(step, values[i]);
    if (sealed) seal->values[i] = values[i];
    Live live{i, {}};
    for (Py_ssize_t c = step.first; c < step.last; c++)
      if (!sealed || !seal_check(self->checks[c], values[i])) live.checks.push_back(c);
    if (sealed && live.checks.empty()) return;
    need(sealed ? i : step.base);
    seal->live.push_back(std::move(live));
  }

  // The value of a sealed step is needed.
  void need(Py_ssize_t i) {
    if (i < 0 || !seal->values[i] || seal->slots[i] >= 0) return;
    seal->slots[i] = seal->bases.size();
    seal->bases.push_back(i);
  }

  Op& add(int kind, PyObject* object) {
    seal->ops.push_back(Op{kind, 0, object, Py_TYPE(object)});
    return seal->ops.back();
  }

  // The condition that the object has its type, at its version; false if types of its kind have none.
  bool watch_type(PyObject* object) {
    _PyType_Lookup(Py_TYPE(object), names.dict);  // gives it a version
    unsigned version = type_version(Py_TYPE(object));
    if (!version) return false;
    object_op(object).version = version;
    return true;
  }

  Op& object_op(PyObject* object) {
    auto [found, is_new] = objects.emplace(object, seal->ops.size());
    return is_new ? add(OBJECT, object) : seal->ops[found->second];
  }

  // The instance dict of an object, watched; null if it has no plain one.
  PyObject* watch_dict(PyObject* object) {
    if (!keeps_dict(Py_TYPE(object))) return nullptr;
    PyObject* dict = dict_of(object);
    if (!dict || !watch_type(object)) return nullptr;
    object_op(object).expected = dict;
    return dict;
  }

  Table* watch_table(PyObject* dict) {
    if (!PyDict_Check(dict)) return nullptr;
    auto found = tables.find(dict);
    if (found == tables.end()) {
      if (!has_plain_keys(dict)) return nullptr;
      Op& op = add(TABLE, dict);
      op.version = dict_version(dict);
      op.number = (int)seal->tables.size();
      seal->tables.emplace_back();
      found = tables.emplace(dict, op.number).first;
    }
    return &seal->tables[found->second];
  }

  // That `dict[name]` is `value` (null: is not there).
  bool watch_entry(PyObject* dict, PyObject* name, PyObject* value) {
    if (!PyUnicode_CheckExact(name)) return false;
    Table* table = watch_table(dict);
    if (!table || PyDict_GetItemWithError(dict, name) != value) return false;
    table->entries.push_back({name, value});
    return true;
  }

  bool watch_place(PyObject* dict, Py_ssize_t index, PyObject* found) {
    Table* table = dict_version(dict) ? watch_table(dict) : nullptr;
    if (!table || !found) return false;
    table->whole = true;
    return true;
  }

  bool is_sealed(const Step& step, PyObject* value) {
    PyObject* base = nullptr;
    if (step.base >= 0 && !(base = seal->values[step.base])) return false;
    switch (step.kind) {
      case OBJ: return true;
      case ARG: return step.is_base && argument(ARGUMENT, step.index, value);
      case KWARG: return step.is_base && named(step, value);
      case ATTR: return attribute(base, step.arg, value);
      case INST_DICT: return watch_dict(base) == value;
      case ITEM: return item(step, base, value);
      case DICT_KEY: return PyDict_CheckExact(base) && watch_place(base, step.index, value);
      case CELL: return cell(base, step.index, value);
      case TYPE_OF: return (PyObject*)Py_TYPE(base) == value && (object_op(base), true);
    }
    return false;
  }

  bool argument(int kind, Py_ssize_t index, PyObject* value) {
    add(kind, value).number = (int)index;
    return true;
  }

  // call_fits has checked that the names come in this order.
  bool named(const Step& step, PyObject* value) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->kwnames); i++)
      if (PyTuple_GET_ITEM(self->kwnames, i) == step.arg && nth_value(call[1], i) == value) return argument(NAMED, i, value);
    return false;
  }

  bool attribute(PyObject* base, PyObject* name, PyObject* value) {
    if (PyFunction_Check(base)) return function_field(base, name, value);
    if (Py_IS_TYPE(base, &PyType_Type)) return class_attribute((PyTypeObject*)base, name, value);
    PyTypeObject* type = Py_TYPE(base);
    if (PyObject* found = looks_up_plainly(type) ? _PyType_Lookup(type, name) : nullptr) return found == value && is_plain(found) && has_own_dict(type) && missing_name(base, name);
    bool module = type == &PyModule_Type && !_PyType_Lookup(type, name);
    int lookup = module ? INSTANCE : lookup_of(type, name);
    PyObject* dict = lookup == GENERAL ? nullptr : watch_dict(base);
    if (!dict || !is_table(dict)) return false;
    if (PyDict_GetItemWithError(dict, name) == value) return watch_entry(dict, name, value);
    return lookup == REGISTERED && registered_entry(dict, name, value);
  }

  bool registered_entry(PyObject* dict, PyObject* name, PyObject* value) {
    if (!watch_entry(dict, name, nullptr)) return false;
    for (PyObject* group : {names.parameters, names.buffers, names.modules}) {
      PyObject* table = PyDict_GetItemWithError(dict, group);
      if (!watch_entry(dict, group, table)) return false;
      if (!table) continue;
      if (!PyDict_CheckExact(table) || !has_plain_keys(table)) return false;
      PyObject* found = PyDict_GetItemWithError(table, name);
      if (!watch_entry(table, name, found)) return false;
      if (found) return found == value;
    }
    return false;
  }

  bool function_field(PyObject* base, PyObject* name, PyObject* value) {
    PyObject *code = PyFunction_GET_CODE(base), *defaults = PyFunction_GET_DEFAULTS(base), *keywords = PyFunction_GET_KW_DEFAULTS(base), *field;
    if (PyUnicode_CompareWithASCIIString(name, "__code__") == 0) field = code;
    else if (PyUnicode_CompareWithASCIIString(name, "__defaults__") == 0) field = defaults ? defaults : Py_None;
    else if (PyUnicode_CompareWithASCIIString(name, "__kwdefaults__") == 0) field = keywords ? keywords : Py_None;
    else return false;
    if (field != value) return false;
    if (functions.emplace(base, 0).second) {
      add(FUNCTION, base).number = (int)seal->functions.size();
      seal->functions.push_back({code, defaults, keywords});
    }
    return true;
  }

  // An attribute that a class with no metaclass of its own has as it is: no descriptor makes it.
  bool class_attribute(PyTypeObject* base, PyObject* name, PyObject* value) {
    PyObject* held = _PyType_Lookup(base, name);  // gives it a version
    if (PyUnicode_CompareWithASCIIString(name, "__mro__") == 0) return base->tp_mro == value && watch_class(base);
    if (_PyType_Lookup(&PyType_Type, name) || held != value) return false;
    return (PyFunction_Check(value) || is_plain(value)) && watch_class(base);
  }

  // Of a type for good that is no descriptor.
  static bool is_plain(PyObject* value) { return !(Py_TYPE(value)->tp_flags & Py_TPFLAGS_HEAPTYPE) && !Py_TYPE(value)->tp_descr_get; }

  bool watch_class(PyTypeObject* type) {
    unsigned version = type_version(type);
    if (version && classes.emplace((PyObject*)type, 0).second) add(TYPE, (PyObject*)type).version = version;
    return version != 0;
  }

  bool item(const Step& step, PyObject* base, PyObject* value) {
    if (PyDict_Check(base)) return reads_as_dict(Py_TYPE(base)) && watch_type(base) && watch_entry(base, step.arg, value);
    if (step.index < 0) return false;
    if (PyList_CheckExact(base) || PyTuple_CheckExact(base)) {
      Op op{ELEMENT, (int)step.index, base, Py_TYPE(base), {value}};
      return element_holds(op) && (seal->ops.push_back(op), true);
    }
    int kind = container_of(Py_TYPE(base));
    PyObject* dict = kind == OTHER ? nullptr : watch_dict(base);
    PyObject* modules = dict && is_table(dict) && has_plain_keys(dict) ? PyDict_GetItemWithError(dict, names.modules) : nullptr;
    if (!modules || !PyDict_CheckExact(modules) || !watch_entry(dict, names.modules, modules) || step.index >= PyDict_GET_SIZE(modules)) return false;
    return kind == LIST ? watch_entry(modules, step.text, value) : watch_place(modules, step.index, value == nth_value(modules, step.index) ? value : nullptr);
  }

  bool cell(PyObject* base, Py_ssize_t index, PyObject* value) {
    Op op{CELL_HOLDS, (int)index, base, &PyFunction_Type, {value}};
    return cell_holds(op) && (seal->ops.push_back(op), true);
  }

  // False if the check stays live. Sets `broken` if it does not hold any more.
  bool seal_check(const Check& check, PyObject* value) {
    switch (check.kind) {
      case IS: return value == check.arg;
      case TYPE_IS: return (PyObject*)Py_TYPE(value) == check.arg && (object_op(value), true);
      case EQUALS: seal->owned.push_back(Py_NewRef(value)); return true;
      case LENGTH: return size(value, check.number);
      case KEYS: return same_keys(check, value);
      case MISSING: return missing_name(value, check.arg);
      case CLASS_ATTR: broken |= _PyType_Lookup(Py_TYPE(value), check.extra) != check.arg; return watch_type(value);
      case TENSOR: return facts(check, value);
      case HAS_KEY: return PyDict_CheckExact(value) && watch_table(value) && watch_entry(value, check.arg, PyDict_GetItemWithError(value, check.arg));
    }
    return false;
  }

  bool size(PyObject* value, Py_ssize_t number) {
    if (!is_table(value) && !PyList_CheckExact(value) && !PyTuple_CheckExact(value)) return false;
    broken |= length(value) != number;
    add(SIZE, value).number = (int)number;
    return true;
  }

  bool same_keys(const Check& check, PyObject* value) {
    if (PyTuple_GET_SIZE(check.arg) == 0) return is_table(value) && size(value, 0);
    Table* table = PyDict_CheckExact(value) ? watch_table(value) : nullptr;
    if (!table || (table->keys && table->keys != &check)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(check.arg); i++)
      if (!PyUnicode_CheckExact(PyTuple_GET_ITEM(check.arg, i))) return false;
    broken |= keys(check, value) != 1;
    table->keys = &check;
    return true;
  }

  bool missing_name(PyObject* value, PyObject* name) {
    if (PyType_Check(value)) {
      PyTypeObject* type = (PyTypeObject*)value;
      PyObject* dict = type->tp_flags & Py_TPFLAGS_HEAPTYPE ? type->tp_dict : nullptr;
      bool plain = _PyType_Lookup(Py_TYPE(value), names.dict) == _PyType_Lookup(&PyType_Type, names.dict);
      if (!dict || !plain || !watch_type(value) || !has_plain_keys(dict) || !PyUnicode_CheckExact(name)) return false;
      _PyType_Lookup(type, name);  // gives it a version
      return !PyDict_GetItemWithError(dict, name) && watch_class(type);
    }
    PyObject* dict = watch_dict(value);
    return dict && watch_entry(dict, name, nullptr);
  }

  bool facts(const Check& check, PyObject* value) {
    if ((PyObject*)Py_TYPE(value) != check.arg) return false;
    add(FACTS, value).facts = check.tensor.get();
    return true;
  }

  Guards* self;
  PyObject* const* call;
  const Values& values;
  std::shared_ptr<Seal> seal;
  std::unordered_map<PyObject*, size_t> objects, tables, functions, classes;
  bool broken = false;
};

}  // namespace
}  // namespace dynfix
