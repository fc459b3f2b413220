// Launches of GPU kernels that take pointers, then numbers that are known when the launch is made.
//   Launch(kernels, device, stream_of, otherwise, library)
//     kernels: (function, programs, threads, shared, early, positions, numbers), positions those of
//       its pointers among the arguments; early: it waits by itself for the one before it, and may
//       be started while that one ends
//     device: the ordinal whose context has to be current; stream_of(device): its current stream
//     otherwise: called with the same arguments where a pointer is not aligned, or the context another
//     library: of the driver, "libcuda.so.1"
//   launch(*arguments)   tensors, or ints that are addresses
// Of groups whose sizes only a call knows:
//   Sized(plans, plan, count)
//     plans: a dict from the sizes, a tuple, to what launches for them; plan(sizes) makes one, and
//       puts it there
//   sized(*arguments)   the last `count` of them are the sizes
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <structmember.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace {

typedef int (*CtxGetDevice)(int *);
typedef int (*LaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, void *, void **, void **);

// As in cuda.h (CUlaunchAttribute, CUlaunchConfig), which is not needed to build this.
struct Attribute {
  int id, padding;
  union {
    char bytes[64];
    int number;
  } value;
};
struct Config {
  unsigned grid[3], block[3], shared;
  void *stream;
  Attribute *attributes;
  unsigned count;
};
typedef int (*LaunchKernelEx)(const Config *, void *, void **, void **);

const int kStartEarly = 6;  // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

const uintptr_t kAlignment = 16;
const Py_ssize_t kMost = 1024;  // arguments of a group, and of a kernel

struct Kernel {
  void *function;
  unsigned programs, threads, shared;
  int early;
  std::vector<int> positions;
  std::vector<int64_t> numbers;  // one that has 32 bits is read as the lower half
};

struct Launch {
  PyObject_HEAD
  vectorcallfunc call;
  std::vector<Kernel> *kernels;
  Py_ssize_t count;  // arguments, at least
  int device;
  PyObject *device_object, *stream_of, *otherwise;
  CtxGetDevice current;
  LaunchKernel launch;
  LaunchKernelEx launch_early;
};

PyObject *data_ptr_name = nullptr;

bool address_of(PyObject *argument, uintptr_t *into) {
  if (PyLong_CheckExact(argument)) {
    *into = reinterpret_cast<uintptr_t>(PyLong_AsVoidPtr(argument));
    return !PyErr_Occurred();
  }
  PyObject *number = PyObject_CallMethodNoArgs(argument, data_ptr_name);
  if (number == nullptr) return false;
  *into = reinterpret_cast<uintptr_t>(PyLong_AsVoidPtr(number));
  Py_DECREF(number);
  return !PyErr_Occurred();
}

int launch_all(Launch *self, uintptr_t *pointers, void *stream) {
  uintptr_t none = 0;  // what kernels of this compiler take after their own: memory to work in
  for (const Kernel &kernel : *self->kernels) {
    void *parameters[kMost + 2];
    size_t n = 0;
    for (int position : kernel.positions) parameters[n++] = &pointers[position];
    for (const int64_t &number : kernel.numbers) parameters[n++] = const_cast<int64_t *>(&number);
    parameters[n++] = &none;
    parameters[n++] = &none;
    int error;
    if (kernel.early && self->launch_early != nullptr) {
      Attribute attribute = {kStartEarly, 0, {}};
      attribute.value.number = 1;
      Config config = {{kernel.programs, 1, 1}, {kernel.threads, 1, 1}, kernel.shared, stream,
                       &attribute, 1};
      error = self->launch_early(&config, kernel.function, parameters, nullptr);
    } else {
      error = self->launch(kernel.function, kernel.programs, 1, 1, kernel.threads, 1, 1,
                           kernel.shared, stream, parameters, nullptr);
    }
    if (error != 0) return error;
  }
  return 0;
}

PyObject *launch_call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *kwnames) {
  Launch *self = reinterpret_cast<Launch *>(callable);
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (kwnames != nullptr || count < self->count || count > kMost) {
    PyErr_SetString(PyExc_TypeError, "wrong arguments for a kernel");
    return nullptr;
  }
  uintptr_t pointers[kMost], together = 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    if (!address_of(args[i], &pointers[i])) return nullptr;
    together |= pointers[i];
  }
  int device = -1;
  if (together % kAlignment != 0 || self->current(&device) != 0 || device != self->device)
    return PyObject_Vectorcall(self->otherwise, args, count, nullptr);
  PyObject *number = PyObject_CallOneArg(self->stream_of, self->device_object);
  if (number == nullptr) return nullptr;
  void *stream = PyLong_AsVoidPtr(number);
  Py_DECREF(number);
  if (PyErr_Occurred()) return nullptr;
  int error;
  Py_BEGIN_ALLOW_THREADS
  error = launch_all(self, pointers, stream);
  Py_END_ALLOW_THREADS
  if (error != 0) {
    PyErr_Format(PyExc_RuntimeError, "a kernel could not be launched: CUDA error %d", error);
    return nullptr;
  }
  Py_RETURN_NONE;
}

// The kernels of a launch, and how many arguments they need; false with an exception set.
bool read_kernels(PyObject *given, std::vector<Kernel> *kernels, Py_ssize_t *count) {
  PyObject *items = PySequence_Fast(given, "kernels is no sequence");
  if (items == nullptr) return false;
  for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(items); k++) {
    Kernel kernel;
    unsigned long long function;
    PyObject *positions, *numbers;
    if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(items, k), "KIIIpO!O!", &function,
                          &kernel.programs, &kernel.threads, &kernel.shared, &kernel.early,
                          &PyTuple_Type, &positions, &PyTuple_Type, &numbers))
      break;
    kernel.function = reinterpret_cast<void *>(static_cast<uintptr_t>(function));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(positions); i++) {
      long position = PyLong_AsLong(PyTuple_GET_ITEM(positions, i));
      if (position >= *count) *count = position + 1;
      kernel.positions.push_back(static_cast<int>(position));
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers); i++)
      kernel.numbers.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(numbers, i)));
    if (PyTuple_GET_SIZE(positions) + PyTuple_GET_SIZE(numbers) > kMost || *count > kMost)
      PyErr_SetString(PyExc_ValueError, "too many arguments");
    if (PyErr_Occurred()) break;
    kernels->push_back(kernel);
  }
  Py_DECREF(items);
  return !PyErr_Occurred();
}

bool find_driver(Launch *self, const char *library) {
  void *driver = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
  if (driver != nullptr) {
    self->current = reinterpret_cast<CtxGetDevice>(dlsym(driver, "cuCtxGetDevice"));
    self->launch = reinterpret_cast<LaunchKernel>(dlsym(driver, "cuLaunchKernel"));
    self->launch_early = reinterpret_cast<LaunchKernelEx>(dlsym(driver, "cuLaunchKernelEx"));
  }
  if (driver != nullptr && self->current != nullptr && self->launch != nullptr) return true;
  PyErr_Format(PyExc_OSError, "%s cannot be used", library);
  return false;
}

PyObject *launch_new(PyTypeObject *type, PyObject *args, PyObject *) {
  PyObject *kernels, *device, *stream_of, *otherwise;
  const char *library;
  if (!PyArg_ParseTuple(args, "OO!OOs", &kernels, &PyLong_Type, &device, &stream_of, &otherwise,
                        &library))
    return nullptr;
  Launch *self = reinterpret_cast<Launch *>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->call = launch_call;
  self->kernels = new (std::nothrow) std::vector<Kernel>();
  self->device = static_cast<int>(PyLong_AsLong(device));
  self->device_object = Py_NewRef(device);
  self->stream_of = Py_NewRef(stream_of);
  self->otherwise = Py_NewRef(otherwise);
  if (self->kernels == nullptr || !read_kernels(kernels, self->kernels, &self->count) ||
      !find_driver(self, library)) {
    Py_DECREF(self);
    return PyErr_Occurred() ? nullptr : PyErr_NoMemory();
  }
  return reinterpret_cast<PyObject *>(self);
}

void launch_dealloc(PyObject *object) {
  Launch *self = reinterpret_cast<Launch *>(object);
  PyTypeObject *type = Py_TYPE(object);
  delete self->kernels;
  Py_XDECREF(self->device_object);
  Py_XDECREF(self->stream_of);
  Py_XDECREF(self->otherwise);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef launch_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Launch, call), READONLY, nullptr},
    {0, 0, 0, 0, nullptr},
};

PyType_Slot launch_slots[] = {
    {Py_tp_new, reinterpret_cast<void *>(launch_new)},
    {Py_tp_dealloc, reinterpret_cast<void *>(launch_dealloc)},
    {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
    {Py_tp_members, launch_members},
    {0, nullptr},
};

PyType_Spec launch_spec = {"dynfix.runtime.native.gpu_launch.Launch", sizeof(Launch), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, launch_slots};

struct Sized {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *plans, *plan;
  Py_ssize_t count;
};

PyObject *sized_call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *kwnames) {
  Sized *self = reinterpret_cast<Sized *>(callable);
  const Py_ssize_t given = PyVectorcall_NARGS(flags) - self->count;
  if (kwnames != nullptr || given < 0) {
    PyErr_SetString(PyExc_TypeError, "wrong arguments for a kernel");
    return nullptr;
  }
  PyObject *sizes = PyTuple_New(self->count);
  if (sizes == nullptr) return nullptr;
  for (Py_ssize_t i = 0; i < self->count; i++)
    PyTuple_SET_ITEM(sizes, i, Py_NewRef(args[given + i]));
  PyObject *plan = Py_XNewRef(PyDict_GetItemWithError(self->plans, sizes));
  if (plan == nullptr && !PyErr_Occurred()) plan = PyObject_CallOneArg(self->plan, sizes);
  Py_DECREF(sizes);
  if (plan == nullptr) return nullptr;
  PyObject *result = PyObject_Vectorcall(plan, args, given, nullptr);
  Py_DECREF(plan);
  return result;
}

PyObject *sized_new(PyTypeObject *type, PyObject *args, PyObject *) {
  PyObject *plans, *plan;
  Py_ssize_t count;
  if (!PyArg_ParseTuple(args, "O!On", &PyDict_Type, &plans, &plan, &count)) return nullptr;
  Sized *self = reinterpret_cast<Sized *>(type->tp_alloc(type, 0));
  if (self == nullptr) return nullptr;
  self->call = sized_call;
  self->plans = Py_NewRef(plans);
  self->plan = Py_NewRef(plan);
  self->count = count;
  return reinterpret_cast<PyObject *>(self);
}

void sized_dealloc(PyObject *object) {
  Sized *self = reinterpret_cast<Sized *>(object);
  PyTypeObject *type = Py_TYPE(object);
  Py_XDECREF(self->plans);
  Py_XDECREF(self->plan);
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef sized_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Sized, call), READONLY, nullptr},
    {0, 0, 0, 0, nullptr},
};

PyType_Slot sized_slots[] = {
    {Py_tp_new, reinterpret_cast<void *>(sized_new)},
    {Py_tp_dealloc, reinterpret_cast<void *>(sized_dealloc)},
    {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
    {Py_tp_members, sized_members},
    {0, nullptr},
};

PyType_Spec sized_spec = {"dynfix.runtime.native.gpu_launch.Sized", sizeof(Sized), 0,
                          Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, sized_slots};

PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "gpu_launch", "Launches GPU kernels.", -1, nullptr,
                          nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_gpu_launch() {
  data_ptr_name = PyUnicode_InternFromString("data_ptr");
  PyObject *module = PyModule_Create(&module_def);
  if (module == nullptr || data_ptr_name == nullptr) return nullptr;
  PyObject *type = PyType_FromSpec(&launch_spec), *sized = PyType_FromSpec(&sized_spec);
  if (type == nullptr || PyModule_AddObject(module, "Launch", type) < 0) return nullptr;
  if (sized == nullptr || PyModule_AddObject(module, "Sized", sized) < 0) return nullptr;
  return module;
}
