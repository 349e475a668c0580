// Floating-point arithmetic: f32, f64, f16 and bf16 (scalar and packed).
//
// NaN results are the canonical NaN; .ftz flushes subnormal inputs and results to sign-preserving zero; .sat clamps to
// [0, 1] with NaN to 0. The approximate functions are computed in double and rounded once: they agree with the hardware
// tables to the accuracy that PTX documents, not bit for bit.
#include <cfenv>
#include <cmath>

#include "half.hpp"
#include "lanes.hpp"

namespace sf {

static int fe_mode(int round) { return round == RZ ? FE_TOWARDZERO : round == RM ? FE_DOWNWARD : round == RP ? FE_UPWARD : FE_TONEAREST; }
static float sat(float v) { return v != v ? 0.0f : v < 0.0f || v == 0.0f ? 0.0f : v > 1.0f ? 1.0f : v; }
static double sat(double v) { return v != v ? 0.0 : v < 0.0 || v == 0.0 ? 0.0 : v > 1.0 ? 1.0 : v; }
static double canon(double v) { return v; }

// f64 arithmetic returns its first NaN operand, made quiet, and a negative NaN where it makes one itself.
constexpr uint64_t QUIET64 = 1ull << 51;
template <class T> static T nan_rule(T r, T, T, T) { return r; }
template <> double nan_rule<double>(double r, double a, double b, double e) {
  if (r == r) return r;
  return f64_of(a != a ? bits_of(a) | QUIET64 : b != b ? bits_of(b) | QUIET64 : e != e ? bits_of(e) | QUIET64 : 0xfff8000000000000ull);
}

// An f32 product or fused sum below 2^-126 counts as subnormal for .ftz before it is rounded up to 2^-126.
static bool tiny(double exact) { return std::fabs(exact) < 0x1p-126; }
static double flush(double v) { return v; }

struct Mode { int round; bool ftz, sat; explicit Mode(const Insn& i) : round(i.m[0]), ftz(i.m[1]), sat(i.m[2]) {} };

// Apply f to (flushed) operands under a rounding mode, then flush, saturate and canonicalise the result.
template <class T, class F> static T rounded(const Mode& m, F f) {
  volatile T r;
  if (m.round == RN) r = f();
  else {
    const int old = std::fegetround();
    std::fesetround(fe_mode(m.round));
    r = f();
    std::fesetround(old);
  }
  T v = r;
  if (m.ftz) v = flush(v);
  if (m.sat) return sat(v);
  return canon(v);
}

template <class T> static T sat_if(const Mode& m, T zero) { return m.sat ? T(0) : zero; }

#define PLAIN(i) ((i).m[0] == RN && !(i).m[1] && !(i).m[2])
template <class T> static void basics() {
  static const std::string t = type_name<T>();
#define REG(name, ...) Registrar(name + t, [](Ctx & c, const Insn& i) -> Flow { __VA_ARGS__ })
#define BINARY(name, expr, exact)                                                                   \
  REG(name, if (PLAIN(i)) return (map2<T, T, T>(c, i, [](T a, T b) { return canon(nan_rule(T(expr), a, b, T(0))); }));    \
      const Mode m(i);                                                                              \
      return (map2<T, T, T>(c, i, [&m](T a, T b) {                                                  \
        if (m.ftz) a = flush(a), b = flush(b);                                                      \
        if (m.ftz && std::is_same<T, float>::value && (exact) != 0 && tiny(exact)) return sat_if<T>(m, std::copysign(T(0), T(exact))); \
        return nan_rule(rounded<T>(m, [&] { volatile T x = a, y = b; a = x, b = y; return T(expr); }), a, b, T(0));       \
      })););
  BINARY("add", a + b, double(a) + double(b))
  BINARY("sub", a - b, double(a) - double(b))
  BINARY("mul", a * b, double(a) * double(b))
  BINARY("div", a / b, double(a) / double(b))
  REG("fma", if (PLAIN(i)) return (map3<T, T, T, T>(c, i, [](T a, T b, T e) { return canon(nan_rule(T(std::fma(a, b, e)), a, b, e)); }));
      const Mode m(i);
      return (map3<T, T, T, T>(c, i, [&m](T a, T b, T e) {
        if (m.ftz) a = flush(a), b = flush(b), e = flush(e);
        if (m.ftz && std::is_same<T, float>::value) {
          const double exact = fma_odd(double(a), double(b), double(e));
          if (exact != 0 && tiny(exact)) return sat_if<T>(m, std::copysign(T(0), T(exact)));
        }
        return nan_rule(rounded<T>(m, [&] { volatile T x = a, y = b, z = e; return T(std::fma(T(x), T(y), T(z))); }), a, b, e);
      })););
  REG("sqrt", const Mode m(i); return (map1<T, T>(c, i, [&m](T a) {
        if (m.ftz) a = flush(a);
        return nan_rule(rounded<T>(m, [&] { volatile T x = a; return T(std::sqrt(T(x))); }), a, a, a);
      })););
  REG("rcp", const Mode m(i); return (map1<T, T>(c, i, [&m](T a) {
        if (m.ftz) a = flush(a);
        return nan_rule(rounded<T>(m, [&] { volatile T x = a; return T(1) / x; }), a, a, a);
      })););
  REG("neg", const Mode m(i); return (map1<T, T>(c, i, [&m](T a) { return nan_rule(canon(m.ftz ? -flush(a) : -a), a, a, a); })););
  REG("abs", const Mode m(i); return (map1<T, T>(c, i, [&m](T a) { return nan_rule(canon(std::fabs(m.ftz ? flush(a) : a)), a, a, a); })););
  REG("copysign", return (map2<T, T, T>(c, i, [](T a, T b) { return std::copysign(b, a); })););
}

// min and max: m[1] ftz, m[2] NaN propagates, m[3] xorsign
static float extreme(float a, float b, bool max, bool nan, bool ftz, bool xorsign) {
  if (ftz) a = flush(a), b = flush(b);
  const uint32_t sign = xorsign ? (bits_of(a) ^ bits_of(b)) & 0x80000000u : 0;
  if (xorsign) a = std::fabs(a), b = std::fabs(b);
  float r;
  if (a != a || b != b) r = nan || (a != a && b != b) ? f32_of(NAN32) : a != a ? b : a;
  else if (a == b) r = max ? (std::signbit(a) ? b : a) : (std::signbit(a) ? a : b);   // +0 > -0
  else r = (a > b) == max ? a : b;
  return r != r ? r : f32_of(bits_of(r) | sign);
}
template <bool MAX> static Flow extreme_f32(Ctx& c, const Insn& i) {
  return map2<float, float, float>(c, i, [&i](float a, float b) { return extreme(a, b, MAX, i.m[2], i.m[1], i.m[3]); });
}
template <bool MAX> static Flow extreme3_f32(Ctx& c, const Insn& i) {
  return map3<float, float, float, float>(c, i, [&i](float a, float b, float e) {
    return extreme(extreme(a, b, MAX, i.m[2], i.m[1], false), e, MAX, i.m[2], i.m[1], false);
  });
}
template <bool MAX> static Flow extreme_f64(Ctx& c, const Insn& i) {
  return map2<double, double, double>(c, i, [](double a, double b) {
    if (a != a || b != b) return a == a ? a : b == b ? b : f64_of(bits_of(a) | QUIET64);
    return a == b ? (std::signbit(a) == MAX ? b : a) : (a > b) == MAX ? a : b;
  });
}

template <class F> static Flow approx(Ctx& c, const Insn& i, F f) {
  return map1<float, float>(c, i, [&](float a) {
    if (i.m[1]) a = flush(a);
    float r = canon(float(f(double(a))));
    return i.m[1] ? flush(r) : r;
  });
}
SF_OP("ex2.approx.f32") { return approx(c, i, [](double a) { return std::exp2(a); }); }
SF_OP("lg2.approx.f32") { return approx(c, i, [](double a) { return std::log2(a); }); }
SF_OP("sin.approx.f32") { return approx(c, i, [](double a) { return std::sin(a); }); }
SF_OP("cos.approx.f32") { return approx(c, i, [](double a) { return std::cos(a); }); }
SF_OP("tanh.approx.f32") { return approx(c, i, [](double a) { return std::tanh(a); }); }
SF_OP("rsqrt.approx.f32") { return approx(c, i, [](double a) { return 1 / std::sqrt(a); }); }
SF_OP("rsqrt.approx.f64") { return map1<double, double>(c, i, [](double a) { return 1 / std::sqrt(a); }); }

SF_OP("div.approx.f32") {   // a times the reciprocal of b, whose subnormal values are zero
  return map2<float, float, float>(c, i, [&](float a, float b) {
    if (i.m[1]) a = flush(a), b = flush(b);
    const float zero = std::copysign(0.0f, f32_of(bits_of(a) ^ bits_of(b)));
    const float r = canon(std::isfinite(b) && std::fabs(b) > 0x1p126f ? a * std::copysign(0.0f, b) : a / b);
    return r == 0 ? zero : i.m[1] ? flush(r) : r;
  });
}

SF_OP("testp.f32") {   // o: p, a; m[0]: 0 finite 1 infinite 2 number 3 notanumber 4 normal 5 subnormal
  Mask r = 0;
  each_lane(c.mask, [&](int l) {
    const float a = f32_of(c.r32(i.o[1])[l]);
    const int k = std::fpclassify(a);
    const bool v[6] = {std::isfinite(a), k == FP_INFINITE, k != FP_NAN, k == FP_NAN, k == FP_NORMAL || k == FP_ZERO, k == FP_SUBNORMAL};
    r |= Mask(v[i.m[0]]) << l;
  });
  c.set_pred(i.o[0], r);
  return Flow::Next;
}

// ---- f16 and bf16 ---------------------------------------------------------------------------------------------------

struct Half {
  static float load(uint32_t h) { return half_to_float(h & 0xffff); }
  static uint32_t store(double v) { return encode(v, F16, RN); }
  static constexpr uint32_t one = 0x3c00;
};
struct Brain {
  static float load(uint32_t h) { return bf16_to_float(h & 0xffff); }
  static uint32_t store(double v) { return encode(v, BF16, RN); }
  static constexpr uint32_t one = 0x3f80;
};

// m[0]: operation; m[1]: ftz; m[2]: sat; m[3]: relu; m[4]: NaN propagates; m[5]: packed
template <class H> static uint32_t half_op(const Insn& i, uint32_t ab, uint32_t bb, uint32_t eb) {
  float a = H::load(ab), b = H::load(bb), e = H::load(eb);
  auto small = [&](uint32_t h) { return i.m[1] && std::is_same<H, Half>::value && (h & 0x7c00) == 0; };
  if (small(ab)) a = std::copysign(0.f, a);
  if (small(bb)) b = std::copysign(0.f, b);
  if (small(eb)) e = std::copysign(0.f, e);
  double r = 0;
  switch (i.m[0]) {
    case OP_ADD: r = fma_odd(1.0, a, b); break;
    case OP_SUB: r = fma_odd(-1.0, b, a); break;
    case OP_MUL: r = double(a) * double(b); break;
    case OP_FMA: r = fma_odd(a, b, e); break;
    case OP_MIN: case OP_MAX: {
      const float v = extreme(a, b, i.m[0] == OP_MAX, i.m[4], false, i.m[2]);
      return v != v ? 0x7fff : H::store(v);
    }
    case OP_NEG: return a != a ? 0x7fff : (ab ^ 0x8000) & 0xffff;
    case OP_ABS: return a != a ? 0x7fff : ab & 0x7fff;
    case OP_EX2: r = std::exp2(double(a)); break;
    case OP_TANH: r = std::tanh(double(a)); break;
  }
  if (i.m[2]) r = sat(r);
  if (i.m[3] && (r < 0 || (r == 0 && std::signbit(r)))) r = 0;
  uint32_t v = H::store(r);
  if (small(v)) v &= 0x8000;
  return v;
}
template <class H> static Flow half(Ctx& c, const Insn& i) {
  uint32_t* d = c.r32(i.o[0]);
  const uint32_t *a = c.r32(i.o[1]), *b = i.n > 2 ? c.r32(i.o[2]) : a, *e = i.n > 3 ? c.r32(i.o[3]) : a;
  if (c.mask == FULL && i.m[0] <= OP_FMA && !i.m[1] && !i.m[2] && !i.m[3] && half_fast(std::is_same<H, Brain>::value, i.m[0], i.m[5], a, b, e, d)) return Flow::Next;
  each_lane(c.mask, [&](int l) {
    const uint32_t x = a[l], y = b[l], z = e[l];
    uint32_t r = half_op<H>(i, x, y, z);
    if (i.m[5]) r |= half_op<H>(i, x >> 16, y >> 16, z >> 16) << 16;
    d[l] = r;
  });
  return Flow::Next;
}
static Registrar half_f16("half.f16", half<Half>), half_bf16("half.bf16", half<Brain>);

// f32x2: two independent f32 operations on 64-bit registers (sm_100 and later)
SF_OP("f32x2") {   // m[0] rounding, m[1] ftz, m[3]: OP_ADD, OP_MUL, OP_FMA, OP_SUB
  const Mode m(i);
  each_lane(c.mask, [&](int l) {
    uint64_t out = 0;
    for (int h = 0; h < 2; ++h) {
      auto part = [&](int k) { const float v = f32_of(uint32_t(c.r64(i.o[k])[l] >> (32 * h))); return m.ftz ? flush(v) : v; };
      const float a = part(1), b = part(2);
      const float r = rounded<float>(m, [&] {
        volatile float x = a, y = b, z = i.n > 3 ? part(3) : 0.0f;
        return i.m[3] == OP_ADD ? x + y : i.m[3] == OP_SUB ? x - y : i.m[3] == OP_MUL ? x * y : std::fma(float(x), float(y), float(z));
      });
      out |= uint64_t(bits_of(r)) << (32 * h);
    }
    c.r64(i.o[0])[l] = out;
  });
  return Flow::Next;
}

static const bool registered = [] {
  basics<float>(), basics<double>();
  Registrar("min.f32", extreme_f32<false>), Registrar("max.f32", extreme_f32<true>);
  Registrar("min3.f32", extreme3_f32<false>), Registrar("max3.f32", extreme3_f32<true>);
  Registrar("min.f64", extreme_f64<false>), Registrar("max.f64", extreme_f64<true>);
  return true;
}();

}  // namespace sf
