// The instruction sets that hot loops are compiled for, and the one choice among them, at run time:
// one portable binary has variants for AVX-512, AVX2 and the baseline.
#pragma once

#define JAX_GNN_INLINE inline __attribute__((always_inline))
#define JAX_GNN_LAMBDA __attribute__((always_inline))

#if defined(__x86_64__) && defined(__GNUC__) && !defined(JAX_GNN_BASELINE_ONLY)
#define JAX_GNN_VARIANTS
#endif

// Loops that the compiler turns into vectors are to have the widest, too. Clang gets each feature
// by its name: zig, which is clang, takes away what a processor's name brings.
#ifdef __clang__
#define JAX_GNN_AVX2 target("avx2,bmi,bmi2,f16c,fma,lzcnt,movbe")
#define JAX_GNN_AVX512                                                                      \
  target("avx2,bmi,bmi2,f16c,fma,lzcnt,movbe,avx512f,avx512bw,avx512cd,avx512dq,avx512vl"), \
      min_vector_width(512)
#else
#define JAX_GNN_AVX2 target("arch=x86-64-v3")
#define JAX_GNN_AVX512 target("arch=x86-64-v4,prefer-vector-width=512")
#endif

namespace jax_gnn::cpu {

enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

// The widest that has variants here and that this machine knows.
InstructionSet widest_instruction_set();

// The widest that may be used: at first, and at most, that of the machine.
InstructionSet instruction_set();

// Lets loops that start from now on use less than the machine has, for tests.
void limit_instruction_set(InstructionSet widest);

template <InstructionSet kSet>
struct Variant {
  static constexpr InstructionSet kInstructionSet = kSet;
#ifdef JAX_GNN_VARIANTS
  // Machines that have no wider set are old: their code is to compile fast.
  static constexpr bool kFewTiles = kSet == InstructionSet::kBaseline;
#else
  static constexpr bool kFewTiles = false;
#endif
};

template <typename Body>
#ifdef JAX_GNN_VARIANTS
__attribute__((cold))  // small: machines that have no wider set are old
#endif
void run_baseline(const Body& body) {
  body(Variant<InstructionSet::kBaseline>{});
}

#ifdef JAX_GNN_VARIANTS
template <typename Body>
__attribute__((JAX_GNN_AVX2)) void run_avx2(const Body& body) {
  body(Variant<InstructionSet::kAvx2>{});
}

template <typename Body>
__attribute__((JAX_GNN_AVX512)) void run_avx512(const Body& body) {
  body(Variant<InstructionSet::kAvx512>{});
}
#endif

// Calls body(Variant) in code for the widest instruction set that may be used, kWidest at most.
// What is to be compiled for it must be inlined: the body is a JAX_GNN_LAMBDA, and all of its loops
// are in functions that are JAX_GNN_INLINE.
template <InstructionSet kWidest, typename Body>
void with_instruction_set(const Body& body) {
#ifdef JAX_GNN_VARIANTS
  const InstructionSet set = instruction_set();
  if constexpr (kWidest >= InstructionSet::kAvx512)
    if (set >= InstructionSet::kAvx512) return run_avx512(body);
  if constexpr (kWidest >= InstructionSet::kAvx2)
    if (set >= InstructionSet::kAvx2) return run_avx2(body);
#endif
  run_baseline(body);
}

// For loops that memory limits: AVX-512 gains them nothing.
template <typename Body>
void with_vectors(const Body& body) {
  with_instruction_set<InstructionSet::kAvx2>(body);
}

}  // namespace jax_gnn::cpu
