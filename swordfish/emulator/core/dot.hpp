// The arithmetic of the tensor cores, in one place: a fused dot product whose terms are aligned, truncated and summed.
//
// For each block of `block` products: products are exact; every term, the accumulator included, is aligned to the
// largest exponent (of a product: the sum of its operands' exponents, not normalised; zeros do not count; at least
// MIN_EXP) and truncated after `frac` fraction bits; the sum is exact and truncated to fp32, or rounded once to nearest
// for fp16 accumulators. A zero result is +0. Every detail agrees bit for bit with an H200 (docs/emulator.md). Sources: Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of
// NVIDIA tensor cores" (2021); Li et al., "FTTN" (2024), for the bits kept by each generation.
#pragma once
#include "fp.hpp"

namespace sf {

struct DotModel {
  int block;         // products summed at once
  int frac;          // fraction bits kept below the largest exponent
  bool sticky;       // mark lost bits in the last place, for a result that is rounded again (fp16 accumulators)
};
enum class DotKind { F16, TF32, F8 };
DotModel dot_model(DotKind kind, int arch, bool half_accumulator = false);

// A sticky sum to fp16.
uint32_t half_result(float sum);

constexpr int MIN_EXP = -133;   // 2^-133 is the smallest bf16 number
constexpr int EXP_ZERO = -20000, EXP_SPECIAL = 50000;   // exponents of zero, and of infinity and NaN (also after adding EXP_ZERO)

// Value and exponent of an operand as the multiplier sees it: subnormals keep the format's smallest exponent.
struct Operand { float v; int e; };
Operand operand(uint32_t bits, const Format& f);
// operand() of every code of a format of at most 16 bits; tf32 codes are its upper 19 bits and have no table.
const Operand* operand_table(const Format& f);

// c[m][n] (row pitch ldc) += sum_k a[m][k] b[k][n]; values and exponents as separate arrays, b with row pitch N.
void dot(const DotModel& model, int M, int N, int K, const float* a, const int* ea, const float* b, const int* eb, float* c, int ldc);

}  // namespace sf
