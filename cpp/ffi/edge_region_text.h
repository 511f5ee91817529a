// Handlers of edge regions whose kernel comes as bytes, an attribute: one that loads it, ahead of
// the first call, and one that launches it.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "segments.h"

namespace jax_gnn {

struct RegionAttributes {
  std::string_view code, digest, name;
  int64_t slots, vec, unroll, parts, acc_bytes, shared;  // of the text, see RegionText
  // How each input is read: by entry, row, column, or one row for all; and where each result goes:
  // to an entry, a row, or a row of each block.
  ffi::Span<const int64_t> reads, into;
  // Bytes of a row, and the alignment that it needs, of inputs, then results.
  ffi::Span<const int64_t> row_bytes, words;
  bool gather, ordered;
  int64_t num_rows, num_cols;
  int64_t lanes, threads;  // of a team, of a block
};

}  // namespace jax_gnn

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    jax_gnn::RegionAttributes, StructMember<std::string_view>("code"),
    StructMember<std::string_view>("digest"), StructMember<std::string_view>("name"),
    StructMember<int64_t>("slots"), StructMember<int64_t>("vec"), StructMember<int64_t>("unroll"),
    StructMember<int64_t>("parts"), StructMember<int64_t>("acc_bytes"),
    StructMember<int64_t>("shared"), StructMember<xla::ffi::Span<const int64_t>>("reads"),
    StructMember<xla::ffi::Span<const int64_t>>("into"),
    StructMember<xla::ffi::Span<const int64_t>>("row_bytes"),
    StructMember<xla::ffi::Span<const int64_t>>("words"), StructMember<bool>("gather"),
    StructMember<bool>("ordered"), StructMember<int64_t>("num_rows"),
    StructMember<int64_t>("num_cols"), StructMember<int64_t>("lanes"),
    StructMember<int64_t>("threads"));

namespace jax_gnn {

constexpr int64_t kRegionIds = 3;  // operands ahead of the inputs: rows, cols, order

template <typename Backend>
ffi::Error load_region(ffi::RemainingArgs, ffi::RemainingRets, RegionAttributes attributes) {
  return Backend::load_region(attributes);
}

// Goes through the entries with a text. Operands: rows, cols, order, inputs; results: outputs, the
// workspace.
template <typename Backend>
ffi::Error edge_region(typename Backend::Context context, ffi::RemainingArgs operands,
                       ffi::RemainingRets results, RegionAttributes attributes) {
  const auto& [reads, into, row_bytes, words] =
      std::tie(attributes.reads, attributes.into, attributes.row_bytes, attributes.words);
  const size_t inputs = reads.size(), outputs = into.size();
  if (operands.size() != kRegionIds + inputs || results.size() != outputs + 1 ||
      row_bytes.size() != inputs + outputs || words.size() != inputs + outputs ||
      inputs > Backend::kMaxRegionArrays || outputs > Backend::kMaxRegionArrays)
    return invalid("an edge region has the wrong number of operands or results");
  if (attributes.slots < 1 || attributes.slots > 1 << 20 || attributes.vec < 1 ||
      attributes.vec > 8 || attributes.parts < 1 || attributes.parts > 1 << 10 ||
      !(attributes.unroll == 2 || attributes.unroll == 4 || attributes.unroll == 8 ||
        attributes.unroll == 16) ||
      (attributes.acc_bytes != 4 && attributes.acc_bytes != 8) || attributes.shared < 0 ||
      attributes.shared > 1 << 18 || attributes.threads > 512 ||
      !is_schedule(attributes.lanes, attributes.threads))
    return invalid("the schedule of an edge region is wrong");
  const auto ids = [&](size_t i) { return *operands.get<ffi::AnyBuffer>(i); };
  const CsrOperands csr = {ids(0),
                           ids(1),
                           ids(2),
                           attributes.gather,
                           attributes.ordered,
                           attributes.num_rows,
                           attributes.num_cols,
                           static_cast<int64_t>(ids(0).element_count())};
  ffi::Error error = csr.check(/*weighted=*/true);
  if (error.failure()) return error;
  if (csr.count() == 0) return invalid("an edge region without entries");
  const auto is_array = [&](const ffi::AnyBuffer& buffer, int64_t rows, size_t place) {
    const int64_t word = words[place];
    return word >= 1 && word <= 16 && (word & (word - 1)) == 0 &&
           static_cast<int64_t>(buffer.size_bytes()) == rows * row_bytes[place] &&
           reinterpret_cast<uintptr_t>(buffer.untyped_data()) % word == 0;
  };
  std::array<void*, Backend::kMaxRegionArrays> in = {}, out = {};
  for (size_t i = 0; i < inputs; ++i) {
    const int64_t sizes[] = {csr.count(), csr.num_rows, csr.num_cols, 1};
    const ffi::AnyBuffer buffer = ids(kRegionIds + i);
    if (reads[i] < 0 || reads[i] > 3 || !is_array(buffer, sizes[reads[i]], i))
      return invalid("input " + std::to_string(i) + " of an edge region has the wrong size");
    in[i] = buffer.untyped_data();
  }
  ffi::AnyBuffer buffer = **results.get<ffi::AnyBuffer>(outputs);
  const int64_t room = (attributes.parts + attributes.vec - 1) / attributes.vec;
  error = check_workspace(buffer, attributes.slots * room,
                          attributes.acc_bytes == 8 ? ffi::F64 : ffi::F32);
  if (error.failure()) return error;
  const auto workspace = make_workspace(buffer);
  for (size_t i = 0; i < outputs; ++i) {
    const int64_t sizes[] = {csr.count(), csr.num_rows, workspace.blocks};
    ffi::AnyBuffer result = **results.get<ffi::AnyBuffer>(i);
    if (into[i] < 0 || into[i] > 2 || !is_array(result, sizes[into[i]], inputs + i))
      return invalid("result " + std::to_string(i) + " of an edge region has the wrong size");
    out[i] = result.untyped_data();
  }
  return Backend::edge_region(context, attributes, workspace, csr.csr(), in.data(), out.data());
}

}  // namespace jax_gnn
