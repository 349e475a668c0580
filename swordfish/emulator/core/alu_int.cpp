// Integer arithmetic, logic, shifts, bit fields, predicates, moves.
#include <algorithm>

#include "lanes.hpp"

namespace sf {

template <class T> using U = std::make_unsigned_t<T>;
template <class T> struct Wider;
template <> struct Wider<uint16_t> { using type = uint32_t; };
template <> struct Wider<int16_t> { using type = int32_t; };
template <> struct Wider<uint32_t> { using type = uint64_t; };
template <> struct Wider<int32_t> { using type = int64_t; };
template <> struct Wider<uint64_t> { using type = unsigned __int128; };
template <> struct Wider<int64_t> { using type = __int128; };

template <class T> static T lo(T a, T b) { return T(uint64_t(a) * uint64_t(b)); }
template <class T> static T hi(T a, T b) {
  using W = typename Wider<T>::type;
  return T((W(a) * W(b)) >> (8 * sizeof(T)));
}

template <class T> static void arithmetic() {
  static const std::string t = type_name<T>();
#define REG(name, ...) Registrar(name + t, [](Ctx & c, const Insn& i) -> Flow { __VA_ARGS__ })
  REG("add", return (map2<T, T, T>(c, i, [](T a, T b) { return T(U<T>(a) + U<T>(b)); })););
  REG("sub", return (map2<T, T, T>(c, i, [](T a, T b) { return T(U<T>(a) - U<T>(b)); })););
  REG("mul.lo", return (map2<T, T, T>(c, i, lo<T>)););
  REG("mul.hi", return (map2<T, T, T>(c, i, hi<T>)););
  REG("mad.lo", return (map3<T, T, T, T>(c, i, [](T a, T b, T e) { return T(U<T>(lo(a, b)) + U<T>(e)); })););
  REG("mad.hi", return (map3<T, T, T, T>(c, i, [](T a, T b, T e) { return T(U<T>(hi(a, b)) + U<T>(e)); })););
  REG("div", return (map2<T, T, T>(c, i, [](T a, T b) { return b == 0 ? T(-1) : std::is_signed<T>::value && b == T(-1) ? T(U<T>(0) - U<T>(a)) : T(a / b); })););
  REG("rem", return (map2<T, T, T>(c, i, [](T a, T b) { return b == 0 ? a : std::is_signed<T>::value && b == T(-1) ? T(0) : T(a % b); })););
  REG("min", return (map2<T, T, T>(c, i, [](T a, T b) { return a < b ? a : b; })););
  REG("max", return (map2<T, T, T>(c, i, [](T a, T b) { return a > b ? a : b; })););
  REG("abs", return (map1<T, T>(c, i, [](T a) { return a < 0 ? T(U<T>(0) - U<T>(a)) : a; })););
  REG("neg", return (map1<T, T>(c, i, [](T a) { return T(U<T>(0) - U<T>(a)); })););
  REG("sad", return (map3<T, T, T, T>(c, i, [](T a, T b, T e) { return T(U<T>(e) + (a < b ? U<T>(b) - U<T>(a) : U<T>(a) - U<T>(b))); })););
  REG("shr", return (map2<T, T, uint32_t>(c, i, [](T a, uint32_t n) { return n >= 8 * sizeof(T) ? (a < 0 ? T(-1) : T(0)) : T(a >> n); })););
  REG("bfind", return (map1<uint32_t, T>(c, i, [](T a) {   // position of the top bit that differs from the sign
        const U<T> u = U<T>(a < 0 ? ~a : a);
        return u ? uint32_t(63 - __builtin_clzll(uint64_t(u))) : 0xffffffffu;
      })););
  REG("bfind.shiftamt", return (map1<uint32_t, T>(c, i, [](T a) {
        const U<T> u = U<T>(a < 0 ? ~a : a);
        return u ? uint32_t(8 * sizeof(T) - 1 - (63 - __builtin_clzll(uint64_t(u)))) : 0xffffffffu;
      })););
  REG("bfe", return (map3<T, T, uint32_t, uint32_t>(c, i, [](T a, uint32_t p, uint32_t n) {
        constexpr uint32_t msb = 8 * sizeof(T) - 1;
        const uint32_t pos = p & 255, len = n & 255;
        const bool sign = std::is_signed<T>::value && len && (uint64_t(U<T>(a)) >> std::min(pos + len - 1, msb) & 1);
        U<T> r = 0;
        for (uint32_t k = 0; k <= msb; ++k) r |= U<T>(k < len && pos + k <= msb ? U<T>(a) >> (pos + k) & 1 : U<T>(sign)) << k;
        return T(r);
      })););
}
template <class T> static void widening() {
  using W = typename Wider<T>::type;
  static const std::string t = type_name<T>();
  REG("mul.wide", return (map2<W, T, T>(c, i, [](T a, T b) { return W(W(a) * W(b)); })););
  REG("mad.wide", return (map3<W, T, T, W>(c, i, [](T a, T b, W e) { return W(U<W>(W(a) * W(b)) + U<W>(e)); })););
}
template <class T> static void logic() {   // registered under the unsigned name of the width
  static const std::string t = type_name<T>();
  REG("and", return (map2<T, T, T>(c, i, [](T a, T b) { return T(a & b); })););
  REG("or", return (map2<T, T, T>(c, i, [](T a, T b) { return T(a | b); })););
  REG("xor", return (map2<T, T, T>(c, i, [](T a, T b) { return T(a ^ b); })););
  REG("not", return (map1<T, T>(c, i, [](T a) { return T(~a); })););
  REG("cnot", return (map1<T, T>(c, i, [](T a) { return T(a == 0); })););
  REG("mov", return (map1<T, T>(c, i, [](T a) { return a; })););
  REG("shl", return (map2<T, T, uint32_t>(c, i, [](T a, uint32_t n) { return n >= 8 * sizeof(T) ? T(0) : T(a << n); })););
  REG("popc", return (map1<uint32_t, T>(c, i, [](T a) { return uint32_t(__builtin_popcountll(a)); })););
  REG("clz", return (map1<uint32_t, T>(c, i, [](T a) { return a ? uint32_t(__builtin_clzll(a)) - (64 - 8 * uint32_t(sizeof(T))) : 8 * uint32_t(sizeof(T)); })););
  REG("brev", return (map1<T, T>(c, i, [](T a) {
        T r = 0;
        for (unsigned k = 0; k < 8 * sizeof(T); ++k) r |= T(T(a >> k & 1) << (8 * sizeof(T) - 1 - k));
        return r;
      })););
  Registrar("selp" + t, [](Ctx& c, const Insn& i) -> Flow {   // o: d, a, b, predicate
    auto *d = lane_row<T>(c, i.o[0]), *a = lane_row<T>(c, i.o[1]), *b = lane_row<T>(c, i.o[2]);
    const Mask p = c.pred(i.o[3]);
    each_lane(c.mask, [&](int l) { d[l] = p >> l & 1 ? a[l] : b[l]; });
    return Flow::Next;
  });
  Registrar("bfi" + t, [](Ctx& c, const Insn& i) -> Flow {   // o: d, a (field), b (base), position, length
    each_lane(c.mask, [&](int l) {
      const uint32_t pos = c.r32(i.o[3])[l] & 255, len = c.r32(i.o[4])[l] & 255, bits = 8 * sizeof(T);
      T r = T(lane_row<T>(c, i.o[2])[l]);
      const T a = T(lane_row<T>(c, i.o[1])[l]);
      for (uint32_t k = 0; k < len && pos + k < bits; ++k) r = T((r & ~(T(1) << (pos + k))) | (T(a >> k & 1) << (pos + k)));
      lane_row<T>(c, i.o[0])[l] = r;
    });
    return Flow::Next;
  });
}

template <class T> static bool compare(int cmp, T a, T b) {
  switch (cmp) {
    case 0: return a == b;
    case 1: return a != b;
    case 2: return a < b;
    case 3: return a <= b;
    case 4: return a > b;
    default: return a >= b;
  }
}
template <class T> static bool compare_float(int cmp, T a, T b) {   // 6.. : unordered forms, num, nan
  const bool nan = a != a || b != b;
  if (cmp < 6) return !nan && compare(cmp, a, b);
  if (cmp < 12) return nan || compare(cmp - 6, a, b);
  return cmp == 12 ? !nan : nan;
}

// o: p, q, a, b[, predicate]; m[0] comparison, m[1] combination 1 and 2 or 3 xor, m[2] flush subnormals
template <class T, class F> static Flow setp(Ctx& c, const Insn& i, F load) {
  Mask r = 0;
  const int32_t a = i.o[2], b = i.o[3];
  const int cmp = i.m[0];
  for (int l = 0; l < LANES; ++l) {
    bool v;
    if constexpr (std::is_floating_point<T>::value) v = compare_float<T>(cmp, load(c, a, l), load(c, b, l));
    else v = compare<T>(cmp, load(c, a, l), load(c, b, l));
    r |= Mask(v) << l;
  }
  Mask q = ~r;
  if (i.m[1]) {
    const Mask p = c.pred(i.o[4]);
    r = i.m[1] == 1 ? r & p : i.m[1] == 2 ? r | p : r ^ p;
    q = i.m[1] == 1 ? q & p : i.m[1] == 2 ? q | p : q ^ p;
  }
  c.set_pred(i.o[1], q);
  c.set_pred(i.o[0], r);
  return Flow::Next;
}
template <class T> static void comparisons() {
  static const std::string t = type_name<T>();
  REG("setp", return (setp<T>(c, i, [&i](Ctx& x, int32_t o, int l) {
        T v = take<T>(lane_row<T>(x, o)[l]);
        if constexpr (std::is_same<T, float>::value) if (i.m[2]) v = flush(v);
        return v;
      })););
}

static const bool registered = [] {
  arithmetic<uint16_t>(), arithmetic<int16_t>(), arithmetic<uint32_t>(), arithmetic<int32_t>(), arithmetic<uint64_t>(), arithmetic<int64_t>();
  widening<uint16_t>(), widening<int16_t>(), widening<uint32_t>(), widening<int32_t>();
  logic<uint16_t>(), logic<uint32_t>(), logic<uint64_t>();
  comparisons<uint16_t>(), comparisons<int16_t>(), comparisons<uint32_t>(), comparisons<int32_t>(), comparisons<uint64_t>(), comparisons<int64_t>();
  comparisons<float>(), comparisons<double>();
  Registrar("setp.f16", [](Ctx& c, const Insn& i) { return setp<float>(c, i, [](Ctx& x, int32_t o, int l) { return half_to_float(x.r32(o)[l] & 0xffff); }); });
  Registrar("setp.bf16", [](Ctx& c, const Insn& i) { return setp<float>(c, i, [](Ctx& x, int32_t o, int l) { return bf16_to_float(x.r32(o)[l] & 0xffff); }); });
  return true;
}();

struct Lut {   // bit k of the table as a mask of all bits: k = 4a + 2b + e
  uint32_t m[8];
  explicit Lut(int lut) { for (int k = 0; k < 8; ++k) m[k] = lut >> k & 1 ? ~0u : 0; }
  uint32_t operator()(uint32_t a, uint32_t b, uint32_t e) const {
    const uint32_t lo = (((m[0] & ~e) | (m[1] & e)) & ~b) | (((m[2] & ~e) | (m[3] & e)) & b);
    const uint32_t hi = (((m[4] & ~e) | (m[5] & e)) & ~b) | (((m[6] & ~e) | (m[7] & e)) & b);
    return (lo & ~a) | (hi & a);
  }
};
SF_OP("lop3") {   // m[0]: table
  const Lut lut(i.m[0]);
  return map3<uint32_t, uint32_t, uint32_t, uint32_t>(c, i, [lut](uint32_t a, uint32_t b, uint32_t e) { return lut(a, b, e); });
}
SF_OP("lop3.p") {   // o: d, p, a, b, e, q; m[1]: 1 and, 2 or
  Mask r = 0;
  each_lane(c.mask, [&](int l) {
    const uint32_t v = Lut(i.m[0])(c.r32(i.o[2])[l], c.r32(i.o[3])[l], c.r32(i.o[4])[l]);
    c.r32(i.o[0])[l] = v;
    r |= Mask(v != 0) << l;
  });
  const Mask q = c.pred(i.o[5]);
  c.set_pred(i.o[1], i.m[1] == 1 ? r & q : r | q);
  return Flow::Next;
}
SF_OP("prmt") {   // m[0]: mode 0 generic, 1 f4e, 2 b4e, 3 rc8, 4 ecl, 5 ecr, 6 rc16
  static const uint16_t tables[6][4] = {{0x3210, 0x4321, 0x5432, 0x6543}, {0x5670, 0x6701, 0x7012, 0x0123}, {0x0000, 0x1111, 0x2222, 0x3333},
                                        {0x3210, 0x3211, 0x3222, 0x3333}, {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232}};
  const int mode = i.m[0];
  return map3<uint32_t, uint32_t, uint32_t, uint32_t>(c, i, [mode](uint32_t a, uint32_t b, uint32_t s) {
    const uint32_t sel = mode ? tables[mode - 1][s & 3] : s;
    const uint64_t v = uint64_t(b) << 32 | a;
    uint32_t r = 0;
    for (int k = 0; k < 4; ++k) {
      const uint32_t n = sel >> (4 * k) & 15;
      uint32_t byte = uint32_t(v >> (8 * (n & 7))) & 255;
      if ((n & 8) && !mode) byte = byte & 128 ? 255 : 0;
      r |= byte << (8 * k);
    }
    return r;
  });
}
SF_OP("shf") {   // m[0]: 1 right, m[1]: 1 wrap
  const bool right = i.m[0], wrap = i.m[1];
  return map3<uint32_t, uint32_t, uint32_t, uint32_t>(c, i, [right, wrap](uint32_t a, uint32_t b, uint32_t n) {
    const uint32_t s = wrap ? n & 31 : std::min(n, 32u);
    const uint64_t v = uint64_t(b) << 32 | a;
    return right ? uint32_t(s == 32 ? v >> 32 : v >> s) : uint32_t(s == 32 ? a : (v << s) >> 32);
  });
}
SF_OP("dp4a") {   // m[0]: a signed, m[1]: b signed
  const bool sa = i.m[0], sb = i.m[1];
  return map3<uint32_t, uint32_t, uint32_t, uint32_t>(c, i, [sa, sb](uint32_t a, uint32_t b, uint32_t e) {
    for (int k = 0; k < 4; ++k) {
      const int x = sa ? int(int8_t(a >> (8 * k))) : int(uint8_t(a >> (8 * k))), y = sb ? int(int8_t(b >> (8 * k))) : int(uint8_t(b >> (8 * k)));
      e += uint32_t(x * y);
    }
    return e;
  });
}
// o: d, a, b; carry predicate o[3]; m[0]: 1 subtract, m[1]: read carry, m[2]: write carry
template <class T> static Flow carry(Ctx& c, const Insn& i) {
  Mask& cc = c.pred(i.o[3]);
  each_lane(c.mask, [&](int l) {
    const T a = T(lane_row<T>(c, i.o[1])[l]), b = T(lane_row<T>(c, i.o[2])[l]);
    const unsigned in = i.m[1] ? cc >> l & 1 : 0;
    const unsigned __int128 r = i.m[0] ? (unsigned __int128)a - b - in : (unsigned __int128)a + b + in;
    lane_row<T>(c, i.o[0])[l] = T(r);
    if (i.m[2]) cc = (cc & ~(1u << l)) | Mask(unsigned(r >> (8 * sizeof(T))) & 1) << l;
  });
  return Flow::Next;
}
static Registrar carry32("carry.u32", carry<uint32_t>), carry64("carry.u64", carry<uint64_t>);

SF_OP("pred.not") { c.set_pred(i.o[0], ~c.pred(i.o[1])); return Flow::Next; }
SF_OP("pred.const") { c.set_pred(i.o[0], i.m[0] ? FULL : 0); return Flow::Next; }
SF_OP("pred.mov") { c.set_pred(i.o[0], c.pred(i.o[1])); return Flow::Next; }
SF_OP("pred.logic") {   // m[0]: 1 and, 2 or, 3 xor
  const Mask a = c.pred(i.o[1]), b = c.pred(i.o[2]);
  c.set_pred(i.o[0], i.m[0] == 1 ? a & b : i.m[0] == 2 ? a | b : a ^ b);
  return Flow::Next;
}
SF_OP("selp.pred") {
  const Mask p = c.pred(i.o[3]);
  c.set_pred(i.o[0], (c.pred(i.o[1]) & p) | (c.pred(i.o[2]) & ~p));
  return Flow::Next;
}
// set: o: d, p (already computed); m[0]: value when true (32 bits)
SF_OP("set.bool") {
  const Mask p = c.pred(i.o[1]);
  each_lane(c.mask, [&](int l) { c.r32(i.o[0])[l] = p >> l & 1 ? uint32_t(i.m[0]) : 0; });
  return Flow::Next;
}
// pack: o: d, parts...; unpack: o: a, parts...; m[0]: bytes of a part, m[1]: bytes of the whole
SF_OP("pack") {
  const int part = i.m[0], n = i.n - 1;
  each_lane(c.mask, [&](int l) {
    uint64_t v[2] = {0, 0};
    for (int k = 0; k < n; ++k) {
      const uint64_t x = part == 8 ? c.r64(i.o[1 + k])[l] : c.r32(i.o[1 + k])[l];
      v[k * part / 8] |= (part == 8 ? x : x & ((1ull << (8 * part)) - 1)) << (8 * (k * part % 8));
    }
    if (i.m[1] == 16) c.r64(i.o[0])[2 * l] = v[0], c.r64(i.o[0])[2 * l + 1] = v[1];
    else if (i.m[1] == 8) c.r64(i.o[0])[l] = v[0];
    else c.r32(i.o[0])[l] = uint32_t(v[0]);
  });
  return Flow::Next;
}
SF_OP("unpack") {
  const int part = i.m[0], n = i.n - 1;
  each_lane(c.mask, [&](int l) {
    uint64_t v[2] = {0, 0};
    if (i.m[1] == 16) v[0] = c.r64(i.o[0])[2 * l], v[1] = c.r64(i.o[0])[2 * l + 1];
    else v[0] = i.m[1] == 8 ? c.r64(i.o[0])[l] : c.r32(i.o[0])[l];
    for (int k = 0; k < n; ++k) {
      const uint64_t x = v[k * part / 8] >> (8 * (k * part % 8));
      if (part == 8) c.r64(i.o[1 + k])[l] = x;
      else c.r32(i.o[1 + k])[l] = uint32_t(x & ((1ull << (8 * part)) - 1));
    }
  });
  return Flow::Next;
}
SF_OP("mov.b128") {
  each_lane(c.mask, [&](int l) { c.r64(i.o[0])[2 * l] = c.r64(i.o[1])[2 * l], c.r64(i.o[0])[2 * l + 1] = c.r64(i.o[1])[2 * l + 1]; });
  return Flow::Next;
}

}  // namespace sf
