// What Python sees of compiled functions with native nodes: the types Function and Saved.
#pragma once
#include "autograd_call.h"

namespace {

// -- Function, the type

bool read(PyObject *facts, const char *name, PyObject **into) {
  PyObject *found = PyDict_GetItemString(facts, name);
  if (found == nullptr) {
    PyErr_SetString(PyExc_KeyError, name);
    return false;
  }
  *into = Py_NewRef(found);
  return true;
}

bool read(PyObject *facts, const char *name, std::vector<Py_ssize_t> &into) {
  PyObject *found = PyDict_GetItemString(facts, name);
  if (found == nullptr || !PyTuple_Check(found)) {
    PyErr_SetString(PyExc_TypeError, name);
    return false;
  }
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(found); k++) into.push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(found, k)));
  return !PyErr_Occurred();
}

bool read(PyObject *facts, const char *name, Py_ssize_t *into) {
  PyObject *found = PyDict_GetItemString(facts, name);
  *into = found == nullptr ? 0 : PyLong_AsSsize_t(found);
  return !PyErr_Occurred();
}

bool configure(Function *f, PyObject *facts) {
  Places &places = *f->places;
  Py_ssize_t autocast, shares, single, keeps, writes, deterministic;
  const bool all =
      read(facts, "forward", &f->forward) && read(facts, "python", &f->python) && read(facts, "mended", &f->mended) && read(facts, "unusual", &f->unusual) &&
      read(facts, "prepare", &f->prepare) && read(facts, "twin", &f->twin) && read(facts, "checked", &f->checked) && read(facts, "unchecked", &f->unchecked) &&
      read(facts, "numbers", &f->numbers) && read(facts, "layouts", &f->layouts) && read(facts, "taken", places.taken) &&
      read(facts, "cut", places.cut) && read(facts, "hooked", places.hooked) && read(facts, "written", places.written) &&
      read(facts, "unsafe", places.unsafe) && read(facts, "constant", places.constant) && read(facts, "inputs", &places.inputs) &&
      read(facts, "own", &f->own) && read(facts, "lone", &f->lone) && read(facts, "without_autocast", &autocast) && read(facts, "shares", &shares) &&
      read(facts, "single", &single) && read(facts, "keeps_call", &keeps) && read(facts, "writes", &writes) &&
      read(facts, "asks_deterministic", &deterministic);
  if (!all) return false;
  f->without_autocast = autocast, f->shares = shares, f->single = single, f->keeps_call = keeps, f->writes = writes, f->asks_deterministic = deterministic;
  if (PyTuple_Check(f->layouts) && (size_t)PyTuple_GET_SIZE(f->layouts) == places.taken.size()) return true;
  PyErr_SetString(PyExc_ValueError, "one layout a gradient");
  return false;
}

PyObject *function_new(PyTypeObject *type, PyObject *args, PyObject *) {
  PyObject *facts;
  if (!PyArg_ParseTuple(args, "O!", &PyDict_Type, &facts)) return nullptr;
  auto *f = reinterpret_cast<Function *>(type->tp_alloc(type, 0));
  if (f == nullptr) return nullptr;
  f->call = function_call;
  f->places = new Places;
  f->backward = Py_NewRef(Py_None);
  if (configure(f, facts)) return reinterpret_cast<PyObject *>(f);
  Py_DECREF(f);
  return nullptr;
}

int function_traverse(PyObject *object, visitproc visit, void *arg) {
  auto *f = reinterpret_cast<Function *>(object);
  Py_VISIT(Py_TYPE(object));
  for (PyObject *each : {f->forward, f->backward, f->python, f->mended, f->unusual, f->prepare, f->twin, f->layouts}) Py_VISIT(each);
  return 0;
}

int function_clear(PyObject *object) {
  auto *f = reinterpret_cast<Function *>(object);
  Py_CLEAR(f->forward);
  Py_CLEAR(f->backward);
  Py_CLEAR(f->python);
  Py_CLEAR(f->mended);
  Py_CLEAR(f->unusual);
  Py_CLEAR(f->prepare);
  Py_CLEAR(f->twin);
  Py_CLEAR(f->layouts);
  return 0;
}

void function_dealloc(PyObject *object) {
  auto *f = reinterpret_cast<Function *>(object);
  PyTypeObject *type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  function_clear(object);
  Py_CLEAR(f->checked);
  Py_CLEAR(f->unchecked);
  Py_CLEAR(f->numbers);
  delete f->places;
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef function_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Function, call), READONLY, nullptr},
    {"backward", T_OBJECT, offsetof(Function, backward), 0, "The backward program, or None."},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot function_slots[] = {
    {Py_tp_new, reinterpret_cast<void *>(function_new)},
    {Py_tp_dealloc, reinterpret_cast<void *>(function_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void *>(function_traverse)},
    {Py_tp_clear, reinterpret_cast<void *>(function_clear)},
    {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
    {Py_tp_members, function_members},
    {0, nullptr},
};

PyType_Spec function_spec = {"dynfix.runtime.native.torch_parts.Function", sizeof(Function), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC, function_slots};

// -- Saved, the type

CompiledNode *node_of(PyObject *object) {
  auto *node = reinterpret_cast<Saved *>(object)->node;
  if (node == nullptr) PyErr_SetString(PyExc_RuntimeError, "the backward is over");
  return node;
}

PyObject *saved_tensors(PyObject *object, void *) {
  HANDLE_TH_ERRORS
  CompiledNode *node = node_of(object);
  if (node == nullptr) return nullptr;
  TORCH_CHECK(!node->freed, torch::autograd::ERR_BACKWARD_TWICE);
  Held made(PyTuple_New(node->checked.size()));
  if (!made) return nullptr;
  for (size_t k = 0; k < node->checked.size(); k++) PyTuple_SET_ITEM(made.get(), k, wrapped(node->saved(k)));
  return made.release();
  END_HANDLE_TH_ERRORS
}

PyObject *saved_unchecked(PyObject *object, void *) {
  HANDLE_TH_ERRORS
  CompiledNode *node = node_of(object);
  if (node == nullptr) return nullptr;
  Held made(PyList_New(node->unchecked.size()));
  if (!made) return nullptr;
  for (size_t k = 0; k < node->unchecked.size(); k++) PyList_SET_ITEM(made.get(), k, wrapped(node->unchecked[k]));
  return made.release();
  END_HANDLE_TH_ERRORS
}

PyObject *saved_numbers(PyObject *object, void *) {
  CompiledNode *node = node_of(object);
  if (node == nullptr) return nullptr;
  return node->numbers ? PySequence_List(node->numbers.get()) : PyList_New(0);
}

PyObject *saved_needs(PyObject *object, void *) {
  HANDLE_TH_ERRORS
  CompiledNode *node = node_of(object);
  if (node == nullptr) return nullptr;
  Held made(PyTuple_New(node->num_outputs()));
  if (!made) return nullptr;
  for (size_t k = 0; k < node->num_outputs(); k++) PyTuple_SET_ITEM(made.get(), k, PyBool_FromLong(node->task_should_compute_output(k)));
  return made.release();
  END_HANDLE_TH_ERRORS
}

PyObject *saved_metadata(PyObject *object, void *) {
  HANDLE_TH_ERRORS
  CompiledNode *node = node_of(object);
  if (node == nullptr) return nullptr;
  Held shown(torch::autograd::functionToPyObject(node->getptr()));
  return shown ? PyObject_GetAttrString(shown.get(), "_input_metadata") : nullptr;
  END_HANDLE_TH_ERRORS
}

// (arguments, their versions) of the call; None where the backward was the last.
PyObject *saved_call(PyObject *object, void *) {
  CompiledNode *node = node_of(object);
  if (node == nullptr) return nullptr;
  if (!node->args) Py_RETURN_NONE;
  Held versions(PyList_New(node->versions.size()));
  if (!versions) return nullptr;
  for (size_t k = 0; k < node->versions.size(); k++) PyList_SET_ITEM(versions.get(), k, PyLong_FromLongLong(node->versions[k]));
  return PyTuple_Pack(2, node->args.get(), versions.get());
}

PyObject *saved_kept(PyObject *object, void *) {
  CompiledNode *node = node_of(object);
  return node == nullptr ? nullptr : Py_NewRef(node->kept ? node->kept.get() : Py_None);
}

int set_saved_kept(PyObject *object, PyObject *value, void *) {
  CompiledNode *node = node_of(object);
  if (node == nullptr) return -1;
  node->args.clear();  // it has them
  node->kept = value == nullptr || value == Py_None ? Held() : Held::borrowed(value);
  return 0;
}

PyObject *saved_free(PyObject *object, PyObject *) {
  HANDLE_TH_ERRORS
  CompiledNode *node = node_of(object);
  if (node == nullptr) return nullptr;
  if (!torch::autograd::get_current_graph_task_keep_graph()) {
    node->release();
    node->freed = true;
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

void saved_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  type->tp_free(object);
  Py_DECREF(type);
}

PyGetSetDef saved_fields[] = {
    {"saved_tensors", saved_tensors, nullptr, nullptr, nullptr},
    {"unchecked", saved_unchecked, nullptr, nullptr, nullptr},
    {"numbers", saved_numbers, nullptr, nullptr, nullptr},
    {"needs_input_grad", saved_needs, nullptr, nullptr, nullptr},
    {"input_metadata", saved_metadata, nullptr, nullptr, nullptr},
    {"call", saved_call, nullptr, nullptr, nullptr},
    {"kept", saved_kept, set_saved_kept, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef saved_methods[] = {{"free", saved_free, METH_NOARGS, "Let go of the tensors, unless the graph is retained."},
                               {nullptr, nullptr, 0, nullptr}};

PyType_Slot saved_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void *>(saved_dealloc)},
    {Py_tp_getset, saved_fields},
    {Py_tp_methods, saved_methods},
    {0, nullptr},
};

PyType_Spec saved_spec = {"dynfix.runtime.native.torch_parts.Saved", sizeof(Saved), 0, Py_TPFLAGS_DEFAULT, saved_slots};

}  // namespace
