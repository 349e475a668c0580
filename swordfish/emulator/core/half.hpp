// 16-bit floating-point arithmetic of a whole warp at once.
#pragma once
#include <cstdint>

namespace sf {

enum HalfOp { OP_ADD, OP_SUB, OP_MUL, OP_FMA, OP_MIN, OP_MAX, OP_NEG, OP_ABS, OP_EX2, OP_TANH };

// d = op(a, b[, e]) for 32 lanes of f16 or bf16 (packed: two each), rounded to nearest even. Returns false, having done
// nothing, when an operand or a product is outside the range in which the float arithmetic used here is exact.
bool half_fast(bool brain, int op, bool packed, const uint32_t* a, const uint32_t* b, const uint32_t* e, uint32_t* d);

}  // namespace sf
