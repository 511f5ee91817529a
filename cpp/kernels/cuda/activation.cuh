// Activations, on one number at a time.
#pragma once

#include "../segment_matmul.h"
#include "basics.cuh"

namespace jax_gnn::cuda {
namespace {

// Called rather than copied for each number that a thread has, which takes long to compile.
template <typename Acc>
__device__ __noinline__ Acc exact_tanh(Acc x) {
  return tanh(x);
}

// tanh is as exact as tf32 and half types are, unless kExact.
template <bool kExact, typename Acc>
__device__ __forceinline__ Acc activated(Activation activation, Acc x) {
  const auto tanh_here = [](Acc y) -> Acc {
    if constexpr (kExact) {
      return exact_tanh(y);
    } else {
      return approximate_tanh(y);
    }
  };
  switch (activation) {
    case Activation::kNone:
      break;
    case Activation::kRelu:
      return x > 0 || x != x ? x : Acc(0);
    case Activation::kSilu:
      return x / 2 * (1 + tanh_here(x / 2));
    case Activation::kGelu:
      return x / 2 * (1 + tanh_here(Acc(0.7978845608028654) * (x + Acc(0.044715) * x * x * x)));
    case Activation::kTanh:
      return tanh_here(x);
  }
  return x;
}

}  // namespace
}  // namespace jax_gnn::cuda
