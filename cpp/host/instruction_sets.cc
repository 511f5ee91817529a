#include <nanobind/stl/string.h>

#include <string>

#include "../kernels/cpu/instruction_set.h"
#include "functions.h"

namespace jax_gnn::host {
namespace {

// Names of cpu::InstructionSet, from the narrowest on.
constexpr const char* kInstructionSets[] = {"baseline", "AVX2", "AVX-512"};

nb::list instruction_sets() {
  nb::list names;
  for (int set = 0; set <= static_cast<int>(cpu::widest_instruction_set()); ++set)
    names.append(kInstructionSets[set]);
  return names;
}

void limit_instruction_set(const std::string& name) {
  for (int set = 0; set <= static_cast<int>(cpu::widest_instruction_set()); ++set)
    if (name == kInstructionSets[set])
      return cpu::limit_instruction_set(static_cast<cpu::InstructionSet>(set));
  throw nb::value_error("no such instruction set here");
}

}  // namespace

void define_instruction_sets(nb::module_& m) {
  m.def("instruction_sets", &instruction_sets,
        "Return the names of the instruction sets that this machine has, the narrowest first.");
  m.def("limit_instruction_set", &limit_instruction_set, nb::arg("name"),
        "Let kernels use this instruction set, or a narrower one where they have no variant for "
        "it. For tests.");
}

}  // namespace jax_gnn::host
