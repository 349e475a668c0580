// Warp-specialised Hopper GEMM: see ../gemm_sm90.py, which fills in the operand lists of wgmma.
typedef unsigned u32; typedef unsigned long long u64;
struct alignas(64) Map { char bytes[128]; };
constexpr int STAGES = 3, A_BYTES = 128 * 128, B_BYTES = 256 * 128, STAGE = A_BYTES + B_BYTES;
__device__ void wait(u32 bar, u32 parity) {
  asm volatile("{\n.reg .pred p;\nW: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra W;\n}" :: "r"(bar), "r"(parity) : "memory");
}
__device__ u64 desc(u32 a) { return (u64)((a & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62; }
__device__ void mma(float* d, u64 a, u64 b, int accumulate) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
    "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {ACCUMULATORS}, %128, %129, p, 1, 1, 0, 0;\n}"
    : ACCUMULATOR_OPERANDS : "l"(a), "l"(b), "r"(accumulate));
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384) k(const __grid_constant__ Map ta, const __grid_constant__ Map tb, unsigned short* c, int N, int K) {
  extern __shared__ __align__(1024) unsigned char sm[];
  const u32 base = (u32)__cvta_generic_to_shared(sm), full = base + STAGES * STAGE, empty = full + 8 * STAGES;
  const int wg = threadIdx.x / 128, steps = K / 64;
  u32 rank; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  const int row = blockIdx.x * 128, col = blockIdx.y * 256;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; s++) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(full + 8 * s) : "memory");
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 4;" :: "r"(empty + 8 * s) : "memory");
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  if (wg == 2) {
    if (threadIdx.x == 256) {
#pragma unroll 1
      for (int i = 0; i < steps; i++) {
        const int s = i % STAGES, ph = i / STAGES & 1;
        const u32 a = base + s * STAGE, b = a + A_BYTES, bar = full + 8 * s;
        wait(empty + 8 * s, ph ^ 1);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(STAGE) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
          :: "r"(a), "l"(&ta), "r"(i * 64), "r"(row), "r"(bar) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
          :: "r"(b + rank * (B_BYTES / 2)), "l"(&tb), "r"(i * 64), "r"(col + (int)rank * 128), "r"(bar), "h"((unsigned short)3) : "memory");
      }
    }
  } else {
    float d[128];
#pragma unroll 1
    for (int i = 0; i < steps; i++) {
      const int s = i % STAGES, ph = i / STAGES & 1;
      wait(full + 8 * s, ph);
      const u32 a = base + s * STAGE + wg * 64 * 128, b = base + s * STAGE + A_BYTES;
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
      for (int k = 0; k < 4; k++) mma(d, desc(a + 32 * k), desc(b + 32 * k), i + k > 0);
      asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
      if (threadIdx.x % 128 < 2) {
        u32 remote;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(empty + 8 * s), "r"(threadIdx.x % 128));
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(remote) : "memory");
      }
    }
    const int t = threadIdx.x % 128, r = row + wg * 64 + t / 32 * 16 + t % 32 / 4;
#pragma unroll
    for (int k = 0; k < 128; k += 2) {
      u32 v;
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(d[k + 1]), "f"(d[k]));
      *(u32*)(c + (size_t)(r + (k / 2 % 2) * 8) * N + col + k / 4 * 8 + t % 4 * 2) = v;
    }
  }
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
