// gather_rows: out[place, i] = x[row, perm[expert, i]], rows of tokens in the order by experts, each in the row order of its expert's weight.
//
// With SF_SORTED rows of x are in the order already (row = place), else row = token of the pair. With SF_ACT_ORDER perm < 0 and i >= SF_K
// give 0; without, this only sorts, and rows of x are aligned to 16 bytes and padded like those of out. A warp makes a piece of a row, a lane
// COPIES times 8 values of it.
#define SF_DIRECT 0
#include "routing.cuh"

constexpr int K_PITCH = (SF_K + 63) / 64 * 64;
constexpr int CHUNKS = K_PITCH / 8;
constexpr int COPIES = SF_COPIES;
constexpr int PIECES = (CHUNKS + 32 * COPIES - 1) / (32 * COPIES);  // of a row

extern "C" __global__ void __launch_bounds__(128)
    gather_rows(const u16* x, i64 x_stride, const int* perm, u16* out, const int* schedule, const int* order, const Id* ids, const int* expert_map,
                int pairs, int global_experts, int top_k) {
  const Routing routing = {schedule, order, ids, expert_map, pairs, global_experts};
  const int piece = blockIdx.x * 4 + threadIdx.x / 32;
  const int place = piece / PIECES;
  const int first = piece % PIECES * (32 * COPIES) + threadIdx.x % 32;
  wait_for_previous_kernel();
  launch_dependents();
  if (place >= pairs) return;
  const int pair = routing.pair(place);  // not one of a row if there are fewer
  if (place >= load_fresh(schedule + 1)) return;
  const u16* row = x + (i64)(SF_SORTED ? place : pair / top_k) * x_stride;
  u16* const to = out + (i64)place * K_PITCH;
#if SF_ACT_ORDER
  const int* from = perm + (i64)routing.expert_of(pair) * SF_K;
#pragma unroll
  for (int c = 0; c < COPIES; c++) {
    const int at = (first + c * 32) * 8;
    if (at >= K_PITCH) break;
    u32 v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int k = at + i < SF_K ? from[at + i] : -1;
      v[i] = k < 0 ? 0 : row[k];
    }
    *(Words4*)(to + at) = {v[0] | v[1] << 16, v[2] | v[3] << 16, v[4] | v[5] << 16, v[6] | v[7] << 16};
  }
#else
  Words4 v[COPIES];
#pragma unroll
  for (int c = 0; c < COPIES; c++)
    if (first + c * 32 < CHUNKS) v[c] = *((const Words4*)row + first + c * 32);
#pragma unroll
  for (int c = 0; c < COPIES; c++)
    if (first + c * 32 < CHUNKS) *((Words4*)to + first + c * 32) = v[c];
#endif
}
