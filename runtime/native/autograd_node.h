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
  PyObject *forward, *backward, *python, *unusual, *prepare, *twin, *checked, *unchecked, *numbers, *layouts;
  Places *places;
  Py_ssize_t own, lone;
  bool without_autocast, single, keeps_call, writes, asks_deterministic;
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
    for (const Py_ssize_t k : f.places->taken)
      if ((size_t)k >= gradients.size() || !is_plain(gradients[k])) return false;
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

// -- the forward

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
        const at::Tensor &tensor = THPVariable_Unpack(made[k].get());
        if (tensor.is_view()) made[k] = Held(wrapped(at::_unsafe_view(tensor, tensor.sizes())));
      }
    }
    give_history(made);
    if (own_node != nullptr) save(results, length);
    return returned(made);
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
  Py_ssize_t autocast, single, keeps, writes, deterministic;
  const bool all =
      read(facts, "forward", &f->forward) && read(facts, "python", &f->python) && read(facts, "unusual", &f->unusual) &&
      read(facts, "prepare", &f->prepare) && read(facts, "twin", &f->twin) && read(facts, "checked", &f->checked) && read(facts, "unchecked", &f->unchecked) &&
      read(facts, "numbers", &f->numbers) && read(facts, "layouts", &f->layouts) && read(facts, "taken", places.taken) &&
      read(facts, "cut", places.cut) && read(facts, "hooked", places.hooked) && read(facts, "written", places.written) &&
      read(facts, "unsafe", places.unsafe) && read(facts, "constant", places.constant) && read(facts, "inputs", &places.inputs) &&
      read(facts, "own", &f->own) && read(facts, "lone", &f->lone) && read(facts, "without_autocast", &autocast) &&
      read(facts, "single", &single) && read(facts, "keeps_call", &keeps) && read(facts, "writes", &writes) &&
      read(facts, "asks_deterministic", &deterministic);
  if (!all) return false;
  f->without_autocast = autocast, f->single = single, f->keeps_call = keeps, f->writes = writes, f->asks_deterministic = deterministic;
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
  for (PyObject *each : {f->forward, f->backward, f->python, f->unusual, f->prepare, f->twin, f->layouts}) Py_VISIT(each);
  return 0;
}

int function_clear(PyObject *object) {
  auto *f = reinterpret_cast<Function *>(object);
  Py_CLEAR(f->forward);
  Py_CLEAR(f->backward);
  Py_CLEAR(f->python);
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
