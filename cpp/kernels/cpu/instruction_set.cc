#include "instruction_set.h"

#include <algorithm>
#include <atomic>

#ifdef JAX_GNN_VARIANTS
#include <cpuid.h>
#endif

namespace jax_gnn::cpu {
namespace {

std::atomic<InstructionSet>& limit() {
  static std::atomic<InstructionSet> widest{widest_instruction_set()};
  return widest;
}

}  // namespace

InstructionSet widest_instruction_set() {
#ifdef JAX_GNN_VARIANTS
  // By hand, as zig's __builtin_cpu_supports knows of nothing.
  unsigned eax, ebx, ecx, edx, saved;
  const auto all = [](unsigned of, unsigned bits) { return (of & bits) == bits; };
  if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !all(ecx, bit_OSXSAVE | bit_AVX | bit_FMA))
    return InstructionSet::kBaseline;
  __asm__("xgetbv" : "=a"(saved), "=d"(edx) : "c"(0));  // registers that the system saves
  if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || !all(saved, 0x6) ||
      !all(ebx, bit_AVX2 | bit_BMI | bit_BMI2))
    return InstructionSet::kBaseline;
  constexpr unsigned kWide =
      bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
  if (all(saved, 0xe6) && all(ebx, kWide)) return InstructionSet::kAvx512;
  return InstructionSet::kAvx2;
#else
  return InstructionSet::kBaseline;
#endif
}

InstructionSet instruction_set() { return limit().load(std::memory_order_relaxed); }

void limit_instruction_set(InstructionSet widest) {
  limit().store(std::min(widest, widest_instruction_set()), std::memory_order_relaxed);
}

}  // namespace jax_gnn::cpu
