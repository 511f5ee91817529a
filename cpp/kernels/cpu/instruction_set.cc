#include "instruction_set.h"

#include <algorithm>
#include <atomic>

namespace jax_gnn::cpu {
namespace {

std::atomic<InstructionSet>& limit() {
  static std::atomic<InstructionSet> widest{widest_instruction_set()};
  return widest;
}

}  // namespace

InstructionSet widest_instruction_set() {
#ifdef JAX_GNN_VARIANTS
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl");
  if (avx2) return avx512 ? InstructionSet::kAvx512 : InstructionSet::kAvx2;
#endif
  return InstructionSet::kBaseline;
}

InstructionSet instruction_set() { return limit().load(std::memory_order_relaxed); }

void limit_instruction_set(InstructionSet widest) {
  limit().store(std::min(widest, widest_instruction_set()), std::memory_order_relaxed);
}

}  // namespace jax_gnn::cpu
