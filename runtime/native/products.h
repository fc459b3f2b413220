// Matrix products by torch's library, without the parser of Python's arguments and autograd's part of the dispatcher.
//   Product(name, layouts, out)   name: mm, addmm, bmm or baddbmm; layouts: for each operand (shape, strides, offset) of the view of it
//                                 that is taken, or None; out: the same for where the result goes, with `placed` true
//   product(*operands[, out])     gives the result, or None where it was placed
#pragma once
#include "torch_side.h"

namespace {

struct View {
  std::vector<int64_t> shape, strides;
  int64_t offset = 0;
  bool whole = true;
};

struct Product {
  PyObject_HEAD
  vectorcallfunc call;
  int kind;
  bool placed;
  std::vector<View> *views;
};

constexpr const char *kProducts[] = {"mm", "bmm", "addmm", "baddbmm"};
constexpr size_t kOperands[] = {2, 2, 3, 3};

// The view, with a version of its own: it is neither kept nor returned.
at::Tensor viewed(PyObject *object, const View &view) {
  const at::Tensor &tensor = THPVariable_Unpack(object);
  if (view.whole) return tensor;
  at::Tensor made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(view.shape, view.strides, tensor.storage_offset() + view.offset);
  return made;
}

at::Tensor multiplied(int kind, const at::Tensor *t) {
  switch (kind) {
    case 0: return at::mm(t[0], t[1]);
    case 1: return at::bmm(t[0], t[1]);
    case 2: return at::addmm(t[0], t[1], t[2]);
    default: return at::baddbmm(t[0], t[1], t[2]);
  }
}

void multiply_into(int kind, const at::Tensor *t, at::Tensor &out) {
  switch (kind) {
    case 0: at::mm_out(out, t[0], t[1]); return;
    case 1: at::bmm_out(out, t[0], t[1]); return;
    case 2: at::addmm_out(out, t[0], t[1], t[2]); return;
    default: at::baddbmm_out(out, t[0], t[1], t[2]); return;
  }
}

PyObject *product_call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names) {
  HANDLE_TH_ERRORS
  auto *product = reinterpret_cast<Product *>(callable);
  const auto &views = *product->views;
  if (names != nullptr || PyVectorcall_NARGS(flags) != (Py_ssize_t)views.size()) {
    PyErr_SetString(PyExc_TypeError, "a product takes its operands");
    return nullptr;
  }
  at::Tensor tensors[4];
  for (size_t k = 0; k < views.size(); k++) {
    if (!THPVariable_Check(args[k])) {
      PyErr_SetString(PyExc_TypeError, "a product takes tensors");
      return nullptr;
    }
    tensors[k] = viewed(args[k], views[k]);
  }
  at::AutoDispatchBelowADInplaceOrView below;
  if (!product->placed) return wrapped(multiplied(product->kind, tensors));
  multiply_into(product->kind, tensors, tensors[views.size() - 1]);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

bool read_ints(PyObject *tuple, std::vector<int64_t> &into) {
  if (!PyTuple_Check(tuple)) {
    PyErr_SetString(PyExc_TypeError, "a tuple of sizes");
    return false;
  }
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(tuple); k++) into.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, k)));
  return !PyErr_Occurred();
}

bool read_view(PyObject *layout, View &view) {
  if (layout == Py_None) return true;
  PyObject *shape, *strides;
  long long offset;
  if (!PyTuple_Check(layout) || !PyArg_ParseTuple(layout, "OOL", &shape, &strides, &offset)) return false;
  view.whole = false;
  view.offset = offset;
  return read_ints(shape, view.shape) && read_ints(strides, view.strides);
}

PyObject *product_new(PyTypeObject *type, PyObject *args, PyObject *) {
  const char *name;
  PyObject *layouts;
  int placed;
  if (!PyArg_ParseTuple(args, "sO!p", &name, &PyTuple_Type, &layouts, &placed)) return nullptr;
  const auto found = std::find_if(std::begin(kProducts), std::end(kProducts), [&](const char *one) { return !strcmp(one, name); });
  const size_t kind = found - std::begin(kProducts), count = PyTuple_GET_SIZE(layouts);
  if (found == std::end(kProducts) || count != kOperands[kind] + placed) {
    PyErr_SetString(PyExc_ValueError, "no such product");
    return nullptr;
  }
  auto *product = reinterpret_cast<Product *>(type->tp_alloc(type, 0));
  if (product == nullptr) return nullptr;
  product->call = product_call;
  product->kind = (int)kind;
  product->placed = placed;
  product->views = new std::vector<View>(count);
  for (size_t k = 0; k < count; k++)
    if (!read_view(PyTuple_GET_ITEM(layouts, k), (*product->views)[k])) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a layout is (shape, strides, offset)");
      Py_DECREF(product);
      return nullptr;
    }
  return reinterpret_cast<PyObject *>(product);
}

void product_dealloc(PyObject *object) {
  PyTypeObject *type = Py_TYPE(object);
  delete reinterpret_cast<Product *>(object)->views;
  type->tp_free(object);
  Py_DECREF(type);
}

PyMemberDef product_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Product, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot product_slots[] = {
    {Py_tp_new, reinterpret_cast<void *>(product_new)},
    {Py_tp_dealloc, reinterpret_cast<void *>(product_dealloc)},
    {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
    {Py_tp_members, product_members},
    {0, nullptr},
};

PyType_Spec product_spec = {"dynfix.runtime.native.torch_parts.Product", sizeof(Product), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL, product_slots};

}  // namespace
