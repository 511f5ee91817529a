// Handlers of edge_attention, edge_attention_vjp, edge_attention_gradients, keyed_attention,
// keyed_attention_vjp, keyed_attention_gradients, typed_attention, typed_attention_vjp,
// leaky_scores and leaky_sum, written once. A Backend has a Context, half types, and functions of
// the same names that return an ffi::Error.
#pragma once

#include <algorithm>

#include "../kernels/edge_attention.h"
#include "segments.h"

namespace jax_gnn {

struct AttentionAttributes {
  bool additive, scaled;
  double slope;
  bool gather, ordered;
};

struct AttentionVjpAttributes {
  bool additive, scaled, one_pass, has_log_sum_ct;
  double slope;
  bool gather, ordered, parallel;
  int64_t lanes, threads;
};

struct KeyedAttributes {
  bool leaky, scaled;
  double slope;
  bool gather, ordered;
};

struct KeyedVjpAttributes {
  bool leaky, same, scaled, has_y, has_log_sum_ct;
  double slope;
  bool gather, ordered;
};

// Of entries by destination, without an order, and of those by source.
struct KeyedGradientsAttributes {
  bool leaky, same, scaled, has_log_sum_ct;
  double slope;
  bool ordered;
};

struct AttentionGradientsAttributes {
  bool scaled, has_log_sum_ct;
  double slope;
  bool ordered;
};

struct TypedAttributes {
  bool has_rows, scaled, keeps_scores;
  double slope;
};

struct TypedVjpAttributes {
  bool scaled, has_log_sum_ct;
  double slope;
  bool gather, ordered;
};

struct LeakyScoresAttributes {
  bool gather;
  int64_t heads;
  double slope;
};

struct LeakySumAttributes {
  bool has_vector, gather, ordered;
  double slope;
};

}  // namespace jax_gnn

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::AttentionAttributes, StructMember<bool>("additive"),
                                      StructMember<bool>("scaled"), StructMember<double>("slope"),
                                      StructMember<bool>("gather"), StructMember<bool>("ordered"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::AttentionVjpAttributes,
                                      StructMember<bool>("additive"), StructMember<bool>("scaled"),
                                      StructMember<bool>("one_pass"),
                                      StructMember<bool>("has_log_sum_ct"),
                                      StructMember<double>("slope"), StructMember<bool>("gather"),
                                      StructMember<bool>("ordered"), StructMember<bool>("parallel"),
                                      StructMember<int64_t>("lanes"),
                                      StructMember<int64_t>("threads"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::KeyedAttributes, StructMember<bool>("leaky"),
                                      StructMember<bool>("scaled"), StructMember<double>("slope"),
                                      StructMember<bool>("gather"), StructMember<bool>("ordered"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::KeyedVjpAttributes, StructMember<bool>("leaky"),
                                      StructMember<bool>("same"), StructMember<bool>("scaled"),
                                      StructMember<bool>("has_y"),
                                      StructMember<bool>("has_log_sum_ct"),
                                      StructMember<double>("slope"), StructMember<bool>("gather"),
                                      StructMember<bool>("ordered"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::KeyedGradientsAttributes,
                                      StructMember<bool>("leaky"), StructMember<bool>("same"),
                                      StructMember<bool>("scaled"),
                                      StructMember<bool>("has_log_sum_ct"),
                                      StructMember<double>("slope"), StructMember<bool>("ordered"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::AttentionGradientsAttributes,
                                      StructMember<bool>("scaled"),
                                      StructMember<bool>("has_log_sum_ct"),
                                      StructMember<double>("slope"), StructMember<bool>("ordered"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::TypedAttributes, StructMember<bool>("has_rows"),
                                      StructMember<bool>("scaled"),
                                      StructMember<bool>("keeps_scores"),
                                      StructMember<double>("slope"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::TypedVjpAttributes, StructMember<bool>("scaled"),
                                      StructMember<bool>("has_log_sum_ct"),
                                      StructMember<double>("slope"), StructMember<bool>("gather"),
                                      StructMember<bool>("ordered"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::LeakyScoresAttributes, StructMember<bool>("gather"),
                                      StructMember<int64_t>("heads"),
                                      StructMember<double>("slope"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::LeakySumAttributes, StructMember<bool>("has_vector"),
                                      StructMember<bool>("gather"), StructMember<bool>("ordered"),
                                      StructMember<double>("slope"));

namespace jax_gnn {

// The operands of an Attention whose edges are a Csr's, and their check. Scores of rows are those
// of destinations, or of sources by a transposed Csr. Those that are absent are not looked at.
struct AttentionOperands {
  ffi::AnyBuffer dst_score, src_score, edge_score, edge_scale;
  bool additive, scaled;
  double slope;

  // How many numbers a head has, of edges.
  int64_t num_weights(int64_t count) const {
    const ffi::AnyBuffer& buffer = additive ? edge_scale : edge_score;
    if (additive && !scaled) return count;
    return buffer.dimensions().size() == 2 ? buffer.dimensions()[0] : -1;
  }

  // `dst_score` is not checked: it belongs to destinations.
  ffi::Error check(int64_t num_src, int64_t num_weights, int64_t heads,
                   ffi::DataType acc_dtype) const {
    if ((additive && !is_matrix(src_score, num_src, heads, acc_dtype)) ||
        (!additive && !is_matrix(edge_score, num_weights, heads, acc_dtype)) ||
        (scaled && !is_matrix(edge_scale, num_weights, heads, acc_dtype))) {
      return invalid("the scores or the scales have the wrong shape or dtype");
    }
    return ffi::Error::Success();
  }

  template <typename Acc>
  Attention<Acc> attention(bool has_dst_score) const {
    return {data_if<Acc>(has_dst_score, dst_score), data_if<Acc>(additive, src_score),
            data_if<Acc>(!additive, edge_score), data_if<Acc>(scaled, edge_scale),
            static_cast<Acc>(slope)};
  }
};

// Whether a sum of values under a softmax fits them, and its statistics that.
inline ffi::Error check_results(const ffi::AnyBuffer& value, const ffi::AnyBuffer& out,
                                const ffi::AnyBuffer& stats) {
  const ffi::DataType dtype = value.element_type();
  if (value.dimensions().size() != 2 || out.dimensions().size() != 2 ||
      stats.dimensions().size() != 3) {
    return invalid("value, result and statistics have the wrong number of dimensions");
  }
  const int64_t width = value.dimensions()[1];
  const int64_t num_rows = out.dimensions()[0], heads = stats.dimensions()[1];
  if (!is_matrix(out, num_rows, width, dtype) || stats.element_type() != accumulator_type(dtype) ||
      !has_shape(stats, {num_rows, heads, 2}) || !divides(heads, width)) {
    return invalid("the result or the statistics have the wrong shape or dtype");
  }
  return ffi::Error::Success();
}

// Whether a team of lanes can hold whole heads, in words of 16 bytes.
inline ffi::Error check_whole_heads(Features features, ffi::DataType dtype) {
  const int64_t depth = features.width / features.heads;
  const int64_t head_bytes = depth * static_cast<int64_t>(ffi::ByteWidth(dtype));
  const int64_t words = head_bytes / 16;
  if (head_bytes % 16 != 0 || words < 1 || words > 32 ||
      (features.heads > 1 && (words & (words - 1)) != 0)) {
    return invalid("the heads are not up to 32 words of 16 bytes, of several a power of two");
  }
  return ffi::Error::Success();
}

// out[r, h, :] = sum over the entries e of row r of weight * value[cols[e], h, :], where the weight
// is scale times the softmax of the scores over the row's entries; and its statistics.
template <typename Backend>
ffi::Error edge_attention(typename Backend::Context context, ffi::AnyBuffer value,
                          ffi::AnyBuffer dst_score, ffi::AnyBuffer src_score,
                          ffi::AnyBuffer edge_score, ffi::AnyBuffer edge_scale, ffi::AnyBuffer rows,
                          ffi::AnyBuffer cols, ffi::AnyBuffer order,
                          ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> stats,
                          ffi::Result<ffi::AnyBuffer> workspace, AttentionAttributes attributes) {
  ffi::Error error = check_results(value, *out, *stats);
  if (error.failure()) return error;
  const ffi::DataType dtype = value.element_type(), acc_dtype = accumulator_type(dtype);
  const int64_t num_cols = value.dimensions()[0], width = value.dimensions()[1];
  const int64_t num_rows = out->dimensions()[0], heads = stats->dimensions()[1];
  const AttentionOperands scores = {dst_score,       src_score,           edge_score,
                                    edge_scale,      attributes.additive, attributes.scaled,
                                    attributes.slope};
  const int64_t num_weights = scores.num_weights(static_cast<int64_t>(rows.element_count()));
  const CsrOperands operands = {
      rows, cols, order, attributes.gather, attributes.ordered, num_rows, num_cols, num_weights};
  error = operands.check(/*weighted=*/true);
  if (error.failure()) return error;
  error = scores.check(num_cols, num_weights, heads, acc_dtype);
  if (error.failure()) return error;
  if (attributes.additive && !is_matrix(dst_score, num_rows, heads, acc_dtype)) {
    return invalid("the destinations' scores have the wrong shape or dtype");
  }
  error = check_workspace(*workspace, 2 * width, acc_dtype);
  if (error.failure()) return error;
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    return Backend::edge_attention(
        context, attributes, make_workspace(*workspace), operands.csr(), data<const T>(value),
        scores.template attention<Acc>(attributes.additive), Features{width, heads}, data<T>(*out),
        static_cast<SoftmaxStats<Acc>*>(stats->untyped_data()));
  });
}

// The same of scores that are made of keys (see Keys): `factor` is their vector or their scale.
template <typename Backend>
ffi::Error keyed_attention(typename Backend::Context context, ffi::AnyBuffer value,
                           ffi::AnyBuffer row_key, ffi::AnyBuffer col_key, ffi::AnyBuffer factor,
                           ffi::AnyBuffer edge_scale, ffi::AnyBuffer rows, ffi::AnyBuffer cols,
                           ffi::AnyBuffer order, ffi::Result<ffi::AnyBuffer> out,
                           ffi::Result<ffi::AnyBuffer> stats, ffi::Result<ffi::AnyBuffer> workspace,
                           KeyedAttributes attributes) {
  ffi::Error error = check_results(value, *out, *stats);
  if (error.failure()) return error;
  const ffi::DataType dtype = value.element_type(), acc_dtype = accumulator_type(dtype);
  const int64_t num_cols = value.dimensions()[0], width = value.dimensions()[1];
  const int64_t num_rows = out->dimensions()[0], heads = stats->dimensions()[1];
  if (!is_matrix(row_key, num_rows, width, dtype) || !is_matrix(col_key, num_cols, width, dtype) ||
      !is_index(factor, attributes.leaky ? width : 1, acc_dtype)) {
    return invalid("the keys, their vector or their scale have the wrong shape or dtype");
  }
  error = check_whole_heads({width, heads}, dtype);
  if (error.failure()) return error;
  const bool has_weights = attributes.scaled && edge_scale.dimensions().size() == 2;
  const int64_t num_weights =
      has_weights ? edge_scale.dimensions()[0] : static_cast<int64_t>(rows.element_count());
  if (attributes.scaled && !is_matrix(edge_scale, num_weights, heads, acc_dtype)) {
    return invalid("the edges' scales have the wrong shape or dtype");
  }
  const CsrOperands operands = {
      rows, cols, order, attributes.gather, attributes.ordered, num_rows, num_cols, num_weights};
  error = operands.check(/*weighted=*/true);
  if (error.failure()) return error;
  error = check_workspace(*workspace, 2 * width, acc_dtype);
  if (error.failure()) return error;
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    const Keys<T, Acc> keys = {
        data<const T>(row_key), data<const T>(col_key), data_if<Acc>(attributes.leaky, factor),
        data_if<Acc>(!attributes.leaky, factor), static_cast<Acc>(attributes.slope)};
    return Backend::keyed_attention(
        context, attributes, make_workspace(*workspace), operands.csr(), data<const T>(value), keys,
        data_if<Acc>(attributes.scaled, edge_scale), Features{width, heads}, data<T>(*out),
        static_cast<SoftmaxStats<Acc>*>(stats->untyped_data()));
  });
}

// Whether what attention gave and its cotangents fit one another; null: absent.
inline ffi::Error check_attained(const ffi::AnyBuffer& ct, const ffi::AnyBuffer* y,
                                 const ffi::AnyBuffer& stats, const ffi::AnyBuffer* log_sum_ct,
                                 Features features, ffi::DataType dtype) {
  const ffi::DataType acc_dtype = accumulator_type(dtype);
  const int64_t num_rows = ct.dimensions()[0], heads = features.heads;
  if (!is_matrix(ct, num_rows, features.width, dtype) ||
      (y != nullptr && !is_matrix(*y, num_rows, features.width, dtype)) ||
      stats.element_type() != acc_dtype || !has_shape(stats, {num_rows, heads, 2}) ||
      (log_sum_ct != nullptr && !is_matrix(*log_sum_ct, num_rows, heads, acc_dtype))) {
    return invalid("what attention gave or its cotangents have the wrong shape or dtype");
  }
  return ffi::Error::Success();
}

// The same, and whether scratch memory for records does.
inline ffi::Error check_attained(const ffi::AnyBuffer& ct, const ffi::AnyBuffer* y,
                                 const ffi::AnyBuffer& stats, const ffi::AnyBuffer* log_sum_ct,
                                 const ffi::AnyBuffer& records, Features features,
                                 ffi::DataType dtype) {
  const ffi::Error error = check_attained(ct, y, stats, log_sum_ct, features, dtype);
  if (error.failure()) return error;
  const ffi::DataType acc_dtype = accumulator_type(dtype);
  const int64_t num_rows = ct.dimensions()[0], heads = features.heads;
  if (records.element_type() != acc_dtype || !has_shape(records, {num_rows, heads, 4})) {
    return invalid("the records have the wrong shape or dtype");
  }
  return ffi::Error::Success();
}

template <typename T, typename Acc>
Attained<T, Acc> make_attained(const ffi::AnyBuffer& ct, const ffi::AnyBuffer* y,
                               const ffi::AnyBuffer& stats, const ffi::AnyBuffer* log_sum_ct) {
  return {y != nullptr ? data<const T>(*y) : nullptr, data<const T>(ct),
          static_cast<const SoftmaxStats<Acc>*>(stats.untyped_data()),
          log_sum_ct != nullptr ? data<const Acc>(*log_sum_ct) : nullptr};
}

// By source, with a Csr whose rows are sources and whose columns destinations:
//   out[r, h, :] = sum over the entries e of row r of weight * scale * ct[cols[e], h, :]
//   to_score[order[e], h] = slope * weight * (scale * < ct[cols[e], h, :], value[r, h, :] > -
//   delta)
//   to_src_score[r, h] = sum over the entries e of row r of to_score[order[e], h]
// where slope is that of the LeakyReLU of additive scores. 0 for padding. to_src_score may have no
// rows: then it is not written.
template <typename Backend>
ffi::Error edge_attention_vjp(
    typename Backend::Context context, ffi::AnyBuffer ct, ffi::AnyBuffer value, ffi::AnyBuffer y,
    ffi::AnyBuffer stats, ffi::AnyBuffer log_sum_ct, ffi::AnyBuffer dst_score,
    ffi::AnyBuffer src_score, ffi::AnyBuffer edge_score, ffi::AnyBuffer edge_scale,
    ffi::AnyBuffer rows, ffi::AnyBuffer cols, ffi::AnyBuffer order, ffi::Result<ffi::AnyBuffer> out,
    ffi::Result<ffi::AnyBuffer> to_src_score, ffi::Result<ffi::AnyBuffer> to_score,
    ffi::Result<ffi::AnyBuffer> workspace, ffi::Result<ffi::AnyBuffer> scratch,
    ffi::Result<ffi::AnyBuffer> records, AttentionVjpAttributes attributes) {
  const ffi::DataType dtype = ct.element_type(), acc_dtype = accumulator_type(dtype);
  if (ct.dimensions().size() != 2 || value.dimensions().size() != 2 ||
      to_score->dimensions().size() != 2) {
    return invalid("the inputs and the scores' cotangent must have two dimensions");
  }
  const bool additive = attributes.additive;
  const int64_t num_cols = ct.dimensions()[0], width = ct.dimensions()[1];
  const int64_t num_rows = value.dimensions()[0];
  const int64_t num_weights = to_score->dimensions()[0], heads = to_score->dimensions()[1];
  if (!is_matrix(value, num_rows, width, dtype) || !is_matrix(*out, num_rows, width, dtype)) {
    return invalid("the inputs or the result have the wrong shape or dtype");
  }
  const bool sums = to_src_score->element_count() > 0;
  if (to_score->element_type() != acc_dtype || !divides(heads, width) ||
      !is_matrix(*to_src_score, sums ? num_rows : 0, heads, acc_dtype)) {
    return invalid("the scores' cotangents have the wrong shape or dtype");
  }
  const ffi::AnyBuffer* const of_log_sum = attributes.has_log_sum_ct ? &log_sum_ct : nullptr;
  ffi::Error error =
      check_attained(ct, &y, stats, of_log_sum, *records, Features{width, heads}, dtype);
  if (error.failure()) return error;
  const CsrOperands operands = {
      rows, cols, order, attributes.gather, attributes.ordered, num_rows, num_cols, num_weights};
  error = operands.check(/*weighted=*/true);
  if (error.failure()) return error;
  const AttentionOperands scores = {dst_score,       src_score,           edge_score,
                                    edge_scale,      attributes.additive, attributes.scaled,
                                    attributes.slope};
  error = scores.check(num_rows, num_weights, heads, acc_dtype);
  if (error.failure()) return error;
  if (additive && !is_matrix(dst_score, num_cols, heads, acc_dtype)) {
    return invalid("the destinations' scores have the wrong shape or dtype");
  }
  const bool one_pass = attributes.one_pass;
  if (one_pass) {
    if (!Backend::kHasOnePass) return invalid("there is no kernel of one pass");
    error = check_whole_heads({width, heads}, dtype);
    if (error.failure()) return error;
  }
  const int64_t count = static_cast<int64_t>(rows.element_count());
  if (scratch->element_type() != acc_dtype ||
      !has_shape(*scratch, {2, Backend::kHasOnePass && !one_pass ? count : 0, heads})) {
    return invalid("the scratch memory has the wrong shape or dtype");
  }
  if (!is_schedule(attributes.lanes, attributes.threads)) return invalid("the schedule is wrong");
  error = check_workspace(*workspace, one_pass ? 2 * width : std::max(width, heads), acc_dtype);
  if (error.failure()) return error;
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    return Backend::edge_attention_vjp(
        context, attributes, make_workspace(*workspace), data<Acc>(*scratch), operands.csr(),
        data<const T>(value), make_attained<T, Acc>(ct, &y, stats, of_log_sum),
        scores.template attention<Acc>(additive), Features{width, heads}, data<T>(*out),
        sums ? data<Acc>(*to_src_score) : nullptr, data<Acc>(*to_score),
        static_cast<AttentionRecord<Acc>*>(records->untyped_data()));
  });
}

// The derivatives of keyed_attention, with a Csr whose rows are sources and whose columns
// destinations, of which row_key is. to_score is that of dots before they are scaled. What is
// absent has no rows: to_col_key where values are keys, the `same`, and it is added to `out`; and
// to_vector of dots.
template <typename Backend>
ffi::Error keyed_attention_vjp(
    typename Backend::Context context, ffi::AnyBuffer ct, ffi::AnyBuffer value,
    ffi::AnyBuffer row_key, ffi::AnyBuffer col_key, ffi::AnyBuffer factor,
    ffi::AnyBuffer edge_scale, ffi::AnyBuffer y, ffi::AnyBuffer stats, ffi::AnyBuffer log_sum_ct,
    ffi::AnyBuffer rows, ffi::AnyBuffer cols, ffi::AnyBuffer order, ffi::Result<ffi::AnyBuffer> out,
    ffi::Result<ffi::AnyBuffer> to_col_key, ffi::Result<ffi::AnyBuffer> to_score,
    ffi::Result<ffi::AnyBuffer> to_vector, ffi::Result<ffi::AnyBuffer> workspace,
    ffi::Result<ffi::AnyBuffer> records, ffi::Result<ffi::AnyBuffer> parts,
    KeyedVjpAttributes attributes) {
  const ffi::DataType dtype = ct.element_type(), acc_dtype = accumulator_type(dtype);
  if (ct.dimensions().size() != 2 || value.dimensions().size() != 2 ||
      to_score->dimensions().size() != 2) {
    return invalid("the inputs and the scores' cotangent must have two dimensions");
  }
  const bool leaky = attributes.leaky, same = attributes.same;
  const int64_t num_cols = ct.dimensions()[0], width = ct.dimensions()[1];
  const int64_t num_rows = value.dimensions()[0];
  const int64_t num_weights = to_score->dimensions()[0], heads = to_score->dimensions()[1];
  if (!is_matrix(value, num_rows, width, dtype) ||
      (!same && !is_matrix(col_key, num_rows, width, dtype)) ||
      !is_matrix(row_key, num_cols, width, dtype) ||
      !is_index(factor, leaky ? width : 1, acc_dtype)) {
    return invalid(
        "the values, the keys, their vector or their scale have the wrong shape or dtype");
  }
  if (!divides(heads, width) || to_score->element_type() != acc_dtype) {
    return invalid("the scores' cotangent has the wrong shape or dtype");
  }
  const ffi::AnyBuffer* const result = attributes.has_y ? &y : nullptr;
  const ffi::AnyBuffer* const of_log_sum = attributes.has_log_sum_ct ? &log_sum_ct : nullptr;
  ffi::Error error =
      check_attained(ct, result, stats, of_log_sum, *records, Features{width, heads}, dtype);
  if (error.failure()) return error;
  error = check_whole_heads({width, heads}, dtype);
  if (error.failure()) return error;
  if (attributes.scaled && !is_matrix(edge_scale, num_weights, heads, acc_dtype)) {
    return invalid("the edges' scales have the wrong shape or dtype");
  }
  const CsrOperands operands = {
      rows, cols, order, attributes.gather, attributes.ordered, num_rows, num_cols, num_weights};
  error = operands.check(/*weighted=*/true);
  if (error.failure()) return error;
  error = check_workspace(*workspace, 2 * width, acc_dtype);
  if (error.failure()) return error;
  const Workspace blocks = make_workspace(*workspace);
  if (!is_matrix(*out, num_rows, width, dtype) ||
      !is_matrix(*to_col_key, same ? 0 : num_rows, width, dtype) ||
      !is_matrix(*to_vector, leaky ? 1 : 0, width, acc_dtype)) {
    return invalid("the gradients have the wrong shape or dtype");
  }
  if (!is_matrix(*parts, leaky ? blocks.blocks : 0, width, acc_dtype)) {
    return invalid("the blocks' parts have the wrong shape or dtype");
  }
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    const Keys<T, Acc> keys = {data<const T>(row_key), data<const T>(same ? value : col_key),
                               data_if<Acc>(leaky, factor), data_if<Acc>(!leaky, factor),
                               static_cast<Acc>(attributes.slope)};
    return Backend::keyed_attention_vjp(context, blocks, operands.csr(), data<const T>(value),
                                        make_attained<T, Acc>(ct, result, stats, of_log_sum), keys,
                                        data_if<Acc>(attributes.scaled, edge_scale),
                                        Features{width, heads}, data<T>(*out),
                                        same ? nullptr : data<T>(*to_col_key), data<Acc>(*to_score),
                                        leaky ? data<Acc>(*to_vector) : nullptr,
                                        static_cast<AttentionRecord<Acc>*>(records->untyped_data()),
                                        leaky ? data<Acc>(*parts) : nullptr);
  });
}

// Whether the entries by destination and by source are those of attention between so many rows.
inline ffi::Error check_sides(const CsrOperands& by_dst, const CsrOperands& by_src) {
  ffi::Error error = by_dst.check(/*weighted=*/true);
  if (error.failure()) return error;
  error = by_src.check(/*weighted=*/true);
  if (error.failure()) return error;
  if (by_dst.count() == 0 || by_dst.count() != by_src.count()) {
    return invalid("there must be entries, as many by destination as by source");
  }
  return ffi::Error::Success();
}

// All gradients of keyed_attention: those of keyed_attention_vjp, whose operands it has, and that
// of row_key in place of the scores'.
template <typename Backend>
ffi::Error keyed_attention_gradients(
    typename Backend::Context context, ffi::AnyBuffer ct, ffi::AnyBuffer value,
    ffi::AnyBuffer row_key, ffi::AnyBuffer col_key, ffi::AnyBuffer factor,
    ffi::AnyBuffer edge_scale, ffi::AnyBuffer y, ffi::AnyBuffer stats, ffi::AnyBuffer log_sum_ct,
    ffi::AnyBuffer dst_rows, ffi::AnyBuffer dst_cols, ffi::AnyBuffer src_rows,
    ffi::AnyBuffer src_cols, ffi::AnyBuffer src_order, ffi::Result<ffi::AnyBuffer> to_value,
    ffi::Result<ffi::AnyBuffer> to_row_key, ffi::Result<ffi::AnyBuffer> to_col_key,
    ffi::Result<ffi::AnyBuffer> to_vector, ffi::Result<ffi::AnyBuffer> workspace,
    KeyedGradientsAttributes attributes) {
  const ffi::DataType dtype = ct.element_type(), acc_dtype = accumulator_type(dtype);
  if (ct.dimensions().size() != 2 || value.dimensions().size() != 2 ||
      stats.dimensions().size() != 3) {
    return invalid("the inputs and the statistics have the wrong number of dimensions");
  }
  const bool leaky = attributes.leaky, same = attributes.same, scaled = attributes.scaled;
  const int64_t num_dst = ct.dimensions()[0], width = ct.dimensions()[1];
  const int64_t num_src = value.dimensions()[0], heads = stats.dimensions()[1];
  if (!is_matrix(value, num_src, width, dtype) ||
      (!same && !is_matrix(col_key, num_src, width, dtype)) ||
      !is_matrix(row_key, num_dst, width, dtype) ||
      !is_index(factor, leaky ? width : 1, acc_dtype)) {
    return invalid(
        "the values, the keys, their vector or their scale have the wrong shape or dtype");
  }
  if (!divides(heads, width)) return invalid("the statistics have the wrong shape");
  const Features features = {width, heads};
  const ffi::AnyBuffer* const of_log_sum = attributes.has_log_sum_ct ? &log_sum_ct : nullptr;
  ffi::Error error = check_attained(ct, &y, stats, of_log_sum, features, dtype);
  if (error.failure()) return error;
  error = check_whole_heads(features, dtype);
  if (error.failure()) return error;
  const int64_t count = static_cast<int64_t>(dst_rows.element_count());
  if (scaled && !is_matrix(edge_scale, count, heads, acc_dtype)) {
    return invalid("the edges' scales have the wrong shape or dtype");
  }
  const CsrOperands by_dst = {dst_rows, dst_cols, dst_rows, true, false, num_dst, num_src, count};
  const CsrOperands by_src = {src_rows,           src_cols, src_order, true,
                              attributes.ordered, num_src,  num_dst,   count};
  error = check_sides(by_dst, by_src);
  if (error.failure()) return error;
  error = check_workspace(*workspace, width, acc_dtype);
  if (error.failure()) return error;
  if (!is_matrix(*to_value, num_src, width, dtype) ||
      !is_matrix(*to_row_key, num_dst, width, dtype) ||
      !is_matrix(*to_col_key, same ? 0 : num_src, width, dtype) ||
      !is_matrix(*to_vector, leaky ? 1 : 0, width, acc_dtype)) {
    return invalid("the gradients have the wrong shape or dtype");
  }
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    const Keys<T, Acc> keys = {data<const T>(row_key), data<const T>(same ? value : col_key),
                               data_if<Acc>(leaky, factor), data_if<Acc>(!leaky, factor),
                               static_cast<Acc>(attributes.slope)};
    return Backend::keyed_attention_gradients(
        context, by_dst.csr(), by_src.csr(), data<const T>(value),
        make_attained<T, Acc>(ct, &y, stats, of_log_sum), keys, data_if<Acc>(scaled, edge_scale),
        features, data<T>(*to_value), data<T>(*to_row_key), same ? nullptr : data<T>(*to_col_key),
        leaky ? data<Acc>(*to_vector) : nullptr, make_workspace(*workspace));
  });
}

// All gradients of edge_attention with scores of both ends.
template <typename Backend>
ffi::Error edge_attention_gradients(
    typename Backend::Context context, ffi::AnyBuffer ct, ffi::AnyBuffer value, ffi::AnyBuffer y,
    ffi::AnyBuffer stats, ffi::AnyBuffer log_sum_ct, ffi::AnyBuffer dst_score,
    ffi::AnyBuffer src_score, ffi::AnyBuffer edge_scale, ffi::AnyBuffer dst_rows,
    ffi::AnyBuffer dst_cols, ffi::AnyBuffer src_rows, ffi::AnyBuffer src_cols,
    ffi::AnyBuffer src_order, ffi::Result<ffi::AnyBuffer> to_value,
    ffi::Result<ffi::AnyBuffer> to_dst_score, ffi::Result<ffi::AnyBuffer> to_src_score,
    ffi::Result<ffi::AnyBuffer> workspace, AttentionGradientsAttributes attributes) {
  const ffi::DataType dtype = ct.element_type(), acc_dtype = accumulator_type(dtype);
  if (ct.dimensions().size() != 2 || value.dimensions().size() != 2 ||
      stats.dimensions().size() != 3) {
    return invalid("the inputs and the statistics have the wrong number of dimensions");
  }
  const bool scaled = attributes.scaled;
  const int64_t num_dst = ct.dimensions()[0], width = ct.dimensions()[1];
  const int64_t num_src = value.dimensions()[0], heads = stats.dimensions()[1];
  if (!is_matrix(value, num_src, width, dtype)) {
    return invalid("the values have the wrong shape or dtype");
  }
  if (!divides(heads, width)) return invalid("the statistics have the wrong shape");
  const Features features = {width, heads};
  const ffi::AnyBuffer* const of_log_sum = attributes.has_log_sum_ct ? &log_sum_ct : nullptr;
  ffi::Error error = check_attained(ct, &y, stats, of_log_sum, features, dtype);
  if (error.failure()) return error;
  error = check_whole_heads(features, dtype);
  if (error.failure()) return error;
  const int64_t count = static_cast<int64_t>(dst_rows.element_count());
  if (!is_matrix(dst_score, num_dst, heads, acc_dtype) ||
      !is_matrix(src_score, num_src, heads, acc_dtype) ||
      (scaled && !is_matrix(edge_scale, count, heads, acc_dtype))) {
    return invalid("the scores or the scales have the wrong shape or dtype");
  }
  const CsrOperands by_dst = {dst_rows, dst_cols, dst_rows, true, false, num_dst, num_src, count};
  const CsrOperands by_src = {src_rows,           src_cols, src_order, true,
                              attributes.ordered, num_src,  num_dst,   count};
  error = check_sides(by_dst, by_src);
  if (error.failure()) return error;
  error = check_workspace(*workspace, width, acc_dtype);
  if (error.failure()) return error;
  if (!is_matrix(*to_value, num_src, width, dtype) ||
      !is_matrix(*to_dst_score, num_dst, heads, acc_dtype) ||
      !is_matrix(*to_src_score, num_src, heads, acc_dtype)) {
    return invalid("the gradients have the wrong shape or dtype");
  }
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    const Attention<Acc> attention = {data<const Acc>(dst_score), data<const Acc>(src_score),
                                      nullptr, data_if<Acc>(scaled, edge_scale),
                                      static_cast<Acc>(attributes.slope)};
    return Backend::edge_attention_gradients(
        context, by_dst.csr(), by_src.csr(), data<const T>(value),
        make_attained<T, Acc>(ct, &y, stats, of_log_sum), attention, features, data<T>(*to_value),
        data<Acc>(*to_src_score), data<Acc>(*to_dst_score), make_workspace(*workspace));
  });
}

// edge_attention of scores of edges with relations (see TypedKeys). Without rows their numbers are
// in `at_row`; the scores have no rows unless they are kept.
template <typename Backend>
ffi::Error typed_attention(typename Backend::Context context, ffi::AnyBuffer value,
                           ffi::AnyBuffer of_value, ffi::AnyBuffer row, ffi::AnyBuffer of_row,
                           ffi::AnyBuffer at_row, ffi::AnyBuffer edge_scale, ffi::AnyBuffer types,
                           ffi::AnyBuffer rows, ffi::AnyBuffer cols,
                           ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> stats,
                           ffi::Result<ffi::AnyBuffer> scores,
                           ffi::Result<ffi::AnyBuffer> workspace, TypedAttributes attributes) {
  ffi::Error error = check_results(value, *out, *stats);
  if (error.failure()) return error;
  const ffi::DataType dtype = value.element_type(), acc_dtype = accumulator_type(dtype);
  const int64_t num_cols = value.dimensions()[0], width = value.dimensions()[1];
  const int64_t num_rows = out->dimensions()[0], heads = stats->dimensions()[1];
  error = check_whole_heads({width, heads}, dtype);
  if (error.failure()) return error;
  const bool has_rows = attributes.has_rows, keeps = attributes.keeps_scores;
  const CsrOperands operands = {rows, cols, rows, true, false, num_rows, num_cols, 0};
  error = operands.check(/*weighted=*/false);
  if (error.failure()) return error;
  const int64_t count = operands.count();
  if (of_value.dimensions().size() != 2) return invalid("the vectors must be a matrix");
  const int64_t num_types = of_value.dimensions()[0];
  if (!is_matrix(of_value, num_types, width, dtype) ||
      (has_rows && (heads != 1 || !is_matrix(of_row, num_types, width, dtype) ||
                    !is_matrix(row, num_rows, width, dtype)))) {
    return invalid("the rows or the vectors have the wrong shape or dtype");
  }
  if ((!has_rows && !is_matrix(at_row, count, heads, acc_dtype)) ||
      (attributes.scaled && !is_matrix(edge_scale, count, heads, acc_dtype)) ||
      !is_matrix(*scores, keeps ? count : 0, heads, acc_dtype)) {
    return invalid("the edges' numbers, scales or scores have the wrong shape or dtype");
  }
  if (!is_index(types, count, ffi::S32)) return invalid("there must be an int32 type of each edge");
  error = check_workspace(*workspace, 2 * width, acc_dtype);
  if (error.failure()) return error;
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    const TypedKeys<T, Acc> keys = {data<const int32_t>(types),
                                    num_types,
                                    data<const T>(of_value),
                                    data_if<T>(has_rows, row),
                                    data_if<T>(has_rows, of_row),
                                    data_if<Acc>(!has_rows, at_row),
                                    keeps ? data<Acc>(*scores) : nullptr,
                                    static_cast<Acc>(attributes.slope)};
    Csr<int32_t> csr = operands.csr();
    csr.num_weights = count;
    return Backend::typed_attention(context, make_workspace(*workspace), csr, data<const T>(value),
                                    keys, data_if<Acc>(attributes.scaled, edge_scale),
                                    Features{width, heads}, data<T>(*out),
                                    static_cast<SoftmaxStats<Acc>*>(stats->untyped_data()));
  });
}

// The derivatives of typed_attention by source, as edge_attention_vjp, where `score` is what the
// LeakyReLU is applied to, and out[r, h, :] has to_src_score[r, h] * of_value[types[r], h, :] more.
template <typename Backend>
ffi::Error typed_attention_vjp(typename Backend::Context context, ffi::AnyBuffer ct,
                               ffi::AnyBuffer value, ffi::AnyBuffer of_value, ffi::AnyBuffer types,
                               ffi::AnyBuffer score, ffi::AnyBuffer edge_scale, ffi::AnyBuffer y,
                               ffi::AnyBuffer stats, ffi::AnyBuffer log_sum_ct, ffi::AnyBuffer rows,
                               ffi::AnyBuffer cols, ffi::AnyBuffer order,
                               ffi::Result<ffi::AnyBuffer> out,
                               ffi::Result<ffi::AnyBuffer> to_src_score,
                               ffi::Result<ffi::AnyBuffer> to_score,
                               ffi::Result<ffi::AnyBuffer> workspace,
                               ffi::Result<ffi::AnyBuffer> records, TypedVjpAttributes attributes) {
  const ffi::DataType dtype = ct.element_type(), acc_dtype = accumulator_type(dtype);
  if (ct.dimensions().size() != 2 || value.dimensions().size() != 2 ||
      of_value.dimensions().size() != 2 || to_score->dimensions().size() != 2) {
    return invalid("the inputs and the scores' cotangent must have two dimensions");
  }
  const int64_t num_cols = ct.dimensions()[0], width = ct.dimensions()[1];
  const int64_t num_rows = value.dimensions()[0], num_types = of_value.dimensions()[0];
  const int64_t num_weights = to_score->dimensions()[0], heads = to_score->dimensions()[1];
  if (!is_matrix(value, num_rows, width, dtype) || !is_matrix(*out, num_rows, width, dtype) ||
      !is_matrix(of_value, num_types, width, dtype) || !is_index(types, num_rows, ffi::S32)) {
    return invalid("the inputs or the result have the wrong shape or dtype");
  }
  if (!divides(heads, width) || to_score->element_type() != acc_dtype ||
      !is_matrix(*to_src_score, num_rows, heads, acc_dtype) ||
      !is_matrix(score, num_weights, heads, acc_dtype) ||
      (attributes.scaled && !is_matrix(edge_scale, num_weights, heads, acc_dtype))) {
    return invalid("the scores, the scales or the cotangents have the wrong shape or dtype");
  }
  const ffi::AnyBuffer* const of_log_sum = attributes.has_log_sum_ct ? &log_sum_ct : nullptr;
  ffi::Error error =
      check_attained(ct, &y, stats, of_log_sum, *records, Features{width, heads}, dtype);
  if (error.failure()) return error;
  error = check_whole_heads({width, heads}, dtype);
  if (error.failure()) return error;
  const CsrOperands operands = {
      rows, cols, order, attributes.gather, attributes.ordered, num_rows, num_cols, num_weights};
  error = operands.check(/*weighted=*/true);
  if (error.failure()) return error;
  error = check_workspace(*workspace, 2 * width, acc_dtype);
  if (error.failure()) return error;
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    const Attention<Acc> attention = {nullptr, nullptr, data<const Acc>(score),
                                      data_if<Acc>(attributes.scaled, edge_scale),
                                      static_cast<Acc>(attributes.slope)};
    const TypedVectors<T> of_rows = {data<const int32_t>(types), num_types,
                                     data<const T>(of_value)};
    return Backend::typed_attention_vjp(
        context, make_workspace(*workspace), operands.csr(), data<const T>(value),
        make_attained<T, Acc>(ct, &y, stats, of_log_sum), attention, of_rows,
        Features{width, heads}, data<T>(*out), data<Acc>(*to_src_score), data<Acc>(*to_score),
        static_cast<AttentionRecord<Acc>*>(records->untyped_data()));
  });
}

// out[e, h] = sum over the features of head h of vector * leaky(left[rows[e]] + right[cols[e]]), 0
// for padding.
template <typename Backend>
ffi::Error leaky_scores(typename Backend::Context context, ffi::AnyBuffer left,
                        ffi::AnyBuffer right, ffi::AnyBuffer vector, ffi::AnyBuffer rows,
                        ffi::AnyBuffer cols, ffi::Result<ffi::AnyBuffer> out,
                        LeakyScoresAttributes attributes) {
  const ffi::DataType dtype = left.element_type(), acc_dtype = accumulator_type(dtype);
  if (left.dimensions().size() != 2 || right.dimensions().size() != 2) {
    return invalid("left and right must have two dimensions");
  }
  const int64_t num_rows = left.dimensions()[0], width = left.dimensions()[1];
  const int64_t num_cols = right.dimensions()[0], heads = attributes.heads;
  const int64_t count = static_cast<int64_t>(rows.element_count());
  if (!is_matrix(right, num_cols, width, dtype) || !is_index(vector, width, acc_dtype) ||
      !divides(heads, width) || !is_matrix(*out, count, heads, acc_dtype)) {
    return invalid("the operands or the result have the wrong shape or dtype");
  }
  const CsrOperands operands = {rows, cols, rows, attributes.gather, false, num_rows, num_cols, 0};
  ffi::Error error = operands.check(/*weighted=*/false);
  if (error.failure()) return error;
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    const Leaky<T, Acc> leaky = {data<const T>(left), data<const T>(right),
                                 static_cast<Acc>(attributes.slope)};
    return Backend::leaky_scores(context, operands.csr(), leaky, data<const Acc>(vector),
                                 Features{width, heads}, data<Acc>(*out));
  });
}

// out[r, :] = vector * sum over the entries e of row r of factor[order[e], h] * slope, where slope
// is that of the LeakyReLU at row_key[r] + col_key[cols[e]].
template <typename Backend>
ffi::Error leaky_sum(typename Backend::Context context, ffi::AnyBuffer row_key,
                     ffi::AnyBuffer col_key, ffi::AnyBuffer factor, ffi::AnyBuffer vector,
                     ffi::AnyBuffer rows, ffi::AnyBuffer cols, ffi::AnyBuffer order,
                     ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> workspace,
                     LeakySumAttributes attributes) {
  const ffi::DataType dtype = row_key.element_type(), acc_dtype = accumulator_type(dtype);
  if (row_key.dimensions().size() != 2 || col_key.dimensions().size() != 2 ||
      factor.dimensions().size() != 2) {
    return invalid("the keys and the factors must have two dimensions");
  }
  const int64_t num_rows = row_key.dimensions()[0], width = row_key.dimensions()[1];
  const int64_t num_cols = col_key.dimensions()[0];
  const int64_t num_weights = factor.dimensions()[0], heads = factor.dimensions()[1];
  if (!is_matrix(col_key, num_cols, width, dtype) || !is_matrix(*out, num_rows, width, dtype) ||
      factor.element_type() != acc_dtype || !divides(heads, width) ||
      (attributes.has_vector && !is_index(vector, width, acc_dtype))) {
    return invalid("the keys, the factors or the result have the wrong shape or dtype");
  }
  const CsrOperands operands = {
      rows, cols, order, attributes.gather, attributes.ordered, num_rows, num_cols, num_weights};
  ffi::Error error = operands.check(/*weighted=*/true);
  if (error.failure()) return error;
  error = check_workspace(*workspace, width, acc_dtype);
  if (error.failure()) return error;
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    const Leaky<T, Acc> leaky = {data<const T>(row_key), data<const T>(col_key),
                                 static_cast<Acc>(attributes.slope)};
    return Backend::leaky_sum(context, make_workspace(*workspace), operands.csr(), leaky,
                              data<const Acc>(factor), data_if<Acc>(attributes.has_vector, vector),
                              Features{width, heads}, data<T>(*out));
  });
}

}  // namespace jax_gnn
