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
  if (kind == Kind::F8F6F4 && (d.a_type > 1 || d.b_type > 1)) return "6- and 4-bit operand types are not modelled";
  const int types = kind == Kind::TF32 ? 3 : 2;
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

// E4M3 (no infinity, one NaN pattern) and E5M2 (as IEEE).
static float float8(uint32_t v, bool e5m2) {
  const int f = e5m2 ? 2 : 3, exps = e5m2 ? 31 : 15, bias = e5m2 ? 15 : 7;
  const int frac = int(v & ((1u << f) - 1)), exp = int(v >> f) & exps;
  float x;
  if (exp == exps && (e5m2 || frac == 7)) x = e5m2 && !frac ? INFINITY : NAN;
  else if (exp == 0) x = std::ldexp(float(frac), 1 - bias - f);
  else x = std::ldexp(float(frac + (1 << f)), exp - bias - f);
  return v >> 7 & 1 ? -x : x;
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
  for (int k = 0; k < count; ++k) {
    uint32_t w = 0;
    std::memcpy(&w, in + k * elem_bytes(kind), size_t(elem_bytes(kind)));
    float x;
    if (kind == Kind::F16 && type == 0) x = half(uint16_t(w));
    else if (kind == Kind::F16) w <<= 16, std::memcpy(&x, &w, 4);
    else if (kind == Kind::TF32) w &= 0xffffe000u, std::memcpy(&x, &w, 4);
    else if (kind == Kind::I8) x = type ? float(int8_t(w)) : float(uint8_t(w));
    else x = float8(w, type == 1);
    out[k] = negate ? -x : x;
  }
}

}  // namespace sf
