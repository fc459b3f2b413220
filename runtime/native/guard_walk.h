// Matching: walks the plan of runtime/guard_plan.py, step by step, with the same answers. What has no fast path here is asked of
// the Python path or check, so that semantics have one owner. All functions run with the GIL held.
#pragma once

#include "guard_read.h"
#include "guard_torch.h"

#include <memory>

namespace dynfix {
namespace {

enum StepKind { ARG, KWARG, OBJ, ATTR, INST_DICT, ITEM, DICT_KEY, CELL, TYPE_OF };
enum CheckKind { IS, TYPE_IS, EQUALS, LENGTH, KEYS, MISSING, CLASS_ATTR, TENSOR, HAS_KEY, PYTHON };

struct Check {
  int kind;
  PyObject* arg;     // what is expected
  PyObject* extra;   // CLASS_ATTR: the name
  PyObject* python;  // the Python check
  Py_ssize_t number;  // LENGTH; HAS_KEY: whether it is there
  mutable TypeMemo type;  // MISSING
  mutable DictMemo memo;  // KEYS, MISSING, HAS_KEY
  std::unique_ptr<TensorFacts> tensor;
};

struct Step {
  int kind;
  Py_ssize_t base;
  PyObject* arg;
  Py_ssize_t index;  // ARG, CELL, DICT_KEY, ITEM with an int key; else -1
  PyObject* text;    // ITEM with an int key: its decimal spelling
  PyObject* python;  // the Python path
  Py_ssize_t first, last;  // its checks
  bool is_base;            // of another step
  mutable int restless;    // how often it gave another object than a seal held
  mutable StepMemo memo;
};

struct Seal;

struct Guards {
  PyObject_HEAD
  PyObject* plan;   // the Python plan
  PyObject* state;  // its GuardState
  PyObject* kwnames;
  Py_ssize_t nargs;
  std::vector<PyObject*> owned;  // every object that steps and checks point to
  std::vector<Step> steps;
  std::vector<Check> checks;
  std::vector<Py_ssize_t> inputs;
  std::vector<char> distinct, disjoint, twins;  // a flag for each input; empty if none is set
  bool accepts, rejects;                 // whether `accepted` and `rejected` hold a state
  State accepted, rejected;
  std::shared_ptr<Seal> seal;            // of guard_seal.h
  int credit;                            // matches since the last seals were made, less what those cost
};

struct {
  PyObject *tensor_base, *forward_ad, *level_name, *function_stack_at, *dispatch_stack_at;
  PyObject *fetch, *passes, *holds, *same_modes, *function_modes, *dispatch_modes, *clashes;
} known;

// The values of one call, owned.
class Values {
 public:
  explicit Values(size_t n) : large(n > std::size(small) ? new PyObject*[n] : nullptr), p(large ? large.get() : small) {}
  ~Values() {
    while (used) Py_DECREF(p[--used]);
  }
  void add(PyObject* owned) { p[used++] = owned; }
  PyObject* operator[](Py_ssize_t i) const { return p[i]; }

 private:
  PyObject* small[96];
  std::unique_ptr<PyObject*[]> large;
  PyObject** p;
  size_t used = 0;
};

// 1, 0, or -1 with an error set.
int truth(PyObject* owned) {
  Ref value(owned);
  return value.p ? PyObject_IsTrue(value.p) : -1;
}

int ask(PyObject* object, PyObject* method, PyObject* value) { return truth(PyObject_CallMethodOneArg(object, method, value)); }

// What the step gives, owned. `base`: what the step that it reads from gave.
PyObject* read(const Step& step, PyObject* const* call, PyObject* base) {
  PyObject* found = nullptr;
  switch (step.kind) {
    case ARG: return Py_NewRef(PyTuple_GET_ITEM(call[0], step.index));
    case KWARG: return Py_XNewRef(PyDict_GetItemWithError(call[1], step.arg));
    case OBJ: return Py_NewRef(step.arg);
    case ATTR: return read_attr(base, step.arg, step.memo);
    case INST_DICT: return instance_dict(base, step.memo.type);
    case ITEM: return read_item(base, step.arg, step.index, step.text, step.memo);
    case TYPE_OF: return Py_NewRef((PyObject*)Py_TYPE(base));
    case DICT_KEY: if (PyDict_CheckExact(base)) return dict_at(base, step.index, false); break;
    case CELL: found = read_cell(base, step.index); break;
  }
  if (found || PyErr_Occurred()) return found;
  return PyObject_CallMethodOneArg(step.python, known.fetch, base);
}

int equals(const Check& check, PyObject* value) {
  PyObject* expected = check.arg;
  if (value == expected) return 1;  // constants are immutable all the way down
  if (Py_TYPE(value) != Py_TYPE(expected) || PyBool_Check(value)) return 0;
  if (PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || PyBytes_CheckExact(value))
    return PyObject_RichCompareBool(value, expected, Py_EQ);
  if (PyFloat_CheckExact(value)) {
    double a = PyFloat_AS_DOUBLE(value), b = PyFloat_AS_DOUBLE(expected);
    return std::memcmp(&a, &b, sizeof a) == 0;
  }
  return ask(check.python, known.passes, value);
}

Py_ssize_t length(PyObject* value) {
  if (PyDict_CheckExact(value) || PyODict_CheckExact(value)) return PyDict_GET_SIZE(value);
  if (PyList_CheckExact(value)) return PyList_GET_SIZE(value);
  if (PyTuple_CheckExact(value)) return PyTuple_GET_SIZE(value);
  return PyObject_Size(value);
}

int keys(const Check& check, PyObject* value) {
  if (!PyDict_CheckExact(value)) return ask(check.python, known.passes, value);
  if (check.memo.holds(value)) return 1;
  uint64_t version = dict_version(value);
  if (PyDict_GET_SIZE(value) != PyTuple_GET_SIZE(check.arg)) return 0;
  PyObject *key, *item;
  Py_ssize_t at = 0;
  for (Py_ssize_t i = 0; PyDict_Next(value, &at, &key, &item); i++) {
    PyObject* expected = PyTuple_GET_ITEM(check.arg, i);
    if (key == expected) continue;
    if (!PyUnicode_CheckExact(key) || !PyUnicode_CheckExact(expected)) return ask(check.python, known.passes, value);
    if (PyUnicode_Compare(key, expected) != 0) return 0;
  }
  check.memo = {value, version, nullptr};
  return 1;
}

int missing(const Check& check, PyObject* value) {
  Ref dict(instance_dict(value, check.type));
  if (!dict.p) {
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) return -1;
    PyErr_Clear();
    return 1;
  }
  if (PyDict_CheckExact(dict.p)) return !check.memo.get(dict.p, check.arg);
  int found = PySequence_Contains(dict.p, check.arg);
  return found < 0 ? -1 : !found;
}

int passes(const Check& check, PyObject* value) {
  switch (check.kind) {
    case IS: return value == check.arg;
    case TYPE_IS: return (PyObject*)Py_TYPE(value) == check.arg;
    case EQUALS: return equals(check, value);
    case LENGTH: {
      Py_ssize_t n = length(value);
      return n < 0 ? -1 : n == check.number;
    }
    case KEYS: return keys(check, value);
    case MISSING: return missing(check, value);
    case CLASS_ATTR: return _PyType_Lookup(Py_TYPE(value), check.extra) == check.arg;
    case HAS_KEY: if (PyDict_CheckExact(value)) return (check.memo.get(value, check.arg) != nullptr) == (check.number != 0); break;
    case TENSOR: return (PyObject*)Py_TYPE(value) == check.arg && check.tensor->match(impl_of(value));
  }
  return ask(check.python, known.passes, value);
}

}  // namespace
}  // namespace dynfix
