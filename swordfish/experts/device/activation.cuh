// What stands between gate_up and down, on fp32 sums. SF_ACTIVATION: see experts/activation.py.
#pragma once
#include "swordfish/decode/device/ptx.cuh"

#define SF_SILU 0
#define SF_GELU 1
#define SF_GELU_TANH 2
#define SF_SWIGLU 3

// 1 / (1 + e^-x), with the fast exponential and reciprocal: far below one rounding to 16 bits.
SF_DEVICE float sigmoid(float x) {
  float power, result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x * -1.4426950408889634f));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(1.0f + power));
  return result;
}

SF_DEVICE float activate(float gate, float up) {
#if SF_ACTIVATION == SF_SILU
  return gate * sigmoid(gate) * up;
#elif SF_ACTIVATION == SF_GELU
  return 0.5f * gate * (1.0f + erff(gate * 0.70710678118654752f)) * up;
#elif SF_ACTIVATION == SF_GELU_TANH
  return gate * sigmoid(1.5957691216057308f * (gate + 0.044715f * gate * gate * gate)) * up;
#else
  gate = fminf(gate, SF_LIMIT);
  up = fminf(fmaxf(up, -SF_LIMIT), SF_LIMIT);
  return gate * sigmoid(SF_ALPHA * gate) * (up + SF_BETA);
#endif
}
