// Shared memory: ownership, bounds, and the shadow state behind the race, proxy and never-written checks.
//
// Happens-before by vector clocks (FastTrack-like): each 16 bytes remember up to two last writes and three reads, with the
// bytes that they touched, as (agent, clock) events. An access is ordered after an event when its clock knows it.
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

static void race(Machine& m, Cta& cta, uint32_t off, const Actor& a, bool write, bool other_write, const Mark& k) {
  m.finding("race", std::string(write ? "write" : "read") + " of shared memory not ordered after the " + (other_write ? "write" : "read") + " by " +
            who(m, k.agent, int(k.pc)), a, &cta, uint64_t(cta.rank) << 24 | off);
}

static void check_write_seen(Machine& m, Cta& cta, uint32_t off, const Mark& k, bool strong, bool write, const Actor& a) {
  if (a.know->vc[k.agent] < k.clk) {
    if (!(strong && (k.flags & 1))) race(m, cta, off, a, write, true, k);
  } else if (a.async_proxy && !(k.flags & 2) && a.know->pvc[k.agent] < k.clk) {
    m.finding("proxy fence", std::string("asynchronous ") + (write ? "write" : "read") + " of shared memory written by " + who(m, k.agent, int(k.pc)) +
              " without fence.proxy.async in between", a, &cta, uint64_t(cta.rank) << 24 | off);
  }
}

// Adds a mark, merging it with one of the same event. A full list drops a mark that the new access is ordered after, else
// any: then a race may go unseen, but none is invented.
static void add_mark(Mark* list, uint8_t& n, int room, const Mark& k, const Actor& a) {
  for (int q = 0; q < n; ++q)
    if (list[q].agent == k.agent && list[q].flags == k.flags) {
      if (list[q].clk == k.clk) list[q].bytes |= k.bytes, list[q].pc = k.pc;
      else if ((list[q].bytes & ~k.bytes) == 0) list[q] = k;
      else continue;
      return;
    }
  int at = n;
  if (n < room) {
    ++n;
  } else {
    at = int(k.clk % unsigned(room));
    for (int q = 0; q < n; ++q)
      if (a.know->vc[list[q].agent] >= list[q].clk) at = q;
  }
  list[at] = k;
}

static void forget(Mark* list, uint8_t& n, uint16_t bytes) {
  for (int q = 0; q < n;) {
    list[q].bytes &= uint16_t(~bytes);
    if (list[q].bytes) ++q;
    else list[q] = list[--n];
  }
}

static void shadow_access(Machine& m, Cta& cta, uint32_t off, uint32_t n, Access kind, const Actor& a) {
  const uint32_t lo = off - SMEM_BASE, hi = lo + n;
  const bool strong = kind >= ATOMIC, write = kind == WRITE || kind == ATOMIC || kind == STRONG_WRITE;
  const bool read = !write || kind == ATOMIC;
  Mark mark{a.clk, unsigned(a.pc) & 0xffffff, unsigned(strong) | unsigned(a.async_proxy) << 1, uint16_t(a.agent), 0};
  for (uint32_t c = lo / 16; c * 16 < hi; ++c) {
    Cell& s = cta.shadow[c];
    uint16_t bytes = 0xffff;
    if (c * 16 < lo) bytes = uint16_t(bytes & (0xffffu << (lo - c * 16)));
    if (c * 16 + 16 > hi) bytes = uint16_t(bytes & (0xffffu >> (c * 16 + 16 - hi)));
    const uint32_t at = std::max(off, SMEM_BASE + c * 16);
    if (read && (s.init & bytes) != bytes) {
      m.finding("uninitialised", "read of shared memory that was never written", a, &cta, uint64_t(cta.rank) << 24 | at);
      s.init |= bytes;
    }
    for (int q = 0; q < s.n_writes; ++q) {
      const Mark& k = s.w[q];
      if ((k.bytes & bytes) && !(k.clk == a.clk && k.agent == a.agent)) check_write_seen(m, cta, at, k, strong, write, a);
    }
    mark.bytes = bytes;
    if (!write) {
      add_mark(s.r, s.n_reads, 3, mark, a);
      continue;
    }
    for (int q = 0; q < s.n_reads; ++q) {
      const Mark& k = s.r[q];
      if ((k.bytes & bytes) && a.know->vc[k.agent] < k.clk && !(strong && (k.flags & 1))) race(m, cta, at, a, true, false, k);
    }
    forget(s.r, s.n_reads, bytes);
    forget(s.w, s.n_writes, bytes);
    add_mark(s.w, s.n_writes, 2, mark, a);
    s.init |= bytes;
  }
}

// A live mbarrier is opaque: only mbarrier instructions and completions may touch it.
static void check_mbarriers(Machine& m, Cta& cta, uint32_t off, uint32_t n, Access kind, const Actor& a) {
  const auto& all = cta.mbar;
  if (all.empty() || off + n <= all.begin()->first || off >= all.rbegin()->first + 8) return;
  auto it = all.upper_bound(off + n - 1);
  if (it == all.begin()) return;
  --it;
  if (it->first + 8 > off && it->second.live)
    m.finding("mbarrier", std::string("ordinary ") + (kind == READ || kind == STRONG_READ ? "read" : "write") + " of the mbarrier initialised at line " +
              std::to_string(m.code[it->second.init_pc].line), a, &cta, uint64_t(cta.rank) << 24 | it->first);
}

uint8_t* Machine::shared(Cta& from, uint32_t addr, uint32_t n, Access kind, const Actor& a) {
  Cta* owner = shared_owner(from, addr);
  const uint32_t off = addr & 0xffffff;
  if (!owner) {
    finding("out of bounds", "shared address " + hex(addr) + " names CTA rank " + std::to_string(addr >> 24) + " of a cluster of " +
            std::to_string(from.cl->size), a, &from, addr);
    return nullptr;
  }
  const uint32_t end = SMEM_BASE + uint32_t(smem_bytes);
  if (off < SMEM_BASE || off > end || n > end - off) {   // off + n may wrap
    finding("out of bounds", "shared access of " + std::to_string(n) + " bytes at offset " + hex(off) + ", outside [" + hex(SMEM_BASE) + ", " +
            hex(end) + ")", a, owner, addr);
    return nullptr;
  }
  if (owner != &from && cluster_start && !from.cl->bar_generation)
    finding("cluster start", "access to the shared memory of CTA rank " + std::to_string(owner->rank) + " before a barrier.cluster shows that it has started",
            a, owner, addr);
  if (owner->exited && checks)
    finding("exited CTA", std::string(a.agent >= n_warps ? "asynchronous access" : "access") + " to the shared memory of CTA rank " +
            std::to_string(owner->rank) + ", which has exited", a, owner, addr);
  if (checks) check_mbarriers(*this, *owner, off, n, kind, a);
  if (checks) shadow_access(*this, *owner, off, n, kind, a);
  return owner->smem.data() + (off - SMEM_BASE);
}

uint8_t* Machine::global(uint64_t addr, uint32_t n, bool write, const Actor& a, const Cta* cta) {
  auto holds = [&](const Region& r) { return addr >= r.lo && addr <= r.hi && n <= r.hi - addr; };   // addr + n may wrap
  Region* r = last_region < regions.size() ? &regions[last_region] : nullptr;
  if (!r || !holds(*r)) {
    r = nullptr;
    const Region* near = nullptr;
    for (size_t k = 0; k < regions.size(); ++k) {
      if (holds(regions[k])) {
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
  r->touched[write] = true;
  if (a.early && r->early[write] < 0) r->early[write] = a.pc;
  return reinterpret_cast<uint8_t*>(addr);
}

}  // namespace sf
