// Reads `vectors` 16-byte vectors once, from memory and past L1, and keeps nothing: the time below which no kernel that
// reads the same bytes can go by much. The sum is stored only if it has a value that no data gives it.

extern "C" __global__ void __launch_bounds__(256) read_once(const uint4* data, unsigned long long vectors, unsigned* never) {
    const unsigned long long stride = (unsigned long long)gridDim.x * blockDim.x;
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    unsigned sum = 0;
    for (; i + 3 * stride < vectors; i += 4 * stride) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v[j].x), "=r"(v[j].y), "=r"(v[j].z), "=r"(v[j].w)
                         : "l"(data + i + j * stride));
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) sum |= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < vectors; i += stride) {
        uint4 v = data[i];
        sum |= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (never != nullptr && sum == 0x5eedf00d) *never = sum;
}
