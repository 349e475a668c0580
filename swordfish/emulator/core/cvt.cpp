// Conversions between integer and floating types, packed narrow formats, and the arithmetic of atomics.
#include <cmath>

#include "fp.hpp"
#include "memory.hpp"

namespace sf {

// Scalar type codes of the decoder: 0 u8, 1 u16, 2 u32, 3 u64, 4..7 the signed ones, 8 f16, 9 bf16, 10 f32, 11 f64, 12 tf32
static int bytes_of(int t) { return t < 8 ? 1 << (t & 3) : t < 10 ? 2 : t == 11 ? 8 : 4; }

static int64_t to_integer(double v, int t, int round, bool wide, bool& unsigned_big, uint64_t& big) {
  unsigned_big = false;
  const int bits = 8 << (t & 3);
  const bool sign = t >= 4;
  if (v != v) {   // NaN converts to 0, except to 64 bits and from f64, where the sign bit alone is set
    if (bits == 64) return unsigned_big = true, big = 0x8000000000000000ull, 0;
    return unsigned_big = wide, big = 1ull << (bits - 1), 0;
  }
  double r = round == RN ? std::nearbyint(v) : round == RZ ? std::trunc(v) : round == RM ? std::floor(v) : std::ceil(v);
  const double lo = sign ? -std::ldexp(1.0, bits - 1) : 0, hi = std::ldexp(1.0, sign ? bits - 1 : bits);
  if (r < lo) r = lo;
  if (r >= hi) return unsigned_big = true, big = sign ? (1ull << (bits - 1)) - 1 : bits == 64 ? ~0ull : (1ull << bits) - 1, 0;
  if (!sign && bits == 64 && r >= 9223372036854775808.0) return unsigned_big = true, big = uint64_t(r), 0;
  return int64_t(r);
}

// Integers of 64 bits do not fit a double: round them to odd at 53 bits first.
static double from_integer(uint64_t x, bool sign) {
  const bool neg = sign && int64_t(x) < 0;
  uint64_t m = neg ? 0 - x : x;
  if (!m) return 0;
  const int top = 63 - __builtin_clzll(m), drop = top - 52;
  if (drop > 0) {
    const bool sticky = m & ((1ull << drop) - 1);
    m = m >> drop | uint64_t(sticky);
    const double v = std::ldexp(double(m), drop);
    return neg ? -v : v;
  }
  return neg ? -double(m) : double(m);
}

static const Format& format_of(int t) { return t == 8 ? F16 : t == 9 ? BF16 : t == 12 ? TF32 : F32; }

// What a NaN of type st becomes in the narrower or equal type dt, as an H200 answers.
static uint64_t nan_of(uint64_t x, int dt, int st) {
  if (st == 9 && dt == 10) return x << 16;                              // bf16 is the upper half of an f32
  if (dt == 12) return x & 0xffffe000;                                  // tf32 truncates
  if (st == 11) return (x >> 63) << (dt == 10 ? 31 : 15) | (dt == 10 ? 0x7fc00000 : 0x7e00);
  return dt == 10 ? NAN32 : 0x7fff;
}

// o: d, a; m[0] dst type, m[1] src type, m[2] rounding, m[3] flags 1 ftz 2 sat 4 satfinite 8 relu 16 round to integral
SF_OP("cvt") {
  const int dt = i.m[0], st = i.m[1], round = i.m[2], flags = i.m[3];
  const int dreg = i.m[4], sreg = bytes_of(st) == 1 ? 4 : bytes_of(st);
  each_lane(c.mask, [&](int l) {
    uint64_t x[2], out[2] = {0, 0};
    get_reg(c, i.o[1], sreg, l, x);
    if (st < 8) {
      const int bits = 8 << (st & 3);
      uint64_t v = bits == 64 ? x[0] : x[0] & ((1ull << bits) - 1);
      if (st >= 4 && bits < 64) v = uint64_t(int64_t(v << (64 - bits)) >> (64 - bits));
      if (dt < 8) {
        const int db = 8 << (dt & 3);
        if (flags & 2) {
          const bool sneg = st >= 4 && int64_t(v) < 0;
          if (dt >= 4) {
            const int64_t hi = int64_t(db == 64 ? ~0ull >> 1 : (1ull << (db - 1)) - 1), lo = -hi - 1;
            v = !sneg && v > uint64_t(hi) ? uint64_t(hi) : sneg && int64_t(v) < lo ? uint64_t(lo) : v;
          } else {
            const uint64_t hi = db == 64 ? ~0ull : (1ull << db) - 1;
            v = sneg ? 0 : v > hi ? hi : v;
          }
        }
        if (db < 64) v &= (1ull << db) - 1;
        if (dt >= 4 && db < 8 * dreg) v = uint64_t(int64_t(v << (64 - db)) >> (64 - db));
        out[0] = v;
      } else {
        const double f = from_integer(v, st >= 4);
        out[0] = dt == 11 ? bits_of(double(f)) : encode(f, format_of(dt), round);
        if (dt == 11 && (v >> 53)) out[0] = bits_of(st >= 4 ? double(int64_t(v)) : double(v));
      }
    } else {
      double v = st == 11 ? f64_of(x[0]) : st == 10 || st == 12 ? double(f32_of(uint32_t(x[0]))) : st == 8 ? double(half_to_float(x[0] & 0xffff)) : double(bf16_to_float(x[0] & 0xffff));
      if ((flags & 1) && (st == 10 || st == 9)) v = std::fpclassify(float(v)) == FP_SUBNORMAL ? std::copysign(0.0, v) : v;
      if (dt < 8) {
        bool big;
        uint64_t u;
        const int64_t s = to_integer(v, dt, round, st == 11, big, u);
        out[0] = big ? u : uint64_t(s);
        const int db = 8 << (dt & 3);
        if (db < 64) out[0] &= (1ull << db) - 1;
        if (dt >= 4 && db < 8 * dreg && db < 64) out[0] = uint64_t(int64_t(out[0] << (64 - db)) >> (64 - db));
      } else {
        if (flags & 16 && std::isfinite(v)) {
          const double r = round == RN ? std::nearbyint(v) : round == RZ ? std::trunc(v) : round == RM ? std::floor(v) : std::ceil(v);
          v = std::copysign(r, v);
        }
        if (flags & 2) v = v != v || v < 0 || v == 0 ? 0 : v > 1 ? 1 : v;
        if ((flags & 8) && (v < 0 || (v == 0 && std::signbit(v)))) v = 0;
        if (dt == 11) out[0] = bits_of(v);
        else {
          uint32_t e = encode(v, format_of(dt), flags & 16 ? RN : round, flags & 4);
          if (dt == 12) e <<= 13;
          if ((flags & 1) && dt == 10 && (e & 0x7f800000) == 0) e &= 0x80000000u;
          out[0] = e;
          if (v != v) out[0] = nan_of(x[0], dt, st);
        }
      }
    }
    put_reg(c, i.o[0], dreg, l, out);
  });
  return Flow::Next;
}

SF_OP("cvt.u64.u32") {
  each_lane(c.mask, [&](int l) { c.r64(i.o[0])[l] = c.r32(i.o[1])[l]; });
  return Flow::Next;
}

static const Format FORMATS[] = {F16, BF16, E4M3, E5M2, E2M1, E3M2, E2M3, UE8M0, F32};
static int format_bits(int f) { static const int b[] = {16, 16, 8, 8, 4, 8, 8, 8, 32}; return b[f]; }

// Two values into one register: o: d, a (upper), b (lower); each f32. m[0] dst format, m[2] rounding, m[3] flags as cvt
SF_OP("cvt.pack2") {
  const Format& f = FORMATS[i.m[0]];
  const int bits = format_bits(i.m[0]);
  each_lane(c.mask, [&](int l) {
    auto one = [&](int32_t o) {
      double v = double(f32_of(c.r32(o)[l]));
      if ((i.m[3] & 8) && (v < 0 || (v == 0 && std::signbit(v)))) v = 0;
      return v != v && f.has_inf ? (1u << (bits - 1)) - 1 : encode(v, f, i.m[2], i.m[3] & 4);
    };
    c.r32(i.o[0])[l] = one(i.o[1]) << bits | one(i.o[2]);
  });
  return Flow::Next;
}
// Two packed narrow values <-> two packed 16-bit values: o: d, a; m[0] dst format, m[1] src format, m[2] rounding, m[3] flags
SF_OP("cvt.x2") {
  const Format &df = FORMATS[i.m[0]], &sf_ = FORMATS[i.m[1]];
  const int db = format_bits(i.m[0]), sb = format_bits(i.m[1]);
  each_lane(c.mask, [&](int l) {
    uint32_t out = 0;
    for (int h = 0; h < 2; ++h) {
      double v = decode(c.r32(i.o[1])[l] >> (sb * h) & ((1u << sb) - 1), sf_);
      if ((i.m[3] & 8) && (v < 0 || (v == 0 && std::signbit(v)))) v = 0;
      const uint32_t e = v != v && df.has_inf ? (1u << (db - 1)) - 1 : encode(v, df, i.m[2], i.m[3] & 4);
      out |= e << (db * h);
    }
    c.r32(i.o[0])[l] = out;
  });
  return Flow::Next;
}
// cvt.pack.sat: o: d, a, b, c; m[0] bits, m[1] signed destination
SF_OP("cvt.pack.sat") {
  const int bits = i.m[0];
  each_lane(c.mask, [&](int l) {
    auto clamp = [&](int32_t v) {
      const int64_t lo = i.m[1] ? -(1ll << (bits - 1)) : 0, hi = i.m[1] ? (1ll << (bits - 1)) - 1 : (1ll << bits) - 1;
      return uint32_t(v < lo ? lo : v > hi ? hi : v) & ((1u << bits) - 1);
    };
    const uint32_t a = clamp(int32_t(c.r32(i.o[1])[l])), b = clamp(int32_t(c.r32(i.o[2])[l]));
    const uint32_t rest = i.n > 3 && bits < 16 ? c.r32(i.o[3])[l] << (2 * bits) : 0;
    c.r32(i.o[0])[l] = rest | a << bits | b;
  });
  return Flow::Next;
}

// ---- atomics -----------------------------------------------------------------------------------------------------------

static uint32_t half_pair(int which, bool brain, uint32_t a, uint32_t b) {
  const Format& f = brain ? BF16 : F16;
  auto load = [&](uint32_t h) { return double(brain ? bf16_to_float(h) : half_to_float(h)); };
  const double x = load(a & 0xffff), y = load(b & 0xffff);
  double r = which == ATOM_ADD ? fma_odd(1.0, x, y) : which == ATOM_MIN ? std::fmin(x, y) : std::fmax(x, y);
  return r != r ? 0x7fff : encode(r, f, RN);
}

template <class T> static T pick(int which, T a, T b) {
  switch (which) {
    case ATOM_ADD: return T(a + b);
    case ATOM_MIN: return a < b ? a : b;
    default: return a > b ? a : b;
  }
}

constexpr uint64_t QUIET = 1ull << 51;
static bool is_nan(uint64_t b) { return f64_of(b) != f64_of(b); }

void atomic_apply(int which, int type, int bytes, const uint64_t* old, const uint64_t* x, const uint64_t* y, uint64_t* z) {
  z[0] = x[0], z[1] = x[1];
  const uint64_t a = old[0], b = x[0];
  switch (which) {
    case ATOM_AND: z[0] = a & b; return;
    case ATOM_OR: z[0] = a | b; return;
    case ATOM_XOR: z[0] = a ^ b; return;
    case ATOM_EXCH: return;
    case ATOM_CAS: {
      const uint64_t m = bytes >= 8 ? ~0ull : (1ull << (8 * bytes)) - 1;
      const bool equal = ((a ^ b) & m) == 0 && (bytes < 16 || old[1] == x[1]);
      z[0] = equal ? y[0] : a, z[1] = equal ? y[1] : old[1];
      return;
    }
    case ATOM_INC: z[0] = uint32_t(a) >= uint32_t(b) ? 0 : uint32_t(a) + 1; return;
    case ATOM_DEC: z[0] = a == 0 || uint32_t(a) > uint32_t(b) ? b : a - 1; return;
    default: break;
  }
  switch (type) {
    case TY_S32: z[0] = uint32_t(which == ATOM_ADD ? int32_t(uint32_t(a) + uint32_t(b)) : pick(which, int32_t(a), int32_t(b))); return;
    case TY_U64: z[0] = pick(which, a, b); return;
    case TY_S64: z[0] = which == ATOM_ADD ? a + b : uint64_t(pick(which, int64_t(a), int64_t(b))); return;
    case TY_F32: z[0] = bits_of(canon(which == ATOM_ADD ? f32_of(uint32_t(a)) + f32_of(uint32_t(b)) : pick(which, f32_of(uint32_t(a)), f32_of(uint32_t(b))))); return;
    case TY_F32_L2: z[0] = bits_of(canon(flush(flush(f32_of(uint32_t(a))) + flush(f32_of(uint32_t(b)))))); return;
    case TY_F64: z[0] = is_nan(a) ? a | QUIET : is_nan(b) ? b | QUIET : bits_of(f64_of(a) + f64_of(b)); return;
    case TY_F64_L2: z[0] = is_nan(a) ? a : is_nan(b) ? b : bits_of(f64_of(a) + f64_of(b)); return;
    case TY_F16: case TY_BF16: z[0] = half_pair(which, type == TY_BF16, uint32_t(a), uint32_t(b)); return;
    case TY_F16X2: case TY_BF16X2:
      z[0] = half_pair(which, type == TY_BF16X2, uint32_t(a) & 0xffff, uint32_t(b) & 0xffff) |
             half_pair(which, type == TY_BF16X2, uint32_t(a) >> 16, uint32_t(b) >> 16) << 16;
      return;
    default: z[0] = pick(which, uint32_t(a), uint32_t(b)); return;
  }
}

}  // namespace sf
