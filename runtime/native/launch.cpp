// Kernel objects: callables that pass the data pointers of tensors to a compiled loop.
//   Kernel(address, name, threads)   threads: None, or a function that gives the number of threads (then the GIL is released)
//   kernel(*arguments)               an argument is a tensor, or an int that is an address
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <cstdint>
#include <vector>

namespace {

typedef int64_t (*Loop)(void **, int64_t);

struct Kernel {
  PyObject_HEAD
  vectorcallfunc call;
  Loop loop;
  PyObject *name;
  PyObject *threads;
};

PyObject *data_ptr_name = nullptr;
const Py_ssize_t kFewPointers = 64;  // as many lie on the stack

// The address behind one argument; -1 with an exception set if there is none.
bool address_of(PyObject *argument, void **into) {
  PyObject *number = argument;
  PyObject *made = nullptr;
  if (!PyLong_CheckExact(argument)) {
    made = PyObject_CallMethodNoArgs(argument, data_ptr_name);
    if (made == nullptr) return false;
    number = made;
  }
  *into = PyLong_AsVoidPtr(number);
  Py_XDECREF(made);
  return !PyErr_Occurred();
}

// How many threads to use: 0 for a small kernel, -1 with an exception set.
int64_t thread_count(Kernel *self) {
  if (self->threads == Py_None) return 0;
  PyObject *number = PyObject_CallNoArgs(self->threads);
  if (number == nullptr) return -1;
  int64_t count = PyLong_AsLongLong(number);
  Py_DECREF(number);
  return PyErr_Occurred() ? -1 : count;
}

PyObject *kernel_call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *kwnames) {
  Kernel *self = reinterpret_cast<Kernel *>(callable);
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (kwnames != nullptr) {
    PyErr_Format(PyExc_TypeError, "kernel %U takes no keywords", self->name);
    return nullptr;
  }
  void *few[kFewPointers];
  std::vector<void *> many(count > kFewPointers ? count : 0);
  void **pointers = many.empty() ? few : many.data();
  for (Py_ssize_t i = 0; i < count; i++)
    if (!address_of(args[i], &pointers[i])) return nullptr;
  const int64_t threads = thread_count(self);
  if (threads < 0) return nullptr;
  int64_t bad;
  if (threads == 0) {
    bad = self->loop(pointers, 1);
  } else {
    Py_BEGIN_ALLOW_THREADS
    bad = self->loop(pointers, threads);
    Py_END_ALLOW_THREADS
  }
  if (bad != 0) {
    PyErr_Format(PyExc_IndexError, "index out of range in self (kernel %U)", self->name);
    return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject *kernel_new(PyTypeObject *type, PyObject *args, PyObject *) {
  PyObject *address, *name, *threads;
  if (!PyArg_ParseTuple(args, "OUO", &address, &name, &threads)) return nullptr;
  void *loop = PyLong_AsVoidPtr(address);
  if (loop == nullptr) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a kernel at address 0");
    return nullptr;
  }
  Kernel *self = reinterpret_cast<Kernel *>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->call = kernel_call;
  self->loop = reinterpret_cast<Loop>(loop);
  self->name = Py_NewRef(name);
  self->threads = Py_NewRef(threads);
  return reinterpret_cast<PyObject *>(self);
}

void kernel_dealloc(PyObject *object) {
  Kernel *self = reinterpret_cast<Kernel *>(object);
  PyTypeObject *type = Py_TYPE(object);
  Py_XDECREF(self->name);
  Py_XDECREF(self->threads);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef kernel_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Kernel, call), READONLY, nullptr},
    {"name", T_OBJECT_EX, offsetof(Kernel, name), READONLY, "The kernel's name."},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot kernel_slots[] = {
    {Py_tp_new, reinterpret_cast<void *>(kernel_new)},
    {Py_tp_dealloc, reinterpret_cast<void *>(kernel_dealloc)},
    {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
    {Py_tp_members, kernel_members},
    {0, nullptr},
};

PyType_Spec kernel_spec = {"dynfix.runtime.native.launch.Kernel", sizeof(Kernel), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, kernel_slots};

PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "launch", "Launches compiled loops.", -1, nullptr,
                          nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_launch() {
  data_ptr_name = PyUnicode_InternFromString("data_ptr");
  PyObject *module = PyModule_Create(&module_def);
  if (module == nullptr || data_ptr_name == nullptr) return nullptr;
  PyObject *type = PyType_FromSpec(&kernel_spec);
  if (type == nullptr || PyModule_AddObject(module, "Kernel", type) < 0) return nullptr;
  return module;
}
