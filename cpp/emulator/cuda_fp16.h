// In place of CUDA's: the storage type and its conversions.
#pragma once

#include "../kernels/cpu/half.h"

struct __half {
  jax_gnn::cpu::Half value;
};
inline float __half2float(__half x) { return jax_gnn::cpu::widen(x.value); }
inline __half __float2half_rn(float x) { return {jax_gnn::cpu::narrow<jax_gnn::cpu::Half>(x)}; }
