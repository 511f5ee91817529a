// Explicit instances of function templates, without their parameters once more.
#pragma once

// Instantiates a template: JAX_GNN_INSTANCE(sddmm<float, float>).
#define JAX_GNN_INSTANCE(...) template decltype(__VA_ARGS__) __VA_ARGS__
