// In place of CUDA's: the storage type and its conversions.
#pragma once

#include "../kernels/cpu/half.h"

struct __nv_bfloat16 {
  jax_gnn::cpu::BFloat16 value;
};
inline float __bfloat162float(__nv_bfloat16 x) { return jax_gnn::cpu::widen(x.value); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  return {jax_gnn::cpu::narrow<jax_gnn::cpu::BFloat16>(x)};
}
