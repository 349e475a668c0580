// Copies of the wide kernel, what orders them, and partial sums in global memory.
#pragma once
#include "ptx.cuh"

struct alignas(64) TensorMap { u8 opaque[128]; };

SF_DEVICE void prefetch_tensor_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

// Predicated inside the instruction: a branch between two warpgroup products makes the compiler serialise them.
SF_DEVICE void barrier_arrive_if(bool go, u32 bar) {
  asm volatile(
      "{\n\t.reg .pred go;\n\tsetp.ne.u32 go, %1, 0;\n\t"
      "@go mbarrier.arrive.shared::cta.b64 _, [%0];\n\t}" ::"r"(bar), "r"((u32)go) : "memory");
}

// Registers change hands between warpgroups: those that multiply need what the one that copies does not.
template <int registers> SF_DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers)); }

template <int registers> SF_DEVICE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers)); }

// A box of a three-dimensional tensor; what lies outside the tensor arrives as zeros and counts as bytes, too.
SF_DEVICE void tensor_load(u32 dst, const TensorMap& map, int c1, int c2, u32 bar, u64 policy) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {0, %2, %3}], [%4], %5;" ::"r"(dst), "l"(&map), "r"(c1), "r"(c2), "r"(bar), "l"(policy) : "memory");
}

// For what other CTAs read, too.
SF_DEVICE u64 evict_last_policy() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

SF_DEVICE u64 evict_normal_policy() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

SF_DEVICE void prefetch_to_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p) : "memory"); }

SF_DEVICE void cta_sync() { asm volatile("bar.sync 0;" ::: "memory"); }

// All CTAs of the cluster have come this far, and what they did to their shared memory before is done.
SF_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ---- partial sums in global memory -----------------------------------------------------------------------------------------------------

SF_DEVICE void store_global(float* p, Floats4 v) { asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(v.v[0]), "f"(v.v[1]), "f"(v.v[2]), "f"(v.v[3]) : "memory"); }

SF_DEVICE Floats4 load_global(const float* p) {
  Floats4 w;
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(w.v[0]), "=f"(w.v[1]), "=f"(w.v[2]), "=f"(w.v[3]) : "l"(p) : "memory");
  return w;
}

// What this thread has written (or lanes of its warp before a warp_sync) is visible to those who see the value by load_acquire.
SF_DEVICE void store_release(u32* p, u32 v) { asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }

SF_DEVICE u32 load_acquire(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

// Also orders memory among the lanes.
SF_DEVICE bool all_lanes(bool v) {
  const bool all = __all_sync(0xffffffffu, v);
  warp_sync();
  return all;
}

SF_DEVICE void store_global_word(u32* p, u32 v) { asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
