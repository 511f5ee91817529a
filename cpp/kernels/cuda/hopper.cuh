// Hopper's copy engine, barriers and matrix instructions, as far as the kernels here use them.
// Needs sm_90a, and for copies a TensorMap that the host has made. Promises nothing about order but
// what barriers and fences say; the kernels that use it are segment_matmul.cuh and
// segment_outer.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "basics.cuh"

// Whether code is compiled that has matrix instructions of Hopper, which no other GPU has, or its
// copy engine and barriers. A module for several GPUs has kernels without them, which trap.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define JAX_GNN_ON_HOPPER 1
#elif __CUDA_ARCH__ == 900
#error "Hopper's matrix instructions need the architecture 90a in the place of 90"
#else
#define JAX_GNN_ON_HOPPER 0
#endif
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define JAX_GNN_SINCE_HOPPER 1
#else
#define JAX_GNN_SINCE_HOPPER 0
#endif

namespace jax_gnn::cuda {

// Tiles lie in shared memory in chunks of 128 bytes a row, 16-byte units permuted by row: unit u of
// row r is found at u ^ r % 8 (CU_TENSOR_MAP_SWIZZLE_128B). Chunks are aligned to kChunkAlign.
constexpr int kChunkBytes = 128, kChunkAlign = 1024;

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// The first place for a chunk in a block's dynamic memory. An offset, not a cast of an integer:
// the compiler must see that the memory is shared, else it reads through generic addresses.
__device__ __forceinline__ unsigned char* first_chunk(unsigned char* dynamic) {
  return dynamic + (0u - shared_address(dynamic)) % kChunkAlign;
}

// --- Barriers in shared memory -------------------------------------------------------------------

struct Barrier {
  uint64_t state;

  __device__ __forceinline__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)),
                 "r"(arrivals)
                 : "memory");
  }
  __device__ __forceinline__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this)) : "memory");
  }
  // Arrives, and expects so many bytes from the copy engine.
  __device__ __forceinline__ void arrive_expecting(unsigned bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
        "r"(bytes)
        : "memory");
  }
  __device__ __forceinline__ void wait(unsigned parity) {
    asm volatile(
        "{\n .reg .pred done;\n"
        "wait_again:\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        " @!done bra wait_again;\n}" ::"r"(shared_address(this)),
        "r"(parity)
        : "memory");
  }
};

// Copies 16 or 4 bytes to shared memory, past L1 where it can; zeros where `valid`
// does not hold. *from is then not read.
template <int kBytes>
__device__ __forceinline__ void start_copy(unsigned to, const void* from, bool valid) {
  if constexpr (kBytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 4 : 0)
                 : "memory");
}
// Arrives, for this thread, once all copies that it has started so are there.
__device__ __forceinline__ void arrive_when_copied(Barrier& barrier) {
  asm volatile(
      "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(&barrier))
      : "memory");
}

// Until this thread's copies of 16 or 4 bytes are there.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Closes a group of copies: all since the last call. wait_for_copies_but waits until at most
// kGroups groups of this thread are under way.
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kGroups>
__device__ __forceinline__ void wait_for_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// A barrier of some of a block's warps; `id` 1 to 15.
template <int kThreads>
__device__ __forceinline__ void sync_some(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

__device__ __forceinline__ void make_barriers_visible() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// A ring of `stages` stages: which one comes next, and the parity that waits for it.
struct RingIndex {
  int stage = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void advance(int stages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// --- The copy engine -----------------------------------------------------------------------------

// Describes a matrix to the copy engine; written by the host (tensor_map.h), a CUtensorMap.
struct alignas(128) TensorMap {
  uint64_t opaque[16];
};

// Fetches the description before it is needed.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Copies the box of a matrix that begins at (row, column) to shared memory. A described matrix
// whose rows are whole chunks has the chunk of a row as a coordinate of its own, so that one copy,
// the cheaper the fewer there are, brings all of a tile's; else `chunk` is 0.
__device__ __forceinline__ void copy_box(const TensorMap& map, int column, int row, int chunk,
                                         void* to, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
      "l"(&map), "r"(column), "r"(row), "r"(chunk), "r"(shared_address(&barrier))
      : "memory");
}

// Copies kRows rows and kChunks chunks of a matrix with `columns` columns, from `column` on, which
// begins a chunk, to chunks in shared memory. What lies beyond the matrix comes as zeros.
template <typename T, int kRows, int kChunks>
class TileCopy {
 public:
  static constexpr int kBytes = kChunks * kRows * kChunkBytes;

  __device__ __forceinline__ TileCopy(const TensorMap& map, int columns, int column)
      : map_(map), column_(column), whole_(columns % kPerChunk == 0) {}
  __device__ __forceinline__ void operator()(int row, unsigned char* to, Barrier& barrier) const {
    if (whole_)
      copy_box(map_, 0, row, column_ / kPerChunk, to, barrier);
    else
      for (int chunk = 0; chunk < kChunks; ++chunk)
        copy_box(map_, column_ + chunk * kPerChunk, row, 0, to + chunk * kRows * kChunkBytes,
                 barrier);
  }

 private:
  static constexpr int kPerChunk = kChunkBytes / sizeof(T);
  const TensorMap& map_;
  const int column_;
  const bool whole_;  // rows are whole chunks
};

// Ids of the kMine rows that a warp reads, over its lanes: ids[i] is row 32 i + lane.
template <int kMine>
using RowIds = int[largest(kMine / 32, 1)];

// TileCopy of rows from anywhere, by all lanes of a warp: starts the copies of kMine of the kRows
// rows of a tile, from row `first` on, with these ids. Zeros for ids out of [0, num_rows) and
// beyond the row, whose bytes are a multiple of 16.
template <int kMine, int kRows, int kChunks, typename T>
__device__ __forceinline__ void start_rows(const T* matrix, int64_t num_rows, int columns,
                                           int column, const RowIds<kMine>& ids, int first,
                                           unsigned to) {
  constexpr int kUnits = kChunks * kChunkBytes / 16;  // of a row
  constexpr int kSlab = least(kMine, 32);             // rows whose ids one register has
  const int lane = threadIdx.x % 32;
  const unsigned row_bytes = columns * static_cast<unsigned>(sizeof(T));
  const unsigned first_byte = column * static_cast<unsigned>(sizeof(T));
#pragma unroll
  for (int i = 0; i < kMine / kSlab; ++i)
#pragma unroll(least(kSlab* kUnits / 32, 16))
    for (int step = 0; step < kSlab * kUnits / 32; ++step) {
      const int at = step * 32 + lane, unit = at % kUnits;
      const int id = __shfl_sync(kWholeWarp, ids[i], at / kUnits);
      const int row = first + i * kSlab + at / kUnits;
      const unsigned byte = first_byte + unit * 16;
      const bool valid = is_id(id, static_cast<unsigned>(num_rows)) && byte < row_bytes;
      const char* const from = reinterpret_cast<const char*>(matrix) +
                               (valid ? uint64_t{static_cast<unsigned>(id)} * row_bytes + byte : 0);
      start_copy<16>(to + (unit / 8 * kRows + row) * kChunkBytes + (unit % 8 ^ row % 8) * 16, from,
                     valid);
    }
}

// Copies from shared memory; addresses and `bytes` are multiples of 16. What was written by other
// threads must have been made visible to the copy engine by them.
__device__ __forceinline__ void copy_out(void* to, const void* from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void make_visible_to_copies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Until this thread's copies have read shared memory; until they have arrived.
__device__ __forceinline__ void wait_until_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
__device__ __forceinline__ void wait_until_written() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// `from` and `bytes` are multiples of 16.
__device__ __forceinline__ void prefetch_to_l2(const void* from, unsigned bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// --- Matrix instructions -------------------------------------------------------------------------

__device__ __forceinline__ void warpgroup_arrive() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void warpgroup_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void warpgroup_wait() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// The descriptor of a tile in chunks: rows of 128 bytes, permuted, groups of 8 rows 1024 bytes
// apart. Chunks of the same rows are `chunk_bytes` apart; it matters only where rows are summed
// over.
__device__ __forceinline__ uint64_t matrix_descriptor(const void* tile, int chunk_bytes = 16) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) |
         (static_cast<uint64_t>(chunk_bytes >> 4) << 16) | (shared_address(tile) >> 4 & 0x3fff);
}

// sum (64, kColumns) = a b, added to what is there if `adds`, by one warpgroup. T: float (taken as
// tf32), __half or __nv_bfloat16. Either a (64, 32 bytes) is in registers and b (32 bytes,
// kColumns) described as it lies transposed; or, of the half types, both are described as 16 rows
// of a tile each: the product of one, transposed, with the other.
template <typename T, int kColumns>
struct Multiply;

// The operands of an asm statement, and the statement for each type.
#define JAX_GNN_SUMS_8(i)                                                               \
  "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3]), "+f"(sum[i + 4]), \
      "+f"(sum[i + 5]), "+f"(sum[i + 6]), "+f"(sum[i + 7])
#define JAX_GNN_SUMS_32 JAX_GNN_SUMS_8(0), JAX_GNN_SUMS_8(8), JAX_GNN_SUMS_8(16), JAX_GNN_SUMS_8(24)
#define JAX_GNN_SUMS_64 \
  JAX_GNN_SUMS_32, JAX_GNN_SUMS_8(32), JAX_GNN_SUMS_8(40), JAX_GNN_SUMS_8(48), JAX_GNN_SUMS_8(56)
#define JAX_GNN_ADD_64(kind, last, left, left_text, ...)                                      \
  static __device__ __forceinline__ void add(float (&sum)[32], left, uint64_t b, bool adds) { \
    asm volatile(                                                                             \
        "{\n .reg .pred p;\n setp.ne.b32 p, %32, 0;\n"                                        \
        " wgmma.mma_async.sync.aligned.m64n64" kind                                           \
        " "                                                                                   \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "             \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, "         \
        "%31}, " left_text("34", "35", "36", "37") ", %33, p, 1, 1" last ";\n}"               \
        : JAX_GNN_SUMS_32                                                                     \
        : "r"(static_cast<int>(adds)), "l"(b), __VA_ARGS__);                                  \
  }
#define JAX_GNN_ADD_128(kind, last, left, left_text, ...)                                     \
  static __device__ __forceinline__ void add(float (&sum)[64], left, uint64_t b, bool adds) { \
    asm volatile(                                                                             \
        "{\n .reg .pred p;\n setp.ne.b32 p, %64, 0;\n"                                        \
        " wgmma.mma_async.sync.aligned.m64n128" kind                                          \
        " "                                                                                   \
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "             \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "    \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "    \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, "         \
        "%63}, " left_text("66", "67", "68", "69") ", %65, p, 1, 1" last ";\n}"               \
        : JAX_GNN_SUMS_64                                                                     \
        : "r"(static_cast<int>(adds)), "l"(b), __VA_ARGS__);                                  \
  }
#define JAX_GNN_REGISTERS(a, b, c, d) "{%" a ", %" b ", %" c ", %" d "}"
#define JAX_GNN_DESCRIPTOR(a, b, c, d) "%" a
#define JAX_GNN_ADD_REGISTERS(columns, kind, last)                                        \
  JAX_GNN_ADD_##columns(kind, last, const unsigned (&a)[4], JAX_GNN_REGISTERS, "r"(a[0]), \
                        "r"(a[1]), "r"(a[2]), "r"(a[3]))
#define JAX_GNN_MULTIPLY(columns)                                                                \
  template <>                                                                                    \
  struct Multiply<float, columns> {                                                              \
    JAX_GNN_ADD_REGISTERS(columns, "k8.f32.tf32.tf32", "")                                       \
  };                                                                                             \
  template <>                                                                                    \
  struct Multiply<__half, columns> {                                                             \
    JAX_GNN_ADD_REGISTERS(columns, "k16.f32.f16.f16", ", 0")                                     \
    JAX_GNN_ADD_##columns("k16.f32.f16.f16", ", 1, 1", uint64_t a, JAX_GNN_DESCRIPTOR, "l"(a))   \
  };                                                                                             \
  template <>                                                                                    \
  struct Multiply<__nv_bfloat16, columns> {                                                      \
    JAX_GNN_ADD_REGISTERS(columns, "k16.f32.bf16.bf16", ", 0")                                   \
    JAX_GNN_ADD_##columns("k16.f32.bf16.bf16", ", 1, 1", uint64_t a, JAX_GNN_DESCRIPTOR, "l"(a)) \
  }

JAX_GNN_MULTIPLY(64);
JAX_GNN_MULTIPLY(128);

#undef JAX_GNN_MULTIPLY
#undef JAX_GNN_ADD_REGISTERS
#undef JAX_GNN_DESCRIPTOR
#undef JAX_GNN_REGISTERS
#undef JAX_GNN_ADD_128
#undef JAX_GNN_ADD_64
#undef JAX_GNN_SUMS_64
#undef JAX_GNN_SUMS_32
#undef JAX_GNN_SUMS_8

}  // namespace jax_gnn::cuda
