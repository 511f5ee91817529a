// Parts of a Python module of handlers, which is a plain shared library, too.
#pragma once

#include <nanobind/nanobind.h>

#include <initializer_list>
#include <utility>

#include "xla/ffi/api/ffi.h"

namespace jax_gnn {

// A custom-call target of a function: its operands, results, attributes and context are those of
// the function's signature.
template <auto kFunction, xla::ffi::Traits... kTraits>
XLA_FFI_Error* handler(XLA_FFI_CallFrame* frame) {
  static const auto* const bound = xla::ffi::Ffi::BindTo(kFunction, {kTraits...}).release();
  return bound->Call(frame);
}

// A dict of target names to handlers, as jax.ffi.register_ffi_target wants them.
inline nanobind::dict targets(
    std::initializer_list<std::pair<const char*, XLA_FFI_Handler*>> handlers) {
  nanobind::dict result;
  for (const auto& [name, handler] : handlers) {
    result[name] = nanobind::capsule(reinterpret_cast<void*>(handler));
  }
  return result;
}

// The FFI version of the handlers: a jaxlib with an older one refuses them.
inline nanobind::tuple ffi_version() {
  return nanobind::make_tuple(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);
}

}  // namespace jax_gnn

// Makes a handler the C symbol jax_gnn_NAME, for whoever loads the library without importing it
// (docs/export.md). Not in an unnamed namespace, whose names are no symbols. Protected, as the
// other module has the same names, and both may be loaded into one scope.
#define JAX_GNN_SYMBOL(name, ...)                                                    \
  extern "C" __attribute__((visibility("protected"))) XLA_FFI_Error* jax_gnn_##name( \
      XLA_FFI_CallFrame* frame) {                                                    \
    return __VA_ARGS__(frame);                                                       \
  }
// The entry of a handler in the list that `targets` takes.
#define JAX_GNN_TARGET(name) {#name, jax_gnn_##name},
