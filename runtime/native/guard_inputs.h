// What a call asks of all of its inputs at once.
#pragma once

#include "guard_walk.h"

namespace dynfix {
namespace {

// count_objects(inputs: list, places: tuple): how many objects are at these places.
PyObject* count_objects(PyObject*, PyObject* args) {
  PyObject *inputs, *places;
  if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &inputs, &PyTuple_Type, &places)) return nullptr;
  std::vector<PyObject*> found;
  found.reserve(PyTuple_GET_SIZE(places));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(places); i++) {
    Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(places, i));
    if (place < 0 || place >= PyList_GET_SIZE(inputs)) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_IndexError, "there is no such input");
      return nullptr;
    }
    found.push_back(PyList_GET_ITEM(inputs, place));
  }
  std::sort(found.begin(), found.end());
  return PyLong_FromSsize_t(std::unique(found.begin(), found.end()) - found.begin());
}

// addresses(tensors: list) -> list[int]: of their first elements. Raises TypeError for what is no tensor with a plain strided storage.
PyObject* addresses(PyObject*, PyObject* tensors) {
  if (!PyList_Check(tensors)) return PyErr_Format(PyExc_TypeError, "a list was expected");
  Ref out(PyList_New(PyList_GET_SIZE(tensors)));
  for (Py_ssize_t i = 0; out.p && i < PyList_GET_SIZE(tensors); i++) {
    PyObject* tensor = PyList_GET_ITEM(tensors, i);
    if (!PyObject_TypeCheck(tensor, (PyTypeObject*)known.tensor_base)) return PyErr_Format(PyExc_TypeError, "a tensor was expected");
    const c10::TensorImpl* t = impl_of(tensor);
    if (!t->has_storage() || t->has_symbolic_sizes_strides() || t->key_set().has(c10::DispatchKey::Python))
      return PyErr_Format(PyExc_TypeError, "a tensor with a storage was expected");
    const char* start = (const char*)t->unsafe_storage().unsafeGetStorageImpl()->data();
    bool none = !start || t->numel() == 0;
    PyObject* address = PyLong_FromVoidPtr(none ? nullptr : (void*)(start + t->storage_offset() * t->itemsize()));
    if (!address) return nullptr;
    PyList_SET_ITEM(out.p, i, address);
  }
  return out.release();
}

}  // namespace
}  // namespace dynfix
