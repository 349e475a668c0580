// sort_pairs: pairs of (token, expert) into the order by experts, cut into blocks of `block_rows` (routing.cuh). One CTA.
//
// `begins`, if it is there, becomes the number of blocks before each expert, and behind the last one of all blocks.
//
// Counting sort in shared memory. The place of a pair among those of its expert depends on timing; results do not, since every row of a
// block is computed by itself.
#define SF_DIRECT 0
#include "routing.cuh"

constexpr int THREADS = 1024;

SF_DEVICE int add_shared(u32 address, int v) {
  int before;
  asm volatile("atom.shared.add.u32 %0, [%1], %2;" : "=r"(before) : "r"(address), "r"(v) : "memory");
  return before;
}

// Exclusive sum over the CTA of a 64-bit value; `total` becomes the sum of all. `scratch` holds one value a warp.
SF_DEVICE u64 exclusive_sum(u64 v, u64* scratch, u64& total) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  u64 sum = v;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const u64 other = __shfl_up_sync(0xffffffffu, sum, d);
    if (lane >= d) sum += other;
  }
  if (lane == 31) scratch[warp] = sum;
  __syncthreads();
  u64 before = 0;
  total = 0;
  for (int w = 0; w < THREADS / 32; w++) {
    if (w == warp) before = total;
    total += scratch[w];
  }
  __syncthreads();
  return before + sum - v;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    sort_pairs(const Id* ids, const int* expert_map, int* schedule, int* order, int* begins, int pairs, int global_experts,
               int block_rows) {
  __shared__ int count[SF_EXPERTS];  // then: next free place of the expert
  __shared__ u64 scratch[THREADS / 32];
  const Routing routing = {schedule, order, ids, expert_map, pairs, global_experts};
  for (int e = threadIdx.x; e < SF_EXPERTS; e += THREADS) count[e] = 0;
  __syncthreads();
  wait_for_previous_kernel();
  launch_dependents();

#pragma unroll 4
  for (int p = threadIdx.x; p < pairs; p += THREADS) {
    const int expert = routing.expert_of(p);
    if (expert >= 0) add_shared(shared_address(count + expert), 1);
  }
  __syncthreads();

  int first_place = 0, first_block = 0;
  for (int at = 0; at < SF_EXPERTS; at += THREADS) {
    const int expert = at + threadIdx.x;
    const int rows = expert < SF_EXPERTS ? count[expert] : 0;
    const int blocks = (rows + block_rows - 1) / block_rows;
    u64 total;
    const u64 before = exclusive_sum((u64)blocks << 32 | (u32)rows, scratch, total);
    const int place = first_place + (int)(u32)before;
    const int block = first_block + (int)(before >> 32);
    const Words4 group = {(u32)expert, (u32)block, (u32)place, (u32)rows};
    for (int i = 0; i < blocks; i++) ((Words4*)schedule)[1 + block + i] = group;
    if (expert < SF_EXPERTS) {
      count[expert] = place;
      if (begins) begins[expert] = block;
    }
    first_place += (int)(u32)total;
    first_block += (int)(total >> 32);
  }
  if (threadIdx.x == 0) {
    schedule[0] = first_block;
    schedule[1] = first_place;
    if (begins) begins[SF_EXPERTS] = first_block;
  }
  __syncthreads();

#pragma unroll 4
  for (int p = threadIdx.x; p < pairs; p += THREADS) {
    const int expert = routing.expert_of(p);
    if (expert >= 0) order[add_shared(shared_address(count + expert), 1)] = p;
  }
}
