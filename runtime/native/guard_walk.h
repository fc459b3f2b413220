// Matching: walks the plan of runtime/guard_plan.py, step by step, with the same answers. What has no fast path here is asked of
// the Python path or check, so that semantics have one owner. All functions run with the GIL held.
#pragma once

#include "guard_read.h"
#include "guard_torch.h"

#include <memory>

namespace dynfix {
namespace {

enum StepKind { ARG, KWARG, OBJ, ATTR, INST_DICT, ITEM, DICT_KEY, CELL, TYPE_OF };
enum CheckKind { IS, TYPE_IS, EQUALS, LENGTH, KEYS, MISSING, CLASS_ATTR, TENSOR, PYTHON };

struct Check {
  int kind;
  PyObject* arg;     // what is expected
  PyObject* extra;   // CLASS_ATTR: the name
  PyObject* python;  // the Python check
  Py_ssize_t number;  // LENGTH
  mutable TypeMemo type;  // MISSING
  mutable DictMemo memo;  // KEYS, MISSING
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
  mutable StepMemo memo;
};

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

PyObject* read(const Step& step, PyObject* const* call, const Values& values) {
  PyObject* base = step.base >= 0 ? values[step.base] : nullptr;
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
  if (PyDict_CheckExact(value)) return PyDict_GET_SIZE(value);
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
    case TENSOR: return (PyObject*)Py_TYPE(value) == check.arg && check.tensor->match(impl_of(value));
  }
  return ask(check.python, known.passes, value);
}

int same_stack(PyObject* modes, Py_ssize_t n, PyObject* read_at) {
  if (!modes || !PyTuple_CheckExact(modes) || PyTuple_GET_SIZE(modes) != n) return 0;
  for (Py_ssize_t i = 0; i < n; i++) {
    Ref index(PyLong_FromSsize_t(i));
    Ref mode(PyObject_CallOneArg(read_at, index.p));
    if (!mode.p) return -1;
    if (mode.p != PyTuple_GET_ITEM(modes, i)) return 0;
  }
  return 1;
}

// Whether the modes on the stacks are those of the snapshot: by identity here, else (device contexts) by Python's judgement.
int modes_hold(Guards* self, const State& now) {
  Ref functions(PyObject_GetAttr(self->state, known.function_modes)), dispatchers(PyObject_GetAttr(self->state, known.dispatch_modes));
  int same = same_stack(functions.p, now.function_modes, known.function_stack_at);
  if (same == 1) same = same_stack(dispatchers.p, now.dispatch_modes, known.dispatch_stack_at);
  if (same == 1 || PyErr_Occurred()) return PyErr_Occurred() ? -1 : 1;
  return truth(PyObject_CallMethodNoArgs(self->state, known.same_modes));
}

// The global state is compared as bytes with one that GuardState accepted (or rejected) before: the bytes decide all that it looks at.
int state_holds(Guards* self) {
  PyObject* level = PyDict_GetItemWithError(known.forward_ad, known.level_name);
  long long number = level ? PyLong_AsLongLong(level) : -1;
  if (PyErr_Occurred()) return -1;
  State now = read_state(number);
  bool modes = now.function_modes || now.dispatch_modes;
  if (self->accepts && now == self->accepted) return modes ? modes_hold(self, now) : 1;
  if (self->rejects && now == self->rejected && !modes) return 0;
  int held = truth(PyObject_CallMethodNoArgs(self->state, known.holds));
  if (held < 0) return held;
  (held ? self->accepted : self->rejected) = now;
  (held ? self->accepts : self->rejects) = true;
  return held;
}

bool call_fits(Guards* self, PyObject* args, PyObject* kwargs) {
  Py_ssize_t n = PyTuple_GET_SIZE(self->kwnames);
  if (PyTuple_GET_SIZE(args) != self->nargs || PyDict_GET_SIZE(kwargs) != n) return false;
  PyObject *key, *item;
  Py_ssize_t at = 0;
  for (Py_ssize_t i = 0; PyDict_Next(kwargs, &at, &key, &item); i++) {
    PyObject* expected = PyTuple_GET_ITEM(self->kwnames, i);
    if (key != expected && (!PyUnicode_Check(key) || PyUnicode_Compare(key, expected) != 0)) return false;
  }
  return true;
}

// Whether an input that must be an object of its own is there twice. Open addressing; the table is at most half full.
bool is_shared(Guards* self, PyObject* inputs) {
  size_t n = self->distinct.size(), slots = 16;
  while (slots < 2 * n) slots *= 2;
  std::vector<std::pair<PyObject*, char>> table(slots);
  for (size_t i = 0; i < n; i++) {
    PyObject* value = PyList_GET_ITEM(inputs, i);
    size_t at = ((uintptr_t)value >> 4) * 0x9E3779B97F4A7C15ull >> 20 & (slots - 1);
    while (table[at].first && table[at].first != value) at = (at + 1) & (slots - 1);
    if (table[at].first && (table[at].second || self->distinct[i])) return true;
    table[at] = {value, (char)(table[at].second | self->distinct[i])};
  }
  return false;
}

// 1 if a written input overlaps another tensor input.
int is_overlapped(Guards* self, PyObject* inputs) {
  std::vector<Span> spans;
  spans.reserve(self->disjoint.size());
  for (size_t i = 0; i < self->disjoint.size(); i++) {
    if (!self->twins.empty() && self->twins[i]) continue;
    PyObject* value = PyList_GET_ITEM(inputs, i);
    if (!PyObject_TypeCheck(value, (PyTypeObject*)known.tensor_base)) {
      if (!self->disjoint[i]) continue;
    } else if (span_of(impl_of(value), self->disjoint[i], spans)) {
      continue;
    }
    Ref clash(PyObject_CallMethodOneArg(self->plan, known.clashes, inputs));
    return clash.p ? clash.p != Py_None : -1;
  }
  return any_overlap(spans);
}

// The list of inputs, or null: without an error set for a non-match.
PyObject* walk(Guards* self, PyObject* const* call) {
  Values values(self->steps.size());
  for (const Step& step : self->steps) {
    PyObject* value = read(step, call, values);
    if (!value) return nullptr;
    values.add(value);
    for (Py_ssize_t i = step.first; i < step.last; i++)
      if (passes(self->checks[i], value) != 1) return nullptr;
  }
  Ref inputs(PyList_New(self->inputs.size()));
  if (!inputs.p) return nullptr;
  for (size_t i = 0; i < self->inputs.size(); i++) PyList_SET_ITEM(inputs.p, i, Py_NewRef(values[self->inputs[i]]));
  if (!self->distinct.empty() && is_shared(self, inputs.p)) return nullptr;
  if (!self->disjoint.empty() && is_overlapped(self, inputs.p) != 0) return nullptr;
  return inputs.release();
}

PyObject* match(PyObject* object, PyObject* const* call, Py_ssize_t n) {
  Guards* self = (Guards*)object;
  if (n != 2 || !PyTuple_Check(call[0]) || !PyDict_Check(call[1])) {
    PyErr_SetString(PyExc_TypeError, "match(args: tuple, kwargs: dict)");
    return nullptr;
  }
  if (!self->plan) Py_RETURN_NONE;  // cleared by the collector
  Ref alive = Ref::copy(object);    // a property that is read below may drop the last other reference
  PyObject* found = nullptr;
  try {
    if (call_fits(self, call[0], call[1]) && state_holds(self) == 1) found = walk(self, call);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  if (found) return found;
  if (PyErr_Occurred()) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return nullptr;
    PyErr_Clear();
  }
  Py_RETURN_NONE;
}

}  // namespace
}  // namespace dynfix
