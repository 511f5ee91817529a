// Descriptions of matrices for Hopper's copy engine, the host's side of hopper.cuh.
//
// The driver makes them; it is found at run time, so that modules load where there is none.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hopper.cuh"

namespace jax_gnn::cuda {

template <typename T>
constexpr CUtensorMapDataType kMapType =
    std::is_same_v<T, float>    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
    : std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;

// Describes a matrix that is read in boxes of `box_rows` times `box_chunks` chunks.
template <typename T>
cudaError_t describe(const T* matrix, int64_t rows, int64_t columns, int box_rows, int box_chunks,
                     TensorMap& map) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static const Encode encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult status;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                         &status) != cudaSuccess ||
        status != cudaDriverEntryPointSuccess)
      entry = nullptr;
    return reinterpret_cast<Encode>(entry);
  }();
  if (encode == nullptr) return cudaErrorNotSupported;
  constexpr int64_t kPerChunk = kChunkBytes / sizeof(T);
  const bool whole = columns % kPerChunk == 0;
  const int64_t chunks = whole ? columns / kPerChunk : 1;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(whole ? kPerChunk : columns),
                               static_cast<cuuint64_t>(rows), static_cast<cuuint64_t>(chunks)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(columns) * sizeof(T), kChunkBytes};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(kPerChunk), static_cast<cuuint32_t>(box_rows),
                             static_cast<cuuint32_t>(whole ? box_chunks : 1)};
  const cuuint32_t steps[3] = {1, 1, 1};
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) &&
                alignof(TensorMap) % alignof(CUtensorMap) == 0);
  CUtensorMap encoded;
  const CUresult result =
      encode(&encoded, kMapType<T>, 3, const_cast<T*>(matrix), sizes, strides, box, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  std::memcpy(&map, &encoded, sizeof map);
  return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace jax_gnn::cuda
