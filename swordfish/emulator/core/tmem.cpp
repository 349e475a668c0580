// Allocation of tensor memory and the checkers of its accesses.
#include "tmem.hpp"

#include <algorithm>

namespace sf {

Tmem& tmem(Cta& cta) {
  if (!cta.ext[0]) cta.ext[0] = std::make_shared<Tmem>();
  return *static_cast<Tmem*>(cta.ext[0].get());
}

TcgenWarp& tcgen(Warp& w) {
  if (!w.ext[0]) {
    auto t = std::make_shared<TcgenWarp>();
    t->pending.init(int(w.clock.vc.size())), t->seen.init(int(w.clock.vc.size()));
    w.ext[0] = t;
  }
  return *static_cast<TcgenWarp*>(w.ext[0].get());
}

std::shared_ptr<Clock> tmem_knowledge(Ctx& c, const AsyncOp& op) {
  if (!c.m.tcgen05_fences) return nullptr;
  TcgenWarp& t = tcgen(c.w);
  auto know = std::make_shared<Clock>(t.seen);
  know->join(t.pending);
  know->vc[op.actor.agent] = op.actor.clk;
  return know;
}

Cta* pair_peer(Cta& cta) {
  const size_t other = size_t(cta.rank ^ 1);
  return other < cta.cl->ctas.size() ? cta.cl->ctas[other].get() : nullptr;
}

bool check_group(Machine& m, Cta& cta, const Actor& a, int group) {
  Tmem& t = tmem(cta);
  if (group == 2 && !pair_peer(cta)) {
    m.finding("tcgen05 usage", "cta_group::2 in a cluster without a peer CTA", a, &cta, 0, true);
    return false;
  }
  if (t.group && t.group != group)
    m.finding("tcgen05 usage", "a kernel must use one cta_group in all its tcgen05 instructions", a, &cta, 0);
  t.group = uint8_t(group);
  return true;
}

void tmem_poison(Tmem& t, int col, int cols) {
  for (int l = 0; l < TMEM_LANES; l++)
    for (int c = col; c < col + cols; c++) t.at(l, c) = 0x7fffffffu;
  for (int b = 0; b < TMEM_BANDS; b++)
    for (int c = col; c < col + cols; c++) t.cells[b * TMEM_COLS + c].init = 0;
}

static std::string where(int lane, int col) { return "lane " + std::to_string(lane) + ", column " + std::to_string(col); }

static bool before(const TmemMark& k, const Actor& a) {
  return k.pc < 0 || k.agent == a.agent || (k.agent < a.know->vc.size() && a.know->vc[k.agent] >= k.clk);
}

static void race(Machine& m, Cta& cta, const Actor& a, const TmemMark& old, const char* now, const char* then, int lane, int col) {
  m.finding("tmem race", std::string(now) + " of tensor memory (" + where(lane, col) + ") is not ordered after the " + then +
            " by line " + std::to_string(m.code[old.pc].line), a, &cta, uint64_t(lane) << 16 | uint64_t(col));
}

bool tmem_access(Machine& m, Cta& cta, const Actor& a, const TmemRect& r, bool write) {
  Tmem& t = tmem(cta);
  if (r.col < 0 || r.lane < 0 || r.col + r.cols > TMEM_COLS || r.lane + r.lanes > TMEM_LANES) {
    m.finding("tmem bounds", "access beyond tensor memory: lanes " + std::to_string(r.lane) + " to " + std::to_string(r.lane + r.lanes - 1) +
              ", columns " + std::to_string(r.col) + " to " + std::to_string(r.col + r.cols - 1), a, &cta, 0, true);
    return false;
  }
  if (!m.checks) return true;
  if (cta.exited) {
    m.finding("exited CTA", "tensor memory of a CTA that has exited", a, &cta, 0);
    return false;
  }
  for (int c = r.col; c < r.col + r.cols; c++)
    if (!t.owned[c]) {
      m.finding("tmem unallocated", std::string(write ? "write" : "read") + " of column " + std::to_string(c) + ", which is not allocated",
                a, &cta, uint64_t(c));
      break;
    }
  const int band0 = r.lane / TMEM_BAND, band1 = (r.lane + r.lanes - 1) / TMEM_BAND;
  for (int b = band0; b <= band1; b++) {
    const int lo = std::max(r.lane - b * TMEM_BAND, 0), hi = std::min(r.lane + r.lanes - b * TMEM_BAND, TMEM_BAND);
    const uint16_t lanes = uint16_t((hi == 16 ? 0xffffu : (1u << hi) - 1) & ~((1u << lo) - 1));
    TmemCell* cell = &t.cells[b * TMEM_COLS + r.col];
    for (int c = r.col; c < r.col + r.cols; c++, cell++) {
      if (!before(cell->write, a)) race(m, cta, a, cell->write, write ? "write" : "read", "write", b * TMEM_BAND + lo, c);
      if (write) {
        for (int k = 0; k < cell->reads; k++)
          if (!before(cell->read[k], a)) race(m, cta, a, cell->read[k], "write", "read", b * TMEM_BAND + lo, c);
        cell->reads = 0;
        cell->init |= lanes;
        cell->write = TmemMark{a.clk, a.pc, uint16_t(a.agent)};
        continue;
      }
      if (lanes & ~cell->init)
        m.finding("tmem uninitialised", "read of tensor memory that was never written (" +
                  where(b * TMEM_BAND + __builtin_ctz(lanes & ~cell->init), c) + ")", a, &cta, uint64_t(c));
      int keep = 0;
      for (int k = 0; k < cell->reads; k++)
        if (!before(cell->read[k], a)) cell->read[keep++] = cell->read[k];
      if (keep == 3) keep = 2;
      cell->read[keep++] = TmemMark{a.clk, a.pc, uint16_t(a.agent)};
      cell->reads = uint8_t(keep);
    }
  }
  return true;
}

// ---- alloc, dealloc, relinquish ------------------------------------------------------------------------------------
static int find_room(const Tmem& a, const Tmem* b, int cols) {
  for (int at = 0; at + cols <= TMEM_COLS; at += cols) {       // power-of-two sizes, naturally aligned
    bool free = true;
    for (int c = at; c < at + cols && free; c++) free = !a.owned[c] && !(b && b->owned[c]);
    if (free) return at;
  }
  return -1;
}

static void take(Tmem& t, int at, int cols, int pc) {
  for (int c = at; c < at + cols; c++) t.owned[c] = 1;
  tmem_poison(t, at, cols);
  t.granted = at, t.waiting = 0, t.alloc_pc = pc;
}

static bool alloc_poll(Ctx& c, const Insn& i) {
  Tmem& t = tmem(c.cta);
  const int cols = int(c.frag->w[1]), group = i.m[0];
  if (t.granted < 0 && group == 1) {
    const int at = find_room(t, nullptr, cols);
    if (at < 0) return false;
    take(t, at, cols, i.pc);
  } else if (t.granted < 0) {
    if (!t.waiting) t.waiting = cols, c.m.wake();
    Tmem& p = tmem(*pair_peer(c.cta));
    if (p.waiting != cols || p.granted >= 0) return false;
    const int at = find_room(t, &p, cols);
    if (at < 0) return false;
    take(t, at, cols, i.pc), take(p, at, cols, i.pc);
    c.m.wake();
  }
  const Actor a = c.actor(i, c.first());
  if (uint8_t* dst = c.m.shared(c.cta, uint32_t(c.frag->w[0]), 4, WRITE, a)) {
    const uint32_t value = uint32_t(t.granted);
    std::memcpy(dst, &value, 4);
  }
  t.granted = -1;
  return true;
}

static std::string alloc_describe(Ctx& c, const Insn& i) {
  int free = 0;
  for (uint8_t o : tmem(c.cta).owned) free += !o;
  return "tcgen05.alloc of " + std::to_string(c.frag->w[1]) + " columns (" + std::to_string(free) + " free" +
         (i.m[0] == 2 ? ", both CTAs of the pair must allocate)" : ")");
}

static const WaitKind ALLOC{alloc_poll, alloc_describe, false, nullptr};

SF_OP("tcgen05.alloc") {   // operands: shared address, columns; m[0] cta_group
  const int lane = c.first();
  const Actor a = c.actor(i, lane);
  const uint32_t cols = c.r32(i.o[1])[lane];
  if (!check_group(c.m, c.cta, a, i.m[0])) return Flow::Next;
  if (cols < 32 || cols > 512 || (cols & (cols - 1))) {
    c.m.finding("tcgen05 usage", "tcgen05.alloc of " + std::to_string(cols) + " columns: a power of two from 32 to 512 is required", a,
                &c.cta, 0, true);
    return Flow::Next;
  }
  if (tmem(c.cta).relinquished)
    c.m.finding("tcgen05 usage", "tcgen05.alloc after relinquish_alloc_permit", a, &c.cta, 0, true);
  return c.block(ALLOC, uint64_t(uint32_t(c.r32(i.o[0])[lane] + i.imm)), cols);
}

SF_OP("tcgen05.dealloc") {   // operands: tensor memory address, columns; m[0] cta_group
  const int lane = c.first();
  const Actor a = c.actor(i, lane);
  if (!check_group(c.m, c.cta, a, i.m[0])) return Flow::Next;
  Tmem& t = tmem(c.cta);
  const int at = int(c.r32(i.o[0])[lane] & 0xffff), cols = int(c.r32(i.o[1])[lane]);
  if (at + cols > TMEM_COLS || cols <= 0) {
    c.m.finding("tmem bounds", "tcgen05.dealloc beyond tensor memory", a, &c.cta, uint64_t(at), true);
    return Flow::Next;
  }
  tmem_access(c.m, c.cta, a, TmemRect{0, TMEM_LANES, at, cols}, true);   // whatever used the columns must be over
  for (int k = at; k < at + cols; k++) t.owned[k] = 0;
  tmem_poison(t, at, cols);
  c.m.wake();
  return Flow::Next;
}

SF_OP("tcgen05.relinquish") {
  if (check_group(c.m, c.cta, c.actor(i, c.first()), i.m[0])) tmem(c.cta).relinquished = true;
  return Flow::Next;
}

SF_OP("tcgen05.offset") {   // an address operand [register + immediate]
  each_lane(c.mask, [&](int l) { c.r32(i.o[0])[l] = c.r32(i.o[1])[l] + uint32_t(i.imm); });
  return Flow::Next;
}

static void leak(Machine& m, Cta& cta) {
  if (!cta.ext[0] || !m.checks) return;
  Tmem& t = tmem(cta);
  int columns = 0;
  for (uint8_t o : t.owned) columns += o;
  Actor a;
  a.pc = t.alloc_pc;
  if (columns) m.finding("tmem leak", std::to_string(columns) + " columns of tensor memory were not freed before the CTA exited", a, &cta, 0);
}

static const bool hooked = (on_cta_exit(leak), true);

}  // namespace sf
