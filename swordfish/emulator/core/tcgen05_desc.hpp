// Matrix descriptors (64 bits) and instruction descriptors (32 bits) of tcgen05, decoded by the rules of the PTX ISA.
#pragma once
#include "core.hpp"

namespace sf {

enum class Kind : int { F16, TF32, F8F6F4, I8 };

struct MatrixDesc {
  uint32_t start;          // byte offset in the CTA's shared window
  uint32_t leading, stride;   // byte offsets
  int base_offset, swizzle;   // swizzle: bits 61-63
  bool absolute_leading;
  int version;
  explicit MatrixDesc(uint64_t d)
      : start(uint32_t(d & 0x3fff) << 4), leading(uint32_t(d >> 16 & 0x3fff) << 4), stride(uint32_t(d >> 32 & 0x3fff) << 4),
        base_offset(int(d >> 49 & 7)), swizzle(int(d >> 61)), absolute_leading(d >> 52 & 1), version(int(d >> 46 & 7)) {}
  // Bytes of a swizzled row: 16 (none), 32, 64 or 128; 0 for an encoding that does not exist.
  int row_bytes() const { return swizzle == 0 ? 16 : swizzle == 6 ? 32 : swizzle == 4 ? 64 : swizzle == 2 || swizzle == 1 ? 128 : 0; }
  // The swizzle XORs address bits with higher bits of the absolute shared address.
  uint32_t place(uint32_t linear) const {
    const uint32_t row = (linear >> 7) - uint32_t(base_offset);
    switch (swizzle) {
      case 1: return linear ^ (row & 3) << 5;
      case 2: return linear ^ (row & 7) << 4;
      case 4: return linear ^ (row & 3) << 4;
      case 6: return linear ^ (row & 1) << 4;
      default: return linear;
    }
  }
  // Unswizzled address of 16-byte chunk `chunk` along K of row `row` (K-major).
  uint32_t k_major(int row, int chunk) const {
    if (swizzle == 0) return start + (row & 7) * 16 + (row >> 3) * stride + chunk * leading;
    return start + (row & 7) * row_bytes() + (row >> 3) * stride + chunk * 16;
  }
  // Unswizzled address of the 16-byte chunk along M or N that holds element block `block` (of 16 bytes) at depth `k`.
  uint32_t mn_major(int block, int k, int elem_bytes) const {
    if (swizzle == 0) return start + block * stride + (k & 7) * 16 + (k >> 3) * leading;
    const int width = row_bytes() / 16, depth = swizzle == 1 ? 4 : 8;
    (void)elem_bytes;
    return start + (block % width) * 16 + (block / width) * leading + (k % depth) * row_bytes() + (k / depth) * stride;
  }
};

struct InstrDesc {
  int d_type, a_type, b_type, m, n, max_shift;
  bool sparse, saturate, negate_a, negate_b, a_mn_major, b_mn_major;
  explicit InstrDesc(uint32_t d)
      : d_type(d >> 4 & 3), a_type(d >> 7 & 7), b_type(d >> 10 & 7), m(int(d >> 24 & 31) * 16), n(int(d >> 17 & 63) * 8),
        max_shift(d >> 30), sparse(d >> 2 & 1), saturate(d >> 3 & 1), negate_a(d >> 13 & 1), negate_b(d >> 14 & 1),
        a_mn_major(d >> 15 & 1), b_mn_major(d >> 16 & 1) {}
};

// Depth of one instruction is 32 bytes of a dense operand for every kind.
constexpr int K_BYTES = 32;
inline int elem_bytes(Kind k) { return k == Kind::F16 ? 2 : k == Kind::TF32 ? 4 : 1; }

// Empty if the shape exists for the kind and cta_group, else why it does not.
std::string check_shape(const InstrDesc& d, Kind kind, int group, bool ws);

// Read `rows` rows of an operand (K_BYTES each, K contiguous) from shared memory of `cta` into out[rows][K_BYTES].
bool read_operand(Machine& m, Cta& cta, const Actor& a, uint64_t desc, bool mn_major, int rows, int elem, uint8_t* out);
// Convert packed elements of an operand to float.
void to_float(const uint8_t* in, int count, Kind kind, int type, bool negate, float* out);

}  // namespace sf
