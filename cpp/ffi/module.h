// What a Python module of handlers is made of.
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

}  // namespace jax_gnn
