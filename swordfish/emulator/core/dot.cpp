#include "dot.hpp"

#include <algorithm>
#include <vector>

#include "core.hpp"

namespace sf {

DotModel dot_model(DotKind kind, int arch, bool half_accumulator) {
  const bool hopper = arch < 100;
  switch (kind) {
    case DotKind::F16: return {16, 25, half_accumulator};
    case DotKind::TF32: return {8, 25, half_accumulator};
    case DotKind::F8: return {hopper ? 16 : 32, 25, half_accumulator};
  }
  return {16, 25, half_accumulator};
}

uint32_t half_result(float sum) {
  const uint32_t h = float_to_half(sum);
  return h == 0x8000 ? 0 : h;
}

Operand operand(uint32_t bits, const Format& f) {
  const uint32_t e = bits >> f.mant & ((1u << f.ebits) - 1);
  const float v = float(decode(bits, f));
  if (v != v || std::isinf(v)) return {v, EXP_SPECIAL};
  if (v == 0) return {v, EXP_ZERO};
  return {v, std::max(int(e), 1) - f.bias};
}

const Operand* operand_table(const Format& f) {
  static std::vector<Operand> tables[16][16];   // by exponent and mantissa bits
  auto& t = tables[f.ebits][f.mant];
  if (t.empty()) {
    t.resize(size_t(1) << (1 + f.ebits + f.mant));
    for (uint32_t b = 0; b < t.size(); ++b) t[b] = operand(b, f);
  }
  return t.data();
}

// The sum of at most 53 bits, truncated to 24; a sticky one has its last bit set when bits were lost.
static double truncated(double sum, bool sticky) {
  const uint64_t u = bits_of(sum), lost = u & ((1ull << 29) - 1);
  return f64_of((u ^ lost) | uint64_t(sticky && lost) << 29);
}

static float truncate_to_f32(int64_t sum, int scale, bool sticky) {
  if (!sum) return 0.0f;
  const double v = std::ldexp(truncated(double(sum), sticky), scale);
  if (std::fabs(v) >= 0x1p128) return std::copysign(INFINITY, float(v));   // the only rounding that is not toward zero
  const float r = f32_of(encode(v, F32, RZ));
  return r == 0 ? 0.0f : r;
}

static int exponent_of(float c) {
  const int e = int(bits_of(c) >> 23 & 255);
  return c == 0 ? EXP_ZERO : e == 255 ? EXP_SPECIAL : std::max(e, 1) - 127;
}

// One block of one output in full generality.
static float block_slow(const DotModel& m, int K, const float* a, const int* ea, const float* b, const int* eb, int pitch, float c) {
  const int top_of_c = exponent_of(c);
  int top = top_of_c;
  bool special = top == EXP_SPECIAL;
  for (int k = 0; k < K; ++k) {
    special |= ea[k] == EXP_SPECIAL || eb[k * pitch] == EXP_SPECIAL;
    if (ea[k] != EXP_ZERO && eb[k * pitch] != EXP_ZERO) top = std::max(top, ea[k] + eb[k * pitch]);
  }
  if (special) {
    float s = top_of_c == EXP_SPECIAL ? c : 0.0f;   // finite terms do not take part: they could overflow
    for (int k = 0; k < K; ++k) s += (ea[k] == EXP_SPECIAL || eb[k * pitch] == EXP_SPECIAL) ? a[k] * b[k * pitch] : 0.0f;
    return canon(s);
  }
  if (top == EXP_ZERO) return 0.0f;
  const int shift = m.frac - std::max(top, MIN_EXP);
  int64_t sum = int64_t(std::trunc(std::ldexp(double(c), shift)));
  for (int k = 0; k < K; ++k) sum += int64_t(std::trunc(std::ldexp(double(a[k]) * double(b[k * pitch]), shift)));
  return truncate_to_f32(sum, -shift, m.sticky);
}

// V outputs of a row at once, in a form that the compiler vectorises. Returns false when a value is out of the range in
// which float products and int32 terms are exact.
template <int V> static bool block_fast(const DotModel& m, int K, const float* a, const int* ea, const float* b, const int* eb, int pitch, float* c) {
  int top[V];
  for (int v = 0; v < V; ++v) {
    const uint32_t u = bits_of(c[v]), e = u >> 23 & 255;
    top[v] = (u << 1) == 0 ? EXP_ZERO : int(std::max(e, 1u)) - 127;
  }
  for (int k = 0; k < K; ++k) {
    const int x = ea[k];
    const int* y = eb + k * pitch;
    for (int v = 0; v < V; ++v) top[v] = std::max(top[v], x + y[v]);
  }
  int lo = 1 << 20, hi = -(1 << 20);
  for (int v = 0; v < V; ++v) {
    top[v] = top[v] < -9000 ? 0 : top[v];   // every term is zero
    lo = std::min(lo, top[v]), hi = std::max(hi, top[v]);
  }
  if (lo < -90 || hi > 120) return false;
  float scale[V];
  int32_t s0[V], s1[V];
  for (int v = 0; v < V; ++v) {
    scale[v] = f32_of(uint32_t(127 + m.frac - top[v]) << 23);
    s0[v] = int32_t(c[v] * scale[v]), s1[v] = 0;
  }
  const int half = K / 2;
  for (int k = 0; k < half; ++k) {
    const float x = a[k];
    const float* y = b + k * pitch;
    for (int v = 0; v < V; ++v) s0[v] += int32_t(x * y[v] * scale[v]);
  }
  for (int k = half; k < K; ++k) {
    const float x = a[k];
    const float* y = b + k * pitch;
    for (int v = 0; v < V; ++v) s1[v] += int32_t(x * y[v] * scale[v]);
  }
  for (int v = 0; v < V; ++v) {
    const double sum = double(s0[v]) + double(s1[v]);
    c[v] = float(truncated(sum, m.sticky) * f64_of(uint64_t(1023 + top[v] - m.frac) << 52));
  }
  return true;
}

void dot(const DotModel& model, int M, int N, int K, const float* a, const int* ea, const float* b, const int* eb, float* c, int ldc) {
  for (int r = 0; r < M; ++r)
    for (int k = 0; k < K; k += model.block) {
      const int n_k = std::min(model.block, K - k);
      const float* ar = a + r * K + k;
      const int* er = ea + r * K + k;
      const bool narrow = model.frac <= 25 && n_k <= 16;
      const int V = N % 16 ? 8 : 16;
      int n = 0;
      for (; n + V <= N; n += V)
        if (!(narrow && (V == 16 ? block_fast<16> : block_fast<8>)(model, n_k, ar, er, b + k * N + n, eb + k * N + n, N, c + r * ldc + n)))
          for (int v = 0; v < V; ++v)
            c[r * ldc + n + v] = block_slow(model, n_k, ar, er, b + k * N + n + v, eb + k * N + n + v, N, c[r * ldc + n + v]);
      for (; n < N; ++n) c[r * ldc + n] = block_slow(model, n_k, ar, er, b + k * N + n, eb + k * N + n, N, c[r * ldc + n]);
    }
}

}  // namespace sf
