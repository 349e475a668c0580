// Tensor maps: finding the description behind the 128 bytes that a kernel passes by address.
#include "core.hpp"

namespace sf {

TensorMapDecoder hardware_tensor_map = nullptr;

const TensorMapInfo* Machine::tensor_map(uint64_t addr, const Actor& a, const Cta* cta, TensorMapInfo& scratch) {
  const uint8_t* p = global(addr, 128, false, a, cta);
  if (!p) return nullptr;
  if (addr % 64) finding("misaligned", "tensor map at " + hex(addr) + ", not 64-byte aligned", a, cta, addr);
  if (std::memcmp(p, "SWFTMAP\x01", 8) == 0) {
    uint64_t index;
    std::memcpy(&index, p + 8, 8);
    return index < maps.size() ? &maps[index] : nullptr;
  }
  if (hardware_tensor_map && hardware_tensor_map(p, scratch)) return &scratch;
  finding("tensor map", "the 128 bytes at " + hex(addr) + " are no tensor map that the emulator can read", a, cta, addr, true);
  return nullptr;
}

}  // namespace sf
