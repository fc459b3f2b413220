// The lines of memory that a match reads, asked for all at once: between two calls the device's, or the kernels', work has pushed them out of the
// caches, and one after the other they take longer than all else that a call does on the host.
#pragma once

#include "guard_torch.h"

namespace dynfix {
namespace {

// Addresses of what a call once read. What is no longer there costs a line of the cache: nothing is read here.
class Lines {
 public:
  void add(const void* start, size_t bytes) {
    uintptr_t first = (uintptr_t)start & ~(kLine - 1);
    for (uintptr_t at = first; start && at < (uintptr_t)start + bytes && lines.size() < kMost; at += kLine) lines.push_back(at);
  }

  void add_object(PyObject* object, PyTypeObject* tensor_base) {
    add(object, 2 * kLine);
    if (PyDict_Check(object)) {
      PyDictObject* dict = (PyDictObject*)object;
      add(dict->ma_keys, std::min<size_t>(64 + 32 * dict->ma_used, 64 * kLine));
    } else if (PyObject_TypeCheck(object, tensor_base)) {
      add_tensor(impl_of(object));
    }
  }

  void add_facts(const TensorFacts& facts) {
    add(&facts, sizeof facts);
    for (const auto* each : {&facts.sizes, &facts.strides, &facts.packed}) add(each->data(), each->size() * sizeof(int64_t));
  }

  void finish() {
    std::sort(lines.begin(), lines.end());
    lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
  }

  void fetch() const {
    for (uintptr_t line : lines) __builtin_prefetch((const void*)line);
  }

 private:
  static constexpr uintptr_t kLine = 64;
  static constexpr size_t kMost = 1 << 14;

  void add_tensor(c10::TensorImpl* impl) {
    if (!impl) return;
    add(impl, sizeof *impl);
    add(impl->autograd_meta(), 2 * kLine);
    if (impl->has_storage()) add(impl->unsafe_storage().unsafeGetStorageImpl(), sizeof(c10::StorageImpl));
    const void* counter;  // the one member of a VariableVersion
    std::memcpy(&counter, &impl->version_counter(), sizeof counter);
    add(counter, sizeof(void*));
  }

  std::vector<uintptr_t> lines;
};

}  // namespace
}  // namespace dynfix
