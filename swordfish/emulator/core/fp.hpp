// Floating-point formats: exact decoding, and rounding in every PTX mode.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace sf {

inline float f32_of(uint32_t b) { float f; std::memcpy(&f, &b, 4); return f; }
inline uint32_t bits_of(float f) { uint32_t b; std::memcpy(&b, &f, 4); return b; }
inline double f64_of(uint64_t b) { double f; std::memcpy(&f, &b, 8); return f; }
inline uint64_t bits_of(double f) { uint64_t b; std::memcpy(&b, &f, 8); return b; }

constexpr uint32_t NAN32 = 0x7fffffff;   // the canonical NaN of PTX arithmetic
inline float canon(float v) { return v != v ? f32_of(NAN32) : v; }
inline float flush(float v) { return (bits_of(v) & 0x7f800000) == 0 ? f32_of(bits_of(v) & 0x80000000) : v; }

enum Round { RN, RZ, RM, RP, RNA, RS };   // nearest even, zero, minus infinity, plus infinity, nearest away, stochastic

// A format with `mant` stored bits, exponent bits and bias; has_inf false: e4m3 / e2m1 style (top code is a number).
struct Format { int mant, ebits, bias; bool has_inf, has_nan; };
constexpr Format F16{10, 5, 15, true, true}, BF16{7, 8, 127, true, true}, TF32{10, 8, 127, true, true}, F32{23, 8, 127, true, true},
    E4M3{3, 4, 7, false, true}, E5M2{2, 5, 15, true, true}, E2M1{1, 2, 1, false, false}, E3M2{2, 3, 3, false, false}, E2M3{3, 2, 1, false, false},
    UE8M0{0, 8, 127, false, true};

inline double decode(uint32_t b, const Format& f) {
  const uint32_t m = b & ((1u << f.mant) - 1), e = b >> f.mant & ((1u << f.ebits) - 1);
  const double sign = b >> (f.mant + f.ebits) & 1 ? -1.0 : 1.0;
  const uint32_t top = (1u << f.ebits) - 1;
  if (f.has_inf && e == top) return m ? f64_of(0x7ff8000000000000ull) : sign * INFINITY;
  if (!f.has_inf && f.has_nan && e == top && m == (1u << f.mant) - 1) return f64_of(0x7ff8000000000000ull);
  if (e == 0) return sign * std::ldexp(double(m), 1 - f.bias - f.mant);
  return sign * std::ldexp(double(m + (1u << f.mant)), int(e) - f.bias - f.mant);
}
inline uint32_t max_code(const Format& f) {
  const uint32_t top = (1u << (f.ebits + f.mant)) - 1;
  return f.has_inf ? top - (1u << f.mant) : f.has_nan ? top - 1 : top;
}
// Rounds an exact value (a double that is exact or rounded to odd) to a format. satfinite clamps instead of infinity.
inline uint32_t encode(double v, const Format& f, int mode, bool satfinite = false) {
  const uint64_t b = bits_of(v);
  const uint32_t sign = uint32_t(b >> 63) << (f.mant + f.ebits);
  const uint32_t top = (1u << (f.ebits + f.mant)) - 1;
  if (v != v) return f.has_nan ? top : max_code(f);   // the canonical NaN: positive, all ones
  const int be = int(b >> 52 & 2047);
  const uint64_t frac = b & ((1ull << 52) - 1);
  if (be == 2047) return sign | (satfinite || !f.has_inf ? (satfinite || !f.has_nan ? max_code(f) : top) : max_code(f) + 1);
  if (be == 0) {
    if (frac == 0) return sign;
    return sign | uint32_t((mode == RM && sign) || (mode == RP && !sign));   // below 2^-1022
  }
  const uint64_t m = frac | 1ull << 52;
  int e = be - 1023;
  const int emin = 1 - f.bias;
  int shift = 52 - f.mant;
  if (e < emin) shift += emin - e, e = emin;
  uint64_t q, rest, half;
  if (shift > 63) q = 0, rest = 1, half = 2;
  else q = m >> shift, rest = m & ((1ull << shift) - 1), half = 1ull << (shift - 1);
  const bool neg = b >> 63;
  bool up = false;
  switch (mode) {
    case RN: up = rest > half || (rest == half && (q & 1)); break;
    case RNA: up = rest >= half; break;
    case RM: up = neg && rest; break;
    case RP: up = !neg && rest; break;
    default: break;
  }
  q += up;
  // q carries the hidden bit when normal, so adding fields propagates a carry into the exponent
  const uint64_t code = (uint64_t(e - emin) << f.mant) + q;
  if (code > max_code(f)) {
    const bool to_max = satfinite || mode == RZ || (mode == RM && !neg) || (mode == RP && neg);
    if (to_max) return sign | max_code(f);
    return sign | (f.has_inf ? max_code(f) + 1 : f.has_nan ? top : max_code(f));
  }
  return sign | uint32_t(code);
}

// a * b + c with the result rounded to odd, so that a later rounding to a narrow format is correct. The product must be
// exact in double (operands of at most 26 significant bits).
inline double fma_odd(double a, double b, double c) {
  const double p = a * b, s = p + c;
  if (!std::isfinite(s)) return s;
  const double bb = s - p, err = (p - (s - bb)) + (c - bb);
  if (err == 0) return s;
  uint64_t u = bits_of(s);
  if (u & 1) return s;
  return f64_of((err > 0) == (s > 0) ? u + 1 : u - 1);
}

inline float half_to_float(uint32_t h) {
  const uint32_t s = (h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023;
  if (e == 31) return f32_of(s | 0x7f800000 | m << 13);
  if (e) return f32_of(s | (e + 112) << 23 | m << 13);
  const float v = float(m) * 5.9604644775390625e-8f;   // 2^-24
  return f32_of(s | bits_of(v));
}
inline float bf16_to_float(uint32_t b) { return f32_of(b << 16); }
inline uint32_t float_to_half(float v) { return encode(double(v), F16, RN); }

}  // namespace sf
