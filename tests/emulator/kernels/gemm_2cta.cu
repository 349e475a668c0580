// A 2-CTA warp-specialised GEMM, kept small to be read: D[M, N] = A[M, K] x B[N, K]^T, bf16 in, fp32 out.
// One cluster of two CTAs computes TILE_M x TILE_N tiles one after another (persistent). Each CTA loads its half of A
// (128 rows) and its half of B (TILE_N / 2 rows); the leader's MMA reads both and writes 128 rows to each CTA.
//
//   warp 0     TMA: each CTA loads its halves, the leader's barrier counts the bytes of both
//   warp 1     allocates tensor memory; in the leader, issues the MMAs
//   warps 2-5  epilogue: tensor memory -> registers -> shared memory -> TMA store
//
// The macros NO_..., BAD_... and PER_CTA_... switch on the defects of the negative tests; none is on by default.
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
struct alignas(64) TensorMap { u64 words[16]; };

#ifndef STAGES
#define STAGES 3
#endif
#ifndef TILE_N
#define TILE_N 128
#endif
constexpr int ROWS = 128, COLS = TILE_N / 2, DEPTH = 64;             // per CTA: rows of A, rows of B; K of a stage
constexpr u32 A_BYTES = ROWS * DEPTH * 2, B_BYTES = COLS * DEPTH * 2;
constexpr int OUT_COLS = 32;                                         // columns of one epilogue store (128 bytes)
constexpr u32 OUT_BYTES = ROWS * OUT_COLS * 4;
constexpr int ACC_STAGES = 2, TMEM_COLUMNS = ACC_STAGES * TILE_N;
// Bytes from the 1024-aligned start of dynamic shared memory.
constexpr u32 A_AT = 0, B_AT = STAGES * A_BYTES, OUT_AT = B_AT + STAGES * B_BYTES, BARS_AT = OUT_AT + OUT_BYTES;
constexpr u32 FULL = BARS_AT, EMPTY = FULL + 8 * STAGES, ACC_FULL = EMPTY + 8 * STAGES, ACC_EMPTY = ACC_FULL + 8 * ACC_STAGES;
constexpr u32 SLOT = ACC_EMPTY + 8 * ACC_STAGES;
constexpr u32 LEADER = 0xFEFFFFFF;                                   // clears the rank bit of a shared address

__device__ inline u32 elect() {
  u32 p;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, -1;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(p));
  return p;
}
__device__ inline void mbar_init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count)); }
__device__ inline void mbar_wait(u32 bar, u32 parity) {
  asm volatile("{\n.reg .pred p;\nW%=:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra W%=;\n}" ::"r"(bar), "r"(parity) : "memory");
}
__device__ inline void mbar_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ inline void mbar_arrive_leader(u32 bar) {
  u32 remote;
  asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(remote) : "r"(bar));
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(remote) : "memory");
}
// Both CTAs load their halves; the bytes of both are counted by the leader's barrier.
__device__ inline void load_pair(u32 dst, const TensorMap* map, int x, int y, u32 bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 [%0], [%1, {%2, %3}], [%4];"
               ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar & LEADER) : "memory");
}
__device__ inline void load_own(u32 dst, const TensorMap* map, int x, int y, u32 bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(dst), "l"(map), "r"(x), "r"(y), "r"(bar) : "memory");
}
__device__ inline u64 smem_desc(u32 addr) {   // K-major, 128-byte swizzle: 8 rows of 128 bytes, 1024 bytes apart
#ifdef BAD_SWIZZLE
  const u64 swizzle = 4;                      // the 64-byte swizzle
#else
  const u64 swizzle = 2;
#endif
  return u64((addr & 0x3FFFF) >> 4) | u64(1) << 16 | u64(1024 >> 4) << 32 | u64(1) << 46 | swizzle << 61;
}
__device__ inline void mma(u32 d, u64 a, u64 b, u32 idesc, u32 accumulate) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %4, 0;\ntcgen05.mma.cta_group::2.kind::f16 [%0], %1, %2, %3, p;\n}"
               ::"r"(d), "l"(a), "l"(b), "r"(idesc), "r"(accumulate) : "memory");
}
__device__ inline void commit_pair(u32 bar) {
  asm volatile("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%0], %1;" ::"r"(bar), "h"(u16(3)) : "memory");
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(192, 1)
gemm_2cta(const __grid_constant__ TensorMap map_a, const __grid_constant__ TensorMap map_b, const __grid_constant__ TensorMap map_d,
          int tiles_n, int tiles, int k_steps) {
  extern __shared__ __align__(1024) unsigned char storage[];
  u32 smem, rank;
  asm("{\n.reg .u64 t;\ncvta.to.shared.u64 t, %1;\ncvt.u32.u64 %0, t;\n}" : "=r"(smem) : "l"(storage));
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first = blockIdx.x / 2, step = gridDim.x / 2;

  if (warp == 1) {
    if (elect()) {
      for (int s = 0; s < STAGES; s++) mbar_init(smem + FULL + 8 * s, 1), mbar_init(smem + EMPTY + 8 * s, 1);
      for (int s = 0; s < ACC_STAGES; s++) mbar_init(smem + ACC_FULL + 8 * s, 1), mbar_init(smem + ACC_EMPTY + 8 * s, 8);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("bar.warp.sync -1;");
    asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(smem + SLOT), "n"(TMEM_COLUMNS) : "memory");
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;");
  }
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
  u32 tmem;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(tmem) : "r"(smem + SLOT) : "memory");

  if (warp == 0) {   // ---- TMA
    if (elect()) {
      int i = 0;
#pragma unroll 1
      for (int tile = first; tile < tiles; tile += step) {
        const int row = (tile / tiles_n * 2 + rank) * ROWS, col = (tile % tiles_n * 2 + rank) * COLS;
#pragma unroll 1
        for (int k = 0; k < k_steps; k++, i++) {
          const int s = i % STAGES;
          const u32 full = smem + FULL + 8 * s;
#ifndef NO_EMPTY_WAIT
          mbar_wait(smem + EMPTY + 8 * s, (i / STAGES & 1) ^ 1);
#endif
#if defined(PER_CTA_EXPECTS_PAIR)        // the leader expects the pair's bytes of B, but each CTA signals its own barrier
          mbar_expect(full, rank == 0 ? 2 * (A_BYTES + B_BYTES) : B_BYTES);
          load_pair(smem + A_AT + s * A_BYTES, &map_a, k * DEPTH, row, full);
          load_own(smem + B_AT + s * B_BYTES, &map_b, k * DEPTH, col, full);
#elif defined(PER_CTA_EXPECTS_OWN)       // the leader waits for its own half of B only; the peer's may still be on its way
          mbar_expect(full, rank == 0 ? 2 * A_BYTES + B_BYTES : B_BYTES);
          load_pair(smem + A_AT + s * A_BYTES, &map_a, k * DEPTH, row, full);
          load_own(smem + B_AT + s * B_BYTES, &map_b, k * DEPTH, col, full);
#else
          if (rank == 0) mbar_expect(full, 2 * (A_BYTES + B_BYTES));
          load_pair(smem + A_AT + s * A_BYTES, &map_a, k * DEPTH, row, full);
          load_pair(smem + B_AT + s * B_BYTES, &map_b, k * DEPTH, col, full);
#endif
        }
      }
    }
  } else if (warp == 1) {   // ---- MMA
    if (rank == 0 && elect()) {
      // fp32 accumulator, bf16 operands, N / 8 and M / 16
      const u32 idesc = 1u << 4 | 1u << 7 | 1u << 10 | u32(TILE_N / 8) << 17 | u32(2 * ROWS / 16) << 24;
      int i = 0, t = 0;
#pragma unroll 1
      for (int tile = first; tile < tiles; tile += step, t++) {
        const int acc = t % ACC_STAGES;
        mbar_wait(smem + ACC_EMPTY + 8 * acc, (t / ACC_STAGES & 1) ^ 1);
        asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
#pragma unroll 1
        for (int k = 0; k < k_steps; k++, i++) {
          const int s = i % STAGES;
#ifndef NO_FULL_WAIT
          mbar_wait(smem + FULL + 8 * s, i / STAGES & 1);
#endif
          asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
          const u64 a = smem_desc(smem + A_AT + s * A_BYTES), b = smem_desc(smem + B_AT + s * B_BYTES);
          for (int j = 0; j < DEPTH / 16; j++)
#ifdef BAD_DESCRIPTOR
            mma(tmem + acc * TILE_N, a + 2 * j, b + 2 * j + 1, idesc, k + j > 0);
#else
            mma(tmem + acc * TILE_N, a + 2 * j, b + 2 * j, idesc, k + j > 0);
#endif
          commit_pair(smem + EMPTY + 8 * s);
        }
        commit_pair(smem + ACC_FULL + 8 * acc);
      }
    }
  } else {   // ---- epilogue: warp w holds rows 32 * (w % 4) and on
    const int quarter = warp % 4;
    const u32 out = smem + OUT_AT + (quarter * 32 + lane) * OUT_COLS * 4;
    int t = 0;
    for (int tile = first; tile < tiles; tile += step, t++) {
      const int acc = t % ACC_STAGES;
      const int row = (tile / tiles_n * 2 + rank) * ROWS, col = tile % tiles_n * TILE_N;
      mbar_wait(smem + ACC_FULL + 8 * acc, t / ACC_STAGES & 1);
      asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
#pragma unroll 1
      for (int c = 0; c < TILE_N; c += OUT_COLS) {
        u32 v[32];
        asm volatile(
            "tcgen05.ld.sync.aligned.32x32b.x32.b32 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
            "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
            : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]), "=r"(v[4]), "=r"(v[5]), "=r"(v[6]), "=r"(v[7]), "=r"(v[8]), "=r"(v[9]),
              "=r"(v[10]), "=r"(v[11]), "=r"(v[12]), "=r"(v[13]), "=r"(v[14]), "=r"(v[15]), "=r"(v[16]), "=r"(v[17]), "=r"(v[18]),
              "=r"(v[19]), "=r"(v[20]), "=r"(v[21]), "=r"(v[22]), "=r"(v[23]), "=r"(v[24]), "=r"(v[25]), "=r"(v[26]), "=r"(v[27]),
              "=r"(v[28]), "=r"(v[29]), "=r"(v[30]), "=r"(v[31])
            : "r"(tmem + acc * TILE_N + c + (quarter << 21)));
#ifndef NO_LOAD_WAIT
        asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#endif
        if (c + OUT_COLS == TILE_N) {
          asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
          if (elect()) mbar_arrive_leader(smem + ACC_EMPTY + 8 * acc);
        }
        if (warp == 2) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");   // the buffer is free again
        asm volatile("bar.sync 1, 128;" ::: "memory");
        for (int q = 0; q < 8; q++)    // 128-byte swizzle of the store's tensor map
          asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(out + ((q ^ (lane & 7)) << 4)), "r"(v[4 * q]), "r"(v[4 * q + 1]),
                       "r"(v[4 * q + 2]), "r"(v[4 * q + 3]) : "memory");
#ifndef NO_PROXY_FENCE
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
        asm volatile("bar.sync 1, 128;" ::: "memory");
        if (warp == 2 && elect()) {
          asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&map_d), "r"(col + c),
                       "r"(row), "r"(smem + OUT_AT) : "memory");
          asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        }
      }
    }
    if (warp == 2) asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }

  asm volatile("bar.warp.sync -1;");
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#ifndef NO_DEALLOC
  if (warp == 1) asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(tmem), "n"(TMEM_COLUMNS) : "memory");
#endif
}
