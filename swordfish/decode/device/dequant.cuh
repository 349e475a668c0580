// Packed words -> exact integer fragments of mma.m16n8k16 operand A (rows = weight columns n, columns = k).
//
// A nibble left in bits 0-3 (or 4-7) of a 16-bit lane *is* a subnormal number of the activation dtype, so one fused multiply-add with a
// power of two moves it into the normal range and subtracts the zero point at the same time:
//
//     bits 0-3:  q * 2^-133 (bf16), q * 2^-24 (fp16)        fma by SF_MUL_LOW   ->  (q - z) * UNIT, exact
//     bits 4-7:  16 times that                              fma by SF_MUL_HIGH  ->  the same
//
// UNIT is 2^-6 (bf16) or 2^-9 (fp16); 1/UNIT = SF_UNIT_INVERSE is multiplied back on the fp32 accumulator with the scale. A whole byte
// (int8) works like bits 0-3. Lane (c, t) = (lane / 4, lane % 4) of the m16 tile j receives rows n = 16 j + c and 16 j + 8 + c.
#pragma once
#include "ptx.cuh"

#if SF_BF16
#define SF_MUL_LOW 0x7f007f00u   // 2^127
#define SF_MUL_HIGH 0x7d007d00u  // 2^123
#define SF_UNIT_INVERSE 64.0f
#define SF_MINUS_UNIT 0xbc80bc80u  // -2^-6
#define SF_MINUS_ZERO4 0xbe00be00u  // -8 UNIT
#define SF_MINUS_ZERO8 0xc000c000u  // -128 UNIT
#define SF_ONES 0x3f803f80u
#else
#define SF_MUL_LOW 0x78007800u   // 2^15
#define SF_MUL_HIGH 0x68006800u  // 2^11
#define SF_UNIT_INVERSE 512.0f
#define SF_MINUS_UNIT 0x98009800u  // -2^-9
#define SF_MINUS_ZERO4 0xa400a400u  // -8 UNIT
#define SF_MINUS_ZERO8 0xb400b400u  // -128 UNIT
#define SF_ONES 0x3c003c00u
#endif

#define SF_ZEROS_NONE 0
#define SF_ZEROS_INTEGER 1
#define SF_ZEROS_OFFSET 2

// Bias that subtracts the implied zero point; an offset weight keeps its unsigned code.
#if SF_ZEROS == SF_ZEROS_OFFSET
#define SF_DEFAULT_BIAS 0x80008000u
#elif SF_BITS == 4
#define SF_DEFAULT_BIAS SF_MINUS_ZERO4
#else
#define SF_DEFAULT_BIAS SF_MINUS_ZERO8
#endif

// The fma addends of the 2 rows a lane owns in an m16 tile, from the zero points of rows c (low half) and 8 + c (high half).
struct RowBias { u32 low, high; };

SF_DEVICE RowBias row_bias(u32 zero_pair) {
  RowBias b;
  const u32 none = 0x80008000u;  // -0: adding it changes nothing
  b.low = fma2(__byte_perm(zero_pair, 0, 0x1010), SF_MINUS_UNIT, none);
  b.high = fma2(__byte_perm(zero_pair, 0, 0x3232), SF_MINUS_UNIT, none);
  return b;
}

// int4: word j of a lane holds the whole k16 fragment of m16 tile j.
SF_DEVICE void dequantise4(u32 q, RowBias bias, u32 (&a)[4]) {
  const u32 r = q >> 8;
  a[0] = fma2(q & 0x000f000fu, SF_MUL_LOW, bias.low);
  a[2] = fma2(q & 0x00f000f0u, SF_MUL_HIGH, bias.low);
  a[1] = fma2(r & 0x000f000fu, SF_MUL_LOW, bias.high);
  a[3] = fma2(r & 0x00f000f0u, SF_MUL_HIGH, bias.high);
}

// int8: words 2j and 2j+1 hold rows c and 8 + c of m16 tile j.
SF_DEVICE void dequantise8(u32 q0, u32 q1, RowBias bias, u32 (&a)[4]) {
  a[0] = fma2(q0 & 0x00ff00ffu, SF_MUL_LOW, bias.low);
  a[2] = fma2(__byte_perm(q0, 0, 0x4341), SF_MUL_LOW, bias.low);
  a[1] = fma2(q1 & 0x00ff00ffu, SF_MUL_LOW, bias.high);
  a[3] = fma2(__byte_perm(q1, 0, 0x4341), SF_MUL_LOW, bias.high);
}
