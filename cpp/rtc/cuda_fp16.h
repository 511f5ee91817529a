// In place of CUDA's, for a runtime compiler: the type in memory and its conversions.
#pragma once

struct __half {
  unsigned short bits;
};
__device__ __forceinline__ float __half2float(__half x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
}
__device__ __forceinline__ __half __float2half_rn(float x) {
  __half result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
}
