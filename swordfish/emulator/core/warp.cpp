// Instructions in which the lanes of a warp work together: shuffles, votes, matches, reductions, 8x8 matrices.
#include <algorithm>

#include "lanes.hpp"
#include "memory.hpp"

namespace sf {

// o: d, p (predicate), a, b, c, members; m[0]: 0 up, 1 down, 2 bfly, 3 idx; m[1]: 1 if the predicate is wanted
SF_OP("shfl") {
  uint32_t src[LANES];
  std::memcpy(src, c.row(i.o[2]), sizeof src);
  Mask p = 0;
  each_lane(c.mask, [&](int l) {
    const uint32_t b = c.r32(i.o[3])[l] & 31, cv = c.r32(i.o[4])[l];
    const int cval = int(cv & 31), seg = int(cv >> 8 & 31);
    const int max_lane = (l & seg) | (cval & ~seg), min_lane = l & seg;
    int j;
    bool ok;
    switch (i.m[0]) {
      case 0: j = l - int(b), ok = j >= max_lane; break;
      case 1: j = l + int(b), ok = j <= max_lane; break;
      case 2: j = l ^ int(b), ok = j <= max_lane; break;
      default: j = min_lane | (int(b) & ~seg), ok = j <= max_lane;
    }
    if (!ok) j = l;
    if (!(c.mask >> j & 1) && c.m.checks)
      c.m.finding("divergent", "shfl.sync reads lane " + std::to_string(j) + ", which does not take part", c.actor(i, l), &c.cta, 0);
    c.r32(i.o[0])[l] = src[j];
    if (ok) p |= 1u << l;
  });
  if (i.m[1]) c.set_pred(i.o[1], p);
  return Flow::Next;
}

// o: d, predicate, members; m[0]: 0 ballot, 1 all, 2 any, 3 uni
SF_OP("vote") {
  const Mask p = c.pred(i.o[1]) & c.mask;
  if (i.m[0] == 0) each_lane(c.mask, [&](int l) { c.r32(i.o[0])[l] = p; });
  else {
    const bool v = i.m[0] == 1 ? p == c.mask : i.m[0] == 2 ? p != 0 : p == 0 || p == c.mask;
    c.set_pred(i.o[0], v ? FULL : 0);
  }
  return Flow::Next;
}
SF_OP("activemask") {
  each_lane(c.mask, [&](int l) { c.r32(i.o[0])[l] = c.mask; });
  return Flow::Next;
}
// o: d, p, a, members; m[0]: 0 any, 1 all; m[1]: bytes
SF_OP("match") {
  uint64_t v[LANES] = {0};
  each_lane(c.mask, [&](int l) { v[l] = i.m[1] == 8 ? c.r64(i.o[2])[l] : c.r32(i.o[2])[l]; });
  bool all = true;
  const uint64_t first = v[c.first()];
  each_lane(c.mask, [&](int l) { all &= v[l] == first; });
  each_lane(c.mask, [&](int l) {
    Mask same = 0;
    each_lane(c.mask, [&](int k) { same |= Mask(v[k] == v[l]) << k; });
    c.r32(i.o[0])[l] = i.m[0] ? (all ? c.mask : 0) : same;
  });
  if (i.m[0]) c.set_pred(i.o[1], all ? FULL : 0);
  return Flow::Next;
}
// o: d, a, members; m[0]: AtomicOp, m[1]: ElemType, m[2]: 1 abs, m[3]: 1 NaN propagates
SF_OP("redux") {
  uint64_t acc[2] = {0, 0};
  bool first = true, nan = false;
  each_lane(c.mask, [&](int l) {
    uint64_t x[2] = {c.r32(i.o[1])[l], 0}, z[2];
    if (i.m[2]) x[0] &= 0x7fffffff;
    if (i.m[1] == TY_F32 && (x[0] & 0x7fffffff) > 0x7f800000) {
      nan = true;
      return;
    }
    if (first) acc[0] = x[0], first = false;
    else atomic_apply(i.m[0], i.m[1], 4, acc, x, x, z), acc[0] = z[0];
  });
  if (nan && (i.m[3] || first)) acc[0] = NAN32;
  each_lane(c.mask, [&](int l) { c.r32(i.o[0])[l] = uint32_t(acc[0]); });
  return Flow::Next;
}
SF_OP("elect") {   // o: d, p, members: the lowest lane is elected
  const int leader = c.first();
  each_lane(c.mask, [&](int l) { c.r32(i.o[0])[l] = uint32_t(leader); });
  c.set_pred(i.o[1], 1u << leader);
  return Flow::Next;
}

// Wavefronts of the 8 rows of 16 bytes that one matrix takes: rows in the same 16-byte bank group conflict.
static void matrix_wavefronts(Ctx& c, const Insn& i, const uint32_t* rows, int n) {
  LineStats& s = c.m.stats[i.pc];
  ++s.accesses;
  for (int m = 0; m < n / 8; ++m) {
    int count[8] = {0}, most = 0;
    for (int r = 0; r < 8; ++r) {
      bool seen = false;
      for (int q = 0; q < r; ++q) seen |= rows[8 * m + q] == rows[8 * m + r];
      if (!seen) most = std::max(most, ++count[rows[8 * m + r] >> 4 & 7]);
    }
    s.wavefronts += uint64_t(most), ++s.ideal;
  }
}

static bool matrix_rows(Ctx& c, const Insn& i, int32_t off, int n, uint32_t bytes, Access kind, uint8_t** p, uint32_t* at) {
  bool ok = true;
  for (int r = 0; r < n; ++r) {
    const Actor a = c.actor(i, r);
    at[r] = uint32_t(c.r64(off)[r]);
    p[r] = nullptr;
    if (at[r] % bytes) {
      c.m.finding("misaligned", "matrix row at " + hex(at[r]), a, &c.cta, at[r]);
      ok = false;
      continue;
    }
    p[r] = c.m.shared(c.cta, at[r], bytes, kind, a);
    ok &= p[r] != nullptr;
  }
  return ok;
}

// o[0]: addresses, o[1..]: registers; m[0]: matrices, m[1]: transposed. b16 elements of 8x8 matrices.
SF_OP("ldmatrix") {
  const int n = i.m[0];
  uint8_t* p[32];
  uint32_t at[32];
  if (!matrix_rows(c, i, i.o[0], 8 * n, 16, READ, p, at)) return Flow::Next;
  matrix_wavefronts(c, i, at, 8 * n);
  for (int k = 0; k < n; ++k)
    for (int l = 0; l < LANES; ++l) {
      uint32_t v = 0;
      for (int h = 0; h < 2; ++h) {
        const int row = i.m[1] ? 2 * (l % 4) + h : l / 4, col = i.m[1] ? l / 4 : 2 * (l % 4) + h;
        uint16_t e;
        std::memcpy(&e, p[8 * k + row] + 2 * col, 2);
        v |= uint32_t(e) << (16 * h);
      }
      c.r32(i.o[1 + k])[l] = v;
    }
  return Flow::Next;
}
SF_OP("stmatrix") {
  const int n = i.m[0];
  uint8_t* p[32];
  uint32_t at[32];
  if (!matrix_rows(c, i, i.o[0], 8 * n, 16, WRITE, p, at)) return Flow::Next;
  matrix_wavefronts(c, i, at, 8 * n);
  for (int k = 0; k < n; ++k)
    for (int l = 0; l < LANES; ++l)
      for (int h = 0; h < 2; ++h) {
        const int row = i.m[1] ? 2 * (l % 4) + h : l / 4, col = i.m[1] ? l / 4 : 2 * (l % 4) + h;
        const uint16_t e = uint16_t(c.r32(i.o[1 + k])[l] >> (16 * h));
        std::memcpy(p[8 * k + row] + 2 * col, &e, 2);
      }
  ++c.m.progress;
  return Flow::Next;
}
SF_OP("movmatrix") {   // o: d, a; transposed
  uint16_t e[8][8];
  for (int l = 0; l < LANES; ++l)
    for (int h = 0; h < 2; ++h) e[l / 4][2 * (l % 4) + h] = uint16_t(c.r32(i.o[1])[l] >> (16 * h));
  for (int l = 0; l < LANES; ++l) c.r32(i.o[0])[l] = e[2 * (l % 4)][l / 4] | uint32_t(e[2 * (l % 4) + 1][l / 4]) << 16;
  return Flow::Next;
}

// The b8 forms. Transposing 16x16 loads (m16n16): two registers per matrix, addresses of 16 rows each. m[0]: matrices
SF_OP("ldmatrix.b8") {
  const int n = i.m[0];
  uint8_t* p[32];
  uint32_t at[32];
  if (!matrix_rows(c, i, i.o[0], 16 * n, 16, READ, p, at)) return Flow::Next;
  matrix_wavefronts(c, i, at, 16 * n);
  for (int k = 0; k < n; ++k)
    for (int half = 0; half < 2; ++half)
      for (int l = 0; l < LANES; ++l) {
        uint32_t v = 0;
        for (int b = 0; b < 4; ++b) v |= uint32_t(p[16 * k + 4 * (l % 4) + b][8 * half + l / 4]) << (8 * b);
        c.r32(i.o[1 + 2 * k + half])[l] = v;
      }
  return Flow::Next;
}
// m16n8, transposed: 8 columns of 16 bytes. The register of a lane holds columns 2 (lane % 4) and one more of row lane / 4,
// then the same of row lane / 4 + 8 (the accumulator fragment of tcgen05.ld.16x256b, as NVIDIA's example uses it).
SF_OP("stmatrix.b8") {
  const int n = i.m[0];
  uint8_t* p[32];
  uint32_t at[32];
  if (!matrix_rows(c, i, i.o[0], 8 * n, 16, WRITE, p, at)) return Flow::Next;
  matrix_wavefronts(c, i, at, 8 * n);
  for (int k = 0; k < n; ++k)
    for (int l = 0; l < LANES; ++l)
      for (int b = 0; b < 4; ++b) p[8 * k + 2 * (l % 4) + (b & 1)][l / 4 + 8 * (b >> 1)] = uint8_t(c.r32(i.o[1 + k])[l] >> (8 * b));
  ++c.m.progress;
  return Flow::Next;
}

}  // namespace sf
