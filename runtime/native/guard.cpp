// The extension module: makes Guards from the tuples that runtime/guard_native.py lays out, and says what it reads of a tensor and of the global
// state, so that Python can check it before relying on it.
#include "guard_inputs.h"
#include "guard_match.h"

namespace dynfix {
namespace {

int64_t integer(PyObject* value) {
  if (value == Py_None) return -1;
  int64_t number = PyLong_AsLongLong(value);
  if (number == -1 && PyErr_Occurred()) throw std::invalid_argument("an integer was expected");
  return number;
}

PyObject* item(PyObject* tuple, Py_ssize_t i) {
  if (!PyTuple_Check(tuple) || i >= PyTuple_GET_SIZE(tuple)) throw std::invalid_argument("a longer tuple was expected");
  return PyTuple_GET_ITEM(tuple, i);
}

Py_ssize_t size(PyObject* tuple) {
  if (!PyTuple_Check(tuple)) throw std::invalid_argument("a tuple was expected");
  return PyTuple_GET_SIZE(tuple);
}

std::vector<int64_t> integers(PyObject* tuple) {
  std::vector<int64_t> out;
  for (Py_ssize_t i = 0; i < size(tuple); i++) out.push_back(integer(item(tuple, i)));
  return out;
}

PyObject* own(Guards* self, PyObject* borrowed) {
  self->owned.push_back(Py_NewRef(borrowed));
  return borrowed;
}

// (keys, scalar type, device text, requires_grad, sizes, strides, packed or None)
std::unique_ptr<TensorFacts> tensor_facts(PyObject* spec) {
  auto facts = std::make_unique<TensorFacts>();
  facts->keys = PyLong_AsUnsignedLongLong(item(spec, 0));
  facts->dtype = (int)integer(item(spec, 1));
  const char* text = PyUnicode_AsUTF8(item(spec, 2));
  if (!text || PyErr_Occurred()) throw std::invalid_argument("a dispatch key set and a device were expected");
  c10::Device device{std::string(text)};
  facts->device_type = (int)device.type();
  facts->device_index = (int)device.index();
  facts->requires_grad = item(spec, 3) == Py_True;
  facts->sizes = integers(item(spec, 4));
  facts->strides = integers(item(spec, 5));
  facts->has_packed = item(spec, 6) != Py_None;
  if (facts->has_packed) facts->packed = integers(item(spec, 6));
  size_t n = facts->sizes.size();
  if (facts->strides.size() != n || (facts->has_packed && facts->packed.size() != n)) throw std::invalid_argument("sizes and strides differ in number");
  for (int64_t inner : facts->packed)
    if (inner >= (int64_t)n) throw std::invalid_argument("a stride is packed over a dim that is not there");
  return facts;
}

// (kind, arg, extra, python check, absent); extra: the name of a CLASS_ATTR, the facts of a TENSOR, the number of a LENGTH, whether a HAS_KEY expects it. absent: nothing is expected
Check make_check(Guards* self, PyObject* spec) {
  Check check{(int)integer(item(spec, 0)), own(self, item(spec, 1)), own(self, item(spec, 2)), own(self, item(spec, 3)), 0, {}, {}, nullptr};
  if (check.kind == LENGTH || check.kind == HAS_KEY) check.number = integer(check.extra);
  if (check.kind == TENSOR) check.tensor = tensor_facts(check.extra);
  if (item(spec, 4) == Py_True) check.arg = nullptr;
  return check;
}

// (kind, base, arg, index, text, python path, checks)
Step make_step(Guards* self, PyObject* spec, Py_ssize_t number) {
  Step step{(int)integer(item(spec, 0)), integer(item(spec, 1)), own(self, item(spec, 2)), integer(item(spec, 3)),
            own(self, item(spec, 4)), own(self, item(spec, 5)), (Py_ssize_t)self->checks.size(), 0, false, 0, {}};
  if (step.base >= number || (step.base < 0) != (step.kind <= OBJ)) throw std::invalid_argument("a step stands before its base");
  PyObject* checks = item(spec, 6);
  for (Py_ssize_t i = 0; i < size(checks); i++) self->checks.push_back(make_check(self, item(checks, i)));
  step.last = self->checks.size();
  return step;
}

std::vector<char> flags(PyObject* indices, size_t n) {
  std::vector<char> out;
  for (int64_t i : integers(indices)) {
    out.resize(n);
    out.at(i) = 1;
  }
  return out;
}

void fill(Guards* self, PyObject* steps, PyObject* inputs, PyObject* distinct, PyObject* disjoint,
          PyObject* twins) {
  for (Py_ssize_t i = 0; i < size(steps); i++) {
    self->steps.push_back(make_step(self, item(steps, i), i));
    if (self->steps.back().kind == ARG && (self->steps.back().index < 0 || self->steps.back().index >= self->nargs))
      throw std::invalid_argument("there is no such argument");
    if (self->steps.back().base >= 0) self->steps[self->steps.back().base].is_base = true;
  }
  for (int64_t place : integers(inputs)) {
    if (place < 0 || place >= (int64_t)self->steps.size()) throw std::invalid_argument("an input names no step");
    self->inputs.push_back(place);
  }
  self->distinct = flags(distinct, self->inputs.size());
  self->disjoint = flags(disjoint, self->inputs.size());
  self->twins = flags(twins, self->inputs.size());
}

int clear(PyObject* object) {
  Guards* self = (Guards*)object;
  Py_CLEAR(self->plan);
  Py_CLEAR(self->state);
  Py_CLEAR(self->kwnames);
  std::shared_ptr<Seal> seal;
  seal.swap(self->seal);
  std::vector<PyObject*> owned;
  owned.swap(self->owned);
  for (PyObject* one : owned) Py_DECREF(one);
  return 0;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Guards* self = (Guards*)object;
  Py_VISIT(self->plan);
  Py_VISIT(self->state);
  Py_VISIT(self->kwnames);
  for (PyObject* one : self->owned) Py_VISIT(one);
  if (self->seal && self->seal.use_count() == 1)  // else a match that is under way owns it too
    for (PyObject* one : self->seal->owned) Py_VISIT(one);
  return 0;
}

void dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  clear(object);
  Guards* self = (Guards*)object;
  std::destroy_at(&self->owned);
  std::destroy_at(&self->steps);
  std::destroy_at(&self->checks);
  std::destroy_at(&self->inputs);
  std::destroy_at(&self->distinct);
  std::destroy_at(&self->disjoint);
  std::destroy_at(&self->twins);
  std::destroy_at(&self->seal);
  Py_TYPE(object)->tp_free(object);
}

Guards* allocate(PyTypeObject* type) {
  Guards* self = (Guards*)type->tp_alloc(type, 0);
  if (!self) return nullptr;
  new (&self->owned) std::vector<PyObject*>();
  new (&self->steps) std::vector<Step>();
  new (&self->checks) std::vector<Check>();
  new (&self->inputs) std::vector<Py_ssize_t>();
  new (&self->distinct) std::vector<char>();
  new (&self->disjoint) std::vector<char>();
  new (&self->twins) std::vector<char>();
  new (&self->seal) std::shared_ptr<Seal>();
  self->credit = 2 * kSealCost;
  return self;
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *plan, *state, *kwnames, *steps, *inputs, *distinct, *disjoint, *twins;
  Py_ssize_t nargs;
  if (!PyArg_ParseTuple(args, "OOnO!OOOOO", &plan, &state, &nargs, &PyTuple_Type, &kwnames, &steps, &inputs, &distinct, &disjoint,
                        &twins))
    return nullptr;
  Guards* self = allocate(type);
  if (!self) return nullptr;
  self->plan = Py_NewRef(plan);
  self->state = Py_NewRef(state);
  self->kwnames = Py_NewRef(kwnames);
  self->nargs = nargs;
  try {
    fill(self, steps, inputs, distinct, disjoint, twins);
  } catch (const std::exception& error) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, error.what());
    Py_DECREF(self);
    return nullptr;
  }
  return (PyObject*)self;
}

// live(): the steps that a match reads, or checks, one by one; None while there is no seal.
PyObject* live(PyObject* object, PyObject*) {
  Guards* self = (Guards*)object;
  if (!self->seal) Py_RETURN_NONE;
  Ref out(PyList_New(0));
  for (const Live& one : self->seal->live) {
    Ref number(PyLong_FromSsize_t(one.step));
    if (!number.p || PyList_Append(out.p, number.p) < 0) return nullptr;
  }
  return out.release();
}

PyMethodDef guards_methods[] = {
    {"match", (PyCFunction)(void (*)(void))match, METH_FASTCALL, "match(args: tuple, kwargs: dict) -> list | None"},
    {"live", live, METH_NOARGS, "live() -> list[int] | None: the steps that no seal decides"},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject guards_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

bool ready_type() {
  guards_type.tp_name = "dynfix.runtime.native.guard.Guards";
  guards_type.tp_basicsize = sizeof(Guards);
  guards_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  guards_type.tp_doc = "A plan of guards, matched in native code.";
  guards_type.tp_new = make;
  guards_type.tp_dealloc = dealloc;
  guards_type.tp_traverse = traverse;
  guards_type.tp_clear = clear;
  guards_type.tp_methods = guards_methods;
  return PyType_Ready(&guards_type) == 0;
}

// setup(tensor, its _cdata, objects: dict): calibrates, and takes Python's and torch's own functions. False if a tensor's layout is not understood.
PyObject* setup(PyObject*, PyObject* args) {
  PyObject *tensor, *address, *objects;
  if (!PyArg_ParseTuple(args, "OOO!", &tensor, &address, &PyDict_Type, &objects)) return nullptr;
  struct Slot {
    const char* name;
    PyObject** place;
  } slots[] = {
      {"object_getattribute", &names.object_getattribute}, {"module_getattr", &names.module_getattr},
      {"list_getitem", &names.list_getitem}, {"list_len", &names.list_len}, {"list_index", &names.list_index},
      {"sequential_getitem", &names.sequential_getitem}, {"sequential_len", &names.sequential_len},
      {"sequential_index", &names.sequential_index}, {"tensor_base", &known.tensor_base}, {"forward_ad", &known.forward_ad},
      {"function_stack_at", &known.function_stack_at}, {"dispatch_stack_at", &known.dispatch_stack_at},
  };
  for (Slot& slot : slots) {
    PyObject* found = PyDict_GetItemString(objects, slot.name);
    if (!found) return PyErr_Format(PyExc_KeyError, "%s", slot.name);
    Py_XSETREF(*slot.place, Py_NewRef(found));
  }
  void* impl = PyLong_AsVoidPtr(address);
  if (PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(calibrate(tensor, impl));
}

PyObject* tuple_of(c10::IntArrayRef values) {
  PyObject* out = PyTuple_New(values.size());
  for (size_t i = 0; out && i < values.size(); i++) PyTuple_SET_ITEM(out, i, PyLong_FromLongLong(values[i]));
  return out;
}

// facts(tensor): (keys, scalar type, device text, requires_grad, sizes, strides) as native code reads them.
PyObject* facts(PyObject*, PyObject* tensor) {
  if (!PyObject_TypeCheck(tensor, (PyTypeObject*)known.tensor_base)) return PyErr_Format(PyExc_TypeError, "a tensor was expected");
  try {
    const c10::TensorImpl* t = impl_of(tensor);
    Ref sizes(tuple_of(t->sizes())), strides(tuple_of(t->strides()));
    if (!sizes.p || !strides.p) return nullptr;
    return Py_BuildValue("KisOOO", (unsigned long long)t->key_set().raw_repr(), (int)c10::typeMetaToScalarType(t->dtype()),
                         t->device().str().c_str(), t->requires_grad() ? Py_True : Py_False, sizes.p, strides.p);
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_ValueError, error.what());
    return nullptr;
  }
}

// state(forward level): the global state as bytes.
PyObject* state(PyObject*, PyObject* level) {
  long long number = PyLong_AsLongLong(level);
  if (PyErr_Occurred()) return nullptr;
  State now = read_state(number);
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(&now), sizeof now);
}

// dict_version(dict): its version, 0 where dicts have none. use_versions(bool): whether to rely on them.
PyObject* version_of(PyObject*, PyObject* dict) {
  if (!PyDict_Check(dict)) return PyErr_Format(PyExc_TypeError, "a dict was expected");
  return PyLong_FromUnsignedLongLong(dict_version(dict));
}

PyObject* use_versions(PyObject*, PyObject* use) {
  versions = use == Py_True && PY_VERSION_HEX < 0x030D0000;
  Py_RETURN_NONE;
}

PyMethodDef module_methods[] = {
    {"dict_version", version_of, METH_O, nullptr},
    {"use_versions", use_versions, METH_O, nullptr},
    {"setup", setup, METH_VARARGS, nullptr},
    {"facts", facts, METH_O, nullptr},
    {"state", state, METH_O, nullptr},
    {"count_objects", count_objects, METH_VARARGS, nullptr},
    {"addresses", addresses, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {PyModuleDef_HEAD_INIT, "guard", "Guards in native code.", -1, module_methods};

bool intern_names() {
  struct Text {
    PyObject** place;
    const char* text;
  } all[] = {
      {&names.dict, "__dict__"}, {&names.getattr, "__getattr__"}, {&names.getattribute, "__getattribute__"},
      {&names.getitem, "__getitem__"}, {&names.len, "__len__"}, {&names.parameters, "_parameters"}, {&names.buffers, "_buffers"},
      {&names.modules, "_modules"}, {&names.abs_index, "_get_abs_string_index"}, {&names.item_by_idx, "_get_item_by_idx"},
      {&known.level_name, "_current_level"}, {&known.fetch, "fetch"}, {&known.passes, "passes"}, {&known.holds, "holds"},
      {&known.same_modes, "same_modes"}, {&known.function_modes, "function_modes"}, {&known.dispatch_modes, "dispatch_modes"},
      {&known.clashes, "clashes"},
  };
  for (Text& one : all)
    if (!(*one.place = PyUnicode_InternFromString(one.text))) return false;
  return true;
}

}  // namespace
}  // namespace dynfix

PyMODINIT_FUNC PyInit_guard() {
  using namespace dynfix;
  if (!intern_names() || !ready_type()) return nullptr;
  PyObject* out = PyModule_Create(&module);
  if (out && PyModule_AddObjectRef(out, "Guards", (PyObject*)&guards_type) < 0) Py_CLEAR(out);
  return out;
}
