// tcgen05.ld, tcgen05.st and their waits: between tensor memory and the registers of one warp.
#include "tmem.hpp"

namespace sf {

enum Shape { S32x32b, S16x64b, S16x128b, S16x256b, S16x32bx2 };

struct Place { int lane, col; };

// Lane and column (relative to the address) of register `r` of thread `t`. `num` is the repetition count; the register
// orders are those of the fragments in the PTX ISA (9.7.16.2.3), which CUTLASS repeats in copy_traits_sm100.hpp.
static Place place(Shape s, int split, int t, int r) {
  switch (s) {
    case S32x32b: return {t, r};
    case S16x64b: return {t / 4 + 8 * (t & 1), 2 * r + (t >> 1 & 1)};
    case S16x128b: return {t / 4 + 8 * (r & 1), 4 * (r >> 1) + (t & 3)};
    case S16x256b: return {t / 4 + 8 * (r >> 1 & 1), 8 * (r >> 2) + 2 * (t & 3) + (r & 1)};
    case S16x32bx2: return {t & 15, r + (t >> 4) * split};
  }
  return {0, 0};
}

// The 32-lane quarter belongs to the warp, whatever lane the address names (0 or the quarter's own).
static bool rectangle(Ctx& c, const Insn& i, uint32_t addr, Actor a, TmemRect* out, int n_out[1]) {
  const Shape s = Shape(i.m[0]);
  const int num = i.m[1], packed = i.m[2], quarter = c.w.id & 3, lane = int(addr >> 16), col = int(addr & 0xffff);
  if (lane / 32 != 0 && lane / 32 != quarter) {
    c.m.finding("tmem lane", "warp " + std::to_string(c.w.id) + " may only reach lanes " + std::to_string(32 * quarter) + " to " +
                std::to_string(32 * quarter + 31) + ", not lane " + std::to_string(lane), a, &c.cta, addr, true);
    return false;
  }
  const int inside = lane & 31, lanes = s == S32x32b ? 32 : 16;
  if (inside + lanes > 32 || inside % 16) {
    c.m.finding("tmem lane", "lane " + std::to_string(lane) + " does not fit the shape of the access", a, &c.cta, addr, true);
    return false;
  }
  const int width = s == S16x64b ? 2 : s == S16x128b ? 4 : s == S16x256b ? 8 : 1;
  const int cols = num * width * (packed ? 2 : 1);
  out[0] = TmemRect{32 * quarter + inside, lanes, col, cols};
  n_out[0] = 1;
  if (s == S16x32bx2) out[1] = TmemRect{32 * quarter + inside, lanes, col + int(i.imm), cols}, n_out[0] = 2;
  return true;
}

static bool wait_done(const GroupRef& g) { return !g || g->open == 0; }

SF_OP("tcgen05.ld") {   // operands: registers, address; m: shape, repeats, pack; imm: half split offset
  const Shape s = Shape(i.m[0]);
  const int regs = i.n - 1, packed = i.m[2], split = int(i.imm);
  const uint32_t addr = c.r32(i.o[regs])[c.first()];
  const Actor a = c.actor(i, c.first());
  TmemRect rect[2];
  int rects = 0;
  if (!rectangle(c, i, addr, a, rect, &rects)) return Flow::Next;
  TcgenWarp& t = tcgen(c.w);
  if (!t.loads) t.loads = std::make_shared<Group>(), t.loads->clk.init(c.m.n_agents);
  const Insn* insn = &i;
  const Mask mask = c.mask;
  const TmemRect r0 = rect[0], r1 = rect[1];
  auto know = std::make_shared<std::shared_ptr<Clock>>();   // filled once the operation has its event
  AsyncOp& op = c.m.issue(c, i, "tcgen05.ld", [=](Machine& m, AsyncOp& self) {
    Cta& cta = *self.cta;
    const Actor actor = tmem_actor(self, *know);
    if (!tmem_access(m, cta, actor, r0, false)) return;
    if (rects == 2 && !tmem_access(m, cta, actor, r1, false)) return;
    Tmem& tm = tmem(cta);
    for (int r = 0; r < regs; ++r) {
      uint32_t* dst = reinterpret_cast<uint32_t*>(self.warp->regs + insn->o[r]);
      each_lane(mask, [&](int l) {
        const Place p = place(s, split, l, r);
        if (!packed) dst[l] = tm.at(r0.lane + p.lane, r0.col + p.col);
        else dst[l] = (tm.at(r0.lane + p.lane, r0.col + 2 * p.col) & 0xffff) | tm.at(r0.lane + p.lane, r0.col + 2 * p.col + 1) << 16;
      });
    }
  });
  *know = tmem_knowledge(c, op);
  op.group = t.loads, ++t.loads->open;
  auto load = std::make_shared<TmemLoad>();
  load->clk = op.clk;
  for (int r = 0; r < regs; ++r) {
    const int32_t row = i.o[r] / 128;
    op.rows.push_back(row), load->rows.push_back(row);
    c.w.busy[row] += 2, c.w.n_busy += 2;   // once until it executes, once until somebody sees it
    t.unseen[row] = load;
  }
  return Flow::Next;
}

SF_OP("tcgen05.st") {   // operands: registers, address; m: shape, repeats, unpack; imm: half split offset
  const Shape s = Shape(i.m[0]);
  const int regs = i.n - 1, packed = i.m[2], split = int(i.imm);
  const uint32_t addr = c.r32(i.o[regs])[c.first()];
  const Actor a = c.actor(i, c.first());
  TmemRect rect[2];
  int rects = 0;
  if (!rectangle(c, i, addr, a, rect, &rects)) return Flow::Next;
  std::vector<uint32_t> values(size_t(regs) * LANES);
  for (int r = 0; r < regs; ++r) std::memcpy(&values[size_t(r) * LANES], c.row(i.o[r]), 4 * LANES);
  TcgenWarp& t = tcgen(c.w);
  if (!t.stores) t.stores = std::make_shared<Group>(), t.stores->clk.init(c.m.n_agents);
  const Mask mask = c.mask;
  const TmemRect r0 = rect[0], r1 = rect[1];
  auto know = std::make_shared<std::shared_ptr<Clock>>();
  AsyncOp& op = c.m.issue(c, i, "tcgen05.st", [=, values = std::move(values)](Machine& m, AsyncOp& self) {
    Cta& cta = *self.cta;
    const Actor actor = tmem_actor(self, *know);
    if (!tmem_access(m, cta, actor, r0, true)) return;
    if (rects == 2 && !tmem_access(m, cta, actor, r1, true)) return;
    Tmem& tm = tmem(cta);
    for (int r = 0; r < regs; ++r)
      each_lane(mask, [&](int l) {
        const Place p = place(s, split, l, r);
        const uint32_t v = values[size_t(r) * LANES + l];
        if (!packed) {
          tm.at(r0.lane + p.lane, r0.col + p.col) = v;
        } else {
          tm.at(r0.lane + p.lane, r0.col + 2 * p.col) = v & 0xffff;
          tm.at(r0.lane + p.lane, r0.col + 2 * p.col + 1) = v >> 16;
        }
      });
  });
  *know = tmem_knowledge(c, op);
  op.group = t.stores, ++t.stores->open;
  return Flow::Next;
}

static GroupRef& waited(Ctx& c, const Insn& i) {
  TcgenWarp& t = tcgen(c.w);
  return i.m[0] ? t.stores : t.loads;
}
// The warp knows that operations are over.
static void finished(Machine& m, Warp& w, const Clock& clk) {
  tcgen(w).pending.join(clk);
  if (!m.tcgen05_fences) w.clock.join(clk);
}
static void seen(Warp& w, TmemLoad& load) {
  for (int32_t row : load.rows) --w.busy[row], --w.n_busy, tcgen(w).unseen.erase(row);
  load.rows.clear();
}
// The compiler may leave tcgen05.wait::ld to ptxas, which puts it before the first use of a loaded register.
static void first_use(Machine& m, Warp& w, int32_t row) {
  auto& unseen = tcgen(w).unseen;
  const auto it = unseen.find(row);
  if (it == unseen.end()) return;
  const auto load = it->second;
  seen(w, *load);
  finished(m, w, load->clk);
}
static const bool hooked = (row_used = first_use, true);

static void publish(Ctx& c, const Insn& i, GroupRef& g) {
  if (!g) return;
  if (!i.m[0]) while (!tcgen(c.w).unseen.empty()) seen(c.w, *std::shared_ptr<TmemLoad>(tcgen(c.w).unseen.begin()->second));
  finished(c.m, c.w, g->clk);
  g.reset();
}
static bool wait_poll(Ctx& c, const Insn& i) {
  GroupRef& g = waited(c, i);
  if (!wait_done(g)) return false;
  publish(c, i, g);
  return true;
}
static std::string wait_describe(Ctx& c, const Insn& i) {
  return std::string("tcgen05.wait::") + (i.m[0] ? "st" : "ld") + ", " + std::to_string(waited(c, i)->open) + " in flight";
}
static const WaitKind WAIT{wait_poll, wait_describe, false, nullptr};

SF_OP("tcgen05.wait") {   // m[0]: 0 ld, 1 st
  if (wait_poll(c, i)) return Flow::Next;
  return c.block(WAIT);
}

// The fences order tcgen05 operations of different threads around an execution barrier. The ISA asks for them, but
// NVIDIA's own kernels leave them out around mbarriers: a missing one is a finding only with Machine::tcgen05_fences.
SF_OP("tcgen05.fence") {   // m[0]: 0 before_thread_sync, 1 after_thread_sync
  TcgenWarp& t = tcgen(c.w);
  if (i.m[0]) t.seen.join(c.w.clock);
  else c.w.clock.join(t.pending);
  return Flow::Next;
}

}  // namespace sf
