// Integer instructions on parts of a word: 24-bit products, 16-bit pairs, dot products, masks and field extension.
#include <algorithm>

#include "lanes.hpp"

namespace sf {

using W32 = uint32_t;

SF_OP("mad24") {   // m[0]: signed, m[1]: bits 16..47 of the product instead of 0..31
  const bool sign = i.m[0], high = i.m[1];
  return map3<W32, W32, W32, W32>(c, i, [sign, high](W32 a, W32 b, W32 e) {
    auto low24 = [sign](W32 x) { return sign ? int64_t(int32_t(x << 8) >> 8) : int64_t(x & 0xffffff); };
    return W32(uint64_t(low24(a) * low24(b)) >> (high ? 16 : 0)) + e;
  });
}

SF_OP("dp2a") {   // m[0]: a signed, m[1]: b signed, m[2]: bytes 2 and 3 of b instead of 0 and 1
  const bool sa = i.m[0], sb = i.m[1];
  const int first = i.m[2] ? 2 : 0;
  return map3<W32, W32, W32, W32>(c, i, [sa, sb, first](W32 a, W32 b, W32 e) {
    for (int k = 0; k < 2; ++k) {
      const W32 x = a >> (16 * k), y = b >> (8 * (first + k));
      e += W32(sa ? int16_t(x) : int(uint16_t(x))) * W32(sb ? int8_t(y) : int(uint8_t(y)));
    }
    return e;
  });
}

SF_OP("bmsk") {   // m[0]: wrap
  const bool wrap = i.m[0];
  return map2<W32, W32, W32>(c, i, [wrap](W32 a, W32 b) {
    const W32 pos = wrap ? a & 31 : a, n = wrap ? b & 31 : std::min(b, 32u);
    return pos >= 32 ? 0u : W32((n == 32 ? ~0ull : (1ull << n) - 1) << pos);
  });
}

SF_OP("szext") {   // m[0]: wrap, m[1]: signed
  const bool wrap = i.m[0], sign = i.m[1];
  return map2<W32, W32, W32>(c, i, [wrap, sign](W32 a, W32 b) {
    const W32 n = wrap ? b & 31 : std::min(b, 32u);
    if (n == 0 || n == 32) return n ? a : 0u;
    return sign ? W32(int32_t(a << (32 - n)) >> (32 - n)) : a & ((1u << n) - 1);
  });
}

SF_OP("fns") {   // position of the n-th set bit of a, counted from bit `base` upwards or downwards
  return map3<W32, W32, W32, W32>(c, i, [](W32 a, W32 base, W32 n) {
    const int step = int32_t(n) >= 0 ? 1 : -1;
    int left = n == 0 ? 0 : std::abs(int32_t(n)) - 1;
    for (int64_t at = base; at >= 0 && at < 32; at += step) {
      if (a >> at & 1 && left-- == 0) return W32(at);
      if (n == 0) break;
    }
    return ~0u;
  });
}

SF_OP("paired") {   // m[0]: add, min, max; m[1]: signed; m[2]: clamp below at zero
  const int which = i.m[0];
  const bool sign = i.m[1], relu = i.m[2];
  return map2<W32, W32, W32>(c, i, [which, sign, relu](W32 a, W32 b) {
    auto one = [&](W32 x, W32 y) {
      const int32_t p = sign ? int16_t(x) : int32_t(uint16_t(x)), q = sign ? int16_t(y) : int32_t(uint16_t(y));
      const int32_t r = which == 0 ? p + q : which == 1 ? std::min(p, q) : std::max(p, q);
      return W32(relu && r < 0 ? 0 : r) & 0xffff;
    };
    return one(a, b) | one(a >> 16, b >> 16) << 16;
  });
}

}  // namespace sf
