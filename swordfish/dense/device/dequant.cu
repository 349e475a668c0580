// dequantise: packed words to the 16-bit weight in memory, [K, N] or (SF_TRANSPOSED) [N, K], every value rounded once.
//
// A warp loads a k16 step of a 64 x 64 block. In a word that lane (c, t) receives, each 16-bit half is a *unit*: the codes of one column c
// (int4: also of 8 + c) and two rows 8 apart. To the tensor cores' matrix moves the units of 32 lanes are 8 x 8 matrices, columns by rows, so
// storing them (transposed for [K, N]) leaves 8 units side by side along the output's inner dimension, which become 16 bytes of
// output. What passes through shared memory is packed; each store to memory writes whole lines of 128 bytes.
//
//             matrices of a step     unit holds                      8 units along     a 128-byte line of output
//     int4    j = 0..3               columns 16j + c, 16j + 8 + c    c ([K, N])        8 chunks (j, b)   of one row
//     int8    (j, b) = 0..7          column 16j + 8b + c             k ([N, K])        8 chunks (s, h)   of one column
//             both: rows k and 8 + k of the k16 step s;  b, h: which column, which row
//
// [K, N]: a warp is on its own, the warps of a CTA are neighbours along N; with SF_BULK they meet to hand whole pieces of rows to the copy
// engine, 128 bytes of each warp. [N, K]: the four warps of a CTA load the four steps of one
// block, and each then expands 16 columns of it. In both CTAs follow each other along the output's lines, and are small, so that at any
// time few rows of memory are written.
#include "swordfish/decode/device/dequant.cuh"

#define WARPS SF_WARPS
#define MATRICES (SF_BITS == 4 ? 4 : 8)  // of a k16 step
#define STEP_BYTES (MATRICES * 128)
#define PIECES (8 / SF_STORE)

#if SF_BF16
#define SF_UNIT_INVERSE_PAIR 0x42804280u  // 64
#else
#define SF_UNIT_INVERSE_PAIR 0x60006000u  // 512
#endif
#define MINUS_NOTHING 0x80008000u  // -0: adding it changes nothing, not even the sign of a zero

__shared__ __align__(128) u8 units[WARPS * STEP_BYTES];
#if SF_BULK
#define PIECE_BYTES (WARPS * 128)  // what a CTA writes of a row
#define PIECE_PITCH (PIECE_BYTES + 16)
__shared__ __align__(128) u8 pieces[16 * PIECE_PITCH];
#endif

struct Sizes { int k, n, groups, group_size; };

// What turns the codes of two neighbours into values: (q - z) or q exactly, then one fused multiply-add and its rounding.
struct Scaling { u32 bias, scale, addend; };

SF_DEVICE Scaling scaling(u32 scales, u32 zeros) {
  if (SF_ZEROS == SF_ZEROS_OFFSET) return {SF_DEFAULT_BIAS, scales, zeros};
  if (SF_ZEROS == SF_ZEROS_INTEGER) return {fma2(zeros, SF_MINUS_UNIT, MINUS_NOTHING), scales, MINUS_NOTHING};
  return {SF_DEFAULT_BIAS, scales, MINUS_NOTHING};
}

SF_DEVICE u32 value_pair(u32 codes, u32 multiplier, Scaling s) {
  const u32 exact = fma2(fma2(codes, multiplier, s.bias), SF_UNIT_INVERSE_PAIR, MINUS_NOTHING);
  return fma2(exact, s.scale, s.addend);
}

// Two codes out of two units, those of column b and row h of each, and the multiplier for the bits where they stay.
SF_DEVICE u32 codes_of(u32 pair, int b, int h, u32& multiplier) {
  multiplier = SF_MUL_LOW;
#if SF_BITS == 8
  return __byte_perm(pair, 0, h ? 0x4341 : 0x4240);
#else
  const u32 bytes = __byte_perm(pair, 0, b ? 0x4341 : 0x4240);
#if SF_TRANSPOSED  // h differs from lane to lane
  return bytes >> 4 * h & 0x000f000fu;
#else
  if (h) multiplier = SF_MUL_HIGH;
  return bytes & (h ? 0x00f000f0u : 0x000f000fu);
#endif
#endif
}

// 8 neighbours of the output from `at` on, of which `room` exist.
SF_DEVICE void store8(u16* at, const Words4& v, int room) {
#pragma unroll
  for (int p = 0; p < PIECES; p++) {
    if (p * SF_STORE >= room) return;
    u16* to = at + p * SF_STORE;
    if (SF_STORE == 8) *(Words4*)to = v;
    if (SF_STORE == 4) *(u64*)to = (u64)v.v[2 * p + 1 & 3] << 32 | v.v[2 * p & 3];
    if (SF_STORE == 2) *(u32*)to = v.v[p & 3];
    if (SF_STORE == 1) *to = (u16)(v.v[p / 2 & 3] >> 16 * (p & 1));
  }
}

// Shared-memory address of the 8 units of matrix m with the same row ([K, N]) or column ([N, K]) `line`, in the units of step s. Lines of
// a matrix are stored together; chunks of a line ([K, N]) or of all steps ([N, K]) are loaded together. Both meet distinct banks.
SF_DEVICE u32 chunk_address(int s, int m, int line) {
  const u32 step = shared_address(units) + s * STEP_BYTES;
#if SF_TRANSPOSED
  return step + m * 128 + (line ^ s) * 16;
#elif SF_BITS == 4
  return step + line * 64 + (m ^ line >> 1) * 16;
#else
  return step + line * 128 + (m ^ line) * 16;
#endif
}

struct Step { Words4 v[MATRICES / 4]; };

SF_DEVICE Step load_step(const Words4* words, i64 index, int lane) {
  Step w;
#pragma unroll
  for (int i = 0; i < MATRICES / 4; i++) {
    const Words4* at = words + (index * 32 + lane) * (MATRICES / 4) + i;
    w.v[i] = SF_BITS == 4 ? load_once(at) : *at;  // two loads share a sector: through L1
  }
  return w;
}

SF_DEVICE void stage(const Step& w, int s, int lane) {
#pragma unroll
  for (int i = 0; i < MATRICES / 4; i++) {
    const u32 address = chunk_address(s, 4 * i + lane / 8, lane % 8);
    if (SF_TRANSPOSED) store_matrix4(address, w.v[i]);
    else store_matrix4_transposed(address, w.v[i]);
  }
}

SF_DEVICE i64 group_at(int row, const Sizes& sizes, i64 pitch) { return min(row / sizes.group_size, sizes.groups - 1) * pitch; }

SF_DEVICE u32 pair_of(const u16* p) { return load_global_u16(p) * 0x10001u; }

#if SF_TRANSPOSED

// Lane (r, s, h) of warp j takes rows 16 s + 8 h + 0..7 of columns 16 j + r, + 4, + 8, + 12 of the block.
struct Scalings { u32 scale[4], zero[4]; };

SF_DEVICE Scalings load_scalings(int row, int column, const u16* scales, const u16* zeros, const Sizes& sizes, i64 pitch) {
  Scalings r = {};
#pragma unroll
  for (int q = 0; q < 4; q++) {
    const i64 at = group_at(row, sizes, pitch) + column + 4 * q;  // in the padding of the rows at most
    r.scale[q] = pair_of(scales + at);
    if (SF_ZEROS != SF_ZEROS_NONE) r.zero[q] = pair_of(zeros + at);
  }
  return r;
}

SF_DEVICE void expand(int warp, int lane, int row, int column, const Scalings& scalings, const int* perm, u16* out, const Sizes& sizes, i64 out_pitch) {
  const int s = lane % 8 / 2, h = lane % 2;
  if (row >= sizes.k) return;
#if SF_PERMUTED
  int to[8];
#pragma unroll
  for (int i = 0; i < 8; i++) to[i] = row + i < sizes.k ? perm[row + i] : -1;
#endif
#pragma unroll
  for (int q = 0; q < 4; q++) {
    const int b = q / 2;
    const Words4 chunk = load_words4(chunk_address(s, SF_BITS == 4 ? warp : 2 * warp + b, q % 2 * 4 + lane / 8));
    if (column + 4 * q >= sizes.n) continue;
    const Scaling scale = scaling(scalings.scale[q], scalings.zero[q]);
    Words4 v;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      u32 multiplier;
      const u32 codes = codes_of(chunk.v[i], b, h, multiplier);
      v.v[i] = value_pair(codes, multiplier, scale);
    }
    u16* line = out + (column + 4 * q) * out_pitch;
#if SF_PERMUTED  // neighbours in packed order are strangers in the output
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (to[i] >= 0) line[to[i]] = (u16)(v.v[i / 2] >> 16 * (i & 1));
    }
#else
    store8(line + row, v, sizes.k - row);
#endif
  }
}

#else

struct Scalings { Words4 scale, zero; };  // of 8 columns

SF_DEVICE Scalings load_scalings(int row, int column, const u16* scales, const u16* zeros, const Sizes& sizes, i64 pitch) {
  const i64 at = group_at(row, sizes, pitch) + column;
  Scalings r = {*(const Words4*)(scales + at)};
  if (SF_ZEROS != SF_ZEROS_NONE) r.zero = *(const Words4*)(zeros + at);
  return r;
}

// Where a packed row goes that a lane asks for; -1: nowhere.
SF_DEVICE int line_of(bool asks, int row, const int* perm, const Sizes& sizes) {
  if (!asks || row >= sizes.k) row = -1;
  else if (SF_PERMUTED) row = perm[row];
  return row;
}

#if SF_BULK

SF_DEVICE void store_words4(u32 address, const Words4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.v[0]), "r"(v.v[1]), "r"(v.v[2]), "r"(v.v[3]) : "memory");
}

// From shared memory to the output by the copy engine, 16-byte aligned at both ends. It sees what lanes have written once all have passed
// fence_proxy_async and met.
SF_DEVICE void bulk_store(u16* dst, u32 src, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(src), "r"(bytes) : "memory");
}

// Until this lane's copies have read the shared memory.
SF_DEVICE void bulk_store_wait_read() { asm volatile("cp.async.bulk.commit_group;\n\tcp.async.bulk.wait_group.read 0;" ::: "memory"); }

#endif

// Lane (r, j, b) takes columns 16 j + 8 b + 0..7 of rows r, r + 4, r + 8, r + 12 of the step and hands each over: put(row, values).
template <class Put> SF_DEVICE void expand(int warp, int lane, Words4 scale, Words4 zero, const Put& put) {
  const int b = lane % 2, matrix = lane % 8 / (8 / MATRICES);
#pragma unroll
  for (int q = 0; q < 2; q++) {
    const int line = q * 4 + lane / 8;
    const Words4 chunk = load_words4(chunk_address(warp, matrix, line));
#pragma unroll
    for (int h = 0; h < 2; h++) {
      Words4 v;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32 multiplier;
        const u32 codes = codes_of(chunk.v[i], b, h, multiplier);
        v.v[i] = value_pair(codes, multiplier, scaling(scale.v[i], zero.v[i]));
      }
      put(8 * h + line, v);
    }
  }
}

#endif

// words [n / 64, k / 64, block]; scales and zeros [groups, pitch]; perm [k] or unused; out with rows of out_pitch elements. k: packed rows.
//
// blockIdx.y counts weights of one shape behind each other (perm is for a single one), as are their outputs of n rows. With `begins` weight i is left
// out if begins[i] = begins[i + 1]: an expert without rows. The kernel before this one may write it.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    dequantise(const Words4* words, const u16* scales, const u16* zeros, const int* perm, u16* out, int k, int n, int groups, int group_size,
               i64 pitch, i64 out_pitch, const int* begins) {
  launch_dependents();
  const Sizes sizes = {k, n, groups, group_size};
  const int k_blocks = (k + 63) / 64, n_blocks = (n + 63) / 64;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#if SF_TRANSPOSED
  if (begins) {
    const int weight = blockIdx.y;
    words += (i64)weight * n_blocks * k_blocks * (4 * STEP_BYTES / 16);
    scales += (i64)weight * groups * pitch;
    zeros += (i64)weight * groups * pitch;
    out += (i64)weight * n * out_pitch;
  }
  const int k_block = blockIdx.x % k_blocks, n_block = blockIdx.x / k_blocks;
  const int row = k_block * 64 + lane % 8 * 8, column = n_block * 64 + warp * 16 + lane / 8;
  const Step step = load_step(words, ((i64)n_block * k_blocks + k_block) * 4 + warp, lane);
  const Scalings scalings = load_scalings(row, column, scales, zeros, sizes, pitch);
  if (begins) {
    wait_for_previous_kernel();
    if (load_fresh(begins + blockIdx.y) == load_fresh(begins + blockIdx.y + 1)) return;
  }
  stage(step, warp, lane);
  __syncthreads();
  wait_for_previous_kernel();  // it may still read what `out` held
  expand(warp, lane, row, column, scalings, perm, out, sizes, out_pitch);
#else
  const u32 across = (n_blocks + WARPS - 1) / WARPS;
  const int first = blockIdx.x % across * WARPS, n_block = first + warp, row = blockIdx.x / across * 16;
  const int column = n_block * 64 + lane % 8 * 8;
  // Stages the step of this warp; returns what its columns are scaled by.
  const auto load_and_stage = [&] {
    const Step step = load_step(words, (i64)n_block * k_blocks * 4 + row / 16, lane);
    const Scalings scalings = load_scalings(row, column, scales, zeros, sizes, pitch);
    stage(step, warp, lane);
    warp_sync();
    return scalings;
  };
#if SF_BULK
  if (n_block < n_blocks) {
    const Scalings scalings = load_and_stage();
    const u32 at = shared_address(pieces) + warp * 128 + lane % 8 * 16;
    expand(warp, lane, scalings.scale, scalings.zero, [=](int r, const Words4& v) { store_words4(at + r * PIECE_PITCH, v); });
  }
  fence_proxy_async();
  __syncthreads();
  const int r = warp * (16 / WARPS) + lane, line = line_of(lane < 16 / WARPS, row + r, perm, sizes);
  if (line < 0) return;
  wait_for_previous_kernel();  // it may still read what `out` held
  bulk_store(out + line * out_pitch + first * 64, shared_address(pieces) + r * PIECE_PITCH, 2 * min(64 * WARPS, n - first * 64));
  bulk_store_wait_read();  // the memory goes with the CTA
#else
  if (n_block >= n_blocks) return;
  const int to = line_of(lane < 16, row + lane, perm, sizes);
  const Scalings scalings = load_and_stage();
  wait_for_previous_kernel();  // it may still read what `out` held
  expand(warp, lane, scalings.scale, scalings.zero, [=](int r, const Words4& v) {
    const int line = __shfl_sync(0xffffffffu, to, r);
    if (line >= 0 && column < n) store8(out + line * out_pitch + column, v, n - column);
  });
#endif
#endif
}
