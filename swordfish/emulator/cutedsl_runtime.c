/* Stand-in for the CuTe DSL's CUDA runtime library: the host function that the DSL compiles calls these symbols.
 *
 * Nothing is loaded or launched. A kernel handle is its name; a launch and a tensor-map encoding are handed to two
 * callbacks set from Python (swordfish/emulator/cutedsl.py), which run the kernel on the emulator. Signatures follow
 * the CUDA runtime API (cudaLaunchConfig_t, cudaLaunchAttribute) with a leading underscore on the name. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int32_t id; char pad[4]; union { char bytes[64]; int32_t i; uint32_t dim[3]; } value; } Attribute;
typedef struct { uint32_t grid[3], block[3]; uint64_t shared_bytes; void* stream; Attribute* attrs; uint32_t num_attrs; } Config;
enum { ATTR_COOPERATIVE = 2, ATTR_CLUSTER = 4, ATTR_PROGRAMMATIC = 6 };

typedef int (*LaunchFn)(const char* name, const uint32_t* grid, const uint32_t* block, const uint32_t* cluster,
                        uint64_t shared_bytes, int programmatic, void** args);
typedef int (*EncodeFn)(void* out, int dtype, int rank, uint64_t address, const uint64_t* dims, const uint64_t* strides,
                        const uint32_t* box, const uint32_t* element_strides, int interleave, int swizzle, int oob);
static LaunchFn on_launch;
static EncodeFn on_encode;
static int sm_count = 1, shared_optin = 232448;

enum { OK = 0, INVALID = 1, NOT_SUPPORTED = 801 };

void swordfish_set_callbacks(LaunchFn launch, EncodeFn encode, int sms, int shared_bytes) {
  on_launch = launch;
  on_encode = encode;
  sm_count = sms;
  shared_optin = shared_bytes;
}

static int launch(const char* name, const Config* c, void** args) {
  uint32_t cluster[3] = {1, 1, 1};
  int programmatic = 0;
  for (uint32_t i = 0; i < c->num_attrs; i++) {
    if (c->attrs[i].id == ATTR_CLUSTER) memcpy(cluster, c->attrs[i].value.dim, sizeof cluster);
    if (c->attrs[i].id == ATTR_PROGRAMMATIC) programmatic = c->attrs[i].value.i;
  }
  return on_launch ? on_launch(name, c->grid, c->block, cluster, c->shared_bytes, programmatic, args) : NOT_SUPPORTED;
}

int _cudaLaunchKernelEx(const Config* c, void* kernel, void** args) { return launch(kernel, c, args); }

int _cudaLaunchKernel(void* kernel, uint32_t gx, uint32_t gy, uint32_t gz, uint32_t bx, uint32_t by, uint32_t bz,
                      void** args, uint64_t shared_bytes, void* stream) {
  Config c = {{gx, gy, gz}, {bx, by, bz}, shared_bytes, stream, NULL, 0};
  return launch(kernel, &c, args);
}

int _cuTensorMapEncodeTiled(void* out, int dtype, int rank, void* address, const uint64_t* dims, const uint64_t* strides,
                            const uint32_t* box, const uint32_t* element_strides, int interleave, int swizzle, int l2,
                            int oob) {
  (void)l2;
  if (!on_encode) return NOT_SUPPORTED;
  return on_encode(out, dtype, rank, (uint64_t)(uintptr_t)address, dims, strides, box, element_strides, interleave, swizzle, oob);
}

int _cudaLibraryLoadData(void** library, const void* code, void* jo, void* jv, int nj, void* lo, void* lv, int nl) {
  (void)jo, (void)jv, (void)nj, (void)lo, (void)lv, (void)nl;
  *library = (void*)code;
  return OK;
}

int _cudaLibraryGetKernel(void** kernel, void* library, const char* name) {
  (void)library;
  *kernel = strdup(name); /* lives as long as the process, like a loaded module */
  return *kernel ? OK : INVALID;
}

int _cudaLibraryUnload(void* library) { (void)library; return OK; }
int _cudaGetDevice(int* device) { *device = 0; return OK; }
int _cudaGetDeviceCount(int* count) { *count = 1; return OK; }
int _cudaSetDevice(int device) { (void)device; return OK; }
int _cudaDeviceSynchronize(void) { return OK; }
int _cudaStreamSynchronize(void* stream) { (void)stream; return OK; }
int _cuKernelGetAttribute(int* value, int attribute, void* kernel, int device) {
  (void)attribute, (void)kernel, (void)device;
  *value = 0;
  return OK;
}
int _cudaKernelSetAttributeForDevice(void* kernel, int attribute, int value, int device) {
  (void)kernel, (void)attribute, (void)value, (void)device;
  return OK;
}
int _cudaFuncSetAttribute(void* kernel, int attribute, int value) { (void)kernel, (void)attribute, (void)value; return OK; }

int _cudaDeviceGetAttribute(int* value, int attribute, int device) {
  enum { MULTIPROCESSORS = 16, SHARED_OPTIN = 97, SHARED_RESERVED = 111 };
  (void)device;
  *value = attribute == MULTIPROCESSORS ? sm_count : attribute == SHARED_OPTIN ? shared_optin : attribute == SHARED_RESERVED ? 1024 : 0;
  return OK;
}

int _cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* kernel, int threads, uint64_t shared_bytes) {
  (void)kernel, (void)threads, (void)shared_bytes;
  *blocks = 1;
  return OK;
}

const char* cuda_dialect_get_error_name(int error) { return error == OK ? "cudaSuccess" : "emulatorError"; }
void cuda_dialect_print_on_error(int error) { (void)error; }
/* An error of a callback is raised in Python once the host function has returned. */
void cuda_dialect_assert_success(int error) { (void)error; }
