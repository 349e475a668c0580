// One PTX instruction per function, each with the reason why it is used. No headers are needed: NVRTC compiles this text alone.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define SF_DEVICE __device__ __forceinline__

struct alignas(16) Words4 { u32 v[4]; };
struct alignas(16) Floats4 { float v[4]; };

// ---- addresses -----------------------------------------------------------------------------------------------------------------

// Shared memory is addressed with 32 bits everywhere: half the registers of a generic pointer.
SF_DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// The same offset in another CTA of the cluster.
SF_DEVICE u32 peer_address(u32 address, u32 rank) {
  u32 r;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
  return r;
}

// ---- barriers ------------------------------------------------------------------------------------------------------------------

SF_DEVICE void barrier_init(u32 bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the copy engine and to the other CTAs of the cluster.
SF_DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// One arrival that also announces how many bytes will be written.
SF_DEVICE void barrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

SF_DEVICE void barrier_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\n\t"
      ".reg .pred done;\n"
      "again_%=:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@!done bra again_%=;\n\t"
      "}" ::"r"(bar), "r"(parity) : "memory");
}

// Relaxed, because it only says "my barriers exist": the fence above has ordered their initialisation.
SF_DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }

SF_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

SF_DEVICE void warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// ---- programmatic dependent launch -----------------------------------------------------------------------------------------------

// Lets the next kernel of the stream start (it streams its weights) while this one still computes.
SF_DEVICE void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// Waits until the previous kernel has finished and its writes are visible: nothing before this may read activations or write output.
SF_DEVICE void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// ---- copies --------------------------------------------------------------------------------------------------------------------

// Weights are read once: they should leave L2 first, so that activations and scales stay.
SF_DEVICE u64 evict_first_policy() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Bulk copies cost no load-store slots in the lanes, and bytes in flight occupy no registers.
SF_DEVICE void bulk_load(u32 dst, const void* src, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}

SF_DEVICE void bulk_load_hinted(u32 dst, const void* src, u32 bytes, u32 bar, u64 policy) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(dst), "l"(src), "r"(bytes), "r"(bar), "l"(policy) : "memory");
}

// The same bytes to the same place in every CTA of the mask, each of which counts them on its own barrier: L2 is read once.
SF_DEVICE void bulk_load_multicast(u32 dst, const void* src, u32 bytes, u32 bar, u32 ctas) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(dst), "l"(src), "r"(bytes), "r"(bar), "h"((u16)ctas) : "memory");
}

// 16 bytes by the lane itself: for tokens, whose rows are too short for bulk copies (the copy engine needs about 25 cycles for each).
SF_DEVICE void copy_async16(u32 dst, const void* src) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory"); }

// Zeros where there is nothing to copy; the address must be one all the same.
SF_DEVICE void copy_async16_or_zeros(u32 dst, const void* src, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(there ? 16 : 0) : "memory");
}

SF_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `pending` of this lane's groups are under way.
template <int pending> SF_DEVICE void copy_async_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory"); }

// One of the arrivals that a barrier expects, when all copies of this lane so far are done.
SF_DEVICE void copy_async_arrive(u32 bar) { asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory"); }

// What lanes have copied or written is for products and bulk copies to see, which read another way.
SF_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Sends 16 bytes to another CTA and counts them on its barrier: data and notice in one instruction, no cluster barrier needed.
SF_DEVICE void store_async(u32 remote, Floats4 value, u32 remote_bar) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(remote), "f"(value.v[0]), "f"(value.v[1]), "f"(value.v[2]), "f"(value.v[3]), "r"(remote_bar) : "memory");
}

// ---- shared memory loads and stores ------------------------------------------------------------------------------------------------

SF_DEVICE Words4 load_words4(u32 address) {
  Words4 w;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w.v[0]), "=r"(w.v[1]), "=r"(w.v[2]), "=r"(w.v[3]) : "r"(address));
  return w;
}

SF_DEVICE u32 load_half(u32 address) {
  u16 v;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(address));
  return v;
}

SF_DEVICE Floats4 load_floats4(u32 address) {
  Floats4 w;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(w.v[0]), "=f"(w.v[1]), "=f"(w.v[2]), "=f"(w.v[3]) : "r"(address));
  return w;
}

SF_DEVICE void store_word(u32 address, u32 v) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(v) : "memory"); }

SF_DEVICE void store_float(u32 address, float v) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(v) : "memory"); }

// Four 8x8 matrices of 16-bit elements: one instruction brings the token fragments of a k32 step.
SF_DEVICE Words4 load_matrix4(u32 address) {
  Words4 w;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(w.v[0]), "=r"(w.v[1]), "=r"(w.v[2]), "=r"(w.v[3]) : "r"(address));
  return w;
}

// Transposed: lane (c, t) receives elements c of rows 2t and 2t+1, the order in which scales meet accumulators.
SF_DEVICE Words4 load_matrix4_transposed(u32 address) {
  Words4 w;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(w.v[0]), "=r"(w.v[1]), "=r"(w.v[2]), "=r"(w.v[3]) : "r"(address));
  return w;
}

// The converse: four matrices from the lanes that hold them as mma operands, a row of 16 bytes at each lane's address.
SF_DEVICE void store_matrix4(u32 address, const Words4& w) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(w.v[0]), "r"(w.v[1]), "r"(w.v[2]), "r"(w.v[3]) : "memory");
}

SF_DEVICE void store_matrix4_transposed(u32 address, const Words4& w) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(w.v[0]), "r"(w.v[1]), "r"(w.v[2]), "r"(w.v[3]) : "memory");
}

// An 8x8 matrix of 16-bit elements, one register a lane: lane (c, t) gives columns 2t, 2t+1 of row c and receives rows 2t, 2t+1 of column c.
SF_DEVICE u32 transpose_matrix(u32 v) {
  u32 r;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(v));
  return r;
}

// ---- global loads --------------------------------------------------------------------------------------------------------------

// 16 bytes that nobody reads again: they need no place in L1.
SF_DEVICE Words4 load_once(const Words4* p) {
  Words4 w;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(w.v[0]), "=r"(w.v[1]), "=r"(w.v[2]), "=r"(w.v[3]) : "l"(p));
  return w;
}

SF_DEVICE u32 load_global_u16(const u16* p) {
  u16 v;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(p));
  return v;
}

// Relaxed loads come from L2: a kernel that starts before its predecessor has ended may not trust L1.
SF_DEVICE int load_fresh(const int* p) {
  int v;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}

SF_DEVICE Words4 load_fresh(const Words4* p) {
  Words4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.v[0]), "=r"(v.v[1]), "=r"(v.v[2]), "=r"(v.v[3]) : "l"(p));
  return v;
}

SF_DEVICE i64 load_fresh(const i64* p) {
  i64 v;
  asm volatile("ld.relaxed.gpu.global.s64 %0, [%1];" : "=l"(v) : "l"(p));
  return v;
}

// ---- arithmetic ----------------------------------------------------------------------------------------------------------------

// Two 16-bit fused multiply-adds. Subnormal inputs keep their value: that is what dequantisation relies on.
SF_DEVICE u32 fma2(u32 a, u32 b, u32 c) {
  u32 d;
#if SF_BF16
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
#else
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
#endif
  return d;
}

// d = a (16x16, weights) * b (16x8, tokens) + c, fp32 accumulators.
SF_DEVICE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if SF_BF16
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#else
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
#endif
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- 16-bit types ---------------------------------------------------------------------------------------------------------------

SF_DEVICE float low_to_float(u32 pair) {
#if SF_BF16
  return __uint_as_float(pair << 16);
#else
  float f;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l;}" : "=f"(f) : "r"(pair));
  return f;
#endif
}

SF_DEVICE float high_to_float(u32 pair) {
#if SF_BF16
  return __uint_as_float(pair & 0xffff0000u);
#else
  float f;
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h;}" : "=f"(f) : "r"(pair));
  return f;
#endif
}

// Rounds to nearest even: the only rounding of an output value.
SF_DEVICE u16 round_to_half(float f) {
  u16 h;
#if SF_BF16
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
#else
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
#endif
  return h;
}

SF_DEVICE u32 round_pair(float low, float high) { return round_to_half(low) | (u32)round_to_half(high) << 16; }
