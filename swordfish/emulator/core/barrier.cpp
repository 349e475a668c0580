// Barriers: bar / barrier, barrier.cluster, mbarrier, fences.
#include <algorithm>

#include "core.hpp"

namespace sf {

// ---- bar.sync, bar.arrive, bar.red ---------------------------------------------------------------------------------

static void complete_named(Machine& m, NamedBarrier& b) {
  b.done.join(b.arriving);
  b.red_done = b.red, b.red = 0;
  b.all_done = b.red_and != 0, b.any_done = b.red_or != 0;
  b.arrived = 0, b.expected = 0, ++b.generation;
  ++m.progress;
  m.wake();
}

// Threads that a barrier without a count waits for: those of the warps that have not exited.
static int live_threads(const Cta& cta) {
  int n = 0;
  for (const Warp* w : cta.warps) n += w->alive ? LANES : 0;
  return n;
}

static bool named_poll(Ctx& c, const Insn&) {
  NamedBarrier& b = c.cta.bar[c.frag->w[0]];
  if (b.generation == c.frag->w[1] && b.expected == 0 && b.arrived >= live_threads(c.cta)) complete_named(c.m, b);
  if (b.generation == c.frag->w[1]) return false;
  c.w.clock.join(b.done);
  return true;
}
static std::string named_describe(Ctx& c, const Insn&) {
  const NamedBarrier& b = c.cta.bar[c.frag->w[0]];
  return "waits at barrier " + std::to_string(c.frag->w[0]) + ", " + std::to_string(b.arrived) + " of " +
         std::to_string(b.expected ? b.expected : live_threads(c.cta)) + " threads arrived";
}
static bool red_poll(Ctx& c, const Insn& i) {
  if (!named_poll(c, i)) return false;
  const NamedBarrier& b = c.cta.bar[c.frag->w[0]];
  const bool v = i.m[1] == 2 ? b.all_done : b.any_done;
  if (i.m[1] == 1) each_lane(c.mask, [&](int l) { c.r32(i.o[2])[l] = b.red_done; });
  else c.set_pred(i.o[2], v ? FULL : 0);
  return true;
}
static const WaitKind NAMED{named_poll, named_describe, false, nullptr}, NAMED_RED{red_poll, named_describe, false, nullptr};

// o[0]: barrier, o[1]: thread count or ~0 for all; m[0]: 1 arrive only; m[1]: 1 popc, 2 and, 3 or (o[2] result, o[3] predicate)
SF_OP("bar") {
  const int l = c.first();
  const uint32_t id = c.r32(i.o[0])[l], count = c.r32(i.o[1])[l];
  if (id > 15) {
    c.m.finding("barrier", "barrier " + std::to_string(id) + " does not exist", c.actor(i, l), &c.cta, id, true);
    return Flow::Next;
  }
  if (count != ~0u && (count % LANES || count == 0))
    c.m.finding("barrier", "thread count " + std::to_string(count) + " of a barrier is no multiple of 32", c.actor(i, l), &c.cta, id);
  NamedBarrier& b = c.cta.bar[id];
  const uint64_t generation = b.generation;
  if (b.arrived == 0) b.arriving.init(c.m.n_agents), b.red_and = 1, b.red_or = 0;
  if (count != ~0u) {
    if (b.expected && b.expected != int(count))
      c.m.finding("barrier", "barrier " + std::to_string(id) + " is used with " + std::to_string(count) + " and " + std::to_string(b.expected) +
                  " threads at once", c.actor(i, l), &c.cta, id);
    b.expected = int(count);
  }
  if (i.m[1]) {
    const Mask p = c.pred(i.o[3]) & c.mask;
    b.red += uint32_t(__builtin_popcount(p));
    b.red_and &= p == c.mask, b.red_or |= p != 0;
  }
  // Arrivals count whole warps; a warp that comes in pieces counts its lanes, the exited ones with the last piece.
  const Mask missing = c.frag->mask == c.w.alive ? 0 : c.w.alive & ~c.mask;
  b.arrived += missing ? __builtin_popcount(c.mask) : LANES - (c.mask == c.w.alive ? 0 : __builtin_popcount(c.w.alive & ~c.mask));
  b.arriving.join(c.w.clock);
  c.release_tick();
  ++c.m.progress;
  c.m.wake();
  const int need = b.expected ? b.expected : live_threads(c.cta);
  if (b.expected && b.arrived > need)
    c.m.finding("barrier", "more than " + std::to_string(need) + " threads arrive at barrier " + std::to_string(id), c.actor(i, l), &c.cta, id);
  if (b.arrived >= need) complete_named(c.m, b);
  if (i.m[0]) return Flow::Next;
  return c.block(i.m[1] ? NAMED_RED : NAMED, id, generation);
}

// ---- barrier.cluster -------------------------------------------------------------------------------------------------

static int live_warps(const Cluster& cl) {
  int n = 0;
  for (auto& w : cl.warps) n += w->alive ? 1 : 0;
  return n;
}
static void cluster_check(Machine& m, Cluster& cl) {
  if (!cl.bar_arrived || cl.bar_arrived < live_warps(cl)) return;
  cl.bar_done = cl.bar_arriving;
  cl.bar_arrived = 0, ++cl.bar_generation, ++m.progress;
  m.wake();
}
static bool cluster_poll(Ctx& c, const Insn& i) {
  Cluster& cl = *c.cta.cl;
  cluster_check(c.m, cl);
  if (cl.bar_generation == c.frag->w[0]) return false;
  if (i.m[0] == 0) c.w.clock.join(cl.bar_done);
  else c.w.relaxed.join(cl.bar_done);
  return true;
}
static std::string cluster_describe(Ctx& c, const Insn&) {
  const Cluster& cl = *c.cta.cl;
  return "waits at barrier.cluster, " + std::to_string(cl.bar_arrived) + " of " + std::to_string(live_warps(cl)) + " warps arrived";
}
static const WaitKind CLUSTER{cluster_poll, cluster_describe, false, nullptr};

struct ClusterArrivals { std::vector<uint64_t> generation; };   // per warp: generation it arrived for, plus one

static std::vector<uint64_t>& arrivals(Cluster& cl) {
  if (!cl.ext[1]) cl.ext[1] = std::make_shared<ClusterArrivals>();
  auto& g = static_cast<ClusterArrivals*>(cl.ext[1].get())->generation;
  g.resize(cl.warps.size(), 0);
  return g;
}

SF_OP("barrier.cluster.arrive") {   // m[0]: 1 relaxed
  Cluster& cl = *c.cta.cl;
  if (c.mask != c.w.alive) {
    c.m.finding("barrier", "barrier.cluster.arrive by some lanes of a warp", c.actor(i, c.first()), &c.cta, 0);
  }
  auto& mine = arrivals(cl)[c.w.agent];
  if (mine == cl.bar_generation + 1)
    c.m.finding("barrier", "a warp arrives twice at barrier.cluster without waiting", c.actor(i, c.first()), &c.cta, 0);
  mine = cl.bar_generation + 1;
  if (cl.bar_arrived == 0) cl.bar_arriving.init(c.m.n_agents);
  if (i.m[0] == 0) cl.bar_arriving.join(c.w.clock), c.release_tick();
  else cl.bar_arriving.join(c.w.fenced);
  ++cl.bar_arrived, ++c.m.progress;
  cluster_check(c.m, cl);
  return Flow::Next;
}
SF_OP("barrier.cluster.wait") {   // m[0]: 1 relaxed
  Cluster& cl = *c.cta.cl;
  const uint64_t mine = arrivals(cl)[c.w.agent];
  if (!mine) {
    c.m.finding("barrier", "barrier.cluster.wait without an arrive", c.actor(i, c.first()), &c.cta, 0);
    return Flow::Next;
  }
  return c.block(CLUSTER, mine - 1);
}

// ---- fences ------------------------------------------------------------------------------------------------------------

SF_OP("fence.proxy") {   // the generic accesses known so far become visible to the asynchronous proxy
  Clock& k = c.w.clock;
  for (size_t a = 0; a < k.vc.size(); ++a) k.pvc[a] = std::max(k.pvc[a], k.vc[a]);
  c.release_tick();
  for (auto& [off, b] : c.cta.mbar)
    if (k.vc[b.init_agent] >= b.init_clk) b.fenced = true;
  return Flow::Next;
}
SF_OP("fence.mbarrier_init") {
  for (auto& [off, b] : c.cta.mbar)
    if (b.init_agent == c.w.agent) b.fenced = true;
  c.w.fenced = c.w.clock;   // it is a release for a following relaxed cluster arrive
  c.release_tick();
  return Flow::Next;
}
SF_OP("fence") {   // acq_rel or sc: relaxed loads before it acquire, relaxed stores after it release
  c.w.clock.join(c.w.relaxed);
  c.w.fenced = c.w.clock;
  c.release_tick();
  return Flow::Next;
}

// ---- mbarrier ------------------------------------------------------------------------------------------------------------

static void describe_state(std::string& s, const Mbarrier& b) {
  s += "phase " + std::to_string(b.phase) + ", " + std::to_string(b.pending) + " of " + std::to_string(b.expected) + " arrivals and " +
       std::to_string(b.tx) + " bytes pending";
}

Mbarrier* Machine::barrier_at(Cta& from, uint32_t addr, const Actor& a, const char* what) {
  Cta* owner = shared_owner(from, addr);
  const uint32_t off = addr & 0xffffff;
  if (!owner || off < SMEM_BASE || off + 8 > SMEM_BASE + uint32_t(smem_bytes) || off % 8) {
    finding("mbarrier", std::string(what) + " on " + hex(addr) + ", which is no aligned address of shared memory", a, &from, addr);
    return nullptr;
  }
  if (owner != &from && cluster_start && !from.cl->bar_generation)
    finding("cluster start", std::string(what) + " on an mbarrier of CTA rank " + std::to_string(owner->rank) +
            " before a barrier.cluster shows that it has started", a, owner, addr);
  if (owner->exited && checks)
    finding("exited CTA", std::string(what) + " on an mbarrier of CTA rank " + std::to_string(owner->rank) + ", which has exited", a, owner, addr);
  auto it = owner->mbar.find(off);
  if (it == owner->mbar.end() || !it->second.live) {
    finding("mbarrier", std::string(what) + " on " + hex(addr) + " before mbarrier.init", a, owner, addr);
    return nullptr;
  }
  Mbarrier& b = it->second;
  if (checks && a.know && a.know->vc[b.init_agent] < b.init_clk)
    finding("race", std::string(what) + " not ordered after the mbarrier.init at line " + std::to_string(code[b.init_pc].line), a, owner, addr);
  if (checks && a.async_proxy && !b.fenced)
    finding("proxy fence", std::string(what) + " on an mbarrier whose init (line " + std::to_string(code[b.init_pc].line) +
            ") was followed by no fence.mbarrier_init or fence.proxy.async", a, owner, addr);
  return &b;
}

static void phase_check(Machine& m, Mbarrier& b) {
  if (b.pending || b.tx) return;
  ++b.phase, b.pending = b.expected;
  b.done.join(b.arriving);
  ++m.progress;
  m.wake();
}

void Machine::mbar_arrive(Mbarrier& b, uint32_t count, int64_t tx_done, const Clock* clk, const Actor& a, const Cta* cta, uint32_t addr) {
  if (clk) b.arriving.join(*clk);
  if (count > b.pending) {
    finding("mbarrier", "arrival count underflow: " + std::to_string(count) + " arrivals, " + std::to_string(b.pending) + " pending of " +
            std::to_string(b.expected), a, cta, addr);
    count = b.pending;
  }
  b.pending -= count, b.tx -= tx_done;
  if (b.tx < -1048575)
    finding("mbarrier", "transaction count underflow", a, cta, addr);
  ++progress;
  phase_check(*this, b);
}

void Machine::mbar_expect(Mbarrier& b, int64_t bytes, const Actor& a, const Cta* cta, uint32_t addr) {
  b.tx += bytes;
  if (b.tx > 1048575) finding("mbarrier", "transaction count " + std::to_string(b.tx) + " over 2^20 - 1", a, cta, addr);
  ++progress;
}

SF_OP("mbarrier.init") {   // o[0]: address (64 bit), o[1]: count
  each_lane(c.mask, [&](int l) {
    const uint32_t addr = uint32_t(c.r64(i.o[0])[l]), count = c.r32(i.o[1])[l];
    const Actor a = c.actor(i, l);
    if (count < 1 || count > 1048575) c.m.finding("mbarrier", "init with count " + std::to_string(count), a, &c.cta, addr);
    if (addr % 8) c.m.finding("misaligned", "mbarrier at " + hex(addr), a, &c.cta, addr);
    if (Cta* owner = c.m.shared_owner(c.cta, addr)) {   // initialising it again is no ordinary write
      const auto old = owner->mbar.find(addr & 0xffffff);
      if (old != owner->mbar.end()) old->second.live = false;
    }
    uint8_t* p = c.m.shared(c.cta, addr, 8, WRITE, a);
    if (!p) return;
    std::memset(p, 0, 8);
    Mbarrier& b = c.m.shared_owner(c.cta, addr)->mbar[addr & 0xffffff];
    b.live = true, b.fenced = false, b.expected = b.pending = count, b.phase = 0, b.tx = 0;
    b.init_pc = i.pc, b.init_agent = c.w.agent, b.init_clk = a.clk;
    b.arriving.init(c.m.n_agents), b.done.init(c.m.n_agents);
  });
  ++c.m.progress;
  return Flow::Next;
}
SF_OP("mbarrier.inval") {
  each_lane(c.mask, [&](int l) {
    const uint32_t addr = uint32_t(c.r64(i.o[0])[l]);
    if (Mbarrier* b = c.m.barrier_at(c.cta, addr, c.actor(i, l), "mbarrier.inval")) {
      if (b->tx && c.m.checks) c.m.finding("mbarrier", "mbarrier.inval with transaction bytes outstanding", c.actor(i, l), &c.cta, addr);
      b->live = false;
    }
  });
  return Flow::Next;
}

// o[0]: state (or sink), o[1]: address, o[2]: arrival count, o[3]: bytes to expect; m[0]: 1 expect only; m[1]: 1 relaxed;
// m[2]: 1 drop; m[3]: 1 complete_tx of o[3] bytes instead
SF_OP("mbarrier.arrive") {
  bool released = false;
  const uint64_t* addrs = c.r64(i.o[1]);
  const uint32_t *counts = c.r32(i.o[2]), *bytes = c.r32(i.o[3]);
  each_lane(c.mask, [&](int l) {
    const uint32_t addr = uint32_t(addrs[l]), count = counts[l], tx = bytes[l];
    const Actor a = c.actor(i, l);
    Mbarrier* b = c.m.barrier_at(c.cta, addr, a, i.m[0] ? "expect_tx" : "arrive");
    if (!b) return;
    const uint32_t phase = b->phase, pending = b->pending;
    if (i.m[3]) {
      c.m.mbar_arrive(*b, 0, tx, nullptr, a, &c.cta, addr);
      return;
    }
    if (tx) c.m.mbar_expect(*b, tx, a, &c.cta, addr);
    if (i.m[0]) return;
    if (i.m[2] && b->expected) b->expected -= count;
    c.m.mbar_arrive(*b, count, 0, i.m[1] ? &c.w.fenced : &c.w.clock, a, &c.cta, addr);
    released = true;
    c.r64(i.o[0])[l] = uint64_t(pending) << 40 | uint64_t(phase) << 1 | 1;   // the state before the arrival
  });
  if (released) c.release_tick();
  return Flow::Next;
}

// o[0]: predicate, o[1]: address, o[2]: parity (32 bit) or state (64 bit); m[0]: 1 parity; m[1]: 1 relaxed; m[2]: 1 test_wait
static bool passed(Ctx& c, const Insn& i, int l, bool acquire) {
  const uint32_t addr = uint32_t(c.r64(i.o[1])[l]);
  Mbarrier* b = c.m.barrier_at(c.cta, addr, c.actor(i, l), "wait");
  if (!b) return true;
  const bool done = i.m[0] ? (b->phase & 1) != (c.r32(i.o[2])[l] & 1) : b->phase != uint32_t(c.r64(i.o[2])[l] >> 1);
  if (done && acquire) (i.m[1] ? c.w.relaxed : c.w.clock).join(b->done);
  return done;
}
static Mask passed_lanes(Ctx& c, const Insn& i) {
  Mask ok = 0;
  uint64_t last_addr = ~0ull, last_arg = 0;
  bool last = false;
  each_lane(c.mask, [&](int l) {
    const uint64_t addr = c.r64(i.o[1])[l], arg = i.m[0] ? c.r32(i.o[2])[l] : c.r64(i.o[2])[l];
    if (addr != last_addr || arg != last_arg) last = passed(c, i, l, true), last_addr = addr, last_arg = arg;
    if (last) ok |= 1u << l;
  });
  return ok;
}
static bool try_poll(Ctx& c, const Insn& i) {
  const Mask ok = passed_lanes(c, i);
  if (ok != c.mask) return false;
  c.set_pred(i.o[0], FULL);
  return true;
}
static std::string try_describe(Ctx& c, const Insn& i) {
  const int l = c.first();
  const uint32_t addr = uint32_t(c.r64(i.o[1])[l]);
  std::string s = "waits on the mbarrier at " + hex(addr) + (i.m[0] ? " for parity " + std::to_string(c.r32(i.o[2])[l] & 1) : std::string()) + ": ";
  Cta* owner = c.m.shared_owner(c.cta, addr);
  if (owner && owner->mbar.count(addr & 0xffffff)) describe_state(s, owner->mbar[addr & 0xffffff]);
  return s;
}
static void try_give_up(Ctx& c, const Insn& i) { c.set_pred(i.o[0], passed_lanes(c, i)); }
static const WaitKind TRY{try_poll, try_describe, true, try_give_up};

SF_OP("mbarrier.wait") {
  const Mask ok = passed_lanes(c, i);
  if (ok == c.mask || i.m[2] || c.m.below(8) == 0) {   // a failed try_wait may come back at once
    c.set_pred(i.o[0], ok);
    return Flow::Next;
  }
  return c.block(TRY);
}
SF_OP("mbarrier.pending_count") {
  each_lane(c.mask, [&](int l) { c.r32(i.o[0])[l] = uint32_t(c.r64(i.o[1])[l] >> 40); });
  return Flow::Next;
}

}  // namespace sf
