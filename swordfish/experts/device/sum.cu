// sum_experts: out[token, n] = sum of pairs[token * top_k + slot, n] over the slots whose expert is here, in the order of the slots; fp32,
// rounded once. A thread makes 4 columns of a token. With SF_NARROW pairs are 16 bits.
#define SF_DIRECT 0
#include "routing.cuh"

constexpr int PITCH = (SF_N + 63) / 64 * 64;  // of the pairs' rows
constexpr int THREADS_PER_ROW = (SF_N + 3) / 4;

extern "C" __global__ void __launch_bounds__(128)
    sum_experts(const void* sums, u16* out, i64 out_stride, const Id* ids, const int* expert_map, int tokens, int global_experts, int top_k) {
  const Routing routing = {nullptr, nullptr, ids, expert_map, 0, global_experts};
  const i64 id = (i64)blockIdx.x * 128 + threadIdx.x;
  const i64 token = id / THREADS_PER_ROW;
  const int n = (int)(id % THREADS_PER_ROW) * 4;
  wait_for_previous_kernel();
  launch_dependents();
  if (token >= tokens) return;
  Floats4 total = {};
#pragma unroll 4
  for (int slot = 0; slot < top_k; slot++) {
    const i64 pair = token * top_k + slot;
    if (routing.expert_of(pair) < 0) continue;
    Floats4 v;
    if (SF_NARROW) {
      const u64 h = *(const u64*)((const u16*)sums + pair * PITCH + n);
      v = {low_to_float((u32)h), high_to_float((u32)h), low_to_float(h >> 32), high_to_float(h >> 32)};
    } else {
      v = *(const Floats4*)((const float*)sums + pair * PITCH + n);
    }
#pragma unroll
    for (int e = 0; e < 4; e++) total.v[e] += v.v[e];
  }
  u16* to = out + token * out_stride + n;
#pragma unroll
  for (int e = 0; e < 4; e++)
    if (n + e < SF_N) to[e] = round_to_half(total.v[e]);
}
