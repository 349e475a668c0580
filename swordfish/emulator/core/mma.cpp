// mma.sync: m16n8 with 16-bit, tf32, fp8 and 8-bit integer operands, A row-major and B column-major fragments.
#include <algorithm>

#include "dot.hpp"
#include "core.hpp"

namespace sf {

enum Elem { E_F16, E_BF16, E_TF32, E_S8, E_U8, E_E4M3, E_E5M2 };
static const Format& format(int e) {
  static const Format none{};
  return e == E_F16 ? F16 : e == E_BF16 ? BF16 : e == E_TF32 ? TF32 : e == E_E4M3 ? E4M3 : e == E_E5M2 ? E5M2 : none;
}

// o: d.., a.., b.., c..; m[0] K, m[1] A type, m[2] B type, m[3] accumulator: 0 f32, 1 f16, 2 s32; m[4] saturate
SF_OP("mma") {
  const int K = i.m[0], E = i.m[1] == E_TF32 ? 1 : i.m[1] <= E_BF16 ? 2 : 4, bits = 32 / E;
  const bool half_acc = i.m[3] == 1;
  const int nd = half_acc ? 2 : 4, na = K / (4 * E) * 2, nb = K / (4 * E);
  const int32_t *od = i.o, *oa = od + nd, *ob = oa + na, *oc = ob + nb;
  const uint32_t mask = bits == 32 ? ~0u : (1u << bits) - 1;
  auto a_at = [&](int row, int k) { return c.r32(oa[(row >= 8) + 2 * (k / (4 * E))])[row % 8 * 4 + k % (4 * E) / E] >> (bits * (k % E)) & mask; };
  auto b_at = [&](int k, int n) { return c.r32(ob[k / (4 * E)])[n * 4 + k % (4 * E) / E] >> (bits * (k % E)) & mask; };
  if (i.m[3] == 2) {
    auto signed_of = [](uint32_t v, int type) { return type == E_S8 ? int32_t(int8_t(v)) : int32_t(v & 255); };
    int32_t out[16][8];
    for (int r = 0; r < 16; ++r)
      for (int n = 0; n < 8; ++n) {
        int64_t s = int32_t(c.r32(oc[(r >= 8) * 2 + (n & 1)])[r % 8 * 4 + n / 2]);
        for (int k = 0; k < K; ++k) s += int64_t(signed_of(a_at(r, k), i.m[1])) * signed_of(b_at(k, n), i.m[2]);
        if (i.m[4]) s = s > INT32_MAX ? INT32_MAX : s < INT32_MIN ? INT32_MIN : s;
        out[r][n] = int32_t(uint32_t(uint64_t(s)));
      }
    for (int r = 0; r < 16; ++r)
      for (int n = 0; n < 8; ++n) c.r32(od[(r >= 8) * 2 + (n & 1)])[r % 8 * 4 + n / 2] = uint32_t(out[r][n]);
    return Flow::Next;
  }
  float a[16 * 64], b[64 * 8], acc[16 * 8];
  int ea[16 * 64], eb[64 * 8];
  const bool tf32 = i.m[1] == E_TF32;   // tf32 operands are the upper 19 bits of an f32
  const Operand *ta = tf32 ? nullptr : operand_table(format(i.m[1])), *tb = tf32 ? nullptr : operand_table(format(i.m[2]));
  // Hopper multiplies fp8 as fp16: one block of the pairs (4j, 4j + 1) of K and one of (4j + 2, 4j + 3), from zero; C is
  // added to their sum with one more rounding, to nearest.
  const bool by_pairs = i.m[1] >= E_E4M3 && K == 32 && c.m.arch < 100;
  auto place = [&](int k) { return by_pairs ? k % 16 / 2 * 4 + k % 2 + k / 16 * 2 : k; };
  for (int r = 0; r < 16; ++r)
    for (int k = 0; k < K; ++k) {
      const Operand x = tf32 ? operand(a_at(r, k) >> 13, TF32) : ta[a_at(r, place(k))];
      a[r * K + k] = x.v, ea[r * K + k] = x.e;
    }
  for (int k = 0; k < K; ++k)
    for (int n = 0; n < 8; ++n) {
      const Operand x = tf32 ? operand(b_at(k, n) >> 13, TF32) : tb[b_at(place(k), n)];
      b[k * 8 + n] = x.v, eb[k * 8 + n] = x.e;
    }
  for (int r = 0; r < 16; ++r)
    for (int n = 0; n < 8; ++n) {
      const int lane = r % 8 * 4 + n / 2;
      acc[r * 8 + n] = half_acc ? half_to_float(c.r32(oc[r >= 8])[lane] >> (16 * (n & 1)) & 0xffff) : f32_of(c.r32(oc[(r >= 8) * 2 + (n & 1)])[lane]);
    }
  const DotModel model = dot_model(i.m[1] <= E_BF16 ? DotKind::F16 : i.m[1] == E_TF32 ? DotKind::TF32 : DotKind::F8, c.m.arch, half_acc);
  float start[16 * 8] = {0};
  if (by_pairs) std::swap(acc, start);
  dot(model, 16, 8, K, a, ea, b, eb, acc, 8);
  if (by_pairs)
    for (int at = 0; at < 16 * 8; ++at) acc[at] = canon(acc[at] + start[at]);
  for (int r = 0; r < 16; ++r)
    for (int n = 0; n < 8; ++n) {
      const int lane = r % 8 * 4 + n / 2;
      const float v = acc[r * 8 + n];
      if (half_acc) {
        uint32_t& d = c.r32(od[r >= 8])[lane];
        d = (n & 1) ? (d & 0xffff) | half_result(v) << 16 : half_result(v);
      } else {
        c.r32(od[(r >= 8) * 2 + (n & 1)])[lane] = bits_of(v);
      }
    }
  return Flow::Next;
}

}  // namespace sf
