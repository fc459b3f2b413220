// Memory of results, kept when a user lets go of a tensor: fresh memory costs a page fault every 4 KiB, more than most kernels that fill it.
//   adopt(cdata, shape, strides, item)   gives the empty CPU tensor at `cdata` memory for `item` bytes an element, not initialised
//   zeros(cdata, shape, strides, item)   the same with zeros: pages that no one writes cost no memory
//   alone(cdata)                         whether nothing but one tensor object holds that tensor, and its memory came from here
//   library(more)                        library calls of this thread take memory for their results from here, until as many -1 as 1 came
//   kept()                               bytes that wait to be used again
//   keep_at_most(bytes)                  lets go of what is more
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <c10/core/Allocator.h>
#include <c10/core/TensorImpl.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <tuple>
#include <unordered_map>
#include <vector>

namespace {

constexpr size_t kHugePage = 1 << 21;
constexpr size_t kPage = 1 << 12;
constexpr size_t kRegion = size_t(1) << 28;  // of addresses, of which what is used takes memory

size_t rounded(size_t size, size_t unit) { return (std::max(size, size_t(1)) + unit - 1) / unit * unit; }

char *mapped(size_t size) {
  void *data = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  char *start = static_cast<char *>(data), *aligned = reinterpret_cast<char *>(rounded(reinterpret_cast<size_t>(start), kHugePage));
  if (aligned > start) munmap(start, aligned - start);
  munmap(aligned + size, start + kHugePage - aligned);
  madvise(aligned, size, MADV_HUGEPAGE);
  return aligned;
}

// One of the process, never destroyed: tensors may die after static objects. Free pieces beside each other are one piece, so that
// what small results leave serves large ones.
struct Pool {
  struct Piece {
    size_t size, dirty;  // dirty: bytes of it that were used before
    size_t freed;        // when, for the oldest to go first
  };
  using Place = std::tuple<bool, size_t, char *>;  // used ones first, of these the smallest

  std::mutex lock;
  std::map<char *, Piece> free;
  std::set<Place> by_size;
  std::unordered_map<char *, size_t> sizes;  // of what is in use
  std::set<char *> regions;                  // where pieces must not be joined
  size_t kept = 0, most = size_t(1) << 28, time = 0;

  static Place place(char *data, const Piece &piece) { return {piece.dirty < piece.size, piece.size, data}; }

  void add(char *data, Piece piece) {
    free.emplace(data, piece);
    by_size.insert(place(data, piece));
    kept += piece.dirty;
  }

  Piece remove(std::map<char *, Piece>::iterator found) {
    const Piece piece = found->second;
    by_size.erase(place(found->first, piece));
    kept -= piece.dirty;
    free.erase(found);
    return piece;
  }

  // The smallest piece that is large enough, one without fresh memory if there is one.
  char *find(size_t size) {
    for (const bool fresh : {false, true}) {
      const auto found = by_size.lower_bound({fresh, size, nullptr});
      if (found != by_size.end() && std::get<0>(*found) == fresh) return std::get<2>(*found);
    }
    return nullptr;
  }

  char *take(size_t size) {
    size = rounded(size, kPage);
    std::lock_guard<std::mutex> held(lock);
    char *data = find(size);
    if (data == nullptr) {
      size_t region = std::max(kRegion, rounded(size, kHugePage));
      data = mapped(region);
      if (data == nullptr) data = mapped(region = rounded(size, kHugePage));
      if (data == nullptr) return nullptr;
      regions.insert(data);
      add(data, {region, 0, 0});
    }
    const Piece piece = remove(free.find(data));
    if (piece.size > size) {
      const size_t rest = piece.size - size;  // the first bytes are those that were used
      add(data + size, {rest, piece.dirty > size ? std::min(piece.dirty - size, rest) : 0, piece.freed});
    }
    sizes[data] = size;
    return data;
  }

  void give_back(char *data) {
    std::lock_guard<std::mutex> held(lock);
    const auto used = sizes.find(data);
    Piece piece{used->second, used->second, ++time};
    sizes.erase(used);
    auto next = free.find(data + piece.size);
    if (next != free.end() && !regions.count(next->first)) {
      const Piece other = remove(next);
      piece.size += other.size;
      piece.dirty += other.dirty;
    }
    auto before = free.lower_bound(data);
    if (before != free.begin() && !regions.count(data)) {
      --before;
      if (before->first + before->second.size == data) {
        data = before->first;
        const Piece other = remove(before);
        piece.dirty += other.size;  // what is fresh before memory that was used counts as used
        piece.size += other.size;
      }
    }
    add(data, piece);
    shrink();
  }

  // Gives memory of the pieces that were freed first to the system; their addresses stay.
  void shrink() {
    while (kept > most) {
      auto oldest = free.end();
      for (auto it = free.begin(); it != free.end(); ++it)
        if (it->second.dirty && (oldest == free.end() || it->second.freed < oldest->second.freed)) oldest = it;
      if (oldest == free.end()) return;
      char *data = oldest->first;
      Piece piece = remove(oldest);
      const size_t less = std::min(piece.dirty, rounded(kept + piece.dirty - most, kPage));
      piece.dirty -= less;
      madvise(data + piece.dirty, less, MADV_DONTNEED);
      add(data, piece);
    }
  }
};

Pool &pool() {
  static Pool &made = *new Pool;
  return made;
}

void give_back(void *data) { pool().give_back(static_cast<char *>(data)); }

bool is_ours(void *data) {
  std::lock_guard<std::mutex> held(pool().lock);
  return pool().sizes.count(static_cast<char *>(data)) != 0;
}

constexpr size_t kLeast = 1 << 18;
const c10::Device kHost(c10::DeviceType::CPU);
thread_local long serving = 0;
c10::Allocator *torchs = nullptr;

void release(void *data) {
  if (data != nullptr && is_ours(data)) return give_back(data);
  torchs->raw_deleter()(data);
}

// torch's own, but for large tensors that library calls of programs make.
struct Serving final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    char *data = serving > 0 && size >= kLeast ? pool().take(size) : nullptr;
    return data == nullptr ? torchs->allocate(size) : c10::DataPtr(data, data, give_back, kHost);
  }
  bool is_simple_data_ptr(const c10::DataPtr &data) const override { return torchs->is_simple_data_ptr(data); }
  c10::DeleterFnPtr raw_deleter() const override { return torchs->raw_deleter() == nullptr ? nullptr : release; }
  void copy_data(void *to, const void *from, size_t count) const override { torchs->copy_data(to, from, count); }
};

struct Zeros {
  char *data;
  size_t size;
};

void unmap(void *held) {
  auto *zeros = static_cast<Zeros *>(held);
  munmap(zeros->data, zeros->size);
  delete zeros;
}

bool read(PyObject *tuple, std::vector<int64_t> &into) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++)
    into.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
  return !PyErr_Occurred();
}

// Memory for the empty tensor that the arguments name: `made` gives it.
template <typename Made>
PyObject *filled(PyObject *args, Made made) {
  PyObject *cdata, *shape, *strides;
  long long item;
  if (!PyArg_ParseTuple(args, "OO!O!L", &cdata, &PyTuple_Type, &shape, &PyTuple_Type, &strides, &item)) return nullptr;
  auto *tensor = static_cast<c10::TensorImpl *>(PyLong_AsVoidPtr(cdata));
  std::vector<int64_t> sizes, steps;
  if (PyErr_Occurred() || !read(shape, sizes) || !read(strides, steps)) return nullptr;
  int64_t extent = 1;
  for (size_t i = 0; i < sizes.size(); i++) extent = sizes[i] == 0 || extent == 0 ? 0 : extent + (sizes[i] - 1) * steps[i];
  const size_t size = (size_t)extent * (size_t)item;
  c10::DataPtr data = made(size);
  if (data.get() == nullptr) return PyErr_NoMemory();
  c10::StorageImpl *storage = tensor->unsafe_storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(std::move(data));
  storage->set_nbytes(size);
  tensor->set_sizes_and_strides(sizes, steps);
  Py_RETURN_NONE;
}

PyObject *adopt(PyObject *, PyObject *args) {
  return filled(args, [](size_t size) {
    char *data = pool().take(size);
    return c10::DataPtr(data, data, give_back, kHost);
  });
}

PyObject *zeros(PyObject *, PyObject *args) {
  return filled(args, [](size_t size) {
    size = rounded(size, kHugePage);
    char *data = mapped(size);
    if (data == nullptr) return c10::DataPtr(nullptr, kHost);
    return c10::DataPtr(data, new Zeros{data, size}, unmap, kHost);
  });
}

PyObject *alone(PyObject *, PyObject *cdata) {
  auto *tensor = static_cast<c10::TensorImpl *>(PyLong_AsVoidPtr(cdata));
  if (tensor == nullptr) return nullptr;
  const auto &storage = tensor->unsafe_storage();
  const bool ours = storage && storage.data_ptr().get_deleter() == give_back;
  return PyBool_FromLong(ours && storage.use_count() == 1 && c10::raw::intrusive_ptr::use_count(tensor) == 1);
}

PyObject *library(PyObject *, PyObject *more) {
  serving += PyLong_AsLong(more);
  if (PyErr_Occurred()) return nullptr;
  Py_RETURN_NONE;
}

PyObject *kept(PyObject *, PyObject *) {
  std::lock_guard<std::mutex> held(pool().lock);
  return PyLong_FromSize_t(pool().kept);
}

PyObject *keep_at_most(PyObject *, PyObject *bytes) {
  const size_t most = PyLong_AsSize_t(bytes);
  if (PyErr_Occurred()) return nullptr;
  std::lock_guard<std::mutex> held(pool().lock);
  pool().most = most;
  pool().shrink();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {{"adopt", adopt, METH_VARARGS, nullptr},
                         {"zeros", zeros, METH_VARARGS, nullptr},
                         {"alone", alone, METH_O, nullptr},
                         {"library", library, METH_O, nullptr},
                         {"kept", kept, METH_NOARGS, nullptr},
                         {"keep_at_most", keep_at_most, METH_O, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "memory", "Memory of results.", -1, methods,
                          nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_memory() {
  // A child that was forked while another thread held the lock could not take it.
  pthread_atfork([] { pool().lock.lock(); }, [] { pool().lock.unlock(); }, [] { pool().lock.unlock(); });
  torchs = c10::GetAllocator(c10::DeviceType::CPU);
  c10::SetAllocator(c10::DeviceType::CPU, new Serving);
  return PyModule_Create(&module_def);
}
