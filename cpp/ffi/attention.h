// Handlers of attention, attention_vjp, leaky_scores and leaky_sum, written once. A Backend has a
// Context, half types, and functions that return an ffi::Error: those of each kind of scores have
// the names that the kernels have.
#pragma once

#include <algorithm>
#include <string_view>

#include "../kernels/attention.h"
#include "segments.h"

namespace jax_gnn {

struct AttentionAttributes {
  int64_t kind;  // enum ScoreKind
  bool has_rows, scaled, keeps_raw;
  double slope;
  bool gather, ordered;
  std::string_view kernel;  // "walk" or "step"
};

struct AttentionVjpAttributes {
  int64_t kind;
  bool whole, same, scaled, has_y, has_log_sum_ct;
  double slope;
  bool gather, ordered;
  bool by_passes;  // around segment_reduce_vjp, whose the next four are: of simple kinds
  bool one_pass;
  std::string_view kernel;
  int64_t lanes, threads;
};

struct LeakyScoresAttributes {
  bool gather;
  int64_t heads;
  double slope;
};

struct LeakySumAttributes {
  bool has_vector, gather, ordered;
  double slope;
  std::string_view kernel;  // "walk" or "gather"
};

}  // namespace jax_gnn

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::AttentionAttributes, StructMember<int64_t>("kind"),
                                      StructMember<bool>("has_rows"), StructMember<bool>("scaled"),
                                      StructMember<bool>("keeps_raw"),
                                      StructMember<double>("slope"), StructMember<bool>("gather"),
                                      StructMember<bool>("ordered"),
                                      StructMember<std::string_view>("kernel"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(
    jax_gnn::AttentionVjpAttributes, StructMember<int64_t>("kind"), StructMember<bool>("whole"),
    StructMember<bool>("same"), StructMember<bool>("scaled"), StructMember<bool>("has_y"),
    StructMember<bool>("has_log_sum_ct"), StructMember<double>("slope"),
    StructMember<bool>("gather"), StructMember<bool>("ordered"), StructMember<bool>("by_passes"),
    StructMember<bool>("one_pass"), StructMember<std::string_view>("kernel"),
    StructMember<int64_t>("lanes"), StructMember<int64_t>("threads"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::LeakyScoresAttributes, StructMember<bool>("gather"),
                                      StructMember<int64_t>("heads"),
                                      StructMember<double>("slope"));
XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(jax_gnn::LeakySumAttributes, StructMember<bool>("has_vector"),
                                      StructMember<bool>("gather"), StructMember<bool>("ordered"),
                                      StructMember<double>("slope"),
                                      StructMember<std::string_view>("kernel"));

namespace jax_gnn {

// Whether a sum of values under a softmax, or its cotangent, fits them, and its statistics that.
inline ffi::Error check_sums(const Buffer& value, const Buffer& sums, const Buffer& stats) {
  const ffi::DataType dtype = value.element_type();
  if (value.dimensions().size() != 2 || sums.dimensions().size() != 2 ||
      stats.dimensions().size() != 3) {
    return invalid("values, sums and statistics have the wrong number of dimensions");
  }
  const int64_t width = value.dimensions()[1];
  const int64_t num_rows = sums.dimensions()[0], heads = stats.dimensions()[1];
  if (!is_matrix(sums, num_rows, width, dtype) || stats.element_type() != accumulator_type(dtype) ||
      !has_shape(stats, {num_rows, heads, 2}) || !divides(heads, width)) {
    return invalid("the sums or the statistics have the wrong shape or dtype");
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

// Operands of scores, by kind (see ScoreKind); buffers that a kind does not name are ignored:
//   kPerEdge: entry;  kEnds: row, col;  kDots: row, col, and factor, the scale;
//   kLeaky: row, col, and factor, the vector;
//   kTyped: col, the vectors of values, types, and row and factor (see TypedKeys), or entry.
struct ScoreOperands {
  ScoreKind kind;
  Buffer row, col, factor, entry, edge_scale, types;
  bool scaled, has_rows;  // the last: of typed ones
  double slope;

  bool typed() const { return kind == ScoreKind::kTyped; }
  int64_t num_types() const { return col.dimensions().size() == 0 ? 0 : col.dimensions()[0]; }
  bool simple() const { return kind == ScoreKind::kPerEdge || kind == ScoreKind::kEnds; }
  bool keyed() const { return kind == ScoreKind::kDots || kind == ScoreKind::kLeaky; }

  // The number of weights of a head: the rows of the per-edge operand, if there is one.
  int64_t num_weights(int64_t count) const {
    const bool per_edge = kind == ScoreKind::kPerEdge;
    if (!per_edge && !scaled) return count;
    const Buffer& buffer = per_edge ? entry : edge_scale;
    return buffer.dimensions().size() == 2 ? buffer.dimensions()[0] : -1;
  }

  // `num_typed`: that have a type: entries, or backward sources.
  ffi::Error check(int64_t num_dst, int64_t num_src, int64_t num_weights, int64_t num_typed,
                   Features features, ffi::DataType dtype) const {
    const ffi::DataType acc_dtype = accumulator_type(dtype);
    const int64_t heads = features.heads, width = features.width;
    if (scaled && !is_matrix(edge_scale, num_weights, heads, acc_dtype)) {
      return invalid("the entries' scales have the wrong shape or dtype");
    }
    if ((kind == ScoreKind::kPerEdge && !is_matrix(entry, num_weights, heads, acc_dtype)) ||
        (kind == ScoreKind::kEnds && (!is_matrix(row, num_dst, heads, acc_dtype) ||
                                      !is_matrix(col, num_src, heads, acc_dtype)))) {
      return invalid("the scores have the wrong shape or dtype");
    }
    const int64_t num_factors = kind == ScoreKind::kLeaky ? width : 1;
    if (keyed() &&
        (!is_matrix(row, num_dst, width, dtype) || !is_matrix(col, num_src, width, dtype) ||
         !is_index(factor, num_factors, acc_dtype))) {
      return invalid("the keys, their vector or their scale have the wrong shape or dtype");
    }
    if (typed() &&
        (!is_matrix(col, num_types(), width, dtype) || !is_index(types, num_typed, ffi::S32) ||
         !(has_rows ? heads == 1 && is_matrix(factor, num_types(), width, dtype) &&
                          is_matrix(row, num_dst, width, dtype)
                    : is_matrix(entry, num_weights, heads, acc_dtype)))) {
      return invalid(
          "the vectors, the types, the rows or the raw scores have the wrong shape or dtype");
    }
    return simple() ? ffi::Error::Success() : check_whole_heads(features, dtype);
  }

  template <typename Acc>
  const Acc* scale() const {
    return data_if<Acc>(scaled, edge_scale);
  }

  template <typename Acc>
  Attention<Acc> attention() const {
    const bool of_ends = kind == ScoreKind::kEnds;
    return {data_if<Acc>(of_ends, row), data_if<Acc>(of_ends, col), data_if<Acc>(!of_ends, entry),
            scale<Acc>(), static_cast<Acc>(slope)};
  }

  template <typename T, typename Acc>
  Keys<T, Acc> keys() const {
    const bool leaky = kind == ScoreKind::kLeaky;
    return {data<const T>(row), data<const T>(col), data_if<Acc>(leaky, factor),
            data_if<Acc>(!leaky, factor), static_cast<Acc>(slope)};
  }

  // Raw scores are left in `raw`, if it is not null.
  template <typename T, typename Acc>
  TypedKeys<T, Acc> typed_keys(Acc* raw) const {
    return {data<const int32_t>(types),
            num_types(),
            data<const T>(col),
            data_if<T>(has_rows, row),
            data_if<T>(has_rows, factor),
            data_if<Acc>(!has_rows, entry),
            raw,
            static_cast<Acc>(slope)};
  }
};

inline bool is_score_kind(int64_t kind) {
  return kind >= 0 && kind <= static_cast<int64_t>(ScoreKind::kTyped);
}

// out[r, h, :] = sum over the entries e of row r of weight * value[cols[e], h, :], where the weight
// is scale times the softmax of the scores over the row's entries; its statistics; and raw scores
// of typed ones, -inf for padding, without rows unless they are kept.
template <typename Backend>
ffi::Error attention(typename Backend::Context context, Buffer value, Buffer row, Buffer col,
                     Buffer factor, Buffer entry, Buffer edge_scale, Buffer types, Buffer rows,
                     Buffer cols, Buffer order, ResultBuffer out, ResultBuffer stats,
                     ResultBuffer raw, ResultBuffer workspace, AttentionAttributes attributes) {
  JAX_GNN_RETURN_IF_ERROR(check_sums(value, *out, *stats));
  if (attributes.kernel != "walk" && attributes.kernel != "step")
    return invalid("there is no such kernel of attention");
  if (!is_score_kind(attributes.kind)) return invalid("there is no such kind of scores");
  const ffi::DataType dtype = value.element_type(), acc_dtype = accumulator_type(dtype);
  const Features features = {value.dimensions()[1], stats->dimensions()[1]};
  const auto [width, heads] = features;
  const int64_t num_cols = value.dimensions()[0], num_rows = out->dimensions()[0];
  const ScoreOperands scores = {static_cast<ScoreKind>(attributes.kind),
                                row,
                                col,
                                factor,
                                entry,
                                edge_scale,
                                types,
                                attributes.scaled,
                                attributes.has_rows,
                                attributes.slope};
  const int64_t count = static_cast<int64_t>(rows.element_count());
  const int64_t num_weights = scores.num_weights(count);
  const CsrOperands operands = {
      rows, cols, order, attributes.gather, attributes.ordered, num_rows, num_cols, num_weights};
  JAX_GNN_RETURN_IF_ERROR(operands.check(/*weighted=*/true));
  JAX_GNN_RETURN_IF_ERROR(scores.check(num_rows, num_cols, num_weights, count, features, dtype));
  JAX_GNN_RETURN_IF_ERROR(check_workspace(*workspace, 2 * width, acc_dtype));
  const bool keeps = attributes.keeps_raw;
  if (!is_matrix(*raw, keeps ? count : 0, heads, acc_dtype) || (keeps && !scores.typed())) {
    return invalid("the raw scores have the wrong shape or dtype");
  }
  if (scores.typed() && (!attributes.gather || attributes.ordered))
    return invalid("there must be cols, and no order");
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    const std::string_view kernel = attributes.kernel;
    const Workspace blocks = make_workspace(*workspace);
    const Csr<int32_t> csr = operands.csr();
    const T* const values = data<const T>(value);
    const Acc* const scale = scores.template scale<Acc>();
    T* const sums = data<T>(*out);
    auto* const statistics = static_cast<SoftmaxStats<Acc>*>(stats->untyped_data());
    if (scores.simple()) {
      return Backend::attention(context, kernel, blocks, csr, values,
                                scores.template attention<Acc>(), features, sums, statistics);
    }
    if (scores.keyed()) {
      return Backend::keyed_attention(context, kernel, blocks, csr, values,
                                      scores.template keys<T, Acc>(), scale, features, sums,
                                      statistics);
    }
    const auto keys = scores.template typed_keys<T, Acc>(keeps ? data<Acc>(*raw) : nullptr);
    return Backend::typed_attention(context, kernel, blocks, csr, values, keys, scale, features,
                                    sums, statistics);
  });
}

// The derivatives of attention, with a Csr whose rows are sources and whose columns destinations:
//   out[r, h, :] = sum over the entries e of row r of weight * scale * ct[cols[e], h, :]
//   to_score[order[e], h] = slope * weight * (scale * < ct[cols[e], h, :], value[r, h, :] > -
//   delta)
// where slope is that of the LeakyReLU after raw scores; 0 for padding. Of dots to_score is that
// before they are scaled. to_col is
//   of both ends' scores: the sum over the entries e of row r of to_score[order[e], h],
//   of keys: the gradient of theirs, or where values are keys, the `same`, it is added to out,
//   of typed scores: as of both ends, and out[r, h, :] has to_col[r, h] * col[types[r], h, :] more.
// to_vector is the gradient of the vector. What is absent has no rows.
//
// The whole is that in one launch, with the gradient of row, to_row, in place of to_score. It goes
// through the entries by destination, too: dst_rows and dst_cols, without an order.
template <typename Backend>
ffi::Error attention_vjp(typename Backend::Context context, Buffer ct, Buffer value, Buffer y,
                         Buffer stats, Buffer log_sum_ct, Buffer row, Buffer col, Buffer factor,
                         Buffer entry, Buffer edge_scale, Buffer types, Buffer rows, Buffer cols,
                         Buffer order, Buffer dst_rows, Buffer dst_cols, ResultBuffer out,
                         ResultBuffer to_row, ResultBuffer to_col, ResultBuffer to_vector,
                         ResultBuffer to_score, ResultBuffer workspace, ResultBuffer scratch,
                         ResultBuffer records, ResultBuffer parts,
                         AttentionVjpAttributes attributes) {
  JAX_GNN_RETURN_IF_ERROR(check_sums(value, ct, stats));
  if (to_score->dimensions().size() != 2) return invalid("to_score must have two dimensions");
  if (!is_score_kind(attributes.kind)) return invalid("there is no such kind of scores");
  const ffi::DataType dtype = ct.element_type(), acc_dtype = accumulator_type(dtype);
  const Features features = {ct.dimensions()[1], stats.dimensions()[1]};
  const auto [width, heads] = features;
  const int64_t num_dst = ct.dimensions()[0], num_src = value.dimensions()[0];
  const bool whole = attributes.whole, same = attributes.same;
  const ScoreOperands scores = {static_cast<ScoreKind>(attributes.kind),
                                row,
                                same ? value : col,
                                factor,
                                entry,
                                edge_scale,
                                types,
                                attributes.scaled,
                                /*has_rows=*/false,
                                attributes.slope};
  const bool simple = scores.simple(), keyed = scores.keyed(), typed = scores.typed();
  const bool leaky = scores.kind == ScoreKind::kLeaky;
  if (!is_matrix(*out, num_src, width, dtype) || (same && !keyed))
    return invalid("the values' gradient has the wrong shape or dtype, or they are no keys");
  if ((attributes.has_y && !is_matrix(y, num_dst, width, dtype)) ||
      (attributes.has_log_sum_ct && !is_matrix(log_sum_ct, num_dst, heads, acc_dtype))) {
    return invalid("what attention gave or its cotangents have the wrong shape or dtype");
  }
  const int64_t count = static_cast<int64_t>(rows.element_count());
  const int64_t num_weights = whole ? count : to_score->dimensions()[0];
  const CsrOperands by_src = {rows,    cols,    order,      attributes.gather, attributes.ordered,
                              num_src, num_dst, num_weights};
  JAX_GNN_RETURN_IF_ERROR(by_src.check(/*weighted=*/true));
  JAX_GNN_RETURN_IF_ERROR(scores.check(num_dst, num_src, num_weights, num_src, features, dtype));
  const CsrOperands by_dst = {dst_rows, dst_cols, dst_rows, true, false, num_dst, num_src, count};
  if (whole) {
    JAX_GNN_RETURN_IF_ERROR(by_dst.check(/*weighted=*/true));
    if (count == 0 || by_dst.count() != count || attributes.kind == 0 || typed ||
        !attributes.has_y) {
      return invalid("is_present must be entries, as many by destination as by source, rows and y");
    }
  }
  // Results.
  const int64_t of_row = simple ? heads : width, num_result_rows = whole ? num_dst : 0;
  const ffi::DataType of_rows = simple || typed ? acc_dtype : dtype;
  const bool has_col = scores.kind != ScoreKind::kPerEdge && !same;
  const auto is_result = [](const Buffer& buffer, bool is_present, int64_t size, int64_t numbers,
                            ffi::DataType type) {
    return is_present ? is_matrix(buffer, size, numbers, type) : buffer.element_count() == 0;
  };
  if (!is_result(*to_row, whole, num_result_rows, of_row, of_rows) ||
      !is_result(*to_col, has_col, num_src, keyed ? width : heads, of_rows) ||
      !is_result(*to_vector, leaky, 1, width, acc_dtype) ||
      !is_result(*to_score, !whole, num_weights, heads, acc_dtype)) {
    return invalid("the gradients have the wrong shape or dtype");
  }
  // Scratch memory.
  const bool by_passes = simple && attributes.by_passes;
  if (simple && !by_passes) {
    if (!Backend::kHasOnePass) return invalid("is_present is no kernel of one pass");
    JAX_GNN_RETURN_IF_ERROR(check_whole_heads(features, dtype));
  }
  const int64_t per_block = whole ? width : by_passes ? std::max(width, heads) : 2 * width;
  JAX_GNN_RETURN_IF_ERROR(check_workspace(*workspace, per_block, acc_dtype));
  const Workspace blocks = make_workspace(*workspace);
  if (!whole &&
      (records->element_type() != acc_dtype || !has_shape(*records, {num_dst, heads, 4}))) {
    return invalid("the records have the wrong shape or dtype");
  }
  if (by_passes && (scratch->element_type() != acc_dtype ||
                    !has_shape(*scratch, {2, Backend::kHasOnePass ? count : 0, heads}) ||
                    !is_schedule(attributes.kernel, attributes.lanes, attributes.threads))) {
    return invalid("the scratch memory or the schedule is wrong");
  }
  if (leaky && !whole && !is_matrix(*parts, blocks.blocks, width, acc_dtype)) {
    return invalid("the blocks' parts have the wrong shape or dtype");
  }
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    const Csr<int32_t> csr = by_src.csr();
    const T* const values = data<const T>(value);
    const Attained<T, Acc> attained = {data_if<T>(attributes.has_y, y), data<const T>(ct),
                                       static_cast<const SoftmaxStats<Acc>*>(stats.untyped_data()),
                                       data_if<Acc>(attributes.has_log_sum_ct, log_sum_ct)};
    const Acc* const scale = scores.template scale<Acc>();
    T* const to_value = data<T>(*out);
    auto* const record = static_cast<AttentionRecord<Acc>*>(records->untyped_data());
    const auto number = [](bool is_present, ResultBuffer& buffer) {
      return is_present ? data<Acc>(*buffer) : nullptr;
    };
    if (keyed) {
      const Keys<T, Acc> keys = scores.template keys<T, Acc>();
      T* const to_key = same ? nullptr : data<T>(*to_col);
      if (whole) {
        return Backend::keyed_attention_gradients(context, by_dst.csr(), csr, values, attained,
                                                  keys, scale, features, to_value, data<T>(*to_row),
                                                  to_key, number(leaky, to_vector), blocks);
      }
      return Backend::keyed_attention_vjp(context, blocks, csr, values, attained, keys, scale,
                                          features, to_value, to_key, data<Acc>(*to_score),
                                          number(leaky, to_vector), record, number(leaky, parts));
    }
    const Attention<Acc> attention = scores.template attention<Acc>();
    if (whole) {
      return Backend::attention_gradients(context, by_dst.csr(), csr, values, attained, attention,
                                          features, to_value, data<Acc>(*to_col),
                                          data<Acc>(*to_row), blocks);
    }
    if (simple) {
      return Backend::attention_vjp(context, attributes, blocks, data<Acc>(*scratch), csr, values,
                                    attained, attention, features, to_value,
                                    number(has_col, to_col), data<Acc>(*to_score), record);
    }
    const TypedVectors<T> vectors = {data<const int32_t>(types), scores.num_types(),
                                     data<const T>(col)};
    return Backend::typed_attention_vjp(context, blocks, csr, values, attained, attention, vectors,
                                        features, to_value, data<Acc>(*to_col),
                                        data<Acc>(*to_score), record);
  });
}

// out[e, h] = sum over the features of head h of vector * leaky(left[rows[e]] + right[cols[e]]), 0
// for padding.
template <typename Backend>
ffi::Error leaky_scores(typename Backend::Context context, Buffer left, Buffer right, Buffer vector,
                        Buffer rows, Buffer cols, ResultBuffer out,
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
  JAX_GNN_RETURN_IF_ERROR(operands.check(/*weighted=*/false));
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
ffi::Error leaky_sum(typename Backend::Context context, Buffer row_key, Buffer col_key,
                     Buffer factor, Buffer vector, Buffer rows, Buffer cols, Buffer order,
                     ResultBuffer out, ResultBuffer workspace, LeakySumAttributes attributes) {
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
  if (attributes.kernel != "walk" && attributes.kernel != "gather")
    return invalid("there is no such kernel of leaky_sum");
  const CsrOperands operands = {
      rows, cols, order, attributes.gather, attributes.ordered, num_rows, num_cols, num_weights};
  JAX_GNN_RETURN_IF_ERROR(operands.check(/*weighted=*/true));
  JAX_GNN_RETURN_IF_ERROR(check_workspace(*workspace, width, acc_dtype));
  return dispatch_float<Backend>(dtype, [&](auto t, auto acc) {
    using T = typename decltype(t)::type;
    using Acc = typename decltype(acc)::type;
    const Leaky<T, Acc> leaky = {data<const T>(row_key), data<const T>(col_key),
                                 static_cast<Acc>(attributes.slope)};
    return Backend::leaky_sum(context, attributes.kernel, make_workspace(*workspace),
                              operands.csr(), leaky, data<const Acc>(factor),
                              data_if<Acc>(attributes.has_vector, vector), Features{width, heads},
                              data<T>(*out));
  });
}

}  // namespace jax_gnn
