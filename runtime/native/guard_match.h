// One call: the global state, then the steps of the plan, by the seal where there is one, and what the inputs are to each other.
#pragma once

#include "guard_seal.h"

namespace dynfix {
namespace {

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

// What the steps gave for the inputs, if they are to each other as they must be.
PyObject* checked(Guards* self, Ref inputs) {
  if (!self->distinct.empty() && is_shared(self, inputs.p)) return nullptr;
  if (!self->disjoint.empty() && is_overlapped(self, inputs.p) != 0) return nullptr;
  return inputs.release();
}

// Counts, for each step that a seal held, whether it gives another object by now: after a few times it is sealed no more. Not those below one that does.
void note_restless(Guards* self, const Seal& seal, const Values& values) {
  for (size_t i = 0; i < self->steps.size(); i++) {
    const Step& step = self->steps[i];
    bool same_base = step.base < 0 || values[step.base] == seal.values[step.base];
    if (seal.values[i] && same_base && seal.values[i] != values[i]) step.restless++;
  }
}

// Seals are dear to make, so that so many matches have to come between two of them.
constexpr int kSealCost = 32, kMostCredit = 128;

// A walk has matched.
void reseal(Guards* self, PyObject* const* call, const Values& values) {
  if (self->credit < kSealCost) return;
  self->credit -= kSealCost;
  if (self->seal) note_restless(self, *self->seal, values);
  std::shared_ptr<Seal> made = Sealer(self, call, values).make();
  self->seal.swap(made);
}

// The list of inputs, or null: without an error set for a non-match.
PyObject* walk(Guards* self, PyObject* const* call) {
  Values values(self->steps.size());
  for (const Step& step : self->steps) {
    PyObject* value = read(step, call, step.base < 0 ? nullptr : values[step.base]);
    if (!value) return nullptr;
    values.add(value);
    for (Py_ssize_t i = step.first; i < step.last; i++)
      if (passes(self->checks[i], value) != 1) return nullptr;
  }
  Ref inputs(PyList_New(self->inputs.size()));
  if (!inputs.p) return nullptr;
  for (size_t i = 0; i < self->inputs.size(); i++) PyList_SET_ITEM(inputs.p, i, Py_NewRef(values[self->inputs[i]]));
  reseal(self, call, values);
  return checked(self, std::move(inputs));
}

// Before Python 3.12 an allocation may collect garbage, whose finalizers are Python.
class NoCollection {
#if PY_VERSION_HEX < 0x030C0000
  int before = PyGC_Disable();

 public:
  ~NoCollection() {
    if (before) PyGC_Enable();
  }
#endif
};

// Whether the seal's conditions hold. Then `values` and `inputs` own what they need of sealed steps.
bool conditions_hold(Guards* self, Seal& seal, PyObject* const* call, Values& values, PyObject* inputs) {
  NoCollection guard;
  for (Op& op : seal.ops)
    if (!holds(op, seal, call)) return false;
  for (Py_ssize_t step : seal.bases) values.add(Py_NewRef(seal.values[step]));
  for (size_t i = 0; i < self->inputs.size(); i++)
    if (PyObject* value = seal.values[self->inputs[i]]) PyList_SET_ITEM(inputs, i, Py_NewRef(value));
  return true;
}

// The live steps of a seal, read and checked.
bool live_hold(Guards* self, const Seal& seal, PyObject* const* call, Values& values) {
  for (const Live& live : seal.live) {
    const Step& step = self->steps[live.step];
    if (!seal.values[live.step]) {
      PyObject* value = read(step, call, step.base < 0 ? nullptr : values[seal.slots[step.base]]);
      if (!value) return false;
      values.add(value);
    }
    for (Py_ssize_t check : live.checks)
      if (passes(self->checks[check], values[seal.slots[live.step]]) != 1) return false;
  }
  return true;
}

// As `walk`, by the seal. `broken`: a condition does not hold, so that only a walk can tell.
PyObject* walk_sealed(Guards* self, const std::shared_ptr<Seal>& seal, PyObject* const* call, bool& broken) {
  seal->lines.fetch();
  Ref inputs(PyList_New(self->inputs.size()));
  if (!inputs.p) return nullptr;
  PyObject_GC_UnTrack(inputs.p);  // nobody sees it while it is not filled
  Values values(seal->bases.size() + seal->live.size());
  broken = !conditions_hold(self, *seal, call, values, inputs.p);
  if (broken || !live_hold(self, *seal, call, values)) return nullptr;
  for (size_t i = 0; i < self->inputs.size(); i++) {
    Py_ssize_t step = self->inputs[i];
    if (!seal->values[step]) PyList_SET_ITEM(inputs.p, i, Py_NewRef(values[seal->slots[step]]));
  }
  PyObject_GC_Track(inputs.p);
  return checked(self, std::move(inputs));
}

PyObject* walk_either(Guards* self, PyObject* const* call) {
  self->credit += self->credit < kMostCredit;
  if (std::shared_ptr<Seal> seal = self->seal) {  // a copy: Python that runs below may match, and seal, again
    bool broken = false;
    PyObject* found = walk_sealed(self, seal, call, broken);
    if (!broken) return found;
  }
  return walk(self, call);
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
    if (call_fits(self, call[0], call[1]) && state_holds(self) == 1) found = walk_either(self, call);
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
