// What is made of torch's own C++: autograd nodes (autograd_types.h) and products by the library (products.h).
#include "autograd_types.h"
#include "products.h"

namespace {

PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "torch_parts", "Autograd nodes and library calls.", -1, nullptr,
                          nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_torch_parts() {
  PyObject *module = PyModule_Create(&module_def);
  if (module == nullptr) return nullptr;
  saved_type = reinterpret_cast<PyTypeObject *>(PyType_FromSpec(&saved_spec));
  PyObject *function = PyType_FromSpec(&function_spec), *product = PyType_FromSpec(&product_spec);
  if (saved_type == nullptr || function == nullptr || product == nullptr) return nullptr;
  if (PyModule_AddObject(module, "Function", function) < 0 || PyModule_AddObject(module, "Product", product) < 0) return nullptr;
  return module;
}
