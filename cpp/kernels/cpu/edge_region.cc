// Tasks take even shares of the entries, in blocks. Inputs of a block's entries are gathered, and
// values of all entries of a block lie one after another, so that an instruction is one long loop.
// What is the same for all entries is made once, ahead. The cut, and with it the order of sums,
// depends on sizes and ids alone: the same bits for any number of threads; and a value has the same
// bits in every program that makes it of the same instructions, as maxima are compared.
#include "edge_region.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "exp.h"
#include "half.h"
#include "pages.h"
#include "register_tile.h"
#include "segment_walk.h"
#include "vector.h"

namespace jax_gnn::cpu {

// --- Programs ------------------------------------------------------------------------------------

int64_t RegionProgram::width(int64_t value) const {
  const int64_t count = static_cast<int64_t>(inputs.size());
  return value < count ? inputs[value].width : steps[value - count].width;
}

bool RegionProgram::varies(int64_t value) const {
  const int64_t count = static_cast<int64_t>(inputs.size());
  return value < count ? inputs[value].read != Access::kAll : steps[value - count].varies;
}

namespace {

constexpr int64_t kMostNumbers = int64_t{1} << 24;  // of a row, and of what describes a program

// Reads a description number by number.
class Reader {
 public:
  Reader(const int64_t* code, int64_t size) : code_(code), size_(size) {}
  bool failed() const { return failed_; }
  bool done() const { return place_ == size_; }

  int64_t next(int64_t limit) {  // in [0, limit)
    if (place_ >= size_ || !in_range(code_[place_], limit)) {
      failed_ = true;
      return 0;
    }
    return code_[place_++];
  }
  int64_t power() {  // any
    if (place_ >= size_) failed_ = true;
    return failed_ ? 0 : code_[place_++];
  }
  template <typename Enum>
  Enum next_of(int64_t limit) {
    return static_cast<Enum>(next(limit));
  }

 private:
  const int64_t* code_;
  int64_t size_, place_ = 0;
  bool failed_ = false;
};

constexpr int64_t kStorages = 5, kAccesses = 4;

bool is_unary(Code code) { return code <= Code::kTanh; }
bool is_binary(Code code) { return code >= Code::kAdd && code <= Code::kXor; }
bool is_library(Code code) { return code >= Code::kAcos && code <= Code::kTan; }
bool is_library_binary(Code code) { return code >= Code::kAtan2 && code <= Code::kRem; }
bool is_elementwise(Code code) { return code <= Code::kIntegerPow; }

int64_t operands_of(Code code) {
  if (is_unary(code) || is_library(code) || code == Code::kIntegerPow) return 1;
  if (is_binary(code) || is_library_binary(code)) return 2;
  if (code == Code::kDot || code == Code::kOuter) return 2;
  if (code == Code::kClamp || code == Code::kSelect) return 3;
  if (code == Code::kConstant) return 0;
  return code == Code::kConcatenate ? -1 : 1;
}

int64_t params_of(Code code, int64_t width) {
  if (code == Code::kTake) return width;
  if (code == Code::kReduce) return 2;
  return code == Code::kDot || code == Code::kConstant || code == Code::kIntegerPow ||
                 code == Code::kRound
             ? 1
             : 0;
}

// What is wrong with a step, as numbers of operands go.
std::string fault_of(const RegionProgram& program, const RegionStep& step) {
  const auto width = [&](size_t i) { return program.width(step.operands[i]); };
  const std::vector<int64_t>& params = step.params;
  if (is_elementwise(step.code)) {
    for (size_t i = 0; i < step.operands.size(); ++i)
      if (width(i) != step.width) return "operands differ in width";
  } else if (step.code == Code::kConstant) {
    const int64_t count = static_cast<int64_t>(program.numbers.size());
    if (params[0] < 0 || params[0] > count - step.width) return "a constant is not there";
  } else if (step.code == Code::kTake) {
    for (const int64_t place : params)
      if (!in_range(place, width(0))) return "a place is not there";
  } else if (step.code == Code::kConcatenate) {
    int64_t sum = 0;
    for (size_t i = 0; i < step.operands.size(); ++i) sum += width(i);
    if (sum != step.width) return "parts are not the whole";
  } else if (step.code == Code::kReduce) {
    if (!in_range(params[0], 4) || !in_range(params[1], kMostNumbers) ||
        width(0) != step.width * params[1])
      return "a reduction is wrong";
  } else if (step.code == Code::kOuter) {
    if (step.width != width(0) * width(1)) return "a product is wrong";
  } else {
    if (params[0] < 1 || params[0] >= kMostNumbers || width(0) % params[0] != 0 ||
        width(1) % params[0] != 0 || step.width != width(0) / params[0] * (width(1) / params[0]) ||
        program.varies(step.operands[1]))
      return "a product is wrong";
  }
  return "";
}

// The runs of places; none where they are short.
std::vector<Piece> runs_of(const std::vector<int64_t>& places) {
  const int64_t width = static_cast<int64_t>(places.size());
  std::vector<Piece> runs;
  for (int64_t k = 0; k < width;) {
    Piece run = {places[k], k, 1, 1};
    if (k + 1 < width && places[k + 1] == places[k]) run.step = 0;
    while (k + run.count < width && places[k + run.count] == places[k] + run.count * run.step)
      ++run.count;
    runs.push_back(run);
    k += run.count;
  }
  if (static_cast<int64_t>(runs.size()) * 4 > width && width > 4) runs.clear();
  return runs;
}

// Finds the products that only sums over all entries read.
void find_summed(RegionProgram& program) {
  const int64_t count = static_cast<int64_t>(program.inputs.size());
  for (RegionStep& step : program.steps) step.summed = step.code == Code::kOuter && step.varies;
  const auto read = [&](int64_t value) {
    if (value >= count) program.steps[value - count].summed = false;
  };
  for (const RegionStep& step : program.steps)
    for (const int64_t operand : step.operands) read(operand);
  for (const RegionOutput& output : program.outputs)
    if (output.into != Access::kAll || output.reduce != Reduce::kSum) read(output.value);
}

// --- Where values lie ----------------------------------------------------------------------------

constexpr int64_t kBlockBytes = 64 << 10;     // of all values of a block
constexpr int64_t kProductBytes = 128 << 10;  // where matrices are read for each block
constexpr int64_t kLeastEntries = 8, kMostEntries = 512;
constexpr int64_t kPadding = 16;  // numbers: steps go past the end to whole vectors

int64_t padded(int64_t numbers) {
  return (numbers + kPadding - 1) / kPadding * kPadding + kPadding;
}

}  // namespace

// Varying values have a slot of a block's rows, which a later one takes over; shared ones a row,
// and a block of copies where a varying step reads them.
struct RegionPlan {
  int64_t entries;                  // of a block
  std::vector<int64_t> slots;       // of each value, its slot; -1: none
  std::vector<int64_t> places;      // of each slot, where it starts
  std::vector<int64_t> rows;        // of each shared value, where its row starts; -1 of others
  std::vector<bool> used;           // whether anything reads a value
  int64_t block_size, shared_size;  // numbers
  double cost;                      // scalar operations for an entry

  explicit RegionPlan(const RegionProgram& program) {
    const int64_t num_inputs = static_cast<int64_t>(program.inputs.size());
    const int64_t count = num_inputs + static_cast<int64_t>(program.steps.size());
    slots.assign(count, -1);
    rows.assign(count, -1);
    used.assign(count, false);
    std::vector<bool> expanded(count, false);
    constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
    std::vector<int64_t> last(count, -1);  // the step that reads it last
    bool products = false;
    for (size_t i = 0; i < program.steps.size(); ++i) {
      const RegionStep& step = program.steps[i];
      if (step.varies && (step.code == Code::kDot || step.summed)) products = true;
      for (size_t k = 0; k < step.operands.size(); ++k) {
        const int64_t operand = step.operands[k];
        used[operand] = true;
        last[operand] = step.summed ? kNever : std::max(last[operand], static_cast<int64_t>(i));
        if (step.varies && !(step.code == Code::kDot && k == 1)) expanded[operand] = true;
      }
    }
    for (const RegionOutput& output : program.outputs) {
      used[output.value] = expanded[output.value] = true;
      last[output.value] = kNever;
    }
    std::vector<int64_t> widths, free;
    const auto take_slot = [&](int64_t width) {
      for (size_t k = 0; k < free.size(); ++k)
        if (widths[free[k]] == width) {
          const int64_t slot = free[k];
          free.erase(free.begin() + static_cast<int64_t>(k));
          return slot;
        }
      widths.push_back(width);
      return static_cast<int64_t>(widths.size()) - 1;
    };
    shared_size = 0;
    cost = 0;
    for (int64_t value = 0; value < count; ++value) {
      if (program.varies(value)) continue;
      rows[value] = shared_size;
      shared_size += padded(program.width(value));
      if (expanded[value]) slots[value] = take_slot(program.width(value));
    }
    for (int64_t value = 0; value < num_inputs; ++value)
      if (used[value] && program.varies(value)) {
        slots[value] = take_slot(program.width(value));
        cost += static_cast<double>(program.width(value));
      }
    for (size_t i = 0; i < program.steps.size(); ++i) {
      const RegionStep& step = program.steps[i];
      if (!step.varies) continue;
      if (step.summed) {
        cost += static_cast<double>(step.width) / 4;
        continue;
      }
      const auto release = [&] {
        for (size_t k = 0; k < step.operands.size(); ++k) {
          const int64_t operand = step.operands[k];
          const bool again =
              std::find(step.operands.begin(), step.operands.begin() + static_cast<int64_t>(k),
                        operand) != step.operands.begin() + static_cast<int64_t>(k);
          if (!again && program.varies(operand) && last[operand] == static_cast<int64_t>(i))
            free.push_back(slots[operand]);
        }
      };
      if (is_elementwise(step.code)) release();  // results may lie where operands did
      slots[num_inputs + static_cast<int64_t>(i)] = take_slot(step.width);
      if (!is_elementwise(step.code)) release();
      double work = static_cast<double>(step.width);
      if (step.code == Code::kDot) work *= static_cast<double>(step.params[0]) / 4;
      if (step.code == Code::kReduce) work *= static_cast<double>(step.params[1]);
      if (is_library(step.code) || is_library_binary(step.code)) work *= 16;
      cost += work;
    }
    for (const RegionOutput& output : program.outputs) cost += static_cast<double>(output.width);
    int64_t all = 1;
    for (const int64_t width : widths) all += width;
    const int64_t bytes = products ? kProductBytes : kBlockBytes;
    entries = std::clamp(bytes / (all * (program.wide ? 8 : 4)), kLeastEntries, kMostEntries);
    if (products) entries = entries / kLeastEntries * kLeastEntries;  // whole tiles of rows
    block_size = 0;
    for (const int64_t width : widths) {
      places.push_back(block_size);
      block_size += padded(width * entries);
    }
  }
};

std::string RegionProgram::read(const int64_t* code, int64_t size, const double* constants,
                                int64_t count) {
  Reader reader(code, size);
  *this = {};
  numbers.assign(constants, constants + count);
  wide = reader.next(2) == 1;
  const int64_t num_inputs = reader.next(kMostNumbers), num_steps = reader.next(kMostNumbers),
                num_outputs = reader.next(kMostNumbers);
  const auto next_storage = [&] {
    const Storage storage = reader.next_of<Storage>(kStorages);
    return storage;
  };
  const auto fits = [&](Storage storage) {
    return storage == Storage::kBool || (storage == Storage::kDouble) == wide;
  };
  for (int64_t i = 0; i < num_inputs && !reader.failed(); ++i) {
    const Access access = reader.next_of<Access>(kAccesses);
    const int64_t width = reader.next(kMostNumbers);
    inputs.push_back({access, width, next_storage()});
    if (!fits(inputs.back().storage)) return "an input's numbers are of another type";
  }
  for (int64_t i = 0; i < num_steps && !reader.failed(); ++i) {
    RegionStep step;
    step.code = reader.next_of<Code>(static_cast<int64_t>(Code::kCount));
    step.width = reader.next(kMostNumbers);
    step.storage = next_storage();
    const int64_t num_operands = reader.next(kMostNumbers), wanted = operands_of(step.code);
    if (wanted >= 0 && num_operands != wanted) return "an instruction has other operands";
    step.varies = false;
    for (int64_t k = 0; k < num_operands && !reader.failed(); ++k) {
      step.operands.push_back(reader.next(num_inputs + i));
      step.varies = step.varies || (!reader.failed() && varies(step.operands.back()));
    }
    const int64_t num_params = reader.next(kMostNumbers);
    if (num_params != params_of(step.code, step.width)) return "an instruction has other params";
    for (int64_t k = 0; k < num_params && !reader.failed(); ++k)
      step.params.push_back(reader.power());
    if (reader.failed()) break;
    if (!fits(step.storage)) return "an instruction's numbers are of another type";
    const std::string fault = fault_of(*this, step);
    if (!fault.empty()) return fault;
    if (step.code == Code::kTake) step.runs = runs_of(step.params);
    steps.push_back(std::move(step));
  }
  for (int64_t i = 0; i < num_outputs && !reader.failed(); ++i) {
    RegionOutput output;
    output.result = reader.next(kMostNumbers);
    output.value = reader.next(num_inputs + num_steps);
    output.into = reader.next_of<Access>(kAccesses);
    constexpr Reduce kReduces[] = {Reduce::kSum, Reduce::kMax, Reduce::kMin};
    output.reduce = kReduces[reader.next(3)];
    output.storage = next_storage();
    if (reader.failed()) break;
    if (output.into == Access::kCol) return "what goes to columns is another program's";
    if (output.storage == Storage::kBool || !fits(output.storage))
      return "a result's numbers are of another type";
    output.width = width(output.value);
    outputs.push_back(output);
  }
  if (reader.failed() || !reader.done()) return "the description is cut off or goes on";
  find_summed(*this);
  plan = std::make_shared<const RegionPlan>(*this);
  return "";
}

namespace {

// --- Functions of numbers ------------------------------------------------------------------------

// Natural logarithms of all numbers: the mantissa's by a series in s = f / (2 + f), as in fdlibm's
// log (Sun Microsystems, 1993).
template <int kLanes, typename V>
JAX_GNN_INLINE V logarithm(V x) {
  using E = ExpOf<Element<V>>;
  using T = Element<V>;
  using Bits = Vector<typename E::Bits, kLanes>;
  using Signed = Vector<typename E::SignedBits, kLanes>;
  constexpr auto kUnit = typename E::SignedBits{1} << E::kMantissa;
  const Signed bits = bit_cast<Signed>(x);
  // Mantissas from the square root of a half to that of two.
  const Signed root = bit_cast<Signed>(broadcast<V>(T(0.70710678118654752440)));
  const Signed shifted = bits - root;
  const Signed power = shifted >> E::kMantissa;
  const V mantissa = bit_cast<V>(bit_cast<Bits>((shifted & (kUnit - 1)) + root));
  const V k = convert<V>(power), f = mantissa - T(1), s = f / (T(2) + f), z = s * s;
  V r;
  if constexpr (sizeof(T) == 4) {
    r = z *
        (T(0.66666662693) + z * (T(0.40000972152) + z * (T(0.28498786688) + z * T(0.24279078841))));
  } else {
    r = z * (T(6.666666666666735130e-01) +
             z * (T(3.999999999940941908e-01) +
                  z * (T(2.857142874366239149e-01) +
                       z * (T(2.222219843214978396e-01) +
                            z * (T(1.818357216161805012e-01) +
                                 z * (T(1.531383769920937332e-01) +
                                      z * T(1.479819860511658591e-01)))))));
  }
  const V half = T(0.5) * f * f;
  constexpr T kHigh = sizeof(T) == 4 ? T(6.9313812256e-01) : T(6.93147180369123816490e-01);
  constexpr T kLow = sizeof(T) == 4 ? T(9.0580006145e-06) : T(1.90821492927058770002e-10);
  V y = k * kHigh - ((half - (s * (half + r) + k * kLow)) - f);
  const V infinity = broadcast<V>(std::numeric_limits<T>::infinity());
  y = x < std::numeric_limits<T>::min() ? -infinity : y;  // 0, and what XLA's threads take for it
  y = x < T(0) ? infinity - infinity : y;
  return x - x == T(0) ? y : x < T(0) ? infinity - infinity : x;
}

// By W. Kahan: what a sum with 1 loses of x is lost of its logarithm likewise.
template <int kLanes, typename V>
JAX_GNN_INLINE V logarithm_of_more(V x) {
  using T = Element<V>;
  const V u = x + T(1), rest = u - T(1), y = logarithm<kLanes>(u);
  const V found = y * (x / rest);
  return rest == T(0) ? x : x - x == T(0) ? found : y;
}

// The larger one of x and 0, and the logarithm of 1 + exp(-|x|): that is 2 artanh(s), a series in
// s = u / (2 + u) for u = exp(-|x|). In float s is at most 1/3, and four terms are enough.
template <int kLanes, typename V>
JAX_GNN_INLINE V softplus(V x) {
  using T = Element<V>;
  const V zero = broadcast<V>(T(0)), u = exp<kLanes>(x < zero ? x : -x);
  const V positive = x < zero ? zero : x;
  if constexpr (sizeof(T) == 8) return positive + logarithm_of_more<kLanes>(u);
  const V s = u / (u + T(2)), z = s * s;
  const V rest = z * (T(0.3333332) + z * (T(0.20003835) + z * (T(0.14116978) + z * T(0.13433777))));
  return positive + T(2) * (s + s * rest);
}

template <int kLanes, typename V>
JAX_GNN_INLINE V exponential_less(V x) {
  using T = Element<V>;
  const V u = exp<kLanes>(x), rest = u - T(1), y = logarithm<kLanes>(u);
  const V found = rest * (x / y);
  const V whole = x * x > T(1) ? rest : found;
  return u == T(1) ? x : whole;
}

// After Cephes (S. L. Moshier): near 0 by polynomials.
template <int kLanes, typename V>
JAX_GNN_INLINE V hyperbolic_tangent(V x) {
  using T = Element<V>;
  const V magnitude = x < T(0) ? -x : x;
  const V t = exp<kLanes>(T(-2) * magnitude);
  V large = (T(1) - t) / (T(1) + t);
  large = x < T(0) ? -large : large;
  const V z = x * x;
  V small;
  if constexpr (sizeof(T) == 4) {
    V p = T(-5.70498872745e-3) * z + T(2.06390887954e-2);
    p = p * z + T(-5.37397155531e-2);
    p = p * z + T(1.33314422036e-1);
    p = p * z + T(-3.33332819422e-1);
    small = p * z * x + x;
  } else {
    const V p = (T(-9.64399179425052238628e-1) * z + T(-9.92877231001918586564e1)) * z +
                T(-1.61468768441708447952e3);
    const V q = ((z + T(1.12811678491632931402e2)) * z + T(2.23548839060100448583e3)) * z +
                T(4.84406305325125486048e3);
    small = p / q * z * x + x;
  }
  return magnitude < T(0.625) ? small : x == x ? large : x;
}

template <int kLanes, typename V>
JAX_GNN_INLINE V reciprocal_power(V x, int64_t power) {
  using T = Element<V>;
  V found = broadcast<V>(T(1)), square = x;
  for (uint64_t n = static_cast<uint64_t>(power < 0 ? -power : power); n != 0; n >>= 1) {
    if (n & 1) found *= square;
    square *= square;
  }
  return power < 0 ? T(1) / found : found;
}

template <typename V>
JAX_GNN_INLINE V smaller(V a, V b) {  // NaN wins
  return ((b < a) | (b != b)) ? b : a;
}

template <Code code, int kLanes, typename V>
JAX_GNN_INLINE V unary(V x) {
  using T = Element<V>;
  const V zero = broadcast<V>(T(0)), one = broadcast<V>(T(1));
  if constexpr (code == Code::kAbs) return x < zero ? -x : x + zero;
  if constexpr (code == Code::kCopy) return x;
  if constexpr (code == Code::kExp) return exp<kLanes>(x);
  if constexpr (code == Code::kExpm1) return exponential_less<kLanes>(x);
  if constexpr (code == Code::kIsFinite) return x - x == zero ? one : zero;
  if constexpr (code == Code::kLog) return logarithm<kLanes>(x);
  if constexpr (code == Code::kLog1p) return logarithm_of_more<kLanes>(x);
  if constexpr (code == Code::kLogistic) return one / (one + exp<kLanes>(-x));
  if constexpr (code == Code::kNeg) return -x;
  if constexpr (code == Code::kNot) return one - x;
  if constexpr (code == Code::kSign) return x > zero ? one : x < zero ? -one : x;
  if constexpr (code == Code::kSoftplus) return softplus<kLanes>(x);
  if constexpr (code == Code::kSquare) return x * x;
  if constexpr (code == Code::kTanh) return hyperbolic_tangent<kLanes>(x);
  return x;
}

template <Code code, typename V>
JAX_GNN_INLINE V binary(V a, V b) {
  using T = Element<V>;
  const V zero = broadcast<V>(T(0)), one = broadcast<V>(T(1));
  if constexpr (code == Code::kAdd) return a + b;
  if constexpr (code == Code::kAnd) return a * b;
  if constexpr (code == Code::kDiv) return a / b;
  if constexpr (code == Code::kEq) return a == b ? one : zero;
  if constexpr (code == Code::kGe) return a >= b ? one : zero;
  if constexpr (code == Code::kGt) return a > b ? one : zero;
  if constexpr (code == Code::kLe) return a <= b ? one : zero;
  if constexpr (code == Code::kLt) return a < b ? one : zero;
  if constexpr (code == Code::kMax || code == Code::kOr) return larger(a, b);
  if constexpr (code == Code::kMin) return smaller(a, b);
  if constexpr (code == Code::kMul) return a * b;
  if constexpr (code == Code::kNe || code == Code::kXor) return a != b ? one : zero;
  if constexpr (code == Code::kSub) return a - b;
  return a;
}

template <Code code, typename T>
JAX_GNN_INLINE T library(T x, int64_t mode) {
  if constexpr (code == Code::kAcos) return std::acos(x);
  if constexpr (code == Code::kAcosh) return std::acosh(x);
  if constexpr (code == Code::kAsin) return std::asin(x);
  if constexpr (code == Code::kAsinh) return std::asinh(x);
  if constexpr (code == Code::kAtan) return std::atan(x);
  if constexpr (code == Code::kAtanh) return std::atanh(x);
  if constexpr (code == Code::kCbrt) return std::cbrt(x);
  if constexpr (code == Code::kCos) return std::cos(x);
  if constexpr (code == Code::kCosh) return std::cosh(x);
  if constexpr (code == Code::kErf) return std::erf(x);
  if constexpr (code == Code::kErfc) return std::erfc(x);
  if constexpr (code == Code::kExp2) return std::exp2(x);
  if constexpr (code == Code::kRound) return mode == 0 ? std::round(x) : std::nearbyint(x);
  if constexpr (code == Code::kSin) return std::sin(x);
  if constexpr (code == Code::kSinh) return std::sinh(x);
  if constexpr (code == Code::kTan) return std::tan(x);
  return x;
}

template <Code code, typename T>
JAX_GNN_INLINE T library(T a, T b) {
  if constexpr (code == Code::kAtan2) return std::atan2(a, b);
  if constexpr (code == Code::kPow) return std::pow(a, b);
  if constexpr (code == Code::kRem) return std::fmod(a, b);
  return a;
}

// --- Steps ---------------------------------------------------------------------------------------

// Rounds numbers to what a half type holds.
template <typename T, int kLanes, typename Acc>
JAX_GNN_INLINE void round_to(Acc* x, int64_t count) {
  if constexpr (sizeof(Acc) == 4)
    for (int64_t i = 0; i < count; i += kLanes)
      store<kLanes>(x + i, rounded<T, kLanes>(load<kLanes>(x + i)));
}

// Rows are too short for a call of memcpy.
template <typename Acc>
JAX_GNN_INLINE void copy_row(const Acc* from, Acc* to, int64_t width) {
  constexpr int kLanes = 32 / static_cast<int>(sizeof(Acc));
  int64_t k = 0;
  for (; k + kLanes <= width; k += kLanes) store<kLanes>(to + k, load<kLanes>(from + k));
  for (; k < width; ++k) to[k] = from[k];
}

template <typename Acc>
JAX_GNN_INLINE void fill_row(Acc value, Acc* to, int64_t width) {
  constexpr int kLanes = 32 / static_cast<int>(sizeof(Acc));
  int64_t k = 0;
  for (; k + kLanes <= width; k += kLanes)
    store<kLanes>(to + k, broadcast<Vector<Acc, kLanes>>(value));
  for (; k < width; ++k) to[k] = value;
}

template <typename Acc>
JAX_GNN_INLINE void take_rows(const RegionStep& step, const Acc* from, int64_t from_width, Acc* to,
                              int64_t count) {
  const int64_t width = step.width;
  const int64_t* const places = step.params.data();
  for (const Piece& run : step.runs) {
    if (run.step == 1) {
      for (int64_t e = 0; e < count; ++e)
        copy_row(from + e * from_width + run.from, to + e * width + run.to, run.count);
    } else {
      for (int64_t e = 0; e < count; ++e)
        fill_row(from[e * from_width + run.from], to + e * width + run.to, run.count);
    }
  }
  if (!step.runs.empty()) return;
  for (int64_t e = 0; e < count; ++e)
    for (int64_t k = 0; k < width; ++k) to[e * width + k] = from[e * from_width + places[k]];
}

template <int kLanes, typename Acc, typename Combine>
JAX_GNN_INLINE void reduce_rows(const Acc* from, int64_t n, Acc* to, int64_t rows, Acc start,
                                const Combine& combine) {
  using V = Vector<Acc, kLanes>;
  for (int64_t r = 0; r < rows; ++r) {
    const Acc* const row = from + r * n;
    Acc found = start;
    int64_t k = 0;
    if (n >= kLanes) {
      V lanes = load<kLanes>(row);
      for (k = kLanes; k + kLanes <= n; k += kLanes) lanes = combine(lanes, load<kLanes>(row + k));
      Acc each[kLanes];
      store<kLanes>(each, lanes);
      for (int lane = 0; lane < kLanes; ++lane) found = combine(found, each[lane]);
    }
    for (; k < n; ++k) found = combine(found, row[k]);
    to[r] = found;
  }
}

// to = (kAdds ? to : 0) + x w for (rows, k) and (k, n) matrices that lie row by row; x across where
// kAcross. Each number is a sum in the order of k, of as many terms in all tiles.
template <typename Tile, bool kAcross, bool kAdds, typename Acc>
JAX_GNN_INLINE void multiply_tiles(const Acc* x, const Acc* w, Acc* to, int64_t rows, int64_t k,
                                   int64_t n) {
  constexpr int64_t kLanes = Tile::template kLanes<Acc>, kColumns = Tile::template kColumns<Acc>;
  static constexpr Acc kZeros[kColumns] = {};
  const int64_t stride = kAcross ? rows : k;
  int64_t column = 0;
  while (column + kLanes <= n) {
    const bool narrow = column + kColumns > n;
    for (int64_t r = 0; r < rows;)
      r += with_tile<Tile::kRows>(rows - r, narrow, [&](auto height, auto vectors) JAX_GNN_LAMBDA {
        const Rows<Acc> out = {to + r * n + column, n};
        const Rows<const Acc> init =
            kAdds ? Rows<const Acc>{out.data, n} : Rows<const Acc>{kZeros, 0};
        multiply_tile<Tile, decltype(height)::value, decltype(vectors)::value>(
            Factor<Acc, kAcross>{kAcross ? x + r : x + r * k, stride}, w + column, n, k, init, out,
            x);
      });
    column += narrow ? kLanes : kColumns;
  }
  if (column == n) return;
  // What is less than a vector.
  if constexpr (Tile::kBytes > 16) {
    using Half = RegisterTile<Tile::kBytes / 2, Tile::kRows / 2>;
    constexpr int kHalf = Half::template kLanes<Acc>;
    if (column + kHalf <= n) {
      for (int64_t r = 0; r < rows;)
        r += with_tile<Half::kRows>(rows - r, true, [&](auto height, auto) JAX_GNN_LAMBDA {
          const Rows<Acc> out = {to + r * n + column, n};
          const Rows<const Acc> init =
              kAdds ? Rows<const Acc>{out.data, n} : Rows<const Acc>{kZeros, 0};
          multiply_tile<Half, decltype(height)::value, 1>(
              Factor<Acc, kAcross>{kAcross ? x + r : x + r * k, stride}, w + column, n, k, init,
              out, x);
        });
      column += kHalf;
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    Acc* const row = to + r * n;
    if (!kAdds) std::fill(row + column, row + n, Acc(0));
    for (int64_t i = 0; i < k; ++i) {
      const Acc factor = kAcross ? x[i * rows + r] : x[r * k + i];
      for (int64_t c = column; c < n; ++c) row[c] += factor * w[i * n + c];
    }
  }
}

// Products gain from all that AVX-512 has.
template <bool kAcross, bool kAdds, typename Acc>
void multiply(const Acc* x, const Acc* w, Acc* to, int64_t rows, int64_t k, int64_t n) {
  with_instruction_set<InstructionSet::kAvx512>([&](auto variant) JAX_GNN_LAMBDA {
    multiply_tiles<TileOf<decltype(variant)::kInstructionSet>, kAcross, kAdds>(x, w, to, rows, k,
                                                                               n);
  });
}

// All products of numbers of two rows.
template <int kLanes, typename Acc>
JAX_GNN_INLINE void multiply_all(const Acc* x, int64_t m, const Acc* y, int64_t n, Acc* to,
                                 int64_t count) {
  using V = Vector<Acc, kLanes>;
  for (int64_t r = 0; r < count * m; ++r) {
    const Acc factor = x[r];
    const Acc* const row = y + r / m * n;
    int64_t c = 0;
    for (; c + kLanes <= n; c += kLanes)
      store<kLanes>(to + r * n + c, broadcast<V>(factor) * load<kLanes>(row + c));
    for (; c < n; ++c) to[r * n + c] = factor * row[c];
  }
}

// Runs a step over `count` rows of values, which are at `at`; shared ones at `rows`.
template <int kLanes, typename Acc>
JAX_GNN_INLINE void run_step(const RegionProgram& program, const RegionStep& step, Acc* const* at,
                             Acc* const* rows, Acc* to, int64_t count) {
  const int64_t width = step.width, total = count * width;
  const auto operand = [&](size_t i) JAX_GNN_LAMBDA { return at[step.operands[i]]; };
  const auto for_each = [&](const auto& body) JAX_GNN_LAMBDA {
    for (int64_t i = 0; i < total; i += kLanes) store<kLanes>(to + i, body(i));
  };
  switch (step.code) {
#define JAX_GNN_CASE(name)                                                                        \
  case Code::k##name: {                                                                           \
    const Acc* const a = operand(0);                                                              \
    if constexpr (Code::k##name == Code::kCeil) {                                                 \
      for (int64_t i = 0; i < total; ++i) to[i] = std::ceil(a[i]);                                \
    } else if constexpr (Code::k##name == Code::kFloor) {                                         \
      for (int64_t i = 0; i < total; ++i) to[i] = std::floor(a[i]);                               \
    } else if constexpr (Code::k##name == Code::kSqrt) {                                          \
      for (int64_t i = 0; i < total; ++i) to[i] = std::sqrt(a[i]);                                \
    } else if constexpr (Code::k##name == Code::kRsqrt) {                                         \
      for (int64_t i = 0; i < total; ++i) to[i] = 1 / std::sqrt(a[i]);                            \
    } else {                                                                                      \
      for_each([&](int64_t i)                                                                     \
                   JAX_GNN_LAMBDA { return unary<Code::k##name, kLanes>(load<kLanes>(a + i)); }); \
    }                                                                                             \
    break;                                                                                        \
  }
    JAX_GNN_UNARY_CODES(JAX_GNN_CASE)
#undef JAX_GNN_CASE
#define JAX_GNN_CASE(name)                                                    \
  case Code::k##name: {                                                       \
    const Acc *const a = operand(0), *const b = operand(1);                   \
    for_each([&](int64_t i) JAX_GNN_LAMBDA {                                  \
      return binary<Code::k##name>(load<kLanes>(a + i), load<kLanes>(b + i)); \
    });                                                                       \
    break;                                                                    \
  }
    JAX_GNN_BINARY_CODES(JAX_GNN_CASE)
#undef JAX_GNN_CASE
#define JAX_GNN_CASE(name)                                                          \
  case Code::k##name: {                                                             \
    const Acc* const a = operand(0);                                                \
    const int64_t mode = step.params.empty() ? 0 : step.params[0];                  \
    for (int64_t i = 0; i < total; ++i) to[i] = library<Code::k##name>(a[i], mode); \
    break;                                                                          \
  }
    JAX_GNN_LIBRARY_CODES(JAX_GNN_CASE)
#undef JAX_GNN_CASE
#define JAX_GNN_CASE(name)                                                          \
  case Code::k##name: {                                                             \
    const Acc *const a = operand(0), *const b = operand(1);                         \
    for (int64_t i = 0; i < total; ++i) to[i] = library<Code::k##name>(a[i], b[i]); \
    break;                                                                          \
  }
    JAX_GNN_LIBRARY_BINARY_CODES(JAX_GNN_CASE)
#undef JAX_GNN_CASE
    case Code::kClamp: {
      const Acc *const low = operand(0), *const x = operand(1), *const high = operand(2);
      for_each([&](int64_t i) JAX_GNN_LAMBDA {
        return smaller(larger(load<kLanes>(x + i), load<kLanes>(low + i)), load<kLanes>(high + i));
      });
      break;
    }
    case Code::kSelect: {
      const Acc *const which = operand(0), *const no = operand(1), *const yes = operand(2);
      for_each([&](int64_t i) JAX_GNN_LAMBDA {
        return load<kLanes>(which + i) != Acc(0) ? load<kLanes>(yes + i) : load<kLanes>(no + i);
      });
      break;
    }
    case Code::kIntegerPow: {
      const Acc* const a = operand(0);
      const int64_t power = step.params[0];
      for_each([&](int64_t i)
                   JAX_GNN_LAMBDA { return reciprocal_power<kLanes>(load<kLanes>(a + i), power); });
      break;
    }
    case Code::kConstant:
      for (int64_t k = 0; k < width; ++k)
        to[k] = static_cast<Acc>(program.numbers[static_cast<size_t>(step.params[0] + k)]);
      break;
    case Code::kTake:
      take_rows(step, operand(0), program.width(step.operands[0]), to, count);
      break;
    case Code::kConcatenate: {
      int64_t first = 0;
      for (size_t i = 0; i < step.operands.size(); ++i) {
        const int64_t part = program.width(step.operands[i]);
        const Acc* const from = operand(i);
        for (int64_t e = 0; e < count; ++e) copy_row(from + e * part, to + e * width + first, part);
        first += part;
      }
      break;
    }
    case Code::kReduce: {
      const Acc* const a = operand(0);
      const int64_t n = step.params[1];
      constexpr Acc kInfinity = std::numeric_limits<Acc>::infinity();
      if (step.params[0] == 0)
        reduce_rows<kLanes>(a, n, to, total, Acc(0),
                            [](auto x, auto y) JAX_GNN_LAMBDA { return x + y; });
      else if (step.params[0] == 1)
        reduce_rows<kLanes>(a, n, to, total, Acc(1),
                            [](auto x, auto y) JAX_GNN_LAMBDA { return x * y; });
      else if (step.params[0] == 2)
        reduce_rows<kLanes>(a, n, to, total, -kInfinity,
                            [](auto x, auto y) JAX_GNN_LAMBDA { return larger(x, y); });
      else
        reduce_rows<kLanes>(a, n, to, total, kInfinity,
                            [](auto x, auto y) JAX_GNN_LAMBDA { return smaller(x, y); });
      break;
    }
    case Code::kDot: {
      const int64_t k = step.params[0], n = program.width(step.operands[1]) / k;
      const int64_t outer = program.width(step.operands[0]) / k;
      multiply<false, false>(operand(0), rows[step.operands[1]], to, count * outer, k, n);
      break;
    }
    case Code::kOuter:
      multiply_all<kLanes>(operand(0), program.width(step.operands[0]), operand(1),
                           program.width(step.operands[1]), to, count);
      break;
    case Code::kCount:
      break;
  }
  if (step.storage == Storage::kHalf) round_to<Half, kLanes>(to, total);
  if (step.storage == Storage::kBFloat16) round_to<BFloat16, kLanes>(to, total);
}

// --- Arrays --------------------------------------------------------------------------------------

// Calls body(T*) with the type of numbers.
template <typename Acc, typename Body>
JAX_GNN_INLINE void with_type(Storage storage, const Body& body) {
  if constexpr (sizeof(Acc) == 8) {
    storage == Storage::kBool ? body(static_cast<uint8_t*>(nullptr))
                              : body(static_cast<double*>(nullptr));
  } else {
    switch (storage) {
      case Storage::kHalf:
        return body(static_cast<Half*>(nullptr));
      case Storage::kBFloat16:
        return body(static_cast<BFloat16*>(nullptr));
      case Storage::kBool:
        return body(static_cast<uint8_t*>(nullptr));
      default:
        return body(static_cast<float*>(nullptr));
    }
  }
}

template <typename Acc, typename T>
JAX_GNN_INLINE void read_row(const T* from, Acc* to, int64_t width) {
  if constexpr (std::is_same_v<T, Acc>) {
    copy_row(from, to, width);
  } else if constexpr (std::is_same_v<T, uint8_t>) {
    for (int64_t k = 0; k < width; ++k) to[k] = from[k] != 0 ? Acc(1) : Acc(0);
  } else {
    for (int64_t k = 0; k < width; ++k) to[k] = widen(from[k]);
  }
}

template <typename Acc, typename T>
JAX_GNN_INLINE void write_row(const Acc* from, T* to, int64_t width) {
  if constexpr (std::is_same_v<T, Acc>) {
    copy_row(from, to, width);
  } else if constexpr (!std::is_same_v<T, uint8_t>) {
    for (int64_t k = 0; k < width; ++k) to[k] = narrow<T>(from[k]);
  }
}

template <typename Acc>
JAX_GNN_INLINE void write(const RegionOutput& output, void* const* results, int64_t row,
                          const Acc* from) {
  with_type<Acc>(output.storage, [&](auto* type) JAX_GNN_LAMBDA {
    using T = std::remove_pointer_t<decltype(type)>;
    write_row(from, static_cast<T*>(results[output.result]) + row * output.width, output.width);
  });
}

template <typename Acc>
Acc start_of(Reduce reduce) {
  constexpr Acc kInfinity = std::numeric_limits<Acc>::infinity();
  return reduce == Reduce::kSum ? Acc(0) : reduce == Reduce::kMax ? -kInfinity : kInfinity;
}

// sum = (fresh ? nothing : sum) and `count` rows, feature by feature. Many columns at a time: rows
// of a sparse matrix are short, and the end of a loop over them is a branch that no processor
// foresees.
template <int kLanes, typename Acc>
JAX_GNN_INLINE void add_rows(Reduce reduce, bool fresh, Acc* sum, const Acc* from, int64_t count,
                             int64_t width) {
  using V = Vector<Acc, kLanes>;
  const Acc start = start_of<Acc>(reduce);
  const auto with = [&](const auto& combine) JAX_GNN_LAMBDA {
    int64_t k = 0;
    const auto cover = [&](auto vectors) JAX_GNN_LAMBDA {
      constexpr int kVectors = decltype(vectors)::value;
      for (; k + kVectors * kLanes <= width; k += kVectors * kLanes) {
        V found[kVectors];
        unrolled<kVectors>([&](int v) JAX_GNN_LAMBDA {
          found[v] = fresh ? broadcast<V>(start) : load<kLanes>(sum + k + v * kLanes);
        });
        for (int64_t e = 0; e < count; ++e)
          unrolled<kVectors>([&](int v) JAX_GNN_LAMBDA {
            found[v] = combine(found[v], load<kLanes>(from + e * width + k + v * kLanes));
          });
        unrolled<kVectors>([&](int v)
                               JAX_GNN_LAMBDA { store<kLanes>(sum + k + v * kLanes, found[v]); });
      }
    };
    if constexpr (kLanes > 1) cover(std::integral_constant<int, 8>{});
    cover(std::integral_constant<int, 1>{});
    for (; k < width; ++k) {
      Acc found = fresh ? start : sum[k];
      for (int64_t e = 0; e < count; ++e) found = combine(found, from[e * width + k]);
      sum[k] = found;
    }
  };
  if (reduce == Reduce::kSum) {
    with([](auto x, auto y) JAX_GNN_LAMBDA { return x + y; });
  } else if (reduce == Reduce::kMax) {
    with([](auto x, auto y) JAX_GNN_LAMBDA { return larger(x, y); });
  } else {
    with([](auto x, auto y) JAX_GNN_LAMBDA { return smaller(x, y); });
  }
}

// --- The walk ------------------------------------------------------------------------------------

// What a task leaves of rows that others have a part of, too; -1: of none.
struct PartRows {
  int64_t head, tail;
};

// Memory of a thread, of which nothing stays.
template <typename Acc>
Acc* scratch(int64_t numbers) {
  thread_local std::vector<Acc> memory;
  if (static_cast<int64_t>(memory.size()) < numbers) memory.resize(static_cast<size_t>(numbers));
  return memory.data();
}

template <typename Acc>
struct Walk {
  const RegionProgram& program;
  const RegionPlan& plan;
  const Csr<int32_t>& csr;
  const void* const* inputs;
  void* const* results;
  Bounds bounds;
  int64_t tasks;
  std::vector<int64_t> states;  // of each output, where its state starts in a task's
  int64_t state_size;
  Acc* shared;                          // rows of shared values
  std::unique_ptr<PartRows[]> parts;    // of tasks
  std::unique_ptr<Acc[]> heads, tails;  // states of tasks; of all, too, in heads

  Walk(const RegionProgram& p, const RegionPlan& l, const Csr<int32_t>& c, const void* const* in,
       void* const* out)
      : program(p), plan(l), csr(c), inputs(in), results(out), bounds(valid_entries(c)) {
    const int64_t entries = bounds.end - bounds.begin;
    state_size = 0;
    for (const RegionOutput& output : program.outputs) {
      states.push_back(state_size);
      if (output.into != Access::kEdge) state_size += padded(output.width);
    }
    const int64_t most = state_size < 1024 ? 1024 : 128;  // large sums are put together by one
    tasks = task_count(static_cast<double>(entries) * plan.cost,
                       std::min<int64_t>(most, entries / (4 * plan.entries) + 1));
    parts = std::make_unique<PartRows[]>(static_cast<size_t>(tasks));
    heads.reset(new Acc[static_cast<size_t>(tasks * state_size + 1)]);
    tails.reset(new Acc[static_cast<size_t>(tasks * state_size + 1)]);
  }

  int64_t first_entry(int64_t task) const {
    return bounds.begin + even_share(bounds.end - bounds.begin, task, tasks);
  }

  template <typename Body>
  JAX_GNN_INLINE void for_each(Access into, const Body& body) const {
    for (size_t i = 0; i < program.outputs.size(); ++i)
      if (program.outputs[i].into == into) body(program.outputs[i], states[i]);
  }

  // The product of which an output is a sum, where the product itself is not made.
  const RegionStep* summed(const RegionOutput& output) const {
    const int64_t step = output.value - static_cast<int64_t>(program.inputs.size());
    return step >= 0 && program.steps[step].summed ? &program.steps[step] : nullptr;
  }

  void start(Acc* state, Access into) const {
    for_each(into, [&](const RegionOutput& output, int64_t at) {
      std::fill_n(state + at, padded(output.width), start_of<Acc>(output.reduce));
    });
  }

  void combine(Acc* into, const Acc* from, Access access) const {
    for_each(access, [&](const RegionOutput& output, int64_t at) {
      add_rows<1>(output.reduce, false, into + at, from + at, 1, output.width);
    });
  }

  JAX_GNN_INLINE void write_rows(int64_t row, const Acc* state) const {
    for_each(Access::kRow, [&](const RegionOutput& output, int64_t at)
                               JAX_GNN_LAMBDA { write(output, results, row, state + at); });
  }

  // Rows that nothing goes to.
  void fill(int64_t first, int64_t last, Acc* state) const {
    if (first >= last) return;
    start(state, Access::kRow);
    for (int64_t row = first; row < last; ++row) write_rows(row, state);
  }

  void fill_edges(int64_t first, int64_t last) const {
    for_each(Access::kEdge, [&](const RegionOutput& output, int64_t) {
      with_type<Acc>(output.storage, [&](auto* type) {
        using T = std::remove_pointer_t<decltype(type)>;
        if (first < last)
          std::memset(static_cast<T*>(results[output.result]) + first * output.width, 0,
                      static_cast<size_t>((last - first) * output.width) * sizeof(T));
      });
    });
  }

  // A block's entries that are no padding: what they are and what they read.
  struct Block {
    int64_t count;
    std::unique_ptr<int64_t[]> rows, cols, edges;
    explicit Block(int64_t entries)
        : count(0),
          rows(new int64_t[static_cast<size_t>(entries)]),
          cols(new int64_t[static_cast<size_t>(entries)]),
          edges(new int64_t[static_cast<size_t>(entries)]) {}
    const int64_t* ids(Access access) const {
      return access == Access::kRow   ? rows.get()
             : access == Access::kCol ? cols.get()
                                      : edges.get();
    }
  };

  JAX_GNN_INLINE void find(Block& block, int64_t begin, int64_t end) const {
    block.count = 0;
    for (int64_t e = begin; e < end; ++e) {
      const int64_t row = csr.rows[e], col = col_of(csr, e), edge = weight_of(csr, e);
      if (in_range(row, csr.num_rows) && col >= 0 && edge >= 0) {
        block.rows[block.count] = row;
        block.cols[block.count] = col;
        block.edges[block.count++] = edge;
      } else if (!csr.order) {
        fill_edges(e, e + 1);
      }
    }
  }

  // Calls body(input, T*) with the arrays that entries read rows of.
  template <typename Body>
  JAX_GNN_INLINE void for_each_input(const Body& body) const {
    for (size_t i = 0; i < program.inputs.size(); ++i) {
      const RegionInput& input = program.inputs[i];
      if (input.read == Access::kAll || !plan.used[i]) continue;
      with_type<Acc>(input.storage, [&](auto* type) JAX_GNN_LAMBDA {
        body(i, static_cast<const std::remove_pointer_t<decltype(type)>*>(inputs[i]));
      });
    }
  }

  // Brings what a block reads to the second-level cache while another one is computed: more loads
  // are on their way at a time than to the first. A block is too short for the processor to find
  // out that rows lie one after the other.
  JAX_GNN_INLINE void fetch(const Block& block) const {
    for_each_input([&](size_t i, const auto* from) JAX_GNN_LAMBDA {
      const int64_t* const ids = block.ids(program.inputs[i].read);
      const int64_t width = program.inputs[i].width;
      for (int64_t e = 0; e < block.count; ++e)
        prefetch<2>(from + ids[e] * width, width * static_cast<int64_t>(sizeof *from));
    });
  }

  JAX_GNN_INLINE void load_inputs(const Block& block, Acc* const* at) const {
    for_each_input([&](size_t i, const auto* from) JAX_GNN_LAMBDA {
      const int64_t* const ids = block.ids(program.inputs[i].read);
      const int64_t width = program.inputs[i].width;
      for (int64_t e = 0; e < block.count; ++e)
        read_row(from + ids[e] * width, at[i] + e * width, width);
    });
  }

  JAX_GNN_INLINE void load_shared(Acc* const* at) const {
    for (size_t i = 0; i < program.inputs.size(); ++i)
      if (program.inputs[i].read == Access::kAll)
        with_type<Acc>(program.inputs[i].storage, [&](auto* type) JAX_GNN_LAMBDA {
          using T = std::remove_pointer_t<decltype(type)>;
          read_row(static_cast<const T*>(inputs[i]), at[i], program.inputs[i].width);
        });
  }

  // A task; task -1 makes what is shared.
  void run(int64_t task) const {
    const bool ahead = task < 0;
    const int64_t num_values = static_cast<int64_t>(plan.slots.size());
    const int64_t num_inputs = static_cast<int64_t>(program.inputs.size());
    Acc* memory = ahead ? nullptr : scratch<Acc>(plan.block_size + 3 * state_size);
    std::vector<Acc*> at(static_cast<size_t>(num_values)), rows(at.size());
    for (int64_t value = 0; value < num_values; ++value) {
      rows[value] = plan.rows[value] < 0 ? nullptr : shared + plan.rows[value];
      const int64_t slot = plan.slots[value];
      at[value] = ahead ? rows[value] : slot < 0 ? nullptr : memory + plan.places[slot];
      if (!ahead && slot >= 0 && rows[value])
        for (int64_t e = 0; e < plan.entries; ++e)
          std::memcpy(at[value] + e * program.width(value), rows[value],
                      static_cast<size_t>(program.width(value)) * sizeof(Acc));
    }
    Acc *const state = memory + plan.block_size, *const all = state + state_size,
               *const spare = all + state_size;
    const int64_t begin = ahead ? 0 : first_entry(task), end = ahead ? 1 : first_entry(task + 1);
    // Rows from `low` on and before `high` that nothing goes to are this task's to fill.
    int64_t low = 0, high = 0, next = 0, row = -1, last_row = -1;
    if (!ahead) {
      const auto after = [&](int64_t entry) {
        const int64_t id = csr.rows[entry];
        return in_range(id, csr.num_rows) ? id + 1 : 0;
      };
      next = low = begin > bounds.begin ? after(begin - 1) : 0;
      high = end < bounds.end ? (end > begin ? after(end - 1) : low) : csr.num_rows;
      if (end > begin && end < bounds.end && csr.rows[end] == csr.rows[end - 1])
        last_row = csr.rows[end - 1];
      parts[task] = {-1, -1};
      start(all, Access::kAll);
    }
    const auto finish_row = [&]() JAX_GNN_LAMBDA {
      if (row < 0) return;
      if (row < low) {
        parts[task].head = row;
        std::copy_n(state, state_size, heads.get() + task * state_size);
      } else if (row == last_row) {
        fill(next, row, spare);
        parts[task].tail = row;
        std::copy_n(state, state_size, tails.get() + task * state_size);
        next = std::max(next, row + 1);
      } else {
        fill(next, row, spare);
        write_rows(row, state);
        next = std::max(next, row + 1);
      }
    };
    Block block(ahead ? 1 : plan.entries), coming(ahead ? 1 : plan.entries);
    if (!ahead) find(coming, begin, std::min(begin + plan.entries, end));
    // Vectors of 32 bytes: of longer ones GCC 12 compares each number apart.
    with_vectors([&](auto) JAX_GNN_LAMBDA {
      constexpr int kLanes = 32 / static_cast<int>(sizeof(Acc));
      for (int64_t first = begin; first < end; first += plan.entries) {
        if (ahead) {
          block.count = 1;
          load_shared(at.data());
        } else {
          std::swap(block, coming);
          const int64_t after = std::min(first + plan.entries, end);
          find(coming, after, std::min(after + plan.entries, end));
          if (block.count == 0) continue;
          load_inputs(block, at.data());
          fetch(coming);
        }
        for (size_t i = 0; i < program.steps.size(); ++i)
          if (program.steps[i].varies != ahead && !program.steps[i].summed)
            run_step<kLanes>(program, program.steps[i], at.data(), rows.data(),
                             at[num_inputs + static_cast<int64_t>(i)], block.count);
        if (ahead) continue;
        for (int64_t e = 0, stop = 0; e < block.count; e = stop) {
          const bool fresh = block.rows[e] != row;
          if (fresh) {
            finish_row();
            row = block.rows[e];
          }
          for (stop = e + 1; stop < block.count && block.rows[stop] == row;) ++stop;
          for_each(Access::kRow, [&](const RegionOutput& output, int64_t place) JAX_GNN_LAMBDA {
            add_rows<kLanes>(output.reduce, fresh, state + place,
                             at[output.value] + e * output.width, stop - e, output.width);
          });
        }
        for_each(Access::kAll, [&](const RegionOutput& output, int64_t place) JAX_GNN_LAMBDA {
          if (const RegionStep* const product = summed(output)) {
            const int64_t x = product->operands[0], y = product->operands[1];
            multiply<true, true>(at[x], at[y], all + place, program.width(x), block.count,
                                 program.width(y));
            return;
          }
          add_rows<kLanes>(output.reduce, true, spare + place, at[output.value], block.count,
                           output.width);
          add_rows<kLanes>(output.reduce, false, all + place, spare + place, 1, output.width);
        });
        for_each(Access::kEdge, [&](const RegionOutput& output, int64_t) JAX_GNN_LAMBDA {
          with_type<Acc>(output.storage, [&](auto* type) JAX_GNN_LAMBDA {
            using T = std::remove_pointer_t<decltype(type)>;
            T* const to = static_cast<T*>(results[output.result]);
            for (int64_t e = 0; e < block.count; ++e)
              write_row(at[output.value] + e * output.width, to + block.edges[e] * output.width,
                        output.width);
          });
        });
      }
    });
    if (ahead) return;
    finish_row();
    fill(next, high, spare);
    for_each(Access::kAll, [&](const RegionOutput& output, int64_t place) {
      std::copy_n(all + place, output.width, heads.get() + task * state_size + place);
    });
  }

  // Puts together what several tasks had a part of.
  void finish() const {
    std::vector<Acc> sum(static_cast<size_t>(state_size));
    int64_t row = -1;
    const auto add = [&](int64_t of, const Acc* state) {
      if (of < 0) return;
      if (of == row) return combine(sum.data(), state, Access::kRow);
      if (row >= 0) write_rows(row, sum.data());
      std::copy_n(state, state_size, sum.data());
      row = of;
    };
    for (int64_t task = 0; task < tasks; ++task) {
      add(parts[task].head, heads.get() + task * state_size);
      add(parts[task].tail, tails.get() + task * state_size);
    }
    if (row >= 0) write_rows(row, sum.data());
    start(sum.data(), Access::kAll);
    for (int64_t task = 0; task < tasks; ++task)
      combine(sum.data(), heads.get() + task * state_size, Access::kAll);
    for_each(Access::kAll, [&](const RegionOutput& output, int64_t at) {
      write(output, results, 0, sum.data() + at);
    });
  }
};

template <typename Acc>
void run_region(const ParallelFor& parallel_for, const RegionProgram& program,
                const Csr<int32_t>& csr, const void* const* inputs, void* const* results) {
  const RegionPlan& plan = *program.plan;
  Walk<Acc> walk(program, plan, csr, inputs, results);
  std::vector<Acc> shared(static_cast<size_t>(plan.shared_size + kPadding));
  walk.shared = shared.data();
  walk.run(-1);
  for (const RegionOutput& output : program.outputs) {
    const int64_t rows = output.into == Access::kRow    ? csr.num_rows
                         : output.into == Access::kEdge ? csr.num_weights
                                                        : 0;
    with_type<Acc>(output.storage, [&](auto* type) {
      expect_writes(static_cast<decltype(type)>(results[output.result]), rows * output.width);
    });
  }
  if (csr.order) {  // what no entry names
    const int64_t shares = std::clamp<int64_t>(csr.num_weights / 4096, 1, 64);
    parallel_for(shares, [&](int64_t share) {
      walk.fill_edges(even_share(csr.num_weights, share, shares),
                      even_share(csr.num_weights, share + 1, shares));
    });
  } else {
    walk.fill_edges(0, walk.bounds.begin);
    walk.fill_edges(walk.bounds.end, csr.count);
  }
  parallel_for(walk.tasks, [&](int64_t task) { walk.run(task); });
  walk.finish();
}

}  // namespace

void edge_region(const ParallelFor& parallel_for, const RegionProgram& program,
                 const Csr<int32_t>& csr, const void* const* inputs, void* const* results) {
  if (program.wide) {
    run_region<double>(parallel_for, program, csr, inputs, results);
  } else {
    run_region<float>(parallel_for, program, csr, inputs, results);
  }
}

}  // namespace jax_gnn::cpu
