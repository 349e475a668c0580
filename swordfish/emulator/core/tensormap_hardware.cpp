// The 64-byte hardware form of a tensor map, which CuTe's make_tiled_tma_atom writes without asking the driver.
// Layout found by varying dtype, rank, strides, box and swizzle of maps that the CuTe DSL 4.8.1 builds.
#include "core.hpp"

namespace sf {

static uint32_t word(const uint8_t* p, int k) {
  uint32_t w;
  std::memcpy(&w, p + 4 * k, 4);
  return w;
}

static bool decode(const uint8_t* p, TensorMapInfo& t) {
  static const struct { int bits; bool is_float; } TYPES[16] = {
      {8, false}, {16, false}, {32, false}, {32, false}, {64, false}, {64, false}, {16, true}, {32, true},
      {32, true}, {64, true}, {16, true}, {32, true}, {32, true}, {4, false}, {4, false}, {6, false}};
  const uint32_t flags = word(p, 2);
  if ((flags & 0xf) != 2) return false;
  std::memcpy(&t.base, p, 8);
  t.rank = int(flags >> 4 & 7) + 1;
  if (t.rank > 5) return false;
  const int type = int(flags >> 7 & 15);
  t.elem_bits = TYPES[type].bits, t.is_float = TYPES[type].is_float, t.dtype = type;
  t.interleave = int(flags >> 11 & 3), t.swizzle = int(flags >> 13 & 3);
  for (int d = 1; d < t.rank; ++d)   // strides in units of 16 bytes: 32 low bits each, four more bits each in word 7
    t.strides[d] = (uint64_t(word(p, 2 + d)) | uint64_t(word(p, 7) >> (4 * (d - 1)) & 15) << 32) << 4;
  for (int d = 0; d < t.rank; ++d) t.dims[d] = uint64_t(word(p, 8 + d)) + 1;
  for (int d = 0; d < t.rank; ++d) t.box[d] = uint32_t(p[55 + d]) + 1, t.estride[d] = 1;
  return true;
}

static const bool hooked = (hardware_tensor_map = decode, true);

}  // namespace sf
