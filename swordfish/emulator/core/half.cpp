// The product of two 16-bit numbers is exact in float. Their sum with a third is rounded to odd (Boldo and Melquiond,
// "Emulation of FMA and correctly rounded sums", 2008), after which the rounding to 16 bits is the only one that counts.
#include "half.hpp"

#include "fp.hpp"

namespace sf {

static float widen_f16(uint32_t h) {   // exact for finite values: the exponent is rebiased by a multiplication with 2^112
  return f32_of((h & 0x7fff) << 13 | (h & 0x8000) << 16) * f32_of(239u << 23);
}

static uint32_t narrow_f16(uint32_t u) {
  const uint32_t sign = u >> 16 & 0x8000, x = u & 0x7fffffff;
  const uint32_t normal = (x + 0xc8000fffu + (x >> 13 & 1)) >> 13;
  const uint32_t small = bits_of(f32_of(x) + 0.5f) - bits_of(0.5f);   // rounds at 2^-24
  return sign | (x >= 0x47800000 ? 0x7c00 : x < 0x38800000 ? small : normal);
}
static uint32_t narrow_bf16(uint32_t u) { return (u + 0x7fff + (u >> 16 & 1)) >> 16; }

static uint32_t magnitude(float v) { return bits_of(v) & 0x7fffffff; }

// p + e of n lanes, rounded to odd, as bits; returns false when out of range
static bool sum_odd(const float* p, const float* e, uint32_t* out, int n) {
  constexpr uint32_t LOW = 27u << 23, HIGH = 252u << 23;   // 2^-100, 2^125
  uint32_t bad = 0;
  for (int l = 0; l < n; ++l) {
    const uint32_t mp = magnitude(p[l]), me = magnitude(e[l]);
    bad |= uint32_t(mp >= HIGH) | uint32_t(me >= HIGH) | (uint32_t(mp < LOW) & uint32_t(mp != 0));
    const float s = p[l] + e[l], bb = s - p[l], err = (p[l] - (s - bb)) + (e[l] - bb);
    const uint32_t u = bits_of(s);
    const uint32_t even = ~u & 1, inexact = err != 0.0f, away = (err > 0.0f) == (s > 0.0f);
    out[l] = u + (even & inexact) * (2 * away - 1);
  }
  return !bad;
}

bool half_fast(bool brain, int op, bool packed, const uint32_t* a, const uint32_t* b, const uint32_t* e, uint32_t* d) {
  const int n = packed ? 64 : 32;
  float p[64], add[64];
  auto part = [&](const uint32_t* r, int k) { return k < 32 ? r[k] & 0xffff : r[k - 32] >> 16; };
  uint32_t special = 0;   // infinities and NaN
  float x[64], y[64];
  auto load = [&](const uint32_t* r, float* out) {
    for (int k = 0; k < n; ++k) {
      const uint32_t h = part(r, k);
      special |= brain ? uint32_t((h & 0x7f80) == 0x7f80) : uint32_t((h & 0x7c00) == 0x7c00);
      out[k] = brain ? f32_of(h << 16) : widen_f16(h);
    }
  };
  load(a, x), load(b, y);
  if (op == OP_FMA) load(e, add);
  if (special) return false;
  for (int k = 0; k < n; ++k) p[k] = op == OP_MUL || op == OP_FMA ? x[k] * y[k] : x[k];
  for (int k = 0; k < n && op != OP_FMA; ++k) add[k] = op == OP_ADD ? y[k] : op == OP_SUB ? -y[k] : std::copysign(0.0f, p[k]);
  uint32_t u[64];
  if (!sum_odd(p, add, u, n)) return false;
  for (int k = 0; k < n; ++k) u[k] = brain ? narrow_bf16(u[k]) : narrow_f16(u[k]);
  for (int k = 0; k < 32; ++k) d[k] = packed ? u[k] | u[k + 32] << 16 : u[k];
  return true;
}

}  // namespace sf
