// What guards read of torch: metadata of tensors and the global state. All use of torch's C++ headers by the guards is here.
#pragma once

#include <Python.h>

#include <ATen/Context.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <c10/core/AutogradState.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <tuple>
#include <vector>

// Declared by hand: <ATen/autocast_mode.h> would bring every operator and 15 s of compile time.
namespace at::autocast {
TORCH_API at::ScalarType get_autocast_dtype(at::DeviceType device_type);
TORCH_API bool is_autocast_cache_enabled();
}  // namespace at::autocast

namespace dynfix {

// Where a Python tensor holds its TensorImpl; found by `calibrate`, since the object's layout is private to torch.
inline Py_ssize_t impl_offset = 0;

inline c10::TensorImpl* impl_of(PyObject* tensor) {
  return *reinterpret_cast<c10::TensorImpl**>(reinterpret_cast<char*>(tensor) + impl_offset);
}

// Finds the offset at which `tensor` holds `impl`; false if it is not among the first words of the object.
inline bool calibrate(PyObject* tensor, void* impl) {
  Py_ssize_t end = std::min<Py_ssize_t>(Py_TYPE(tensor)->tp_basicsize, 64);
  for (Py_ssize_t at = sizeof(PyObject); at + (Py_ssize_t)sizeof(void*) <= end; at += sizeof(void*)) {
    void* word;
    std::memcpy(&word, reinterpret_cast<char*>(tensor) + at, sizeof word);
    if (word == impl) {
      impl_offset = at;
      return true;
    }
  }
  return false;
}

// Expected metadata. A size or stride of -1 is open; packed[j] = i asks stride[j] == stride[i] * size[i] (-1: nothing).
struct TensorFacts {
  uint64_t keys;
  int dtype;
  int device_type;
  int device_index;
  bool requires_grad;
  bool has_packed;
  std::vector<int64_t> sizes, strides, packed;

  bool match(const c10::TensorImpl* t) const {
    if (t->key_set().raw_repr() != keys) return false;  // first: with these keys the reads below are plain fields
    c10::Device device = t->device();
    if ((int)c10::typeMetaToScalarType(t->dtype()) != dtype || t->requires_grad() != requires_grad ||
        (int)device.type() != device_type || (int)device.index() != device_index)
      return false;
    c10::IntArrayRef n = t->sizes(), s = t->strides();
    if (n.size() != sizes.size()) return false;
    for (size_t i = 0; i < sizes.size(); i++)
      if ((sizes[i] >= 0 && sizes[i] != n[i]) || (strides[i] >= 0 && strides[i] != s[i])) return false;
    if (has_packed)
      for (size_t i = 0; i < packed.size(); i++)
        if (packed[i] >= 0 && s[i] != s[packed[i]] * n[packed[i]]) return false;
    return true;
  }
};

// The bytes that a tensor spans. `space` is its storage where there is no memory (meta tensors), else null.
struct Span {
  const void* space;
  int device;
  uintptr_t start, end;
  bool written;

  bool operator<(const Span& o) const {
    return std::tie(space, device, start, end) < std::tie(o.space, o.device, o.start, o.end);
  }
};

// False for a tensor whose memory is not a plain strided storage.
inline bool span_of(const c10::TensorImpl* t, bool written, std::vector<Span>& out) {
  c10::DispatchKeySet keys = t->key_set();
  if (!t->has_storage() || keys.has(c10::DispatchKey::Python) || t->has_symbolic_sizes_strides()) return false;
  if (t->numel() == 0) return true;
  c10::IntArrayRef n = t->sizes(), s = t->strides();
  int64_t reach = 0;
  for (size_t i = 0; i < n.size(); i++) reach += (n[i] - 1) * s[i];
  const c10::StorageImpl* storage = t->unsafe_storage().unsafeGetStorageImpl();
  uintptr_t base = reinterpret_cast<uintptr_t>(storage->data());
  size_t item = t->itemsize();
  uintptr_t start = base + t->storage_offset() * item;
  c10::Device device = t->device();
  int place = (int)device.type() * 256 + device.index();
  out.push_back({base ? nullptr : storage, place, start, start + (reach + 1) * item, written});
  return true;
}

// Whether a written span meets any other one.
inline bool any_overlap(std::vector<Span>& spans) {
  std::sort(spans.begin(), spans.end());
  const Span* far = nullptr;        // of all spans so far in this space, the one that reaches furthest
  const Span* far_written = nullptr;
  for (const Span& now : spans) {
    if (far && (far->space != now.space || far->device != now.device)) far = far_written = nullptr;
    const Span* other = now.written ? far : far_written;
    if (other && other->end > now.start) return true;
    if (!far || now.end > far->end) far = &now;
    if (now.written && (!far_written || now.end > far_written->end)) far_written = &now;
  }
  return false;
}

constexpr c10::DeviceType kAutocastDevices[] = {
    c10::DeviceType::CPU, c10::DeviceType::CUDA, c10::DeviceType::XPU, c10::DeviceType::MPS, c10::DeviceType::HPU,
    c10::DeviceType::XLA, c10::DeviceType::IPU,  c10::DeviceType::MTIA, c10::DeviceType::MAIA, c10::DeviceType::PrivateUse1};

// All of the global state that GuardState reads, but for the modes on the two stacks (their number is here) and the forward-mode level.
struct State {
  uint64_t included, excluded;
  int64_t function_modes, dispatch_modes, forward_level;
  uint32_t flags;
  uint8_t default_dtype, fp16_reduction, bf16_reduction, cuda_precision, mkldnn_precision;
  uint8_t autocast_dtype[std::size(kAutocastDevices)];

  bool operator==(const State& o) const { return std::memcmp(this, &o, sizeof *this) == 0; }
};

// Legacy precision settings refuse to be read when they are mixed with the new ones: 255 stands for that.
template <typename Read>
uint8_t or_refused(Read read) {
  try {
    return (uint8_t)read();
  } catch (const c10::Error&) {
    return 255;
  }
}

// Matrix products alone: a kernel of ours may have their precision built in, all else goes to libraries, which read the setting at each call.
inline void read_precision(const at::Context& context, State& state) {
  auto of = [&](at::Float32Backend backend) {
    return or_refused([&] { return context.float32Precision(backend, at::Float32Op::MATMUL); });
  };
  state.cuda_precision = of(at::Float32Backend::CUDA);
  state.mkldnn_precision = of(at::Float32Backend::MKLDNN);
}

inline uint32_t read_flags(const at::Context& context) {
  const c10::AutogradState& autograd = c10::AutogradState::get_tls_state();
  uint32_t bits = 0;
  for (uint32_t bit : {
           (uint32_t)autograd.get_grad_mode(),
           (uint32_t)autograd.get_inference_mode(),
           (uint32_t)autograd.get_fw_grad_mode(),
           (uint32_t)at::autocast::is_autocast_cache_enabled(),
           (uint32_t)context.deterministicAlgorithms(),
           (uint32_t)context.deterministicAlgorithmsWarnOnly(),
           (uint32_t)context.deterministicFillUninitializedMemory(),
           (uint32_t)context.deterministicCuDNN(),
           (uint32_t)context.deterministicMkldnn(),
           (uint32_t)context.allowFP16ReductionCPU(),
       })
    bits = bits << 1 | (bit & 1);
  return bits << 4 | ((uint32_t)at::impl::PythonTorchFunctionTLS::get_disabled_state() & 15);
}

inline State read_state(int64_t forward_level) {
  State state;
  std::memset(&state, 0, sizeof state);  // padding too: states are compared as bytes
  const at::Context& context = at::globalContext();
  c10::impl::LocalDispatchKeySet local = c10::impl::tls_local_dispatch_key_set();
  state.included = local.included_.raw_repr();
  state.excluded = local.excluded_.raw_repr();
  state.function_modes = at::impl::PythonTorchFunctionTLS::stack_len();
  state.dispatch_modes = c10::impl::TorchDispatchModeTLS::stack_len();
  state.forward_level = forward_level;
  state.flags = read_flags(context);
  state.default_dtype = (uint8_t)c10::get_default_dtype_as_scalartype();
  state.fp16_reduction = (uint8_t)context.allowFP16ReductionCuBLAS();
  state.bf16_reduction = (uint8_t)context.allowBF16ReductionCuBLAS();
  size_t at = 0;
  for (c10::DeviceType device : kAutocastDevices) state.autocast_dtype[at++] = (uint8_t)at::autocast::get_autocast_dtype(device);
  read_precision(context, state);
  return state;
}

}  // namespace dynfix
