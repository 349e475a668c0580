// dequantise: packed words to the 16-bit weight in memory, [K, N] or (SF_TRANSPOSED) [N, K], every value rounded once.
//
// One warp expands one 64 x 64 block, on its own. In a word that lane (c, t) of a k16 sub-tile loads, each 16-bit half is a *unit*: the codes
// of one column c (or 8 + c) and two rows 8 apart. To the tensor cores' matrix moves the units of 32 lanes are 8 x 8 matrices, columns by
// rows, so storing them (transposed for [K, N]) leaves 8 units side by side along the output's inner dimension, which become
// 16 bytes of output. What passes through shared memory is packed; each store to memory writes whole lines of 128 bytes.
//
//             matrices of a sub-tile     unit holds                      8 units along     a 128-byte line of output
//     int4    j = 0..3                   columns 16j + c, 16j + 8 + c    c ([K, N])        8 chunks (j, b)   of one row
//     int8    (j, b) = 0..7              column 16j + 8b + c             k ([N, K])        8 chunks (s, h)   of one column
//             both: rows k and 8 + k of the k16 step s;  b, h: which column, which row
#include "swordfish/decode/device/dequant.cuh"

#define WARPS 4
#define MATRICES (SF_BITS == 4 ? 4 : 8)  // of a k16 sub-tile
#define TILE_BYTES (MATRICES * 128)
#define PIECES (8 / SF_STORE)

#if SF_BF16
#define SF_UNIT_INVERSE_PAIR 0x42804280u  // 64
#else
#define SF_UNIT_INVERSE_PAIR 0x60006000u  // 512
#endif
#define MINUS_NOTHING 0x80008000u  // -0: adding it changes nothing, not even the sign of a zero

__shared__ __align__(128) u8 units[WARPS][4 * TILE_BYTES];

struct Sizes { int k, n, groups, group_size, k_blocks, n_blocks; };

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

// Shared-memory address of the 8 units of matrix m (of sub-tile s) with the same row ([K, N]) or column ([N, K]) `line`. Lines of a
// matrix are stored together; chunks of a line ([K, N]) or of all sub-tiles ([N, K]) are loaded together. Both meet distinct banks.
SF_DEVICE u32 chunk_address(u32 tile, int s, int m, int line) {
#if SF_TRANSPOSED
  return tile + s * TILE_BYTES + m * 128 + (line ^ s) * 16;
#elif SF_BITS == 4
  return tile + s * TILE_BYTES + line * 64 + (m ^ line >> 1) * 16;
#else
  return tile + s * TILE_BYTES + line * 128 + (m ^ line) * 16;
#endif
}

SF_DEVICE void stage(const Words4* block, u32 tile, int lane) {
  constexpr int vectors = MATRICES / 4;
  Words4 w[4][vectors];
#pragma unroll
  for (int s = 0; s < 4; s++) {
#pragma unroll
    for (int i = 0; i < vectors; i++) {
      const Words4* from = block + (s * 32 + lane) * vectors + i;
      w[s][i] = vectors == 1 ? load_once(from) : *from;  // two loads share a sector: through L1
    }
  }
#pragma unroll
  for (int s = 0; s < 4; s++) {
#pragma unroll
    for (int i = 0; i < vectors; i++) {
      const u32 address = chunk_address(tile, s, 4 * i + lane / 8, lane % 8);
      if (SF_TRANSPOSED) store_matrix4(address, w[s][i]);
      else store_matrix4_transposed(address, w[s][i]);
    }
  }
  warp_sync();
}

SF_DEVICE int group_of(int row, const Sizes& sizes) { return min(row / sizes.group_size, sizes.groups - 1); }

#if SF_TRANSPOSED

// Lane (r, s, h) takes rows 16 s + 8 h + 0..7 of columns r, r + 4, ... of the block.
SF_DEVICE void expand(u32 tile, int lane, int k0, int n0, const u16* scales, const u16* zeros, const int* perm, u16* out, const Sizes& sizes,
                      i64 scale_pitch, i64 out_pitch) {
  const int s = lane % 8 / 2, h = lane % 2, row = k0 + 16 * s + 8 * h;
  const i64 group_at = group_of(row, sizes) * scale_pitch;
  if (row >= sizes.k) return;
#if SF_PERMUTED
  int to[8];
#pragma unroll
  for (int i = 0; i < 8; i++) to[i] = row + i < sizes.k ? perm[row + i] : -1;
#endif
#pragma unroll
  for (int m = 0; m < 8 * MATRICES / 4; m++) {  // matrix and half of its columns
    const int matrix = m / 2, c = m % 2 * 4 + lane / 8;
    const Words4 chunk = load_words4(chunk_address(tile, s, matrix, c));
#pragma unroll
    for (int b = 0; b < 8 / MATRICES; b++) {
      const int column = n0 + (SF_BITS == 4 ? 16 * matrix + 8 * b : 8 * matrix) + c;
      if (column >= sizes.n) continue;
      const u32 zero = SF_ZEROS == SF_ZEROS_NONE ? 0 : load_global_u16(zeros + group_at + column);
      const Scaling scale = scaling(load_global_u16(scales + group_at + column) * 0x10001u, zero * 0x10001u);
      Words4 v;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        u32 multiplier;
        const u32 codes = codes_of(chunk.v[i], b, h, multiplier);
        v.v[i] = value_pair(codes, multiplier, scale);
      }
      u16* line = out + column * out_pitch;
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
}

#else

// Lane (r, j, b) takes columns 16 j + 8 b + 0..7 of rows r, r + 4, ... of the block.
SF_DEVICE void expand(u32 tile, int lane, int k0, int n0, const u16* scales, const u16* zeros, const int* perm, u16* out, const Sizes& sizes,
                      i64 scale_pitch, i64 out_pitch) {
  const int b = lane % 2, matrix = lane % 8 / (8 / MATRICES), column = n0 + lane % 8 * 8;
  const bool inside = column < sizes.n;
#pragma unroll
  for (int half = 0; half < 2; half++) {  // 32 rows have one group
    const int first = k0 + 32 * half;
    const i64 at = group_of(first, sizes) * scale_pitch + column;
    const Words4 scale = *(const Words4*)(scales + at);
    Words4 zero = {};
    if (SF_ZEROS != SF_ZEROS_NONE) zero = *(const Words4*)(zeros + at);
    int to = first + lane;
    if (SF_PERMUTED && to < sizes.k) to = perm[to];
    if (first + lane >= sizes.k) to = -1;
#pragma unroll
    for (int q = 0; q < 4; q++) {
      const int s = 2 * half + q / 2, line = q % 2 * 4 + lane / 8;
      const Words4 chunk = load_words4(chunk_address(tile, s, matrix, line));
#pragma unroll
      for (int h = 0; h < 2; h++) {
        Words4 v;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          u32 multiplier;
          const u32 codes = codes_of(chunk.v[i], b, h, multiplier);
          v.v[i] = value_pair(codes, multiplier, scaling(scale.v[i], zero.v[i]));
        }
        const int row = __shfl_sync(0xffffffffu, to, q / 2 * 16 + 8 * h + line);
        if (row >= 0 && inside) store8(out + row * out_pitch + column, v, sizes.n - column);
      }
    }
  }
}

#endif

// words [n_blocks, k_blocks, block]; scales and zeros [groups, scale_pitch]; perm [k] or unused; out with rows of out_pitch elements.
// sizes.k counts packed rows.
extern "C" __global__ void __launch_bounds__(32 * WARPS)
    dequantise(const Words4* words, const u16* scales, const u16* zeros, const int* perm, u16* out, int k, int n, int groups, int group_size,
               i64 scale_pitch, i64 out_pitch) {
  launch_dependents();
  const Sizes sizes = {k, n, groups, group_size, (k + 63) / 64, (n + 63) / 64};
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Warps of a CTA, and then CTAs, are neighbours along the output's lines.
  const u32 across = (SF_TRANSPOSED ? sizes.k_blocks : sizes.n_blocks) + WARPS - 1 >> 2;
  const int inner = blockIdx.x % across * WARPS + warp, outer = blockIdx.x / across;
  const int k_block = SF_TRANSPOSED ? inner : outer, n_block = SF_TRANSPOSED ? outer : inner;
  if (k_block >= sizes.k_blocks || n_block >= sizes.n_blocks) return;
  const u32 tile = shared_address(units[warp]);
  stage(words + ((i64)n_block * sizes.k_blocks + k_block) * (SF_BITS * 32), tile, lane);
  wait_for_previous_kernel();  // it may still read what `out` held
  expand(tile, lane, k_block * 64, n_block * 64, scales, zeros, perm, out, sizes, scale_pitch, out_pitch);
}
