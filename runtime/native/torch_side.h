// What torch_parts.cpp needs of Python and of torch, for the versions of torch that there are.
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <vector>

using torch::autograd::variable_list;
using NodePtr = decltype(torch::autograd::Edge::function);

[[noreturn]] inline void throw_python() {
  python_error error;
  error.persist();
  throw std::move(error);
}

// A reference to a Python object.
class Held {
 public:
  Held() = default;
  explicit Held(PyObject *object) : object_(object) {}
  static Held borrowed(PyObject *object) { return Held(Py_XNewRef(object)); }
  Held(Held &&other) noexcept : object_(other.release()) {}
  Held &operator=(Held &&other) noexcept {
    PyObject *before = object_;
    object_ = other.release();
    Py_XDECREF(before);
    return *this;
  }
  ~Held() { clear(); }

  PyObject *get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }
  PyObject *release() {
    PyObject *object = object_;
    object_ = nullptr;
    return object;
  }
  void clear() {
    PyObject *object = release();
    Py_XDECREF(object);
  }
  void forget() { object_ = nullptr; }

 private:
  PyObject *object_ = nullptr;
};

struct WithGil {
  PyGILState_STATE state = PyGILState_Ensure();
  ~WithGil() { PyGILState_Release(state); }
};

// Positions among the arguments and the results of a function.
struct Places {
  std::vector<Py_ssize_t> taken, cut, hooked, written, unsafe, constant;
  Py_ssize_t inputs = 0;
  bool is_constant(Py_ssize_t k) const { return std::find(constant.begin(), constant.end(), k) != constant.end(); }
};

template <typename T, typename... Args>
NodePtr new_node(T **own, Args &&...args) {
  *own = new T(std::forward<Args>(args)...);
#if __has_include(<torch/csrc/autograd/node.h>)
  return NodePtr::unsafe_steal_from_new(*own);
#else
  return NodePtr(*own, torch::autograd::deleteNode);
#endif
}

inline Held called(PyObject *function, PyObject *argument) {
  Held made(PyObject_CallOneArg(function, argument));
  if (!made) throw_python();
  return made;
}

inline PyObject *wrapped(const at::Tensor &tensor) {
  PyObject *made = THPVariable_Wrap(tensor);
  if (made == nullptr) throw_python();
  return made;
}

inline PyObject *wrapped(at::Tensor &&tensor) {
  const at::Tensor dies = std::move(tensor);
  return wrapped(dies);
}

// The gradients in what a backward gave: tensors, and None.
inline variable_list tensors_of(Held given) {
  Held items(PySequence_Fast(given.get(), "a backward gives a list"));
  if (!items) throw_python();
  given.clear();
  const Py_ssize_t count = PySequence_Fast_GET_SIZE(items.get());
  variable_list tensors(count);
  for (Py_ssize_t k = 0; k < count; k++) {
    PyObject *item = PySequence_Fast_GET_ITEM(items.get(), k);
    if (item == Py_None) continue;
    if (!THPVariable_Check(item)) {
      PyErr_SetString(PyExc_TypeError, "a backward gives tensors");
      throw_python();
    }
    tensors[k] = THPVariable_Unpack(item);
  }
  return tensors;
}

// Whether a tensor is what programs are made for: strided memory, read as it lies there, and no transform above it.
inline bool is_plain(const at::Tensor &tensor) {
  if (!tensor.defined() || tensor.layout() != at::kStrided) return false;
  constexpr c10::DispatchKeySet odd({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::Functionalize,
                                     c10::DispatchKey::FuncTorchBatched, c10::DispatchKey::FuncTorchGradWrapper,
                                     c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::NestedTensor});
  return !tensor.key_set().has_any(odd) && !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides();
}

// Whether a result is a tensor of its own, without history.
inline bool is_fresh(const at::Tensor &tensor) {
  return is_plain(tensor) && !tensor.is_view() && !tensor.requires_grad() && !tensor.is_inference() &&
         torch::autograd::isDifferentiableType(tensor.scalar_type());
}

// -1 for what has no version.
inline int64_t version_of(const at::Tensor &tensor) {
  return !tensor.defined() || tensor.is_inference() ? -1 : (int64_t)tensor._version();
}

inline bool any_autocast() {
  return !c10::impl::tls_local_dispatch_key_set().excluded_.has_all(c10::autocast_dispatch_keyset);
}

constexpr int64_t kFewBytes = 1 << 14;

// One number, expanded, as the gradient of a sum is: without the dispatcher, a copy of a few of it costs more than a small product.
inline bool is_small_number(const at::Tensor &tensor) {
  if (!tensor.is_cpu() || tensor.dim() == 0 || tensor.numel() == 0 || tensor.numel() * (int64_t)tensor.itemsize() > kFewBytes) return false;
  for (int64_t k = 0; k < tensor.dim(); k++)
    if (tensor.size(k) != 1 && tensor.stride(k) != 0) return false;
  return c10::impl::tls_local_dispatch_key_set().included_.has_any(c10::DispatchKeySet(c10::DispatchKey::Python)) == false;
}

inline at::Tensor repeated(const at::Tensor &tensor) {
  at::Tensor made(at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type()));
  const size_t item = tensor.itemsize(), bytes = tensor.numel() * item;
  char *into = static_cast<char *>(made.data_ptr());
  std::memcpy(into, tensor.const_data_ptr(), item);
  for (size_t done = item; done < bytes; done *= 2) std::memcpy(into + done, into, std::min(done, bytes - done));
  return made;
}

// Whether a gradient is dense, in another order than the program takes: a contiguous one, or that of its result.
inline bool is_turned(const at::Tensor &tensor, bool takes_contiguous) {
  if (tensor.is_contiguous() == takes_contiguous || tensor.dim() < 2) return false;
  return takes_contiguous ? tensor.is_non_overlapping_and_dense() : !tensor.is_contiguous(at::MemoryFormat::ChannelsLast);
}

inline at::Tensor contiguous(at::Tensor &&tensor) {
  if (tensor.is_contiguous()) return std::move(tensor);
  return is_small_number(tensor) ? repeated(tensor) : tensor.contiguous();
}
