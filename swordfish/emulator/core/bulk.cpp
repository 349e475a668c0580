// Asynchronous copies without a tensor map: cp.async, cp.async.bulk, st.async, red.async, and their groups.
#include <algorithm>
#include <array>

#include "core.hpp"
#include "memory.hpp"

namespace sf {

static GroupRef new_group() { return std::make_shared<Group>(); }

// ---- cp.async ----------------------------------------------------------------------------------------------------------

struct CopyLanes { Mask mask; std::array<uint64_t, LANES> dst, src; std::array<uint32_t, LANES> bytes; uint32_t size; };

// o: destination, source, source bytes; m[0]: size, m[1]: 1 source bytes given
SF_OP("cp.async") {
  auto g = std::make_shared<CopyLanes>();
  g->mask = c.mask, g->size = uint32_t(i.m[0]);
  uint64_t banks[LANES] = {0};
  each_lane(c.mask, [&](int l) {
    banks[l] = g->dst[l] = c.r64(i.o[0])[l], g->src[l] = c.r64(i.o[1])[l];
    g->bytes[l] = i.m[1] ? c.r32(i.o[2])[l] : g->size;
    const Actor a = c.actor(i, l);
    if (g->dst[l] % g->size || (g->bytes[l] && g->src[l] % g->size))
      c.m.finding("misaligned", "cp.async of " + std::to_string(g->size) + " bytes from " + hex(g->src[l]) + " to " + hex(g->dst[l]), a, &c.cta, g->dst[l]);
    if (g->bytes[l] > g->size) c.m.finding("out of bounds", "cp.async with more source than destination bytes", a, &c.cta, g->src[l]);
  });
  if (!c.w.cp_open) c.w.cp_open = new_group();
  if (!c.w.cp_tick) c.w.cp_tick = new_group();
  AsyncOp& op = c.m.issue(c, i, "cp.async", [g](Machine& m, AsyncOp& self) {
    each_lane(g->mask, [&](int l) {
      self.actor.lane = l;
      uint8_t* d = m.shared(*self.cta, uint32_t(g->dst[l]), g->size, WRITE, self.actor);
      const uint32_t n = std::min(g->bytes[l], g->size);
      const uint8_t* s = n ? m.global(g->src[l], n, false, self.actor, self.cta) : nullptr;
      if (!d) return;
      std::memset(d, 0, g->size);
      if (s) std::memcpy(d, s, n);
    });
  });
  op.actor.async_proxy = false;   // cp.async works through the generic proxy
  op.group = c.w.cp_open, op.tick = c.w.cp_tick;
  ++op.group->open, ++op.tick->open;
  return Flow::Next;
}
SF_OP("cp.async.commit") {
  c.w.cp_groups.push_back(c.w.cp_open ? c.w.cp_open : new_group());
  c.w.cp_open = nullptr;
  return Flow::Next;
}
static bool cp_poll(Ctx& c, const Insn& i) {
  auto& q = c.w.cp_groups;
  if (i.m[1]) {   // wait_all: also what is not committed
    if (c.w.cp_open) q.push_back(c.w.cp_open), c.w.cp_open = nullptr;
  }
  while (q.size() > size_t(i.m[0])) {
    if (q.front()->open) return false;
    c.w.clock.join(q.front()->clk);
    q.pop_front();
  }
  return true;
}
static std::string cp_describe(Ctx& c, const Insn&) { return "waits for cp.async groups, " + std::to_string(c.w.cp_groups.size()) + " outstanding"; }
static const WaitKind CP_WAIT{cp_poll, cp_describe, false, nullptr};
SF_OP("cp.async.wait") {   // m[0]: groups that may stay, m[1]: 1 wait_all
  if (cp_poll(c, i)) return Flow::Next;
  return c.block(CP_WAIT);
}
// Arrive on an mbarrier when the earlier cp.async of the thread are complete. o: address; m[0]: 1 noinc
SF_OP("cp.async.mbarrier.arrive") {
  if (c.w.cp_tick) c.w.cp_ticks.push_back(c.w.cp_tick), c.w.cp_tick = nullptr;
  auto addrs = std::make_shared<std::array<uint64_t, LANES>>();
  std::memcpy(addrs->data(), c.row(i.o[0]), sizeof *addrs);
  const Mask mask = c.mask;
  if (!i.m[0])
    each_lane(mask, [&](int l) {
      if (Mbarrier* b = c.m.barrier_at(c.cta, uint32_t((*addrs)[l]), c.actor(i, l), "cp.async.mbarrier.arrive")) ++b->pending;
    });
  AsyncOp& op = c.m.issue(c, i, "cp.async.mbarrier.arrive", [addrs, mask](Machine& m, AsyncOp& self) {
    for (const GroupRef& g : self.after) self.clk.join(g->clk);
    each_lane(mask, [&](int l) {
      self.actor.lane = l;
      const uint32_t addr = uint32_t((*addrs)[l]);
      if (Mbarrier* b = m.barrier_at(*self.cta, addr, self.actor, "cp.async.mbarrier.arrive")) m.mbar_arrive(*b, 1, 0, &self.clk, self.actor, self.cta, addr);
    });
  });
  op.actor.async_proxy = false;
  auto& t = c.w.cp_ticks;
  op.after = t;
  t.erase(std::remove_if(t.begin(), t.end(), [](const GroupRef& g) { return g->open == 0; }), t.end());
  return Flow::Next;
}

// ---- bulk copies ---------------------------------------------------------------------------------------------------------

static GroupRef bulk_group(Ctx& c, int lane) {
  GroupRef& g = c.w.bulk_open[lane];
  if (!g) g = new_group();
  ++g->open;
  return g;
}
GroupRef open_bulk_group(Ctx& c, int lane) { return bulk_group(c, lane); }

SF_OP("cp.async.bulk.commit") {
  each_lane(c.mask, [&](int l) {
    GroupRef& g = c.w.bulk_open[l];
    c.w.bulk_groups[l].push_back(g ? g : new_group());
    g = nullptr;
  });
  return Flow::Next;
}
static bool bulk_poll(Ctx& c, const Insn& i) {
  bool all = true;
  each_lane(c.mask, [&](int l) {
    auto& q = c.w.bulk_groups[l];
    while (q.size() > size_t(i.m[0]) && !q.front()->open) c.w.clock.join(q.front()->clk), q.pop_front();
    all &= q.size() <= size_t(i.m[0]);
  });
  return all;
}
static std::string bulk_describe(Ctx&, const Insn&) { return "waits for bulk groups"; }
static const WaitKind BULK_WAIT{bulk_poll, bulk_describe, false, nullptr};
SF_OP("cp.async.bulk.wait") {   // m[0]: groups that may stay
  if (bulk_poll(c, i)) return Flow::Next;
  return c.block(BULK_WAIT);
}

// Signal `bytes` on the mbarrier at window address `bar`, from an operation that wrote to CTA rank `rank`.
void signal_bytes(Machine& m, AsyncOp& op, uint32_t bar, uint32_t bytes) {
  if (Mbarrier* b = m.barrier_at(*op.cta, bar, op.actor, op.what)) m.mbar_arrive(*b, 0, bytes, &op.clk, op.actor, op.cta, bar);
}

static void reduce(Machine& m, int which, int type, int bytes, uint8_t* d, const uint8_t* s, uint32_t n) {
  (void)m;
  for (uint32_t at = 0; at < n; at += uint32_t(bytes)) {
    uint64_t old[2] = {0, 0}, x[2] = {0, 0}, z[2];
    std::memcpy(old, d + at, size_t(bytes)), std::memcpy(x, s + at, size_t(bytes));
    atomic_apply(which, type, bytes, old, x, x, z);
    std::memcpy(d + at, z, size_t(bytes));
  }
}

struct Bulk { uint64_t dst, src; uint32_t bytes, bar; uint32_t ctas; int form, red, type, elem; };
enum { TO_SHARED, TO_GLOBAL, SHARED_TO_SHARED };

static void execute(Machine& m, AsyncOp& op, const Bulk& b) {
  std::vector<uint8_t> data(b.bytes, 0xff);
  const uint8_t* s = b.form == TO_SHARED ? m.global(b.src, b.bytes, false, op.actor, op.cta) : m.shared(*op.cta, uint32_t(b.src), b.bytes, READ, op.actor);
  if (s) std::memcpy(data.data(), s, b.bytes);
  if (b.form == TO_GLOBAL) {
    uint8_t* d = m.global(b.dst, b.bytes, true, op.actor, op.cta);
    if (d && s) b.red < 0 ? void(std::memcpy(d, data.data(), b.bytes)) : reduce(m, b.red, b.type, b.elem, d, data.data(), b.bytes);
    m.tma_store_bytes += b.bytes;
    return;
  }
  auto deliver = [&](uint32_t dst, uint32_t bar) {
    uint8_t* d = m.shared(*op.cta, dst, b.bytes, b.red < 0 ? WRITE : ATOMIC, op.actor);
    if (d) b.red < 0 ? void(std::memcpy(d, data.data(), b.bytes)) : reduce(m, b.red, b.type, b.elem, d, data.data(), b.bytes);
    m.tma_load_bytes += b.bytes;
    signal_bytes(m, op, bar, b.bytes);
  };
  if (!b.ctas) return deliver(uint32_t(b.dst), b.bar);
  for (uint32_t r = 0; r < 16; ++r)
    if (b.ctas >> r & 1) deliver((uint32_t(b.dst) & 0xffffff) | r << 24, (b.bar & 0xffffff) | r << 24);
}

// o: destination, source, bytes, mbarrier, CTA mask; m[0]: form, m[1]: multicast, m[2]: AtomicOp or -1, m[3]: ElemType, m[4]: element bytes
SF_OP("cp.async.bulk") {
  each_lane(c.mask, [&](int l) {
    Bulk b{c.r64(i.o[0])[l], c.r64(i.o[1])[l], c.r32(i.o[2])[l], 0, 0, i.m[0], i.m[2], i.m[3], i.m[4]};
    const Actor a = c.actor(i, l);
    if (b.dst % 16 || b.src % 16 || b.bytes % 16) {
      c.m.finding("misaligned", "bulk copy of " + std::to_string(b.bytes) + " bytes from " + hex(b.src) + " to " + hex(b.dst) + ", not in units of 16 bytes", a, &c.cta, b.dst);
      return;
    }
    if (b.form != TO_GLOBAL) {
      b.bar = uint32_t(c.r64(i.o[3])[l]);
      if (i.m[1]) b.ctas = c.r32(i.o[4])[l] & 0xffff;
      if (!i.m[1] && b.bar >> 24 != uint32_t(b.dst) >> 24)
        c.m.finding("mbarrier", "bulk copy to CTA rank " + std::to_string(uint32_t(b.dst) >> 24) + " signals an mbarrier of rank " + std::to_string(b.bar >> 24), a, &c.cta, b.bar);
    }
    Ctx one{c.m, c.w, c.cta, c.frag, 1u << l};
    AsyncOp& op = c.m.issue(one, i, "bulk copy", [b](Machine& m, AsyncOp& self) { execute(m, self, b); });
    if (b.form == TO_GLOBAL) op.group = bulk_group(c, l);
  });
  return Flow::Next;
}

// ---- st.async, red.async ---------------------------------------------------------------------------------------------------

struct StoreLanes { Mask mask; std::array<uint64_t, LANES> dst, bar; std::array<std::array<uint8_t, 16>, LANES> data; uint32_t bytes; int red, type; };

// o: address, mbarrier, values; m[0]: element bytes, m[1]: vector length, m[2]: AtomicOp or -1, m[3]: ElemType, m[4]: register bytes
SF_OP("st.async") {
  auto g = std::make_shared<StoreLanes>();
  g->mask = c.mask, g->bytes = uint32_t(i.m[0] * i.m[1]), g->red = i.m[2], g->type = i.m[3];
  each_lane(c.mask, [&](int l) {
    g->dst[l] = c.r64(i.o[0])[l], g->bar[l] = c.r64(i.o[1])[l];
    for (int v = 0; v < i.m[1]; ++v) {
      uint64_t x[2];
      get_reg(c, i.o[2 + v], i.m[4], l, x);
      std::memcpy(g->data[l].data() + v * i.m[0], x, size_t(i.m[0]));
    }
    if (g->dst[l] % g->bytes) c.m.finding("misaligned", "st.async of " + std::to_string(g->bytes) + " bytes to " + hex(g->dst[l]), c.actor(i, l), &c.cta, g->dst[l]);
    if (g->dst[l] >> 24 != g->bar[l] >> 24)
      c.m.finding("mbarrier", "st.async to " + hex(g->dst[l]) + " signals the mbarrier of another CTA", c.actor(i, l), &c.cta, g->bar[l]);
  });
  AsyncOp& op = c.m.issue(c, i, g->red < 0 ? "st.async" : "red.async", [g](Machine& m, AsyncOp& self) {
    each_lane(g->mask, [&](int l) {
      self.actor.lane = l;
      uint8_t* d = m.shared(*self.cta, uint32_t(g->dst[l]), g->bytes, g->red < 0 ? WRITE : ATOMIC, self.actor);
      if (d && g->red < 0) std::memcpy(d, g->data[l].data(), g->bytes);
      if (d && g->red >= 0) reduce(m, g->red, g->type, int(g->bytes), d, g->data[l].data(), g->bytes);
      signal_bytes(m, self, uint32_t(g->bar[l]), g->bytes);
    });
  });
  op.actor.async_proxy = false;
  return Flow::Next;
}

}  // namespace sf
