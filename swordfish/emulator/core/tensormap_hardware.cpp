// The 64-byte hardware form of a tensor map, which cuTensorMapEncodeTiled fills in (Hopper's driver: low flag bits 0) and
// which CuTe's make_tiled_tma_atom writes without asking the driver (low flag bits 2).
// Layout found by varying dtype, rank, strides, box and swizzle of maps that the CuTe DSL 4.8.1 builds, and from the maps
// that a driver encoded for the silicon suite (element strides, fill, tf32).
#include "core.hpp"

namespace sf {

static uint32_t word(const uint8_t* p, int k) {
  uint32_t w;
  std::memcpy(&w, p + 4 * k, 4);
  return w;
}

static bool decode(const uint8_t* p, TensorMapInfo& t) {
  // The type numbers are not those of the driver's CUtensorMapDataType. 11: sixteen 4-bit elements in 8 bytes.
  static const struct { int bits; bool is_float; } TYPES[12] = {
      {8, false}, {16, false}, {32, false}, {32, false}, {64, false}, {64, false}, {16, true}, {32, true},
      {32, true}, {64, true}, {16, true}, {4, false}};
  static const int DTYPES[12] = {0, 1, 2, 3, 4, 5, 6, 8, 9, 12, 7, 13};   // the same as ELEMENT_BITS of tensormap.py numbers them
  const uint32_t flags = word(p, 2);
  const bool driver = (flags & 0xf) == 0 && word(p, 16) != 0;   // word 16: bytes of a box
  if ((flags & 0xf) != 2 && !driver) return false;
  std::memcpy(&t.base, p, 8);
  t.rank = int(flags >> 4 & 7) + 1;
  const int type = int(flags >> 7 & 15);
  if (t.rank > 5 || type > 11) return false;
  t.elem_bits = TYPES[type].bits, t.is_float = TYPES[type].is_float;
  t.dtype = DTYPES[type] + (flags >> 16 & 1 && (type == 7 || type == 8) ? 2 : 0);   // the tf32 bit goes with f32
  t.nan_fill = flags >> 15 & 1;
  t.interleave = int(flags >> 11 & 3), t.swizzle = int(flags >> 13 & 3);
  for (int d = 1; d < t.rank; ++d)   // strides in units of 16 bytes: 32 low bits each, four more bits each in word 7
    t.strides[d] = (uint64_t(word(p, 2 + d)) | uint64_t(word(p, 7) >> (4 * (d - 1)) & 15) << 32) << 4;
  for (int d = 0; d < t.rank; ++d) t.dims[d] = uint64_t(word(p, 8 + d)) + 1;
  for (int d = 0; d < t.rank; ++d) t.box[d] = uint32_t(p[55 + d]) + 1, t.estride[d] = (word(p, 13) >> (3 * d) & 7) + 1;
  return true;
}

static const bool hooked = (hardware_tensor_map = decode, true);

}  // namespace sf
