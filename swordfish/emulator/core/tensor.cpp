// Bulk tensor copies: boxes of 1 to 5 dimensions, swizzles, out-of-bounds fill, multicast, gather and scatter of rows, stores
// and reductions.
#include <algorithm>

#include "core.hpp"
#include "fp.hpp"
#include "memory.hpp"

namespace sf {

GroupRef open_bulk_group(Ctx& c, int lane);
void signal_bytes(Machine& m, AsyncOp& op, uint32_t bar, uint32_t bytes);

enum { DT_TF32 = 10, DT_TF32_FTZ = 11 };   // positions in ELEMENT_BITS
enum Swizzle { SW_NONE, SW_32, SW_64, SW_128, SW_128_ATOM32, SW_128_ATOM32_FLIP8, SW_128_ATOM64 };

// The swizzle XORs bits of the absolute shared address, so tiles need no other alignment than their own 128 bytes.
static uint32_t swizzled(uint32_t a, int mode) {
  switch (mode) {
    case SW_32: return a ^ (a >> 7 & 1) << 4;
    case SW_64: return a ^ (a >> 7 & 3) << 4;
    case SW_128: return a ^ (a >> 7 & 7) << 4;
    case SW_128_ATOM32: return a ^ (a >> 7 & 3) << 5;
    case SW_128_ATOM32_FLIP8: return a ^ (a >> 7 & 3) << 5 ^ (a >> 7 & 1) << 3;
    case SW_128_ATOM64: return a ^ (a >> 7 & 1) << 6;
    default: return a;
  }
}
static uint32_t span(int mode) { return mode == SW_NONE ? 16 : mode == SW_32 ? 32 : mode == SW_64 ? 64 : 128; }

// Calls f(row in shared memory, coordinates of its first element) for each inner row of a box, or of four gathered rows.
template <class F> static void each_row(const TensorMapInfo& t, const int32_t* at, bool rows4, F f) {
  if (rows4) {
    for (uint32_t r = 0; r < 4; ++r) {
      const int64_t x[5] = {at[0], at[1 + r], 0, 0, 0};
      f(r, x);
    }
    return;
  }
  uint32_t n[5] = {1, 1, 1, 1, 1}, total = 1;
  for (int d = 1; d < t.rank; ++d) n[d] = (t.box[d] + t.estride[d] - 1) / t.estride[d], total *= n[d];
  for (uint32_t r = 0; r < total; ++r) {
    int64_t x[5] = {at[0], 0, 0, 0, 0};
    uint32_t rest = r;
    for (int d = 1; d < t.rank; ++d) x[d] = at[d] + int64_t(rest % n[d]) * t.estride[d], rest /= n[d];
    f(r, x);
  }
}

struct Rows {
  uint32_t elems, bytes, pitch, count;
  explicit Rows(const TensorMapInfo& t, bool rows4) {
    elems = (t.box[0] + t.estride[0] - 1) / t.estride[0];
    bytes = t.dtype >= 14 ? elems / 16 * 16 : elems * uint32_t(t.elem_bits) / 8;   // the 16-byte aligned sub-byte types are padded
    pitch = t.swizzle == SW_NONE ? bytes : std::max(bytes, span(t.swizzle));
    count = 1;
    for (int d = 1; d < t.rank; ++d) count *= (t.box[d] + t.estride[d] - 1) / t.estride[d];
    if (rows4) count = 4;
  }
};

// Elements [first, last) of a row that lie inside the tensor, and the address of element 0 of the row.
struct Clip {
  int64_t first, last;
  uint64_t base;
  Clip(const TensorMapInfo& t, const int64_t* x, uint32_t elems) : first(0), last(elems), base(t.base) {
    for (int d = 1; d < t.rank; ++d) {
      if (x[d] < 0 || uint64_t(x[d]) >= t.dims[d]) last = 0;
      base += uint64_t(x[d]) * t.strides[d];
    }
    const int64_t step = t.estride[0];
    if (x[0] < 0) first = std::min<int64_t>(elems, (-x[0] + step - 1) / step);
    const int64_t room = int64_t(t.dims[0]) - x[0];
    last = std::min<int64_t>(last, room <= 0 ? 0 : (room + step - 1) / step);
    base += uint64_t(x[0] * t.elem_bits / 8);
    if (last < first) last = first;
  }
};

static void fill(const TensorMapInfo& t, std::vector<uint8_t>& row) {
  std::fill(row.begin(), row.end(), 0);
  if (!t.nan_fill || !t.is_float) return;
  for (size_t k = 0; k + 2 <= row.size(); k += 2) row[k] = 0xf7, row[k + 1] = 0x7f;   // 0x7ff7 for every 16 bits
}

// Loads of tfloat32 round to the nearest (even) 10 mantissa bits; neither type flushes subnormals on the way.
static void convert(const TensorMapInfo& t, std::vector<uint8_t>& row) {
  if (t.dtype != DT_TF32 && t.dtype != DT_TF32_FTZ) return;
  for (size_t k = 0; k + 4 <= row.size(); k += 4) {
    uint32_t u;
    std::memcpy(&u, &row[k], 4);
    u = ((u & 0x7fffffff) > 0x7f800000 ? NAN32 : u + 0xfff + (u >> 13 & 1)) & 0xffffe000;
    std::memcpy(&row[k], &u, 4);
  }
}

// Global bytes of a row -> row buffer
static void read_row(Machine& m, AsyncOp& op, const TensorMapInfo& t, const int64_t* x, const Rows& rows, std::vector<uint8_t>& row) {
  fill(t, row);
  const Clip k(t, x, rows.elems);
  if (k.last == k.first) return;
  const uint64_t bits = uint64_t(t.elem_bits);
  if (t.dtype >= 14) {   // 16 elements in 8 or 12 bytes, padded to 16
    const uint64_t unit = bits * 2;
    for (int64_t g = k.first / 16; g < (k.last + 15) / 16; ++g)
      if (const uint8_t* p = m.global(k.base + uint64_t(g) * unit, uint32_t(unit), false, op.actor, op.cta)) std::memcpy(&row[size_t(g) * 16], p, unit);
    return;
  }
  if (t.estride[0] == 1) {
    const uint64_t off = uint64_t(k.first) * bits / 8, n = uint64_t(k.last - k.first) * bits / 8;
    if (const uint8_t* p = m.global(k.base + off, uint32_t(n), false, op.actor, op.cta)) std::memcpy(&row[off], p, n);
    return;
  }
  for (int64_t e = k.first; e < k.last; ++e)
    if (const uint8_t* p = m.global(k.base + uint64_t(e) * t.estride[0] * bits / 8, uint32_t(bits / 8), false, op.actor, op.cta))
      std::memcpy(&row[size_t(e) * bits / 8], p, bits / 8);
}

static const int ELEM_OF_DTYPE[] = {TY_U32, TY_U32, TY_U32, TY_S32, TY_U64, TY_S64, TY_F16, TY_BF16, TY_F32, TY_F32_L2, TY_F32, TY_F32_L2, TY_F64};

static void write_row(Machine& m, AsyncOp& op, const TensorMapInfo& t, const int64_t* x, const Rows& rows, const std::vector<uint8_t>& row, int red) {
  const Clip k(t, x, rows.elems);
  const uint64_t bytes = uint64_t(t.elem_bits) / 8;
  if (k.last == k.first || !bytes) return;
  for (int64_t e = k.first; e < k.last;) {
    const int64_t run = t.estride[0] == 1 ? k.last - e : 1;
    uint8_t* p = m.global(k.base + uint64_t(e) * t.estride[0] * bytes, uint32_t(uint64_t(run) * bytes), true, op.actor, op.cta);
    if (p && red < 0) std::memcpy(p, &row[size_t(e) * bytes], size_t(run) * bytes);
    for (int64_t q = 0; p && red >= 0 && q < run; ++q) {
      uint64_t old[2] = {0, 0}, v[2] = {0, 0}, z[2];
      std::memcpy(old, p + uint64_t(q) * bytes, bytes), std::memcpy(v, &row[size_t(e + q) * bytes], bytes);
      atomic_apply(red, ELEM_OF_DTYPE[t.dtype], int(bytes), old, v, v, z);
      std::memcpy(p + uint64_t(q) * bytes, z, bytes);
    }
    e += run;
  }
}

struct Tensor { uint64_t map; int32_t at[5]; uint32_t smem, bar, ctas; int red; bool rows4, pair; };

static void load(Machine& m, AsyncOp& op, const Tensor& g) {
  TensorMapInfo scratch;
  const TensorMapInfo* t = m.tensor_map(g.map, op.actor, op.cta, scratch);
  if (!t) return;
  const Rows rows(*t, g.rows4);
  std::vector<uint32_t> targets;
  if (!g.ctas) targets.push_back(g.smem >> 24);
  for (uint32_t r = 0; r < 16; ++r)
    if (g.ctas >> r & 1) targets.push_back(r);
  std::vector<uint8_t> row(rows.bytes);
  each_row(*t, g.at, g.rows4, [&](uint32_t r, const int64_t* x) {
    read_row(m, op, *t, x, rows, row);
    convert(*t, row);
    for (uint32_t rank : targets)
      for (uint32_t b = 0; b < rows.bytes; b += 16) {
        const uint32_t a = swizzled((g.smem & 0xffffff) + r * rows.pitch + b, t->swizzle), n = std::min(16u, rows.bytes - b);
        if (t->swizzle == SW_128_ATOM32_FLIP8) {
          for (uint32_t h = 0; h < 16; h += 8)
            if (uint8_t* p = m.shared(*op.cta, swizzled((g.smem & 0xffffff) + r * rows.pitch + b + h, t->swizzle) | rank << 24, 8, WRITE, op.actor)) std::memcpy(p, &row[b + h], 8);
        } else if (uint8_t* p = m.shared(*op.cta, a | rank << 24, n, WRITE, op.actor)) {
          std::memcpy(p, &row[b], n);
        }
      }
  });
  for (uint32_t rank : targets) {
    m.tma_load_bytes += uint64_t(rows.bytes) * rows.count;
    // A pair's load signals the CTA of the pair that the barrier address names, any other the CTA that it writes to
    const uint32_t to = g.pair ? (rank & ~1u) | (g.bar >> 24 & 1) : g.ctas ? rank : g.bar >> 24;
    signal_bytes(m, op, (g.bar & 0xffffff) | to << 24, rows.bytes * rows.count);
  }
}

static void store(Machine& m, AsyncOp& op, const Tensor& g) {
  TensorMapInfo scratch;
  const TensorMapInfo* t = m.tensor_map(g.map, op.actor, op.cta, scratch);
  if (!t) return;
  const Rows rows(*t, g.rows4);
  std::vector<uint8_t> row(rows.bytes);
  each_row(*t, g.at, g.rows4, [&](uint32_t r, const int64_t* x) {
    for (uint32_t b = 0; b < rows.bytes; b += 8) {
      const uint32_t a = swizzled(g.smem + r * rows.pitch + b, t->swizzle), n = std::min(8u, rows.bytes - b);
      const uint8_t* p = m.shared(*op.cta, a, n, READ, op.actor);
      if (p) std::memcpy(&row[b], p, n);
    }
    write_row(m, op, *t, x, rows, row, g.red);
  });
  m.tma_store_bytes += uint64_t(rows.bytes) * rows.count;
}

// o: map, shared address, mbarrier, CTA mask, coordinates; m[0]: 0 load, 1 store; m[1]: dimensions, m[2]: multicast, m[3]: cta_group,
// m[4]: AtomicOp or -1, m[5]: 1 gather4 / scatter4
SF_OP("cp.async.bulk.tensor") {
  each_lane(c.mask, [&](int l) {
    Tensor g{c.r64(i.o[0])[l], {0, 0, 0, 0, 0}, uint32_t(c.r64(i.o[1])[l]), 0, 0, i.m[4], i.m[5] != 0, i.m[3] == 2};
    const int n = g.rows4 ? 5 : i.m[1];
    for (int d = 0; d < n; ++d) g.at[d] = int32_t(c.r32(i.o[4 + d])[l]);
    const Actor a = c.actor(i, l);
    TensorMapInfo scratch;
    const TensorMapInfo* t = c.m.tensor_map(g.map, a, &c.cta, scratch);
    if (!t) return;
    if (t->rank != i.m[1]) c.m.finding("tensor map", "a map of " + std::to_string(t->rank) + " dimensions used by a " + std::to_string(i.m[1]) + "-dimensional copy", a, &c.cta, g.map, true);
    if (t->interleave) c.m.finding("tensor map", "interleaved layouts are not modelled", a, &c.cta, g.map, true);
    if (g.smem % 128) c.m.finding("misaligned", "bulk tensor copy at shared address " + hex(g.smem) + ", not 128-byte aligned", a, &c.cta, g.smem);
    // An H200 stops such a copy with an illegal-instruction error; the ISA does not say so.
    if (int64_t(g.at[0]) * t->elem_bits % 128)
      c.m.finding("misaligned", "innermost coordinate " + std::to_string(g.at[0]) + " of a bulk tensor copy is no multiple of 16 bytes", a, &c.cta, g.smem);
    if (i.m[0] == 1 && !g.rows4)   // loads fill what lies outside; an H200 stops such a store with the same error
      for (int d = 0; d < n; ++d)
        if (g.at[d] < 0) c.m.finding("out of bounds", "negative coordinate " + std::to_string(g.at[d]) + " of a bulk tensor store", a, &c.cta, g.smem);
    if (i.m[0] == 0) {
      g.bar = uint32_t(c.r64(i.o[2])[l]);
      if (i.m[2]) g.ctas = c.r32(i.o[3])[l] & 0xffff;
      const uint32_t to = g.smem >> 24, by = g.bar >> 24;
      if (!i.m[2] && (g.pair ? to >> 1 != by >> 1 : to != by))
        c.m.finding("mbarrier", "bulk tensor load to CTA rank " + std::to_string(to) + " signals an mbarrier of rank " + std::to_string(by) +
                    (g.pair ? ", of another pair" : "; without .cta_group::2 the mbarrier must be in the destination CTA"), a, &c.cta, g.bar);
    }
    Ctx one{c.m, c.w, c.cta, c.frag, 1u << l};
    AsyncOp& op = i.m[0] == 0 ? c.m.issue(one, i, "bulk tensor load", [g](Machine& m, AsyncOp& self) { load(m, self, g); })
                              : c.m.issue(one, i, "bulk tensor store", [g](Machine& m, AsyncOp& self) { store(m, self, g); });
    if (i.m[0] == 1) op.group = open_bulk_group(c, l);
  });
  return Flow::Next;
}

}  // namespace sf
