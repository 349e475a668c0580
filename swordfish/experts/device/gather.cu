// gather_rows: out[place, i] = x[row, perm[expert, i]], rows of tokens in the order by experts, each in the row order of its expert's weight.
//
// With SF_SORTED rows of x are in the order already (row = place), else row = token of the pair. With SF_ACT_ORDER perm < 0 and i >= SF_K
// give 0; without, this only sorts, and rows of x are aligned to 16 bytes and padded like those of out. A thread makes 8 values.
#define SF_DIRECT 0
#include "routing.cuh"

constexpr int K_PITCH = (SF_K + 63) / 64 * 64;
constexpr int CHUNKS = K_PITCH / 8;

extern "C" __global__ void __launch_bounds__(128)
    gather_rows(const u16* x, i64 x_stride, const int* perm, u16* out, const int* schedule, const int* order, const Id* ids, const int* expert_map,
                int pairs, int global_experts, int top_k) {
  const Routing routing = {schedule, order, ids, expert_map, pairs, global_experts};
  const i64 id = (i64)blockIdx.x * 128 + threadIdx.x;
  const i64 place = id / CHUNKS;
  const int at = (int)(id % CHUNKS) * 8;
  wait_for_previous_kernel();
  launch_dependents();
  if (place >= load_fresh(schedule + 1)) return;
  const int pair = routing.pair(place);
  const u16* row = x + (SF_SORTED ? place : pair / top_k) * x_stride;
#if SF_ACT_ORDER
  const int* from = perm + (i64)routing.expert_of(pair) * SF_K + at;
  u32 v[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int k = at + i < SF_K ? from[i] : -1;
    v[i] = k < 0 ? 0 : row[k];
  }
  *(Words4*)(out + place * K_PITCH + at) = {v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16};
#else
  *(Words4*)(out + place * K_PITCH + at) = *(const Words4*)(row + at);
#endif
}
