// Warpgroup products of sm_90a: D[64 x tokens] += A[64 x 16] * B[16 x tokens], A in registers (SF_SHARED_A: in shared memory, too), B in swizzled
// shared memory.
// The text of the instruction depends on its token count alone; the host writes it (SF_WGMMA, SF_WGMMA_TOKENS, SF_WGMMA_ACCUMULATORS).
#pragma once
#include "ptx.cuh"

// Orders register writes (fragments, accumulators) before the products that read them.
SF_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

SF_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most `pending` committed groups still run: their fragments and accumulators may not be touched, those of older ones may.
template <int pending>
SF_DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory"); }

// Descriptor of a K-major operand whose rows are 128 bytes, swizzled in groups of 8 rows (1024 bytes), at a 1024-byte boundary.
// Steps of k16 add 32 bytes (2 in units of 16).
SF_DEVICE u64 wgmma_descriptor(u32 address) {
  return (u64)((address >> 4) & 0x3fffu) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

// accumulate = 0 starts a new sum: no instruction is spent on clearing accumulators.
#ifdef SF_SHARED_A
SF_DEVICE void wgmma(float (&d)[SF_WGMMA_TOKENS / 2], u64 a, u64 b, int accumulate) { asm volatile(SF_WGMMA : SF_WGMMA_ACCUMULATORS : "l"(a), "l"(b), "r"(accumulate)); }
#else
SF_DEVICE void wgmma(float (&d)[SF_WGMMA_TOKENS / 2], const u32 (&a)[4], u64 b, int accumulate) {
  asm volatile(SF_WGMMA : SF_WGMMA_ACCUMULATORS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}
#endif
