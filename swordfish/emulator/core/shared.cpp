// Shared memory: ownership, bounds, and the shadow state behind the race, proxy and never-written checks.
//
// Happens-before by vector clocks (FastTrack-like): each four bytes remember their last write and up to three reads
// as (agent, clock) events. An access is ordered after an event when its clock knows it.
#include <algorithm>

#include "core.hpp"

namespace sf {

static std::string who(const Machine& m, int agent, int pc) {
  const int line = pc >= 0 && size_t(pc) < m.code.size() ? m.code[pc].line : 0;
  const int per = m.n_warps / std::max(1, m.cl ? m.cl->size : 1);
  const std::string name = agent < m.n_warps ? "CTA rank " + std::to_string(agent / per) + " warp " + std::to_string(agent % per)
                                             : std::string("an asynchronous operation");
  return name + " (line " + std::to_string(line) + ")";
}

Cta* Machine::shared_owner(Cta& from, uint32_t addr) const {
  const uint32_t rank = addr >> 24;
  return rank < from.cl->ctas.size() ? from.cl->ctas[rank].get() : nullptr;
}

static void race(Machine& m, Cta& cta, uint32_t off, const Actor& a, bool write, bool other_write, int agent, int pc) {
  m.finding("race", std::string(write ? "write" : "read") + " of shared memory not ordered after the " + (other_write ? "write" : "read") + " by " +
            who(m, agent, pc), a, &cta, uint64_t(cta.rank) << 24 | off);
}

static void check_write_seen(Machine& m, Cta& cta, uint32_t off, const Cell& s, bool strong, bool write, const Actor& a) {
  if (a.know->vc[s.w_agent] < s.w_clk) {
    if (!(strong && (s.w_flags & 1))) race(m, cta, off, a, write, true, s.w_agent, s.w_pc);
  } else if (a.async_proxy && !(s.w_flags & 2) && a.know->pvc[s.w_agent] < s.w_clk) {
    m.finding("proxy fence", std::string("asynchronous ") + (write ? "write" : "read") + " of shared memory written by " + who(m, s.w_agent, s.w_pc) +
              " without fence.proxy.async in between", a, &cta, uint64_t(cta.rank) << 24 | off);
  }
}

static void note_read(Machine& m, Cell& s, uint8_t bytes, bool strong, const Actor& a) {
  for (int k = 0; k < s.n_reads; ++k)
    if (s.r[k].agent == a.agent) {
      s.r[k] = {a.clk, a.pc, uint16_t(a.agent), uint8_t(s.r[k].clk == a.clk ? s.r[k].bytes | bytes : bytes), uint8_t(strong)};
      return;
    }
  int at = s.n_reads;
  if (at == 3) {   // drop a read that this one is ordered after, else any
    at = int(m.now % 3);
    for (int k = 0; k < 3; ++k)
      if (a.know->vc[s.r[k].agent] >= s.r[k].clk) at = k;
  } else {
    ++s.n_reads;
  }
  s.r[at] = {a.clk, a.pc, uint16_t(a.agent), bytes, uint8_t(strong)};
}

static void shadow_access(Machine& m, Cta& cta, uint32_t off, uint32_t n, Access kind, const Actor& a) {
  const uint32_t lo = off - SMEM_BASE, hi = lo + n;
  const bool strong = kind >= ATOMIC, write = kind == WRITE || kind == ATOMIC || kind == STRONG_WRITE;
  const bool read = !write || kind == ATOMIC;
  for (uint32_t c = lo / 4; c * 4 < hi; ++c) {
    Cell& s = cta.shadow[c];
    uint8_t bytes = 15;
    if (c * 4 < lo) bytes &= uint8_t(15u << (lo - c * 4));
    if (c * 4 + 4 > hi) bytes &= uint8_t(15u >> (c * 4 + 4 - hi));
    const uint32_t at = SMEM_BASE + c * 4;
    if (read && (s.init & bytes) != bytes) {
      m.finding("uninitialised", "read of shared memory that was never written", a, &cta, uint64_t(cta.rank) << 24 | at);
      s.init |= bytes;
    }
    const bool mine = s.w_clk == a.clk && s.w_agent == a.agent;
    if (s.w_clk && !mine && (s.w_bytes & bytes)) check_write_seen(m, cta, at, s, strong, write, a);
    if (!write) {
      note_read(m, s, bytes, strong, a);
      continue;
    }
    for (int k = 0; k < s.n_reads; ++k) {
      const ReadMark& r = s.r[k];
      if ((r.bytes & bytes) && a.know->vc[r.agent] < r.clk && !(strong && (r.flags & 1))) race(m, cta, at, a, true, false, r.agent, r.pc);
    }
    s.w_bytes = mine ? s.w_bytes | bytes : bytes;
    s.w_clk = a.clk, s.w_agent = uint16_t(a.agent), s.w_pc = a.pc, s.w_flags = uint8_t(strong) | uint8_t(a.async_proxy) << 1;
    s.init |= bytes;
    if (bytes == 15) s.n_reads = 0;
  }
}

uint8_t* Machine::shared(Cta& from, uint32_t addr, uint32_t n, Access kind, const Actor& a) {
  Cta* owner = shared_owner(from, addr);
  const uint32_t off = addr & 0xffffff;
  if (!owner) {
    finding("out of bounds", "shared address " + hex(addr) + " names CTA rank " + std::to_string(addr >> 24) + " of a cluster of " +
            std::to_string(from.cl->size), a, &from, addr);
    return nullptr;
  }
  if (off < SMEM_BASE || off + n > SMEM_BASE + uint32_t(smem_bytes)) {
    finding("out of bounds", "shared access of " + std::to_string(n) + " bytes at offset " + hex(off) + ", outside [" + hex(SMEM_BASE) + ", " +
            hex(SMEM_BASE + uint32_t(smem_bytes)) + ")", a, owner, addr);
    return nullptr;
  }
  if (owner->exited && owner != &from && checks)
    finding("exited CTA", "access to the shared memory of CTA rank " + std::to_string(owner->rank) + ", which has exited", a, owner, addr);
  if (checks) shadow_access(*this, *owner, off, n, kind, a);
  return owner->smem.data() + (off - SMEM_BASE);
}

uint8_t* Machine::global(uint64_t addr, uint32_t n, bool write, const Actor& a, const Cta* cta) {
  const Region* r = last_region < regions.size() ? &regions[last_region] : nullptr;
  if (!r || addr < r->lo || addr + n > r->hi) {
    r = nullptr;
    const Region* near = nullptr;
    for (size_t k = 0; k < regions.size(); ++k) {
      if (addr >= regions[k].lo && addr + n <= regions[k].hi) {
        r = &regions[last_region = k];
        break;
      }
      if (regions[k].lo <= addr && (!near || regions[k].lo > near->lo)) near = &regions[k];
    }
    if (!r) {
      std::string text = "global " + std::string(write ? "write" : "read") + " of " + std::to_string(n) + " bytes at " + hex(addr);
      if (near) text += ", " + std::to_string(addr - near->lo) + " bytes into " + near->name + " of " + std::to_string(near->hi - near->lo) + " bytes";
      finding("out of bounds", text, a, cta, addr);
      return nullptr;
    }
  }
  if (write && !r->writable) {
    finding("out of bounds", "write to " + r->name + ", which is read-only", a, cta, addr);
    return nullptr;
  }
  return reinterpret_cast<uint8_t*>(addr);
}

}  // namespace sf
