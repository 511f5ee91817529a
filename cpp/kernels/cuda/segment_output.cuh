// The result's rows: how they are written, and which of them are empty. Needs a result whose rows
// are aligned to the word; promises that no row outside of [0, num_rows) is written.
#pragma once

#include "basics.cuh"
#include "pack.cuh"
#include "segment_messages.cuh"
#include "segment_ops.cuh"

namespace jax_gnn::cuda {
namespace {

// The result's rows, of which a lane writes one word.
template <typename T, class Op, typename Acc>
struct Output {
  T* out;
  int64_t num_rows, width;

  // Writes the lane's word of a row that is below `limit`; `lane_out` is out + column.first.
  __device__ __forceinline__ void store(T* lane_out, Index row, const Acc (&run)[Op::kParts],
                                        unsigned limit) const {
    Acc x[Op::kVec];
    Op::finish(run, x);
    if (static_cast<unsigned>(row) < limit)
      write(row_at(lane_out, row, static_cast<unsigned>(width) * static_cast<unsigned>(sizeof(T))),
            x);
  }
  __device__ __forceinline__ void store_empty(int64_t row, const Column& column) const {
    if (!column.active) return;
    Acc x[Op::kVec];
#pragma unroll
    for (int i = 0; i < Op::kVec; ++i) x[i] = Op::empty();
    write(out + row * width + column.first, x);
  }

 private:
  static __device__ __forceinline__ void write(T* address, const Acc (&x)[Op::kVec]) {
    Pack<T, Op::kVec> pack;
#pragma unroll
    for (int i = 0; i < Op::kVec; ++i) narrow(x[i], pack.at[i]);
    *reinterpret_cast<Pack<T, Op::kVec>*>(address) = pack;
  }
};

__device__ __forceinline__ bool is_row(int64_t row, int64_t num_rows) {
  return static_cast<uint64_t>(row) < static_cast<uint64_t>(num_rows);
}

// The entry farthest from `from`, towards either end, up to which all are valid, if beyond it none
// is. Called by whole warps.
__device__ __forceinline__ int64_t last_valid(const Csr<Index>& csr, int64_t from, bool forward) {
  const int direction = forward ? 1 : -1;
  int64_t valid = 0, invalid = forward ? csr.count - from : from + 1;  // distances
  while (invalid - valid > 1) {
    const int64_t step = ceil_div(invalid - valid, 32), probe = valid + step * (threadIdx.x % 32);
    const unsigned beyond = __ballot_sync(
        kWholeWarp, probe >= invalid || !is_row(csr.rows[from + direction * probe], csr.num_rows));
    const int top = beyond != 0 ? __ffs(beyond) - 2 : 31;
    valid += step * top;
    invalid = min(invalid, valid + step);
  }
  return from + direction * valid;
}

struct Range {
  int64_t first, last;
};

// The first and the last row that have entries, if there are any. Called by whole blocks.
__device__ __noinline__ Range rows_with_entries(Csr<Index> csr) {
  __shared__ int64_t found;
  const Index* rows = csr.rows;
  int64_t some = is_row(rows[0], csr.num_rows) ? 0 : csr.count - 1;
  if (!is_row(rows[some], csr.num_rows)) {  // padding at both ends: where is anything else?
    bool any = false;
    for (int64_t base = threadIdx.x; !any && base - threadIdx.x < csr.count;
         base += 8 * blockDim.x) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int64_t at = min(base + i * blockDim.x, csr.count - 1);
        if (is_row(rows[at], csr.num_rows)) {
          any = true;
          found = at;  // any of them will do
        }
      }
      any = __syncthreads_or(any);
    }
    if (!any) return {csr.num_rows, csr.num_rows};
    some = found;
  }
  return {rows[last_valid(csr, some, false)], rows[last_valid(csr, some, true)]};
}

// Where a kernel waits for the launch before it: at the start, or where it has read the ids. In
// the second case that launch must be one that does not let it start before all else has ended,
// and that does not write what it reads first.
enum class Start { kWaits, kReadsAhead };

// Makes all rows empty.
template <class Op, typename T, typename Acc>
__global__ void fill_kernel(Output<T, Op, Acc> output, Start next) {
  if (next == Start::kWaits) allow_next_launch();
  wait_for_previous_launch();
  if (next == Start::kReadsAhead) allow_next_launch();
  const int64_t size = output.num_rows * output.width;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < size;
       i += int64_t{gridDim.x} * blockDim.x)
    narrow(Op::empty(), output.out[i]);
}

}  // namespace
}  // namespace jax_gnn::cuda
