// The forward of a compiled function with a native node: `Call` runs one call.
#pragma once
#include "autograd_node.h"

namespace {

bool slice_of(PyObject *slice, Py_ssize_t length, Py_ssize_t *start, Py_ssize_t *stop) {
  Py_ssize_t step;
  if (PySlice_Unpack(slice, start, stop, &step) < 0) return false;
  PySlice_AdjustIndices(length, start, stop, step);
  return true;
}

// Whether a call is served here: with gradients on, of plain tensors that no hook watches.
bool is_served(const Function &f, PyObject *const *args, Py_ssize_t count) {
  if (!c10::GradMode::is_enabled() || count != f.places->inputs) return false;
  for (Py_ssize_t i = 0; i < count; i++) {
    if (!THPVariable_CheckExact(args[i])) {
      if (PyLong_Check(args[i]) || PyFloat_Check(args[i]) || args[i] == Py_None) continue;
      return false;
    }
    if (!is_plain(THPVariable_Unpack(args[i]))) return false;
  }
  for (const Py_ssize_t k : f.places->hooked) {
    const at::Tensor &tensor = THPVariable_Unpack(args[k]);
    if (!torch::autograd::impl::hooks(tensor).empty() || torch::autograd::impl::post_acc_grad_hooks(tensor)) return false;
  }
  return true;
}

struct Call {
  Function &f;
  PyObject *const *args;
  const Py_ssize_t count;
  variable_list inputs;  // undefined where an argument is no tensor
  NodePtr node;
  CompiledNode *own_node = nullptr;
  Held kept;

  Call(Function &function, PyObject *const *arguments, Py_ssize_t number) : f(function), args(arguments), count(number), inputs(number) {}

  Held run() {
    read_inputs();
    if (f.keeps_call || any_autocast()) prepare();
    at::RecordFunction recorded(at::RecordScope::FUNCTION);
    if (recorded.isActive()) recorded.before("CompiledFunction", (int64_t)at::sequence_number::peek());
    make_node();
    Held results = run_forward();
    if (!PyList_CheckExact(results.get())) {
      PyErr_SetString(PyExc_TypeError, "a compiled program gives a list");
      throw_python();
    }
    Held made = finish(results.get());
    if (own_node != nullptr && f.writes) settle();
    return made;
  }

  void read_inputs() {
    for (Py_ssize_t i = 0; i < count; i++)
      if (THPVariable_Check(args[i])) inputs[i] = THPVariable_Unpack(args[i]);
    for (const Py_ssize_t k : f.places->cut)
      if (inputs[k].defined() && inputs[k].requires_grad()) inputs[k] = inputs[k].detach();
  }

  void prepare() {
    Held all = arguments();
    kept = called(f.prepare, all.get());
  }

  Held arguments() {
    Held all(PyTuple_New(count));
    if (!all) throw_python();
    for (Py_ssize_t i = 0; i < count; i++) PyTuple_SET_ITEM(all.get(), i, Py_NewRef(args[i]));
    return all;
  }

  void make_node() {
    bool any = false;
    torch::autograd::edge_list edges(count);
    for (Py_ssize_t i = 0; i < count; i++)
      if (inputs[i].defined() && inputs[i].requires_grad()) {
        edges[i] = torch::autograd::impl::gradient_edge(inputs[i]);
        any = true;
      }
    if (!any) return;
    node = new_node<CompiledNode>(&own_node, std::move(edges));
    own_node->function = Held::borrowed(reinterpret_cast<PyObject *>(&f));
    if (kept) {
      own_node->kept = std::move(kept);
      return;
    }
    own_node->args = arguments();
    own_node->versions.reserve(count);
    for (const at::Tensor &each : inputs) own_node->versions.push_back(version_of(each));
  }

  Held run_forward() {
    for (const Py_ssize_t k : f.places->written)
      if (!inputs[k].is_inference()) inputs[k].unsafeGetTensorImpl()->bump_version();
    Held list(PyList_New(count));
    if (!list) throw_python();
    for (Py_ssize_t i = 0; i < count; i++) {
      const bool same = !inputs[i].defined() || inputs[i].is_same(THPVariable_Unpack(args[i]));
      PyList_SET_ITEM(list.get(), i, same ? Py_NewRef(args[i]) : wrapped(inputs[i]));
    }
    at::AutoGradMode off(false);
    c10::AutoFwGradMode forward_off(false);
    std::optional<c10::impl::ExcludeDispatchKeyGuard> autocast;
    if (f.without_autocast) autocast.emplace(c10::autocast_dispatch_keyset);
    return called(f.forward, list.get());
  }

  static bool is_view(PyObject *object) { return THPVariable_Check(object) && THPVariable_Unpack(object).is_view(); }

  // Results with their history; what the backward needs is kept.
  Held finish(PyObject *results) {
    const Py_ssize_t length = PyList_GET_SIZE(results);
    if (length < f.own) {
      PyErr_SetString(PyExc_ValueError, "a compiled program gives too few results");
      throw_python();
    }
    std::vector<Held> made(f.own);
    for (Py_ssize_t k = 0; k < f.own; k++) made[k] = Held::borrowed(PyList_GET_ITEM(results, k));
    {
      at::AutoGradMode off(false);
      for (const Py_ssize_t k : f.places->unsafe) {
        if (!THPVariable_Check(made[k].get())) continue;
        const at::Tensor &tensor = THPVariable_Unpack(made[k].get());
        if (tensor.is_view()) made[k] = Held(wrapped(at::_unsafe_view(tensor, tensor.sizes())));
      }
    }
    give_history(made);
    if (own_node != nullptr) save(results, length);
    const auto &constant = f.places->constant;
    const bool shares = f.shares || std::any_of(constant.begin(), constant.end(), [&](Py_ssize_t k) { return is_view(made[k].get()); });
    Held tuple = returned(made);
    return shares ? called(f.mended, tuple.get()) : std::move(tuple);
  }

  void give_history(std::vector<Held> &made) {
    std::vector<std::optional<at::Tensor>> tensors(f.own);
    bool plain = node != nullptr;
    for (Py_ssize_t k = 0; k < f.own; k++) {
      if (!THPVariable_Check(made[k].get())) continue;
      tensors[k] = THPVariable_Unpack(made[k].get());
      plain = plain && is_fresh(*tensors[k]) && !f.places->is_constant(k) && !is_input(*tensors[k]) && !is_earlier(tensors, k);
    }
    if (!plain) return give_any_history(made, tensors);
    for (auto &each : tensors) {
      if (each.has_value()) torch::autograd::impl::set_gradient_edge(*each, {node, node->add_input_metadata(*each)});
      else node->add_input_metadata(torch::autograd::Node::undefined_input());
    }
  }

  bool is_input(const at::Tensor &tensor) const {
    for (const at::Tensor &each : inputs)
      if (each.is_same(tensor)) return true;
    return false;
  }

  static bool is_earlier(const std::vector<std::optional<at::Tensor>> &tensors, Py_ssize_t k) {
    for (Py_ssize_t i = 0; i < k; i++)
      if (tensors[i].has_value() && tensors[i]->is_same(*tensors[k])) return true;
    return false;
  }

  // Inputs and views among the results, and such without a gradient: as torch does for every autograd function.
  void give_any_history(std::vector<Held> &made, std::vector<std::optional<at::Tensor>> &tensors) {
    std::unordered_set<at::TensorImpl *> constant;
    for (Py_ssize_t k = 0; k < f.own; k++)
      if (tensors[k].has_value() && f.places->is_constant(k)) constant.insert(tensors[k]->unsafeGetTensorImpl());
    variable_list given;
    for (const at::Tensor &each : inputs)
      if (each.defined()) given.push_back(each);
    const auto as_self = [](at::Tensor tensor) { return tensor.view_as(tensor); };
    auto wrapped_ones = torch::autograd::_wrap_outputs(given, constant, {}, tensors, node, no_jvp, {}, as_self, false);
    for (Py_ssize_t k = 0; k < f.own; k++)
      if (wrapped_ones[k].has_value()) made[k] = Held(wrapped(*wrapped_ones[k]));
  }

  static variable_list no_jvp(variable_list, variable_list) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "a compiled function has no forward-mode derivative");
  }

  void save(PyObject *results, Py_ssize_t length) {
    Py_ssize_t start, stop;
    if (!slice_of(f.checked, length, &start, &stop)) throw_python();
    own_node->checked.reserve(std::max(stop - start, Py_ssize_t(0)));
    for (Py_ssize_t k = start; k < stop; k++) {
      const at::Tensor tensor = without_base(PyList_GET_ITEM(results, k));
      own_node->checked.emplace_back(tensor, is_own(tensor));
    }
    if (!slice_of(f.unchecked, length, &start, &stop)) throw_python();
    for (Py_ssize_t k = start; k < stop; k++) {
      const at::Tensor tensor = without_base(PyList_GET_ITEM(results, k));
      own_node->unchecked.push_back(is_own(tensor) ? tensor.detach() : tensor);
    }
    if (!slice_of(f.numbers, length, &start, &stop)) throw_python();
    if (start < stop) own_node->numbers = Held(PyList_GetSlice(results, start, stop));
  }

  bool is_own(const at::Tensor &tensor) const { return tensor.grad_fn().get() == node.get(); }

  // Not a view, whose base would be kept along.
  static at::Tensor without_base(PyObject *object) {
    if (!THPVariable_Check(object)) {
      PyErr_SetString(PyExc_TypeError, "a compiled program saves tensors");
      throw_python();
    }
    const at::Tensor &tensor = THPVariable_Unpack(object);
    return tensor.is_view() ? tensor.detach() : tensor;
  }

  Held returned(std::vector<Held> &made) {
    if (f.single) return std::move(made[0]);
    const Py_ssize_t shown = f.own - f.lone;
    Held tuple(PyTuple_New(shown));
    if (!tuple) throw_python();
    for (Py_ssize_t k = 0; k < shown; k++) PyTuple_SET_ITEM(tuple.get(), k, made[k].release());
    return tuple;
  }

  void settle() {
    if (!own_node->kept) return;
    Held done(PyObject_CallMethod(own_node->kept.get(), "settle", nullptr));
    if (!done) throw_python();
  }
};

PyObject *function_call(PyObject *callable, PyObject *const *args, size_t flags, PyObject *names) {
  HANDLE_TH_ERRORS
  auto *f = reinterpret_cast<Function *>(callable);
  const Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (names != nullptr || !is_served(*f, args, count)) return PyObject_Vectorcall(f->python, args, flags, names);
  return Call(*f, args, count).run().release();
  END_HANDLE_TH_ERRORS
}

}  // namespace
