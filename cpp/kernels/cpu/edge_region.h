// Edge regions: a function of each entry of a sparse matrix, given as a list of instructions,
// between gathers and reductions. The interpreter runs an instruction over a block of entries that
// stays in the caches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../segments.h"
#include "parallel.h"

namespace jax_gnn::cpu {

// What numbers of an array are.
enum class Storage { kFloat, kDouble, kHalf, kBFloat16, kBool };

// What an entry reads or makes: a row of its own, of its row, of its column, or one of all.
enum class Access { kEdge, kRow, kCol, kAll };

// Instructions; the order is that of CODES in interpreter.py.
// clang-format off
#define JAX_GNN_UNARY_CODES(V)                                                                   \
  V(Abs) V(Ceil) V(Copy) V(Exp) V(Expm1) V(Floor) V(IsFinite) V(Log) V(Log1p) V(Logistic) V(Neg) \
  V(Not) V(Rsqrt) V(Sign) V(Softplus) V(Sqrt) V(Square) V(Tanh)
#define JAX_GNN_BINARY_CODES(V)                                                                  \
  V(Add) V(And) V(Div) V(Eq) V(Ge) V(Gt) V(Le) V(Lt) V(Max) V(Min) V(Mul) V(Ne) V(Or) V(Sub) V(Xor)
#define JAX_GNN_LIBRARY_CODES(V)                                                                 \
  V(Acos) V(Acosh) V(Asin) V(Asinh) V(Atan) V(Atanh) V(Cbrt) V(Cos) V(Cosh) V(Erf) V(Erfc)       \
  V(Exp2) V(Round) V(Sin) V(Sinh) V(Tan)
#define JAX_GNN_LIBRARY_BINARY_CODES(V) V(Atan2) V(Pow) V(Rem)
// clang-format on
#define JAX_GNN_CODE(name) k##name,
enum class Code {
  JAX_GNN_UNARY_CODES(JAX_GNN_CODE) JAX_GNN_BINARY_CODES(JAX_GNN_CODE)
      JAX_GNN_LIBRARY_CODES(JAX_GNN_CODE) JAX_GNN_LIBRARY_BINARY_CODES(JAX_GNN_CODE) kClamp,
  kSelect,
  kIntegerPow,  // params: the power
  kConstant,    // params: where its numbers start
  kTake,        // params: which number of the operand each one is
  kConcatenate,
  kReduce,  // params: 0 sum, 1 product, 2 maximum, 3 minimum; how many numbers make one
  kDot,     // params: numbers of the sum
  kOuter,   // all products of numbers of two operands
  kCount
};
#undef JAX_GNN_CODE

struct RegionInput {
  Access read;
  int64_t width;
  Storage storage;
};

// Places of an operand that a kTake reads one after the other, or, where `step` is 0, one of them.
struct Piece {
  int64_t from, to, count, step;
};

struct RegionStep {
  Code code;
  int64_t width;
  Storage storage;  // that a result is rounded to
  std::vector<int64_t> operands, params;
  std::vector<Piece> runs;  // of a kTake, where they are few
  bool varies;
  bool summed = false;  // of a kOuter that only sums over all entries read: it is never made
};

struct RegionOutput {
  int64_t result, value;  // numbers of a result and of the value that it is made of
  Access into;
  Reduce reduce;  // kSum, kMax or kMin, unless into is kEdge
  Storage storage;
  int64_t width;
};

struct RegionPlan;  // where values lie

// What becomes of an entry. Values are numbered: inputs, then steps.
struct RegionProgram {
  bool wide = false;  // computes in double
  std::vector<RegionInput> inputs;
  std::vector<RegionStep> steps;
  std::vector<RegionOutput> outputs;
  std::vector<double> numbers;
  std::shared_ptr<const RegionPlan> plan;

  int64_t width(int64_t value) const;
  bool varies(int64_t value) const;

  // Reads what interpreter.py has written. Returns what is wrong with it, if anything is: the
  // program is not to be run then.
  std::string read(const int64_t* code, int64_t size, const double* constants, int64_t count);
};

// Runs a program over entries; kRow is what csr.rows names, kCol what csr.cols does. An input has
// as many rows as there are of these, or one; so has a result, of which the program writes all.
void edge_region(const ParallelFor& parallel_for, const RegionProgram& program,
                 const Csr<int32_t>& csr, const void* const* inputs, void* const* results);

}  // namespace jax_gnn::cpu
