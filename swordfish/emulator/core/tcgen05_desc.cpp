// Operands of tcgen05.mma: shapes, shared-memory layouts, element types.
#include "tcgen05_desc.hpp"

#include <cmath>

#include "tmem.hpp"

namespace sf {

std::string check_shape(const InstrDesc& d, Kind kind, int group, bool ws) {
  const std::string shape = "M=" + std::to_string(d.m) + ", N=" + std::to_string(d.n);
  if (d.sparse) return "sparse operands are not modelled";
  const bool m_ok = ws ? d.m == 32 || d.m == 64 || d.m == 128 : group == 1 ? d.m == 64 || d.m == 128 : d.m == 128 || d.m == 256;
  if (!m_ok) return shape + ": this M does not exist";
  const int step = ws ? 64 : group == 2 ? (d.m == 256 ? 16 : 32) : d.m == 64 ? 8 : 16;
  if (d.n < step || d.n > 256 || d.n % step || (ws && d.n != 64 && d.n != 128 && d.n != 256))
    return shape + ": N must be a multiple of " + std::to_string(step) + " up to 256";
  const int types = kind == Kind::F16 ? 2 : kind == Kind::TF32 ? 3 : kind == Kind::F8F6F4 ? 6 : 2;
  if (d.a_type >= types || d.b_type >= types || (kind == Kind::TF32 && (d.a_type != 2 || d.b_type != 2)))
    return "operand types " + std::to_string(d.a_type) + " and " + std::to_string(d.b_type) + " do not exist for this kind";
  if (d.d_type != (kind == Kind::I8 ? 2 : 1) && !(d.d_type == 0 && (kind == Kind::F16 || kind == Kind::F8F6F4)))
    return "accumulator type " + std::to_string(d.d_type) + " does not exist for this kind";
  return "";
}

bool read_operand(Machine& m, Cta& cta, const Actor& a, uint64_t bits, bool mn_major, int rows, int elem, uint8_t* out) {
  const MatrixDesc d(bits);
  std::string wrong;
  if (d.version != 1) wrong = "matrix descriptor " + hex(bits) + ": bits 46-48 are " + std::to_string(d.version) + ", not 1";
  else if (!d.row_bytes()) wrong = "matrix descriptor " + hex(bits) + ": swizzle " + std::to_string(d.swizzle) + " does not exist";
  else if (d.absolute_leading) wrong = "matrix descriptor " + hex(bits) + ": the absolute leading-dimension mode is not modelled";
  if (!wrong.empty()) {
    m.finding("tcgen05 descriptor", wrong, a, &cta, d.start, true);
    return false;
  }
  const uint32_t window = uint32_t(cta.rank) << 24;
  auto chunk = [&](uint32_t linear) { return m.shared(cta, window | d.place(linear), 16, READ, a); };
  if (!mn_major) {
    for (int r = 0; r < rows; ++r)
      for (int k = 0; k < K_BYTES / 16; ++k) {
        const uint8_t* p = chunk(d.k_major(r, k));
        if (!p) return false;
        std::memcpy(out + r * K_BYTES + 16 * k, p, 16);
      }
    return true;
  }
  const int per = 16 / elem, depth = K_BYTES / elem;
  for (int b = 0; b < rows / per; ++b)
    for (int k = 0; k < depth; ++k) {
      const uint8_t* p = chunk(d.mn_major(b, k, elem));
      if (!p) return false;
      for (int e = 0; e < per; ++e) std::memcpy(out + (b * per + e) * K_BYTES + k * elem, p + e * elem, size_t(elem));
    }
  return true;
}

// A small float format: sign, `e` exponent bits, `f` fraction bits. E5M2 has infinities, E4M3 one NaN pattern.
static float small_float(uint32_t v, int e, int f, bool e4m3, bool e5m2) {
  const uint32_t frac = v & ((1u << f) - 1), exp = v >> f & ((1u << e) - 1), sign = v >> (e + f) & 1;
  const int bias = (1 << (e - 1)) - 1;
  float x;
  if (e4m3 && exp == 15 && frac == 7) x = NAN;
  else if (e5m2 && exp == 31) x = frac ? NAN : INFINITY;
  else if (exp == 0) x = std::ldexp(float(frac), 1 - bias - f);
  else x = std::ldexp(float(frac + (1u << f)), int(exp) - bias - f);
  return sign ? -x : x;
}

static float half(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16, exp = h >> 10 & 31, frac = h & 0x3ff;
  uint32_t b;
  if (exp == 31) b = sign | 0x7f800000u | frac << 13;
  else if (exp) b = sign | (exp + 112) << 23 | frac << 13;
  else {
    const float x = float(frac) * 0x1p-24f;
    std::memcpy(&b, &x, 4);
    b |= sign;
  }
  float x;
  std::memcpy(&x, &b, 4);
  return x;
}

void to_float(const uint8_t* in, int count, Kind kind, int type, bool negate, float* out) {
  static const struct { int e, f; } SMALL[5] = {{4, 3}, {5, 2}, {2, 3}, {3, 2}, {2, 1}};
  for (int k = 0; k < count; ++k) {
    uint32_t w = 0;
    std::memcpy(&w, in + k * elem_bytes(kind), size_t(elem_bytes(kind)));
    float x;
    if (kind == Kind::F16 && type == 0) x = half(uint16_t(w));
    else if (kind == Kind::F16) w <<= 16, std::memcpy(&x, &w, 4);
    else if (kind == Kind::TF32) w &= 0xffffe000u, std::memcpy(&x, &w, 4);
    else if (kind == Kind::I8) x = type ? float(int8_t(w)) : float(uint8_t(w));
    else x = small_float(type == 4 ? w & 15 : type >= 2 ? w & 63 : w, SMALL[type].e, SMALL[type].f, type == 0, type == 1);
    out[k] = negate ? -x : x;
  }
}

}  // namespace sf
