// Loads, stores and atomics of every space, and the bank-conflict count of shared accesses.
#include <algorithm>

#include "core.hpp"
#include "memory.hpp"

namespace sf {

enum Space { GENERIC, GLOBAL, SHARED, LOCAL, CONST };
enum Order { WEAK, RELAXED, ACQUIRE, RELEASE, ACQ_REL };

static uint64_t flag_key(uint64_t addr) { return addr & ~3ull; }

// Wavefronts of one warp access to shared memory: 32 banks of four bytes; lanes that ask for the same word share it; up
// to 8 bytes a lane are served for the whole warp (8: two halves at most), 16 bytes by quarter warps.
static void count_wavefronts(Ctx& c, const Insn& i, const uint64_t* addr, uint32_t bytes) {
  LineStats& s = c.m.stats[i.pc];
  ++s.accesses;
  const int parts = bytes <= 4 ? 1 : bytes == 8 ? 2 : int(bytes / 4);
  const int lanes = LANES / parts;
  for (int p = 0; p < parts; ++p) {
    const Mask part = parts == 1 ? c.mask : c.mask & (((1u << lanes) - 1) << (p * lanes));
    if (!part) continue;
    uint32_t words[128];
    int n = 0;
    each_lane(part, [&](int l) {
      const uint32_t w0 = uint32_t(addr[l]) / 4, w1 = uint32_t(addr[l] + bytes - 1) / 4;
      for (uint32_t w = w0; w <= w1 && n < 128; ++w) words[n++] = w;
    });
    uint8_t count[32] = {0};
    std::sort(words, words + n);
    int most = 0, distinct = 0;
    for (int k = 0; k < n; ++k) {
      if (k && words[k] == words[k - 1]) continue;
      ++distinct;
      most = std::max<int>(most, ++count[words[k] & 31]);
    }
    s.wavefronts += uint64_t(most), s.ideal += uint64_t((distinct + 31) / 32);
  }
}

// A lane's bytes at `addr`, or null after a finding.
static uint8_t* resolve(Ctx& c, const Insn& i, int lane, uint64_t addr, uint32_t bytes, int space, Access kind) {
  Actor a = c.actor(i, lane);
  if (addr % bytes) {
    c.m.finding("misaligned", "access of " + std::to_string(bytes) + " bytes at " + hex(addr), a, &c.cta, addr);
    return nullptr;
  }
  if (space == GENERIC) {
    if (addr >= LOCAL_WINDOW) space = LOCAL, addr -= LOCAL_WINDOW;
    else if (addr >= SHARED_WINDOW) space = SHARED, addr -= SHARED_WINDOW;
  }
  if (space == SHARED) return c.m.shared(c.cta, uint32_t(addr), bytes, kind, a);
  if (space == LOCAL) {
    if (addr >= LOCAL_WINDOW) addr -= LOCAL_WINDOW;
    if (addr + bytes > uint64_t(c.m.local_bytes)) {
      c.m.finding("out of bounds", "local access at " + hex(addr), a, &c.cta, addr);
      return nullptr;
    }
    return c.w.local.data() + uint64_t(lane) * c.m.local_bytes + addr;
  }
  return c.m.global(addr, bytes, kind == WRITE || kind == ATOMIC || kind == STRONG_WRITE, a, &c.cta);
}

static void acquire_flag(Ctx& c, uint64_t addr, int order) {
  auto it = c.cta.cl->flags.find(flag_key(addr));
  if (it == c.cta.cl->flags.end()) return;
  (order == ACQUIRE || order == ACQ_REL ? c.w.clock : c.w.relaxed).join(it->second);
}
static void release_flag(Ctx& c, uint64_t addr, int order) {
  Clock& k = c.cta.cl->flags[flag_key(addr)];
  if (k.vc.empty()) k.init(c.m.n_agents);
  k.join(order == RELEASE || order == ACQ_REL ? c.w.clock : c.w.fenced);
}

// o[0]: address, o[1..]: registers; m[0]: space, m[1]: bytes of an element, m[2]: vector length, m[3]: order,
// m[4]: register bytes | 16 if the address is 32 bits wide | 32 sign extension; imm: offset
struct MemOp {
  int space, bytes, vec, order, reg;
  bool narrow, sign;
  explicit MemOp(const Insn& i) : space(i.m[0]), bytes(i.m[1]), vec(i.m[2]), order(i.m[3]), reg(i.m[4] & 15), narrow(i.m[4] & 16), sign(i.m[4] & 32) {}
};

static void addresses(Ctx& c, const Insn& i, bool narrow, uint64_t* out) {
  if (narrow) {
    const uint32_t* r = c.r32(i.o[0]);
    for (int l = 0; l < LANES; ++l) out[l] = uint32_t(r[l] + uint32_t(i.imm));
  } else {
    const uint64_t* r = c.r64(i.o[0]);
    for (int l = 0; l < LANES; ++l) out[l] = r[l] + uint64_t(i.imm);
  }
}

static bool is_shared(const MemOp& op, uint64_t addr) {
  return op.space == SHARED || (op.space == GENERIC && addr >= SHARED_WINDOW && addr < LOCAL_WINDOW);
}

SF_OP("ld") {
  const MemOp op(i);
  uint64_t addr[LANES];
  addresses(c, i, op.narrow, addr);
  const uint32_t total = uint32_t(op.bytes * op.vec);
  if (is_shared(op, addr[c.first()])) count_wavefronts(c, i, addr, total);
  const Access kind = op.order == WEAK ? READ : STRONG_READ;
  each_lane(c.mask, [&](int l) {
    const uint8_t* p = resolve(c, i, l, addr[l], total, op.space, kind);
    for (int v = 0; v < op.vec; ++v) {
      uint64_t x[2] = {~0ull, ~0ull};
      if (p) {
        x[0] = x[1] = 0;
        std::memcpy(x, p + v * op.bytes, size_t(op.bytes));
        if (op.sign && op.bytes < 8) x[0] = uint64_t(int64_t(x[0] << (64 - 8 * op.bytes)) >> (64 - 8 * op.bytes));
      }
      put_reg(c, i.o[1 + v], op.reg, l, x);
    }
    if (op.order != WEAK) acquire_flag(c, addr[l], op.order);
  });
  return Flow::Next;
}

SF_OP("st") {
  const MemOp op(i);
  uint64_t addr[LANES];
  addresses(c, i, op.narrow, addr);
  const uint32_t total = uint32_t(op.bytes * op.vec);
  if (is_shared(op, addr[c.first()])) count_wavefronts(c, i, addr, total);
  const Access kind = op.order == WEAK ? WRITE : STRONG_WRITE;
  each_lane(c.mask, [&](int l) {
    uint8_t* p = resolve(c, i, l, addr[l], total, op.space, kind);
    if (!p) return;
    for (int v = 0; v < op.vec; ++v) {
      uint64_t x[2];
      get_reg(c, i.o[1 + v], op.reg, l, x);
      std::memcpy(p + v * op.bytes, x, size_t(op.bytes));
    }
    if (op.order != WEAK) release_flag(c, addr[l], op.order);
  });
  if (op.order != WEAK) c.release_tick();
  if (op.space != LOCAL) ++c.m.progress;
  return Flow::Next;
}

// o[0]: address, o[1]: result (or sink), o[2..]: operands (two for cas); m as for ld, m[5]: AtomicOp | element type << 8
SF_OP("atom") {
  const MemOp op(i);
  uint64_t addr[LANES];
  addresses(c, i, op.narrow, addr);
  const int which = i.m[5] & 255, type = i.m[5] >> 8;
  const uint32_t total = uint32_t(op.bytes * op.vec);
  each_lane(c.mask, [&](int l) {
    uint8_t* p = resolve(c, i, l, addr[l], total, op.space, which == ATOM_EXCH ? STRONG_WRITE : ATOMIC);
    if (op.order == ACQUIRE || op.order == ACQ_REL || op.order == RELAXED) acquire_flag(c, addr[l], op.order);
    for (int v = 0; v < op.vec; ++v) {
      uint64_t old[2] = {0, 0}, x[2], y[2] = {0, 0}, z[2];
      get_reg(c, i.o[1 + op.vec + v], op.reg, l, x);
      if (which == ATOM_CAS) get_reg(c, i.o[1 + 2 * op.vec + v], op.reg, l, y);
      if (p) {
        std::memcpy(old, p + v * op.bytes, size_t(op.bytes));
        atomic_apply(which, is_shared(op, addr[l]) ? type : in_global(type), op.bytes, old, x, y, z);
        std::memcpy(p + v * op.bytes, z, size_t(op.bytes));
      }
      put_reg(c, i.o[1 + v], op.reg, l, old);
    }
    if (op.order != ACQUIRE) release_flag(c, addr[l], op.order);
  });
  c.release_tick();
  ++c.m.progress;
  return Flow::Next;
}

SF_OP("ld.param") {   // o[0..]: registers; m[1]: bytes, m[2]: vector length, m[4]: register bytes | 32 sign; imm: offset
  const MemOp op(i);
  for (int v = 0; v < op.vec; ++v) {
    uint64_t x[2] = {0, 0};
    std::memcpy(x, c.m.param() + i.imm + v * op.bytes, size_t(op.bytes));
    if (op.sign && op.bytes < 8) x[0] = uint64_t(int64_t(x[0] << (64 - 8 * op.bytes)) >> (64 - 8 * op.bytes));
    each_lane(c.mask, [&](int l) { put_reg(c, i.o[v], op.reg, l, x); });
  }
  return Flow::Next;
}

SF_OP("addr.param") {
  const uint64_t at = reinterpret_cast<uint64_t>(c.m.param()) + uint64_t(i.imm);
  for (int l = 0; l < LANES; ++l) c.r64(i.o[0])[l] = at;
  return Flow::Next;
}
SF_OP("addr.shared.64") {
  for (int l = 0; l < LANES; ++l) c.r64(i.o[0])[l] = (uint64_t(c.cta.rank) << 24) + uint64_t(i.imm);
  return Flow::Next;
}
SF_OP("addr.shared.32") {
  for (int l = 0; l < LANES; ++l) c.r32(i.o[0])[l] = (uint32_t(c.cta.rank) << 24) + uint32_t(i.imm);
  return Flow::Next;
}
SF_OP("addr.const.64") {
  for (int l = 0; l < LANES; ++l) c.r64(i.o[0])[l] = uint64_t(i.imm);
  return Flow::Next;
}
SF_OP("addr.const.32") {
  for (int l = 0; l < LANES; ++l) c.r32(i.o[0])[l] = uint32_t(i.imm);
  return Flow::Next;
}
SF_OP("addr.add.64") {
  for (int l = 0; l < LANES; ++l) c.r64(i.o[0])[l] = c.r64(i.o[1])[l] + uint64_t(i.imm);
  return Flow::Next;
}
SF_OP("addr.add.32") {
  for (int l = 0; l < LANES; ++l) c.r64(i.o[0])[l] = uint32_t(c.r32(i.o[1])[l] + uint32_t(i.imm));
  return Flow::Next;
}
SF_OP("cvta.shared") {   // m[0]: 1 to the window (subtract)
  each_lane(c.mask, [&](int l) { c.r64(i.o[0])[l] = i.m[0] ? c.r64(i.o[1])[l] - SHARED_WINDOW : c.r64(i.o[1])[l] + SHARED_WINDOW; });
  return Flow::Next;
}
SF_OP("cvta.local") {
  each_lane(c.mask, [&](int l) { c.r64(i.o[0])[l] = i.m[0] ? c.r64(i.o[1])[l] - LOCAL_WINDOW : c.r64(i.o[1])[l] + LOCAL_WINDOW; });
  return Flow::Next;
}
SF_OP("mapa") {   // o[0]: result (64), o[1]: address (64), o[2]: rank
  each_lane(c.mask, [&](int l) {
    const uint64_t a = c.r64(i.o[1])[l];
    // a rank outside the cluster gives an address that no access may use: only an access is a defect
    c.r64(i.o[0])[l] = (a & ~0xff000000ull) | uint64_t(c.r32(i.o[2])[l] & 255) << 24;
  });
  return Flow::Next;
}
SF_OP("getctarank") {
  each_lane(c.mask, [&](int l) { c.r32(i.o[0])[l] = uint32_t(c.r64(i.o[1])[l]) >> 24; });
  return Flow::Next;
}
SF_OP("isspacep") {   // m[0]: Space
  Mask r = 0;
  each_lane(c.mask, [&](int l) {
    const uint64_t a = c.r64(i.o[1])[l];
    const int s = a >= LOCAL_WINDOW ? LOCAL : a >= SHARED_WINDOW ? SHARED : GLOBAL;
    if (s == i.m[0] && (i.m[1] == 0 || uint32_t(a) >> 24 == uint32_t(c.cta.rank))) r |= 1u << l;
  });
  c.set_pred(i.o[0], r);
  return Flow::Next;
}

}  // namespace sf
