// Checks and times designs of the fused hypergraph aggregation: see README.md beside this file.
//
//   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Xcompiler -Wall -o hypergraph
//     benchmarks/designs/hypergraph.cu cpp/kernels/cuda/hypergraph_aggregate.cu
//   ./hypergraph FILE [--widths 32,64,128] [--only NAME,...] [--quick] [--no-timing] [--out FILE]

#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "../../cpp/kernels/cuda/hypergraph_aggregate.h"
#include "hypergraph_kernels.cuh"

namespace jax_gnn::designs {
namespace {

using cuda::ceil_div;

int failures = 0;
double largest_error = 0;

// Of the norm of a difference to that of the result.
constexpr double kTolerance = 1e-6;
constexpr double kSmallTolerance = 3e-6;  // their rows have up to 40000 entries

[[noreturn]] void stop(const std::string& what) {
  std::printf("FAIL %s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(2);
}
void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) stop(std::string(what) + ": " + cudaGetErrorString(error));
}
#define CHECK(call) check(call, #call)

// ---- Hypergraphs

struct Rows {  // compressed
  std::vector<Index> indptr, ids;

  int64_t count() const { return static_cast<int64_t>(indptr.size()) - 1; }
};

struct Hypergraph {
  std::string name;
  Rows by_hyperedge, by_node;

  int64_t num_nodes() const { return by_node.count(); }
  int64_t num_hyperedges() const { return by_hyperedge.count(); }
};

Rows transpose(const Rows& rows, int64_t count) {
  Rows result;
  result.indptr.assign(count + 1, 0);
  for (Index id : rows.ids) ++result.indptr[id + 1];
  std::partial_sum(result.indptr.begin(), result.indptr.end(), result.indptr.begin());
  std::vector<Index> next(result.indptr.begin(), result.indptr.end() - 1);
  result.ids.resize(rows.ids.size());
  for (int64_t row = 0; row < rows.count(); ++row)
    for (Index at = rows.indptr[row]; at < rows.indptr[row + 1]; ++at)
      result.ids[next[rows.ids[at]]++] = static_cast<Index>(row);
  return result;
}

std::vector<Hypergraph> read_hypergraphs(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)),
                                std::istreambuf_iterator<char>());
  size_t at = 8;
  const auto take = [&](void* to, size_t size) {
    if (bytes.size() < at + size) stop(std::string("cannot read ") + path);
    if (size != 0) std::memcpy(to, bytes.data() + at, size);
    at += size;
  };
  const auto number = [&] {
    int32_t value;
    take(&value, sizeof(value));
    return value;
  };
  const auto numbers = [&](size_t count) {
    std::vector<Index> values(count);
    take(values.data(), count * sizeof(Index));
    return values;
  };
  if (bytes.size() < 8 || std::memcmp(bytes.data(), "HGRAPH01", 8) != 0)
    stop(std::string("not a file of inputs.py: ") + path);
  std::vector<Hypergraph> graphs(number());
  for (Hypergraph& graph : graphs) {
    graph.name.resize(number());
    take(graph.name.data(), graph.name.size());
    const size_t nodes = number(), hyperedges = number(), incidences = number();
    for (auto& [rows, count] :
         {std::pair(&graph.by_hyperedge, hyperedges), std::pair(&graph.by_node, nodes)}) {
      rows->indptr = numbers(count + 1);
      rows->ids = numbers(incidences);
    }
  }
  return graphs;
}

// Small hypergraphs with all that is special, by the sizes of their hyperedges.
std::vector<Hypergraph> adversarial(std::mt19937& random) {
  std::vector<Hypergraph> graphs;
  const auto add = [&](const char* name, int nodes, const std::vector<int>& sizes) {
    Hypergraph graph;
    graph.name = name;
    graph.by_hyperedge.indptr = {0};
    std::vector<Index> all(nodes);
    std::iota(all.begin(), all.end(), 0);
    for (int size : sizes) {
      for (int i = 0; i < size; ++i)
        std::swap(all[i], all[std::uniform_int_distribution<int>(i, nodes - 1)(random)]);
      std::sort(all.begin(), all.begin() + size);
      graph.by_hyperedge.ids.insert(graph.by_hyperedge.ids.end(), all.begin(), all.begin() + size);
      graph.by_hyperedge.indptr.push_back(static_cast<Index>(graph.by_hyperedge.ids.size()));
    }
    graph.by_node = transpose(graph.by_hyperedge, nodes);
    graphs.push_back(graph);
    // And the other way round: long rows in the second sum.
    std::swap(graph.by_hyperedge, graph.by_node);
    graph.name += "'";
    graphs.push_back(graph);
  };
  const auto uniform = [&](int count, int low, int high) {
    std::vector<int> sizes(count);
    for (int& size : sizes) size = std::uniform_int_distribution<int>(low, high)(random);
    return sizes;
  };
  add("one incidence", 1, {1});
  add("nothing", 5, {0, 0, 0});
  add("one hyperedge", 77, {77});
  add("empty rows", 301, uniform(97, 0, 2));
  add("single incidences", 513, std::vector<int>(401, 1));
  add("8, 9 and 16", 129, [&] {
    std::vector<int> sizes(150);
    for (size_t i = 0; i < sizes.size(); ++i) sizes[i] = (const int[]){8, 9, 16}[i % 3];
    return sizes;
  }());
  add("nearly all", 4001, [&] {
    std::vector<int> sizes = uniform(311, 0, 5);
    sizes[100] = 3990;
    sizes[101] = 1;
    sizes[200] = 4001;
    sizes.back() = 3000;
    return sizes;
  }());
  add("long rows", 3000, uniform(61, 0, 2000));
  add("relays", 40000, [&] {
    std::vector<int> sizes = uniform(401, 0, 9);
    sizes[7] = 39000;
    sizes[8] = 40000;
    return sizes;
  }());
  add("odd sizes", 1237, uniform(739, 0, 33));
  return graphs;
}

// ---- Formats

template <int kSlot>
struct HostSlots {
  std::vector<uint2> places;
  std::vector<Index> ids;
};

template <int kSlot>
HostSlots<kSlot> slots_of(const Rows& rows) {
  HostSlots<kSlot> slots;
  for (int64_t row = 0; row < rows.count(); ++row) {
    const Index begin = rows.indptr[row], size = rows.indptr[row + 1] - begin;
    const Index count = std::max<Index>(1, static_cast<Index>(ceil_div(size, kSlot)));
    for (Index place = 0; place < count; ++place) {
      slots.places.push_back(
          {static_cast<unsigned>(row), 2 * static_cast<unsigned>(place) + (place + 1 == count)});
      for (Index i = place * kSlot; i < (place + 1) * kSlot; ++i)
        slots.ids.push_back(i < size ? rows.ids[begin + i] : -1);
    }
  }
  slots.places.push_back({~0u, 1});
  slots.ids.insert(slots.ids.end(), kSlot, -1);
  return slots;
}

// ---- A problem on the device

template <typename T>
class Buffer {
 public:
  explicit Buffer(size_t count) : count_(count) {
    CHECK(cudaMalloc(&data_, std::max<size_t>(count, 1) * sizeof(T)));
  }
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) { set(values); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { cudaFree(data_); }

  T* data() const { return data_; }
  size_t count() const { return count_; }
  void set(const std::vector<T>& values) const {
    CHECK(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> get() const {
    std::vector<T> values(count_);
    CHECK(cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  void fill(int byte) const { CHECK(cudaMemset(data_, byte, count_ * sizeof(T))); }

 private:
  T* data_ = nullptr;
  size_t count_;
};

template <int kSlot>
struct DeviceSlots {
  explicit DeviceSlots(const HostSlots<kSlot>& host)
      : places(host.places), ids(host.ids), count(host.places.size() - 1) {}
  Buffer<uint2> places;
  Buffer<Index> ids;
  size_t count;

  Slots<kSlot> view(int64_t rows, int64_t cols) const {
    return {places.data(), reinterpret_cast<const uint4*>(ids.data()), static_cast<unsigned>(count),
            static_cast<unsigned>(rows), static_cast<unsigned>(cols)};
  }
};

struct Csr {
  explicit Csr(const Rows& host) : indptr(host.indptr), cols(host.ids), rows(row_of(host)) {}
  Buffer<Index> indptr, cols, rows;

  static std::vector<Index> row_of(const Rows& host) {
    std::vector<Index> rows;
    for (int64_t row = 0; row < host.count(); ++row)
      rows.insert(rows.end(), host.indptr[row + 1] - host.indptr[row], static_cast<Index>(row));
    return rows;
  }
  Incidences<Index> view(int64_t num_rows, int64_t num_cols) const {
    return {indptr.data(), rows.data(), cols.data(), static_cast<int64_t>(cols.count()),
            num_rows,      num_cols};
  }
};

struct Device {
  int multiprocessors = 0, shared = 0;
} device;

constexpr size_t kWorkspaceBytes = 64 << 20;
constexpr int kLibraryBlocks = 528;

// What does not depend on the width.
struct Graph {
  explicit Graph(const Hypergraph& host)
      : host(host),
        csr{Csr(host.by_hyperedge), Csr(host.by_node)},
        slots8{DeviceSlots<8>(slots_of<8>(host.by_hyperedge)),
               DeviceSlots<8>(slots_of<8>(host.by_node))},
        slots4{DeviceSlots<4>(slots_of<4>(host.by_hyperedge)),
               DeviceSlots<4>(slots_of<4>(host.by_node))} {}
  const Hypergraph& host;
  Csr csr[2];
  DeviceSlots<8> slots8[2];
  DeviceSlots<4> slots4[2];

  template <int kSlot>
  const DeviceSlots<kSlot>& slots(int phase) const {
    if constexpr (kSlot == 8)
      return slots8[phase];
    else
      return slots4[phase];
  }
};

struct Workspace {
  Workspace() : bytes{Buffer<char>(kWorkspaceBytes), Buffer<char>(kWorkspaceBytes)}, counter(1) {
    bytes[0].fill(0x5a);
    bytes[1].fill(0xa5);
    counter.fill(0);
  }
  Buffer<char> bytes[2];
  Buffer<unsigned> counter;
};

struct Problem {
  const Graph& graph;
  const Workspace& workspace;
  int64_t width;
  Buffer<float> x, node_in, hyperedge, node_out, h, y;

  int64_t rows(int phase) const {
    return phase == 0 ? graph.host.num_hyperedges() : graph.host.num_nodes();
  }
};

// ---- Designs

cudaError_t run_library(cudaStream_t stream, const Problem& problem, bool by_rows) {
  cuda::HypergraphSchedule schedule;
  schedule.by_rows = by_rows;
  int lanes = 1;
  while (lanes < 32 && lanes * 4 < problem.width) lanes *= 2;
  schedule.to_hyperedges = schedule.to_nodes = {false, lanes, 128, kLibraryBlocks};
  static_assert(kLibraryBlocks * workspace_bytes(4096, 4) <= kWorkspaceBytes);
  const HypergraphScales<float> scales = {problem.node_in.data(), problem.hyperedge.data(),
                                          problem.node_out.data()};
  return cuda::hypergraph_aggregate<float, float>(
      stream, schedule, problem.graph.csr[0].view(problem.rows(0), problem.rows(1)),
      problem.graph.csr[1].view(problem.rows(1), problem.rows(0)), problem.x.data(), scales,
      problem.width, problem.y.data(), problem.h.data(), problem.workspace.bytes[0].data(),
      problem.workspace.bytes[1].data());
}

// A tag that no other launch has.
uint64_t next_tag() {
  static std::atomic<uint64_t> launches{[] {
    std::random_device random;
    return uint64_t{random()} << 32 | random();
  }()};
  uint64_t x = launches.fetch_add(0x9e3779b97f4a7c15);  // splitmix64
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

constexpr int kVec = 4;

unsigned words_of(const Problem& problem) { return static_cast<unsigned>(problem.width / kVec); }

int log2_of(int64_t value) {
  int bits = 0;
  while (int64_t{2} << bits <= value) ++bits;
  return bits;
}

// Lanes of a team: at least one for each id of a slot.
int lanes_for(int64_t width, int slot) {
  int lanes = slot;
  while (lanes < 32 && int64_t{lanes} * kVec < width) lanes *= 2;
  return lanes;
}

// Blocks of `threads` which take `rounds` slots a team; 0: as many as it takes for the launch to be
// resident at once, where 1024 threads of a multiprocessor are, but at most `most_rounds`.
struct Dealing {
  int threads, rounds = 0, most_rounds = 8, lanes = 0;
};

template <int kSlot>
bool make_phase(const Problem& problem, int i, const Dealing& dealing, int64_t blocks,
                Phase<kSlot>* phase, dim3* grid) {
  const auto& slots = problem.graph.slots<kSlot>(i);
  const int lanes = dealing.lanes != 0 ? dealing.lanes : lanes_for(problem.width, kSlot);
  const int64_t tiles = ceil_div(problem.width, int64_t{lanes} * kVec);
  const int64_t teams = dealing.threads / lanes, count = static_cast<int64_t>(slots.count);
  int64_t rounds = dealing.rounds;
  if (rounds == 0)
    rounds = std::clamp<int64_t>(ceil_div(count, teams * std::max<int64_t>(blocks / tiles, 1)), 1,
                                 dealing.most_rounds);
  *phase = {slots.view(problem.rows(i), problem.rows(1 - i)),
            {log2_of(lanes), log2_of(teams), divisor(static_cast<unsigned>(rounds)),
             divisor(static_cast<unsigned>(rounds * teams))},
            i == 0 ? problem.node_in.data() : nullptr,
            i == 0 ? problem.hyperedge.data() : problem.node_out.data(),
            {reinterpret_cast<unsigned char*>(problem.workspace.bytes[i].data()), next_tag()}};
  const int64_t needed = ceil_div(count, teams * rounds);
  *grid = dim3(static_cast<unsigned>(needed), static_cast<unsigned>(tiles));
  // What Divisor and the workspace can take; the words of blocks beyond the last are not touched.
  return (count + teams * rounds) * teams * rounds < int64_t{1} << 32 &&
         needed * problem.width * 8 <= static_cast<int64_t>(kWorkspaceBytes);
}

struct Launch {
  dim3 grid;
  int threads;
  size_t shared;
  bool overlaps = false, cooperative = false;
  int cluster = 0;
};

template <typename... Parameters, typename... Arguments>
cudaError_t launch(cudaStream_t stream, const Launch& plan, void (*kernel)(Parameters...),
                   const Arguments&... arguments) {
  cudaLaunchAttribute attributes[3] = {};
  cudaLaunchConfig_t config = {};
  config.gridDim = plan.grid;
  config.blockDim = dim3(plan.threads);
  config.dynamicSmemBytes = plan.shared;
  config.stream = stream;
  config.attrs = attributes;
  if (plan.overlaps) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (plan.cooperative) {
    attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
    attributes[config.numAttrs++].val.cooperative = 1;
  }
  if (plan.cluster != 0) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = plan.cluster;
    attributes[config.numAttrs].val.clusterDim.y = 1;
    attributes[config.numAttrs++].val.clusterDim.z = 1;
  }
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <int kSlot, int kResident>
cudaError_t run_slots(cudaStream_t stream, const Problem& problem, const Dealing& dealing) {
  const int64_t blocks = int64_t{device.multiprocessors} * (kResident / dealing.threads);
  for (int i = 0; i < 2; ++i) {
    Phase<kSlot> phase;
    dim3 grid;
    if (!make_phase(problem, i, dealing, blocks, &phase, &grid)) return cudaErrorNotSupported;
    const float* in = i == 0 ? problem.x.data() : problem.h.data();
    float* out = i == 0 ? problem.h.data() : problem.y.data();
    const Launch plan = {grid, dealing.threads, sum_slots_bytes(dealing.threads), true};
    const cudaError_t error = launch(stream, plan, slots_kernel<float, kVec, kSlot, kResident>,
                                     phase, in, out, words_of(problem), i == 1);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// Both phases for a launch of `blocks` blocks at most, the same for both.
template <int kSlot>
bool make_phases(const Problem& problem, const Dealing& dealing, int64_t blocks,
                 Phases<kSlot>* phases, dim3* grid) {
  Dealing any_rounds = dealing;
  any_rounds.most_rounds = 1 << 20;
  *grid = dim3(1);
  for (int i = 0; i < 2; ++i) {
    dim3 needed;
    if (!make_phase(problem, i, any_rounds, blocks, &phases->at[i], &needed)) return false;
    *grid = dim3(std::max(grid->x, needed.x), needed.y);
  }
  return true;
}

template <int kSlot, int kResident, int kCopies>
cudaError_t run_one_launch(cudaStream_t stream, const Problem& problem, const Dealing& dealing,
                           bool cooperative) {
  const auto kernel = one_launch_kernel<GridBarrier, float, kVec, kSlot, kResident, kCopies>;
  const size_t shared = sum_slots_bytes(dealing.threads);
  int per_multiprocessor = 0;
  const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &per_multiprocessor, kernel, dealing.threads, shared);
  if (error != cudaSuccess) return error;
  const int64_t blocks = int64_t{device.multiprocessors} * per_multiprocessor;
  Phases<kSlot> phases;
  dim3 grid;
  if (!make_phases(problem, dealing, blocks, &phases, &grid) || int64_t{grid.x} * grid.y > blocks)
    return cudaErrorNotSupported;
  Launch plan = {grid, dealing.threads, shared};
  plan.cooperative = cooperative;
  return launch(stream, plan, kernel, phases, problem.x.data(), problem.h.data(), problem.y.data(),
                words_of(problem), problem.workspace.counter.data());
}

// Whether the device takes such clusters; allows what a launch needs.
template <class Kernel>
bool takes_cluster(Kernel kernel, const Launch& plan) {
  if (plan.shared > static_cast<size_t>(device.shared)) return false;
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(plan.shared)));
  CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = plan.cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = plan.grid;
  config.blockDim = dim3(plan.threads);
  config.dynamicSmemBytes = plan.shared;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  const cudaError_t error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  if (error != cudaSuccess) cudaGetLastError();  // it is not kept
  return error == cudaSuccess && clusters >= 1;
}

// `inside`: h in the cluster's shared memory, else in global memory.
template <int kSlot>
cudaError_t run_cluster(cudaStream_t stream, const Problem& problem, const Dealing& dealing,
                        int cluster, bool inside) {
  Phases<kSlot> phases;
  dim3 grid;
  Dealing tiled = dealing;
  // make_phase counts the blocks of all tiles.
  const int64_t tiles = ceil_div(problem.width, int64_t{dealing.lanes} * kVec);
  if (!make_phases(problem, tiled, cluster * tiles, &phases, &grid) ||
      grid.x > static_cast<unsigned>(cluster))
    return cudaErrorNotSupported;
  grid.x = static_cast<unsigned>(cluster);
  Launch plan = {grid, dealing.threads, sum_slots_bytes(dealing.threads)};
  plan.cluster = cluster;
  if (inside) {
    plan.shared += ceil_div(problem.rows(0), cluster) * dealing.lanes * kVec * sizeof(float);
    const auto kernel = dealing.threads > 512 ? cluster_kernel<float, kVec, kSlot, 1024>
                                              : cluster_kernel<float, kVec, kSlot, 512>;
    if (!takes_cluster(kernel, plan)) return cudaErrorNotSupported;
    return launch(stream, plan, kernel, phases, problem.x.data(), problem.y.data(),
                  words_of(problem), static_cast<unsigned>(log2_of(cluster)));
  }
  const auto kernel = dealing.threads > 512
                          ? one_launch_kernel<ClusterBarrier, float, kVec, kSlot, 1024, 2>
                          : one_launch_kernel<ClusterBarrier, float, kVec, kSlot, 512, 1>;
  if (!takes_cluster(kernel, plan)) return cudaErrorNotSupported;
  return launch(stream, plan, kernel, phases, problem.x.data(), problem.h.data(), problem.y.data(),
                words_of(problem), problem.workspace.counter.data());
}

__global__ void empty_kernel() {
  cuda::allow_next_launch();
  cuda::wait_for_previous_launch();
}

cudaError_t run_empty(cudaStream_t stream, int launches) {
  for (int i = 0; i < launches; ++i) {
    const cudaError_t error = launch(stream, {dim3(132), 128, 0, true}, empty_kernel);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// cudaErrorNotSupported: the design does not take the problem.
struct Design {
  std::string name;
  std::function<cudaError_t(cudaStream_t, const Problem&)> run;
  bool computes = true;
  bool keeps_h = true;
};

std::vector<Design> designs() {
  std::vector<Design> all;
  all.push_back({"A:rows", [](auto stream, auto& p) { return run_library(stream, p, true); }});
  all.push_back(
      {"B:incid", [](auto stream, auto& p) { return run_library(stream, p, false); }, true, false});
  const auto slots = [&](const char* name, auto slot, auto resident, Dealing dealing) {
    all.push_back({name, [=](auto stream, auto& p) {
                     return run_slots<decltype(slot)::value, decltype(resident)::value>(stream, p,
                                                                                        dealing);
                   }});
  };
  constexpr std::integral_constant<int, 8> k8;
  constexpr std::integral_constant<int, 4> k4;
  constexpr std::integral_constant<int, 1024> kAll;   // 64 registers
  constexpr std::integral_constant<int, 768> kThree;  // 80 registers
  slots("C:128", k8, kAll, {128});
  slots("C:64", k8, kAll, {64});
  slots("C:256", k8, kAll, {256});
  slots("C:r1", k8, kAll, {128, 1});
  slots("C:r2", k8, kAll, {128, 2});
  slots("C:r4", k8, kAll, {128, 4});
  slots("C:80", k8, kThree, {128});
  slots("C:80r1", k8, kThree, {128, 1});
  slots("C4:128", k4, kAll, {128});
  slots("C4:r1", k4, kAll, {128, 1});
  slots("C4:r2", k4, kAll, {128, 2});
  const auto one_launch = [&](const char* name, auto slot, auto resident, auto copies,
                              Dealing dealing, bool cooperative) {
    all.push_back({name, [=](auto stream, auto& p) {
                     return run_one_launch<decltype(slot)::value, decltype(resident)::value,
                                           decltype(copies)::value>(stream, p, dealing,
                                                                    cooperative);
                   }});
  };
  constexpr std::integral_constant<int, 512> kHalf;  // 128 registers
  constexpr std::integral_constant<int, 1> kOne;
  constexpr std::integral_constant<int, 2> kTwo;
  one_launch("D:512", k8, kHalf, kTwo, {512}, false);
  one_launch("D:256", k8, kHalf, kTwo, {256}, false);
  one_launch("D:coop", k8, kHalf, kTwo, {512}, true);
  one_launch("D:loop", k8, kHalf, kOne, {512}, false);
  one_launch("D:full", k8, kAll, kTwo, {512}, false);
  one_launch("D4:512", k4, kHalf, kTwo, {512}, false);
  const auto cluster = [&](const char* name, auto slot, Dealing dealing, int blocks, bool inside) {
    all.push_back({name,
                   [=](auto stream, auto& p) {
                     return run_cluster<decltype(slot)::value>(stream, p, dealing, blocks, inside);
                   },
                   true, !inside});
  };
  cluster("E:16", k8, {1024, 0, 8, 8}, 16, true);
  cluster("E:16h", k8, {512, 0, 8, 8}, 16, true);
  cluster("E:8", k8, {1024, 0, 8, 8}, 8, true);
  cluster("E4:16", k4, {1024, 0, 8, 4}, 16, true);
  cluster("F:16", k8, {1024, 0, 8, 8}, 16, false);
  cluster("F:16h", k8, {512, 0, 8, 8}, 16, false);
  all.push_back({"G:two", [](auto stream, auto&) { return run_empty(stream, 2); }, false, false});
  all.push_back({"G:one", [](auto stream, auto&) { return run_empty(stream, 1); }, false, false});
  return all;
}

// ---- Checks

// Waits as the host would, but not for ever: a design may hang.
void wait(cudaStream_t stream, const std::string& what) {
  const auto begin = std::chrono::steady_clock::now();
  for (;;) {
    const cudaError_t error = cudaStreamQuery(stream);
    if (error == cudaSuccess) return;
    if (error != cudaErrorNotReady) stop(what + ": " + cudaGetErrorString(error));
    if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(15)) stop(what + ": hangs");
  }
}

struct Case {
  std::unique_ptr<Problem> problem;
  std::vector<double> h, y;  // as they should be
};

Case make_case(const Graph& graph, const Workspace& workspace, int64_t width,
               std::mt19937& random) {
  const Hypergraph& host = graph.host;
  std::uniform_real_distribution<float> features(-1, 1), scales(0.5f, 2);
  const auto draw = [&](int64_t count, auto& law) {
    std::vector<float> values(count);
    for (float& value : values) value = law(random);
    return values;
  };
  auto x = draw(host.num_nodes() * width, features);
  auto node_in = draw(host.num_nodes(), scales), node_out = draw(host.num_nodes(), scales);
  auto hyperedge = draw(host.num_hyperedges(), scales);
  Case result;
  const auto sum = [&](const Rows& rows, const auto& from, const float* col_scale,
                       const float* row_scale) {
    std::vector<double> to(rows.count() * width);
    for (int64_t row = 0; row < rows.count(); ++row) {
      double* out = to.data() + row * width;
      for (Index at = rows.indptr[row]; at < rows.indptr[row + 1]; ++at) {
        const int64_t id = rows.ids[at];
        const double scale = col_scale != nullptr ? col_scale[id] : 1;
        for (int64_t i = 0; i < width; ++i) out[i] += scale * from[id * width + i];
      }
      for (int64_t i = 0; i < width; ++i) out[i] *= row_scale[row];
    }
    return to;
  };
  result.h = sum(host.by_hyperedge, x, node_in.data(), hyperedge.data());
  result.y = sum(host.by_node, result.h, nullptr, node_out.data());
  // Empty rows are zero whatever their scale; features that no row names are not looked at.
  for (int64_t e = 0; e < host.num_hyperedges(); ++e)
    if (host.by_hyperedge.indptr[e] == host.by_hyperedge.indptr[e + 1])
      hyperedge[e] = std::numeric_limits<float>::infinity();
  for (int64_t v = 0; v < host.num_nodes(); ++v)
    if (host.by_node.indptr[v] == host.by_node.indptr[v + 1]) {
      node_in[v] = node_out[v] = std::numeric_limits<float>::infinity();
      for (int64_t i = 0; i < width; ++i)
        x[v * width + i] = std::numeric_limits<float>::quiet_NaN();
    }
  result.problem.reset(new Problem{
      graph, workspace, width, Buffer<float>(x), Buffer<float>(node_in), Buffer<float>(hyperedge),
      Buffer<float>(node_out), Buffer<float>(host.num_hyperedges() * width),
      Buffer<float>(host.num_nodes() * width)});
  return result;
}

double error_of(const std::vector<float>& out, const std::vector<double>& expected) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    difference += (out[i] - expected[i]) * (out[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

enum class Outcome { kPassed, kFailed, kNotSupported };

Outcome check_design(cudaStream_t stream, const Design& design, const Case& each, int runs,
                     double tolerance, std::vector<float>* result) {
  const Problem& problem = *each.problem;
  const std::string what =
      design.name + " on " + problem.graph.host.name + ", width " + std::to_string(problem.width);
  for (int run = 0; run < runs; ++run) {
    problem.h.fill(0xff);
    problem.y.fill(0xff);
    const cudaError_t error = design.run(stream, problem);
    if (error == cudaErrorNotSupported) return Outcome::kNotSupported;
    if (error != cudaSuccess) stop(what + ": " + cudaGetErrorString(error));
    wait(stream, what);
    if (!design.computes) continue;
    const std::vector<float> y = problem.y.get();
    if (run == 0) {
      const double error_h = design.keeps_h ? error_of(problem.h.get(), each.h) : 0;
      const double error_y = error_of(y, each.y);
      largest_error = std::max({largest_error, error_h, error_y});
      if (!(error_h < tolerance) || !(error_y < tolerance)) {
        ++failures;
        std::printf("FAIL %s: relative errors %.2e of h, %.2e of y\n", what.c_str(), error_h,
                    error_y);
        return Outcome::kFailed;
      }
      *result = y;
    } else if (!same_bits(y, *result)) {
      ++failures;
      std::printf("FAIL %s: other bits in run %d\n", what.c_str(), run);
      return Outcome::kFailed;
    }
  }
  return Outcome::kPassed;
}

// ---- Times

constexpr int64_t kFlushWords = int64_t{256} << 20 >> 4;

// Overwritten, then read: what is left in the cache are clean lines of somebody else.
__global__ void overwrite_kernel(uint4* words, unsigned value) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < kFlushWords;
       i += int64_t{gridDim.x} * blockDim.x)
    words[i] = {value, value, value, value};
}
__global__ void read_kernel(const uint4* words, unsigned* sink) {
  unsigned sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < kFlushWords;
       i += int64_t{gridDim.x} * blockDim.x)
    sum += words[i].x ^ words[i].w;
  if (sum == 0x12345678) *sink = sum;
}
// Something to be busy with while the host queues what follows.
__global__ void delay_kernel(int64_t cycles) {
  const int64_t begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

class Timer {
 public:
  explicit Timer(cudaStream_t stream) : stream_(stream), words_(kFlushWords), sink_(1) {
    CHECK(cudaEventCreate(&begin_));
    CHECK(cudaEventCreate(&end_));
    empty_ = {median(30, true, nullptr), median(30, false, nullptr)};
  }
  struct Times {
    double cold, warm;
  };
  // Microseconds of a pair of events with nothing between.
  Times empty() const { return empty_; }

  // Microseconds of a graph's replays; events count in.
  double median(int repeats, bool cold, cudaGraphExec_t graph) {
    std::vector<double> samples;
    for (int i = 0; i < repeats; ++i) {
      if (cold) {
        CHECK(launch(stream_, flush_, overwrite_kernel, words_.data(), static_cast<unsigned>(i)));
        CHECK(launch(stream_, flush_, read_kernel, words_.data(), sink_.data()));
      } else if (graph != nullptr) {
        CHECK(cudaGraphLaunch(graph, stream_));
      }
      CHECK(launch(stream_, {dim3(1), 1, 0}, delay_kernel, int64_t{cold ? 1000 : 100000}));
      CHECK(cudaEventRecord(begin_, stream_));
      if (graph != nullptr) CHECK(cudaGraphLaunch(graph, stream_));
      CHECK(cudaEventRecord(end_, stream_));
      wait(stream_, "a replay");
      float milliseconds = 0;
      CHECK(cudaEventElapsedTime(&milliseconds, begin_, end_));
      samples.push_back(milliseconds * 1e3);
    }
    std::sort(samples.begin(), samples.end());
    return samples[samples.size() / 2];
  }

 private:
  const Launch flush_ = {dim3(264), 512, 0};
  cudaStream_t stream_;
  Buffer<uint4> words_;
  Buffer<unsigned> sink_;
  cudaEvent_t begin_, end_;
  Times empty_;
};

struct Measured {
  bool ran = false;
  double cold = 0, warm = 0;
};

Measured time_design(cudaStream_t stream, Timer& timer, const Design& design, const Case& each,
                     int repeats, const std::vector<float>& expected) {
  const Problem& problem = *each.problem;
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  CHECK(design.run(stream, problem));
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&replay, graph, 0));
  CHECK(cudaGraphUpload(replay, stream));
  Measured result;
  result.ran = true;
  result.warm = timer.median(repeats, false, replay);
  result.cold = timer.median(repeats, true, replay);
  if (design.computes) {
    problem.h.fill(0xff);
    problem.y.fill(0xff);
    CHECK(cudaGraphLaunch(replay, stream));
    wait(stream, design.name + " replayed");
    if (!same_bits(problem.y.get(), expected)) {
      ++failures;
      std::printf("FAIL %s on %s, width %lld: other bits when replayed\n", design.name.c_str(),
                  problem.graph.host.name.c_str(), static_cast<long long>(problem.width));
    }
  }
  CHECK(cudaGraphExecDestroy(replay));
  CHECK(cudaGraphDestroy(graph));
  return result;
}

// ---- The program

struct Row {
  std::string graph;
  int64_t width;
  std::vector<Measured> at;  // of each design

  double best_today() const {
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 2 && i < static_cast<int>(at.size()); ++i)
      if (at[i].ran) best = std::min(best, at[i].cold);
    return best;
  }
};

void print_table(const std::vector<Design>& all, const std::vector<Row>& rows, int64_t width) {
  std::printf("\nwidth %lld, µs with a cold L2 / warm; * the fastest, cold\n%-20s",
              static_cast<long long>(width), "");
  for (const Design& design : all) std::printf(" %11s", design.name.c_str());
  std::printf("\n");
  for (const Row& row : rows) {
    if (row.width != width) continue;
    double best = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < all.size(); ++i)
      if (row.at[i].ran && all[i].computes) best = std::min(best, row.at[i].cold);
    std::printf("%-20s", row.graph.c_str());
    for (size_t i = 0; i < all.size(); ++i) {
      if (!row.at[i].ran)
        std::printf(" %11s", "n/a");
      else
        std::printf(" %5.1f/%4.1f%c", row.at[i].cold, row.at[i].warm,
                    all[i].computes && row.at[i].cold == best ? '*' : ' ');
    }
    std::printf("\n");
  }
}

// How much faster than the better of today's designs, cold; where a design does not run, that one.
void print_means(const std::vector<Design>& all, const std::vector<Row>& rows) {
  std::printf(
      "\ntimes as fast as the better of the first two, geometric mean (n/a counts as 1):\n");
  double best_sum = 0;
  for (const Row& row : rows) {
    double best = row.best_today();
    for (size_t i = 0; i < all.size(); ++i)
      if (row.at[i].ran && all[i].computes) best = std::min(best, row.at[i].cold);
    best_sum += std::log(row.best_today() / best);
  }
  for (size_t i = 0; i < all.size(); ++i) {
    double sum = 0;
    for (const Row& row : rows)
      if (row.at[i].ran) sum += std::log(row.best_today() / row.at[i].cold);
    std::printf("%s %.3f, ", all[i].name.c_str(), std::exp(sum / rows.size()));
  }
  std::printf("the best of all %.3f\n", std::exp(best_sum / rows.size()));
}

void write_json(const char* path, const std::vector<Design>& all, const std::vector<Row>& rows,
                const Timer::Times& empty) {
  std::FILE* file = std::fopen(path, "w");
  if (file == nullptr) stop(std::string("cannot write ") + path);
  std::fprintf(file, "{\"empty_cold_us\": %.3f, \"empty_warm_us\": %.3f, \"results\": [",
               empty.cold, empty.warm);
  const char* separator = "\n";
  for (const Row& row : rows)
    for (size_t i = 0; i < all.size(); ++i) {
      if (!row.at[i].ran) continue;
      std::fprintf(file,
                   "%s{\"graph\": \"%s\", \"width\": %lld, \"design\": \"%s\", \"cold_us\": %.3f, "
                   "\"warm_us\": %.3f}",
                   separator, row.graph.c_str(), static_cast<long long>(row.width),
                   all[i].name.c_str(), row.at[i].cold, row.at[i].warm);
      separator = ",\n";
    }
  std::fprintf(file, "\n]}\n");
  std::fclose(file);
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

int main(int argc, char** argv) {
  const char *path = nullptr, *out = nullptr;
  std::vector<int64_t> widths = {32, 64, 128};
  std::vector<std::string> only;
  bool quick = false, timing = true;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--quick") {
      quick = true;
    } else if (option == "--no-timing") {
      timing = false;
    } else if (option == "--widths" && i + 1 < argc) {
      widths.clear();
      for (const std::string& width : split(argv[++i])) widths.push_back(std::stoll(width));
    } else if (option == "--only" && i + 1 < argc) {
      only = split(argv[++i]);
    } else if (option == "--out" && i + 1 < argc) {
      out = argv[++i];
    } else {
      path = argv[i];
    }
  }
  for (int64_t width : widths)
    if (width < 4 || width > 4096 || width % 4 != 0) stop("widths are multiples of 4");
  std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
  CHECK(cudaSetDevice(0));
  CHECK(cudaDeviceGetAttribute(&device.multiprocessors, cudaDevAttrMultiProcessorCount, 0));
  CHECK(cudaDeviceGetAttribute(&device.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));  // waits for copies and fills, which are in the default stream
  std::mt19937 random(std::random_device{}());
  const Workspace workspace;
  std::vector<Design> all;
  for (Design& design : designs())
    if (only.empty() || std::find(only.begin(), only.end(), design.name) != only.end())
      all.push_back(std::move(design));

  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::vector<int64_t> small_widths = {4, 36, 64, 200};
  if (quick) small_widths = {36, 128};
  int checked = 0;
  for (const Hypergraph& host : adversarial(random)) {
    const Graph graph(host);
    for (int64_t width : small_widths) {
      const Case each = make_case(graph, workspace, width, random);
      for (const Design& design : all) {
        std::vector<float> y;
        checked += check_design(stream, design, each, 3, kSmallTolerance, &y) == Outcome::kPassed;
      }
    }
  }
  std::printf("%d small cases passed, %d failed, largest error %.1e, after %.1f s\n", checked,
              failures, largest_error, seconds());

  std::unique_ptr<Timer> timer;
  if (timing) timer.reset(new Timer(stream));
  std::vector<Row> rows;
  const std::vector<Hypergraph> graphs =
      path != nullptr ? read_hypergraphs(path) : std::vector<Hypergraph>();
  for (const Hypergraph& host : graphs) {
    const Graph graph(host);
    for (int64_t width : widths) {
      const Case each = make_case(graph, workspace, width, random);
      Row row = {host.name, width, {}};
      for (const Design& design : all) {
        std::vector<float> y;
        const Outcome outcome = check_design(stream, design, each, 5, kTolerance, &y);
        row.at.emplace_back();
        if (timing && outcome == Outcome::kPassed)
          row.at.back() = time_design(stream, *timer, design, each, quick ? 7 : 30, y);
      }
      rows.push_back(row);
    }
    std::printf("%s after %.1f s\n", host.name.c_str(), seconds());
  }
  if (timing && !rows.empty()) {
    for (int64_t width : widths) print_table(all, rows, width);
    std::printf("\na pair of events with nothing between: %.1f / %.1f µs, counted in above\n",
                timer->empty().cold, timer->empty().warm);
    if (all.size() >= 2 && all[0].name[0] == 'A' && all[1].name[0] == 'B') print_means(all, rows);
    if (out != nullptr) write_json(out, all, rows, timer->empty());
  }
  std::printf(failures == 0 ? "all passed\n" : "FAIL: %d\n", failures);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace jax_gnn::designs

int main(int argc, char** argv) { return jax_gnn::designs::main(argc, argv); }
