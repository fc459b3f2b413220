// Autograd nodes of compiled functions, without Python between autograd's engine and the backward program.
//   Function(facts)          facts: a dict, read in `configure`; call it with a call's tensors and numbers
//   function.backward        the backward program, or None: until then, and for what is unusual, `unusual(saved, gradients)` serves
//   Saved                    what one call keeps for its backward, as `unusual` is given it
#pragma once
#include "torch_side.h"

namespace {

constexpr auto kModified = "has been modified by an inplace operation";

struct Function {
  PyObject_HEAD
  vectorcallfunc call;
  PyObject *forward, *backward, *python, *mended, *unusual, *prepare, *twin, *checked, *unchecked, *numbers, *layouts;
  Places *places;
  Py_ssize_t own, lone;
  bool without_autocast, shares, single, keeps_call, writes, asks_deterministic;
};

struct CompiledNode;

struct Saved {
  PyObject_HEAD
  CompiledNode *node;  // valid during the backward that made this
};

PyTypeObject *saved_type = nullptr;

// The node of one call. Whoever touches it holds the GIL.
struct CompiledNode final : torch::autograd::Node {
  Held function, args, numbers, kept;  // kept: what Python knows of the call
  std::vector<torch::autograd::SavedVariable> checked;
  std::vector<at::Tensor> unchecked;
  std::vector<int64_t> versions;
  bool freed = false, was_unusual = false;
  mutable NodePtr twin;  // Python's node for the same call, which compiled autograd understands

  explicit CompiledNode(torch::autograd::edge_list &&edges) : Node(std::move(edges)) {}

  ~CompiledNode() override {
    if (!Py_IsInitialized()) {
      for (Held *each : {&function, &args, &numbers, &kept}) each->forget();
      return;
    }
    WithGil held;
    for (Held *each : {&function, &args, &numbers, &kept}) each->clear();
  }

  std::string name() const override { return "CompiledFunctionBackward"; }

  void release_variables() override {
    WithGil held;
    release();
    freed = true;
    if (twin) twin->release_variables();
  }

  bool is_aot_backward() const override { return true; }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs &args) const override { python_twin().compiled_args(args); }

  variable_list apply_with_saved(const variable_list &inputs, torch::dynamo::autograd::SwapSavedVariables &saved) override {
    return python_twin().apply_with_saved(inputs, saved);
  }

  // The calling convention of `facts().twin`: it gives a tensor with that history.
  torch::autograd::Node &python_twin() const {
    if (!twin) {
      WithGil held;
      Held made = const_cast<CompiledNode *>(this)->shown_to(facts().twin, nullptr);
      if (THPVariable_Check(made.get())) twin = THPVariable_Unpack(made.get()).grad_fn();
      TORCH_CHECK(twin, "a compiled function without a node in Python");
    }
    return *twin;
  }

  void release() {
    // their destructors may run Python, which may come back here
    auto first = std::move(checked);
    auto second = std::move(unchecked);
    checked.clear();
    unchecked.clear();
  }

  at::Tensor saved(size_t k) {
    TORCH_CHECK(!freed, torch::autograd::ERR_BACKWARD_TWICE);
    return checked[k].unpack(getptr());
  }

  Function &facts() const { return *reinterpret_cast<Function *>(function.get()); }

  variable_list apply(variable_list &&gradients) override {
    WithGil held;
    c10::OptionalDeviceGuard device;
    for (const at::Tensor &each : gradients)
      if (each.defined()) {
        device.reset_device(each.device());
        break;
      }
    Held arguments;
    if (is_usual(gradients)) arguments = usual_arguments(gradients);
    if (!arguments) return through_python(gradients);
    if (!torch::autograd::get_current_graph_task_keep_graph()) {
      release();
      freed = true;
      args.clear();
      kept.clear();
    }
    std::optional<c10::impl::ExcludeDispatchKeyGuard> autocast;
    if (facts().without_autocast) autocast.emplace(c10::autocast_dispatch_keyset);
    Held program = Held::borrowed(facts().backward);
    return tensors_of(called(program.get(), arguments.get()));
  }

  bool is_usual(const variable_list &gradients) {
    const Function &f = facts();
    if (f.backward == Py_None || was_unusual || freed || c10::GradMode::is_enabled()) return false;
    for (const auto key : {c10::DispatchKey::VmapMode, c10::DispatchKey::FuncTorchDynamicLayerFrontMode})
      if (c10::impl::tls_is_dispatch_key_included(key)) return false;
    if (f.asks_deterministic && at::globalContext().deterministicAlgorithms()) return false;
    const auto &taken = f.places->taken;
    for (size_t k = 0; k < taken.size(); k++) {
      if ((size_t)taken[k] >= gradients.size() || !is_plain(gradients[taken[k]])) return false;
      if (is_turned(gradients[taken[k]], PyTuple_GET_ITEM(f.layouts, k) == Py_None)) return false;
    }
    return true;
  }

  // What the program takes, or nothing if a saved tensor was written. A gradient that no one else holds dies with the list.
  Held usual_arguments(variable_list &gradients) {
    std::vector<at::Tensor> tensors;
    tensors.reserve(checked.size());
    try {
      for (size_t k = 0; k < checked.size(); k++) tensors.push_back(saved(k));
    } catch (const c10::Error &error) {
      if (strstr(error.what_without_backtrace(), kModified) == nullptr) throw;
      return Held();
    }
    const Function &f = facts();
    const auto &taken = f.places->taken;
    const Py_ssize_t first = numbers ? PyList_GET_SIZE(numbers.get()) : 0;
    Held list(PyList_New(first + tensors.size() + unchecked.size() + taken.size()));
    if (!list) throw_python();
    Py_ssize_t at = 0;
    for (; at < first; at++) PyList_SET_ITEM(list.get(), at, Py_NewRef(PyList_GET_ITEM(numbers.get(), at)));
    for (at::Tensor &each : tensors) PyList_SET_ITEM(list.get(), at++, wrapped(std::move(each)));
    for (const at::Tensor &each : unchecked) PyList_SET_ITEM(list.get(), at++, wrapped(each));
    for (size_t k = 0; k < taken.size(); k++) {
      at::Tensor gradient = std::move(gradients[taken[k]]);
      PyObject *layout = PyTuple_GET_ITEM(f.layouts, k);
      if (layout == Py_None) {
        PyList_SET_ITEM(list.get(), at++, wrapped(contiguous(std::move(gradient))));
      } else {
        Held given(wrapped(std::move(gradient)));
        PyList_SET_ITEM(list.get(), at++, called(layout, given.get()).release());
      }
    }
    gradients.clear();
    return list;
  }

  variable_list through_python(variable_list &gradients) {
    was_unusual = true;
    Held list(PyList_New(gradients.size()));
    if (!list) throw_python();
    for (size_t k = 0; k < gradients.size(); k++)
      PyList_SET_ITEM(list.get(), k, gradients[k].defined() ? wrapped(std::move(gradients[k])) : Py_NewRef(Py_None));
    gradients.clear();
    return tensors_of(shown_to(facts().unusual, list.get()));
  }

  // What a function in Python gives that is shown what this node keeps.
  Held shown_to(PyObject *function, PyObject *argument) {
    Held saved(saved_type->tp_alloc(saved_type, 0));
    if (!saved) throw_python();
    auto *view = reinterpret_cast<Saved *>(saved.get());
    view->node = this;
    PyObject *both[] = {saved.get(), argument};
    Held made(PyObject_Vectorcall(function, both, argument == nullptr ? 1 : 2, nullptr));
    view->node = nullptr;
    if (!made) throw_python();
    return made;
  }
};

}  // namespace
