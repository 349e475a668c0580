// Register access by width, and the arithmetic of atomics and reductions.
#pragma once
#include "core.hpp"

namespace sf {

enum AtomicOp { ATOM_ADD, ATOM_MIN, ATOM_MAX, ATOM_AND, ATOM_OR, ATOM_XOR, ATOM_EXCH, ATOM_CAS, ATOM_INC, ATOM_DEC };
enum ElemType { TY_U32, TY_S32, TY_U64, TY_S64, TY_F32, TY_F64, TY_F16, TY_BF16, TY_F16X2, TY_BF16X2, TY_B32, TY_F32_L2, TY_F64_L2 };

// atom and red on global memory are done by the L2 cache, which flushes f32 subnormals and leaves f64 NaNs as they are;
// on shared memory they do neither. Bulk reductions flush only for tensor maps of type float32_ftz.
inline int in_global(int type) { return type == TY_F32 ? TY_F32_L2 : type == TY_F64 ? TY_F64_L2 : type; }

// Registers are stored zero-extended in 4-, 8- or 16-byte lanes; bytes is the declared width.
inline void put_reg(Ctx& c, int32_t off, int bytes, int lane, const uint64_t* x) {
  if (bytes == 4) c.r32(off)[lane] = uint32_t(x[0]);
  else if (bytes == 8) c.r64(off)[lane] = x[0];
  else if (bytes == 2) c.r32(off)[lane] = uint16_t(x[0]);
  else if (bytes == 0) c.r64(off)[2 * lane] = x[0], c.r64(off)[2 * lane + 1] = x[1];   // 128 bits
  else c.r32(off)[lane] = uint8_t(x[0]);
}
inline void get_reg(Ctx& c, int32_t off, int bytes, int lane, uint64_t* x) {
  x[1] = 0;
  if (bytes == 8) x[0] = c.r64(off)[lane];
  else if (bytes == 0) x[0] = c.r64(off)[2 * lane], x[1] = c.r64(off)[2 * lane + 1];
  else x[0] = c.r32(off)[lane];
}

// z = op(old, x[, y]) on `bytes` bytes of ElemType `type`; used by atom, red and the bulk reductions.
void atomic_apply(int which, int type, int bytes, const uint64_t* old, const uint64_t* x, const uint64_t* y, uint64_t* z);

}  // namespace sf
