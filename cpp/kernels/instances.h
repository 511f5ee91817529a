// Explicit instances of function templates, without their parameters once more.
#pragma once

// Instantiates a template: JAX_GNN_INSTANCE(sddmm<float, float>).
#define JAX_GNN_INSTANCE(...) template decltype(__VA_ARGS__) __VA_ARGS__

// INSTANTIATE(T, Acc) for each dtype of features and the accumulator's.
#define JAX_GNN_FOR_FLOATS_AND(INSTANTIATE, Half, BFloat16) \
  INSTANTIATE(float, float)                                 \
  INSTANTIATE(double, double)                               \
  INSTANTIATE(Half, float)                                  \
  INSTANTIATE(BFloat16, float)
