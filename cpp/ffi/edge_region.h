// Handler of edge_region. A Backend has a RegionProgram, which reads a description and says what is
// wrong with it, and a function edge_region that runs one over the entries of a matrix.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "segments.h"

namespace jax_gnn {

// Two programs, as interpreter.py writes them: what is made in a walk by row, and in one by column
// after it, to which results of the first are further arrays. Either may be empty: a single number.
// Flags that begin with t_ are of the matrix by column.
struct RegionAttributes {
  ffi::Span<const int64_t> by_row, by_col;
  ffi::Span<const double> numbers;
  bool gather, ordered, t_gather, t_ordered;
  int64_t num_rows, num_cols;
};

}  // namespace jax_gnn

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    jax_gnn::RegionAttributes, StructMember<jax_gnn::ffi::Span<const int64_t>>("by_row"),
    StructMember<jax_gnn::ffi::Span<const int64_t>>("by_col"),
    StructMember<jax_gnn::ffi::Span<const double>>("numbers"), StructMember<bool>("gather"),
    StructMember<bool>("ordered"), StructMember<bool>("t_gather"), StructMember<bool>("t_ordered"),
    StructMember<int64_t>("num_rows"), StructMember<int64_t>("num_cols"));

namespace jax_gnn {

template <typename Storage>
bool is_stored(const ffi::AnyBuffer& buffer, Storage storage) {
  constexpr ffi::DataType kTypes[] = {ffi::F32, ffi::F64, ffi::F16, ffi::BF16, ffi::PRED};
  return buffer.element_type() == kTypes[static_cast<int>(storage)];
}

// What a call keeps: its programs, of which one that does nothing has no outputs.
template <typename Backend>
struct RegionPrograms {
  static inline ffi::TypeId id = {};
  typename Backend::RegionProgram by_row, by_col;
};

template <typename Backend>
ffi::ErrorOr<std::unique_ptr<RegionPrograms<Backend>>> read_region(RegionAttributes attributes) {
  auto programs = std::make_unique<RegionPrograms<Backend>>();
  const auto& numbers = attributes.numbers;
  for (const bool by_col : {false, true}) {
    const auto& code = by_col ? attributes.by_col : attributes.by_row;
    if (code.size() <= 1) continue;
    const std::string fault = (by_col ? programs->by_col : programs->by_row)
                                  .read(code.begin(), static_cast<int64_t>(code.size()),
                                        numbers.begin(), static_cast<int64_t>(numbers.size()));
    if (!fault.empty())
      return ffi::Unexpected(invalid("the program of a region is wrong: " + fault));
  }
  return programs;
}

// Operands: arrays, then rows, columns and order of the matrix by row and by column. Results may be
// workspaces.
template <typename Backend>
ffi::Error edge_region(typename Backend::Context context, const RegionPrograms<Backend>* programs,
                       ffi::RemainingArgs args, ffi::RemainingRets rets,
                       RegionAttributes attributes) {
  constexpr size_t kIds = 6;
  if (args.size() < kIds) return invalid("ids are missing");
  std::vector<ffi::AnyBuffer> buffers;
  std::vector<const void*> inputs;
  for (size_t i = 0; i < args.size(); ++i) {
    const auto buffer = args.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return invalid("an operand is missing");
    buffers.push_back(*buffer);
    inputs.push_back(buffer->untyped_data());
  }
  const size_t count = args.size() - kIds;
  std::vector<ffi::AnyBuffer> made;
  std::vector<void*> results;
  for (size_t i = 0; i < rets.size(); ++i) {
    auto buffer = rets.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return invalid("a result is missing");
    made.push_back(**buffer);
    results.push_back((*buffer)->untyped_data());
  }
  std::vector<ffi::AnyBuffer> arrays(buffers.begin(), buffers.begin() + count);
  arrays.insert(arrays.end(), made.begin(), made.end());
  inputs.resize(count);
  inputs.insert(inputs.end(), results.begin(), results.end());
  std::vector<bool> written(rets.size(), false);
  for (const bool by_col : {false, true}) {
    const auto& program = by_col ? programs->by_col : programs->by_row;
    if (program.outputs.empty()) continue;
    if (program.inputs.size() > (by_col ? arrays.size() : count))
      return invalid("a region has other arrays");
    const size_t first = count + (by_col ? 3 : 0);
    const int64_t num_rows = by_col ? attributes.num_cols : attributes.num_rows;
    const int64_t num_cols = by_col ? attributes.num_rows : attributes.num_cols;
    if (num_rows < 0 || num_cols < 0) return invalid("sizes must not be negative");
    const CsrOperands operands = {buffers[first],
                                  buffers[first + 1],
                                  buffers[first + 2],
                                  by_col ? attributes.t_gather : attributes.gather,
                                  by_col ? attributes.t_ordered : attributes.ordered,
                                  num_rows,
                                  num_cols,
                                  static_cast<int64_t>(buffers[first].element_count())};
    ffi::Error error = operands.check(/*weighted=*/true);
    if (error.failure()) return error;
    const int64_t sizes[] = {operands.count(), num_rows, num_cols, 1};
    for (size_t i = 0; i < program.inputs.size(); ++i) {
      const auto& input = program.inputs[i];
      if (!is_stored(arrays[i], input.storage) ||
          static_cast<int64_t>(arrays[i].element_count()) !=
              sizes[static_cast<int>(input.read)] * input.width)
        return invalid("an array of a region has the wrong shape or dtype");
    }
    for (const auto& output : program.outputs) {
      if (output.result >= static_cast<int64_t>(made.size()) || written[output.result])
        return invalid("a region has other results");
      written[output.result] = true;
      const ffi::AnyBuffer& result = made[output.result];
      if (!is_stored(result, output.storage) ||
          static_cast<int64_t>(result.element_count()) !=
              sizes[static_cast<int>(output.into)] * output.width)
        return invalid("a result of a region has the wrong shape or dtype");
    }
    Backend::edge_region(context, program, operands.csr(), inputs.data(), results.data());
  }
  for (const bool there : written)
    if (!there) return invalid("a result of a region is not made");
  return ffi::Error::Success();
}

// XLA calls this first when it registers the handler, and must know by then the type of what a call
// keeps. JAX's own way, `jax.ffi.register_ffi_type`, comes after all handlers.
template <typename Backend>
XLA_FFI_Error* read_region_handler(XLA_FFI_CallFrame* frame) {
  using Kept = RegionPrograms<Backend>;
  static XLA_FFI_Error* const fault = ffi::Ffi::RegisterTypeId(
      frame->api, "jax_gnn_region_programs", &Kept::id, ffi::MakeTypeInfo<Kept>());
  if (fault) return fault;
  static const auto* const bound = ffi::Ffi::BindInstantiate()
                                       .template Attrs<RegionAttributes>()
                                       .To(read_region<Backend>)
                                       .release();
  return bound->Call(frame);
}

template <typename Backend>
XLA_FFI_Error* region_handler(XLA_FFI_CallFrame* frame) {
  static const auto* const bound = ffi::Ffi::Bind()
                                       .Ctx<typename Backend::Context>()
                                       .template Ctx<ffi::State<RegionPrograms<Backend>>>()
                                       .RemainingArgs()
                                       .RemainingRets()
                                       .template Attrs<RegionAttributes>()
                                       .To(edge_region<Backend>)
                                       .release();
  return bound->Call(frame);
}

}  // namespace jax_gnn
