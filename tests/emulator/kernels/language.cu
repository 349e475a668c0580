// Calls, switch tables, local arrays, divergent loops, shared memory and atomics: see ../test_core_language.py.
__constant__ float table[4] = {0.5f, 1.5f, -2.0f, 4.0f};
__device__ int counter = 40;
struct Big { int v[6]; };
__device__ __noinline__ float poly(float x, int n) {
  float s = 0;
  for (int i = 0; i < n; i++) s = s * x + table[i & 3];
  if (s > 100) return 100;
  return s;
}
__device__ __noinline__ Big spread(int a) { Big b; for (int i = 0; i < 6; i++) b.v[i] = a * (i + 1); return b; }
extern "C" __global__ void k(const float* x, float* y, int* z, int n) {
  __shared__ float part[32];
  extern __shared__ float dyn[];
  const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
  float v = i < n ? x[i] : 0;
  int steps = 0;
  for (float w = v; w > 1 && steps < 50; w *= 0.7f) steps++;
  float local[8];
  for (int j = 0; j < 8; j++) local[(j * 5 + t) & 7] = j * v;
  switch (t % 7) { case 0: v += 1; break; case 1: v *= 2; break; case 2: v -= 3; break; case 3: v = -v; break; case 4: v = sqrtf(fabsf(v)); break; case 5: v = poly(v, 4); break; }
  Big b = spread(t);
  float s = v;
  for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
  if (t % 32 == 0) part[t / 32] = s;
  __syncthreads();
  s = 0;
  for (int w = 0; w < blockDim.x / 32; w++) s += part[w];
  dyn[t] = local[t & 7];
  __syncthreads();
  if (i < n) { y[i] = v; y[n + i] = dyn[t ^ 1]; z[i] = steps + b.v[t % 6]; }
  if (t == 0) { atomicAdd(&y[2 * n], s); atomicMax(&z[n], i + counter); }
}
