// Memory of results, kept when a user lets go of a tensor: fresh memory costs a page fault every 4 KiB, more than most kernels that fill it.
//   adopt(cdata, shape, strides, item)   gives the empty CPU tensor at `cdata` memory for `item` bytes an element, not initialised
//   kept()                               bytes that wait to be used again
//   keep_at_most(bytes)                  lets go of what is more
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <c10/core/TensorImpl.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace {

constexpr size_t kHugePage = 1 << 21;
constexpr size_t kLine = 64;

struct Block {
  void *data;
  size_t size;
};

// One of the process, never destroyed: tensors may die after static objects.
struct Pool {
  std::mutex lock;
  std::vector<Block *> free;  // the oldest first
  size_t kept = 0, most = size_t(1) << 28;
  static constexpr size_t kMostBlocks = 64;

  // The newest block that is large enough, and not much larger.
  Block *take(size_t size) {
    std::lock_guard<std::mutex> held(lock);
    for (size_t i = free.size(); i-- > 0;) {
      Block *block = free[i];
      if (block->size < size || block->size - size > size / 8) continue;
      free.erase(free.begin() + i);
      kept -= block->size;
      return block;
    }
    return nullptr;
  }

  void give_back(Block *block) {
    std::lock_guard<std::mutex> held(lock);
    free.push_back(block);
    kept += block->size;
    shrink();
  }

  void shrink() {
    while (kept > most || free.size() > kMostBlocks) {
      Block *oldest = free.front();
      free.erase(free.begin());
      kept -= oldest->size;
      std::free(oldest->data);
      delete oldest;
    }
  }
};

Pool &pool() {
  static Pool &made = *new Pool;
  return made;
}

Block *fresh(size_t size) {
  void *data = nullptr;
  const bool large = size >= kHugePage;
  if (posix_memalign(&data, large ? kHugePage : kLine, size) != 0) return nullptr;
  if (large) madvise(data, size / kHugePage * kHugePage, MADV_HUGEPAGE);
  return new Block{data, size};
}

void give_back(void *block) { pool().give_back(static_cast<Block *>(block)); }

bool read(PyObject *tuple, std::vector<int64_t> &into) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++)
    into.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
  return !PyErr_Occurred();
}

PyObject *adopt(PyObject *, PyObject *args) {
  PyObject *cdata, *shape, *strides;
  long long item;
  if (!PyArg_ParseTuple(args, "OO!O!L", &cdata, &PyTuple_Type, &shape, &PyTuple_Type, &strides, &item)) return nullptr;
  auto *tensor = static_cast<c10::TensorImpl *>(PyLong_AsVoidPtr(cdata));
  std::vector<int64_t> sizes, steps;
  if (PyErr_Occurred() || !read(shape, sizes) || !read(strides, steps)) return nullptr;
  int64_t extent = 1;
  for (size_t i = 0; i < sizes.size(); i++) extent = sizes[i] == 0 || extent == 0 ? 0 : extent + (sizes[i] - 1) * steps[i];
  const size_t size = (size_t)extent * (size_t)item;
  Block *block = pool().take(size);
  if (block == nullptr) block = fresh(size);
  if (block == nullptr) return PyErr_NoMemory();
  c10::StorageImpl *storage = tensor->unsafe_storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(block->data, block, give_back, c10::Device(c10::DeviceType::CPU)));
  storage->set_nbytes(size);
  tensor->set_sizes_and_strides(sizes, steps);
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
                         {"kept", kept, METH_NOARGS, nullptr},
                         {"keep_at_most", keep_at_most, METH_O, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "memory", "Memory of results.", -1, methods,
                          nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_memory() {
  // A child that was forked while another thread held the lock could not take it.
  pthread_atfork([] { pool().lock.lock(); }, [] { pool().lock.unlock(); }, [] { pool().lock.unlock(); });
  return PyModule_Create(&module_def);
}
