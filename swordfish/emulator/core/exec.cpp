// The interpreter loop of one warp: fragments, divergence and reconvergence.
#include <algorithm>
#include <cstdio>

#include "core.hpp"

namespace sf {

static std::vector<std::pair<std::string, Handler>>& table() {
  static std::vector<std::pair<std::string, Handler>> t;
  return t;
}
Registrar::Registrar(const std::string& name, Handler h) { table().emplace_back(name, h); }
const std::vector<std::pair<std::string, Handler>>& op_table() { return table(); }
int find_op(const std::string& name) {
  for (size_t k = 0; k < table().size(); ++k)
    if (table()[k].first == name) return int(k);
  return -1;
}
static std::vector<CtaHook>& hooks() {
  static std::vector<CtaHook> h;
  return h;
}
void on_cta_exit(CtaHook h) { hooks().push_back(h); }
const std::vector<CtaHook>& cta_exit_hooks() { return hooks(); }

std::string hex(uint64_t v) {
  char b[24];
  std::snprintf(b, sizeof b, "0x%llx", static_cast<unsigned long long>(v));
  return b;
}

void Clock::join(const Clock& k) {
  if (k.vc.empty()) return;   // a clock of a group in which nothing has completed
  if (vc.empty()) {
    *this = k;
    return;
  }
  const size_t n = vc.size();
  for (size_t a = 0; a < n; ++a) vc[a] = std::max(vc[a], k.vc[a]);
  for (size_t a = 0; a < n; ++a) pvc[a] = std::max(pvc[a], k.pvc[a]);
}

void Machine::finding(const char* kind, const std::string& text, const Actor& a, const Cta* cta, uint64_t address, bool fatal) {
  if (fatal) stop = true;
  const std::string key = std::string(kind) + "@" + std::to_string(a.pc) + "@" + text.substr(0, 24);
  auto it = finding_index.find(key);
  if (it != finding_index.end()) {
    ++findings[it->second].count;
    return;
  }
  if (findings.size() >= 200) return;
  finding_index[key] = findings.size();
  findings.push_back({kind, text, a.pc, cta ? cta->linear : -1, a.warp, a.lane, address, 1});
}

// ---- fragments ---------------------------------------------------------------------------------------------------

static void release_warp_sync(Warp& w) {
  for (auto& f : w.frags) {
    if (f.state != FragState::WarpSync) continue;
    Mask together = 0;
    for (auto& g : w.frags)
      if (g.state == FragState::WarpSync && g.w[0] == f.w[0]) together |= g.mask;
    const Mask need = Mask(f.w[0]) & w.alive;
    if ((together & need) != need) continue;
    const uint64_t members = f.w[0];
    for (auto& g : w.frags)
      if (g.state == FragState::WarpSync && g.w[0] == members) g.state = FragState::Run, ++g.pc;
    return;
  }
}

static void merge_fragments(Warp& w) {
  for (size_t a = 0; a < w.frags.size(); ++a)
    for (size_t b = a + 1; b < w.frags.size();) {
      Frag &f = w.frags[a], &g = w.frags[b];
      const bool movable = (f.state == FragState::Run || f.state == FragState::Converge) &&
                           (g.state == FragState::Run || g.state == FragState::Converge);
      if (f.pc == g.pc && movable && f.stack == g.stack) {
        f.mask |= g.mask, f.state = FragState::Run;
        if (w.cur == b) w.cur = a;
        else if (w.cur == w.frags.size() - 1) w.cur = b;
        w.frags[b] = w.frags.back();
        w.frags.pop_back();
      } else {
        ++b;
      }
    }
}

// The runnable fragment with the lowest program counter: lanes meet again at the join of structured code.
static bool choose_fragment(Warp& w) {
  int best = -1;
  for (size_t k = 0; k < w.frags.size(); ++k)
    if (w.frags[k].state == FragState::Run && (best < 0 || w.frags[k].pc < w.frags[best].pc)) best = int(k);
  if (best < 0) return false;
  w.cur = size_t(best);
  return true;
}

static void lanes_exit(Machine& m, Warp& w, Mask lanes) {
  w.alive &= ~lanes;
  for (size_t k = 0; k < w.frags.size();) {
    w.frags[k].mask &= ~lanes;
    if (!w.frags[k].mask) {
      w.frags[k] = w.frags.back();
      w.frags.pop_back();
    } else {
      if (w.frags[k].state == FragState::Converge) w.frags[k].state = FragState::Run;
      ++k;
    }
  }
  w.cur = 0;
  ++m.progress;
  if (w.alive) return release_warp_sync(w);
  Cta& cta = *w.cta;
  m.wake();
  if (--cta.live_warps) return;
  cta.exited = true;
  m.released_early |= !cta.waited;
  for (CtaHook h : cta_exit_hooks()) h(m, cta);
}

SF_OP("exit") {
  lanes_exit(c.m, c.w, c.mask);
  return Flow::Jump;
}
SF_OP("trap") {
  c.m.finding("trap", "trap executed", c.actor(i, c.first()), &c.cta, 0, true);
  return Flow::Next;
}

static void split(Warp& w, Mask taken, int32_t target) {
  Frag& f = w.frags[w.cur];
  if (taken == f.mask) {
    f.pc = target;
    return;
  }
  Frag g = f;
  g.mask = taken, g.pc = target;
  f.mask &= ~taken, ++f.pc;
  w.frags.push_back(g);
}

SF_OP("bra") {   // m[0]: target
  split(c.w, c.mask, i.m[0]);
  return Flow::Jump;
}
SF_OP("brx") {   // o[0]: index, o[1..]: unused; the table of targets is in m[0] (start) and m[1] (length) of the operands
  const uint32_t* index = c.r32(i.o[0]);
  const Mask all = c.mask;
  const int32_t pc = c.frag->pc;
  Frag base = *c.frag;
  std::map<int32_t, Mask> by_target;
  each_lane(all, [&](int l) {
    const uint32_t k = std::min<uint32_t>(index[l], uint32_t(i.n - 2));
    by_target[c.m.code[size_t(pc) + 1 + k].m[0]] |= 1u << l;
  });
  const Mask rest = base.mask & ~all;
  bool first = true;
  auto put = [&](Mask mask, int32_t target) {
    Frag g = base;
    g.mask = mask, g.pc = target;
    if (first) c.w.frags[c.w.cur] = g, first = false;
    else c.w.frags.push_back(g);
  };
  if (rest) put(rest, pc + i.n);
  for (auto& [target, mask] : by_target) put(mask, target);
  return Flow::Jump;
}
static void check_members(Machine& m, const Warp& w, const Insn& i, Mask lanes, Mask members) {
  if (lanes & ~members && m.checks)
    m.finding("divergent", "lanes " + hex(lanes & ~members) + " execute an instruction whose member mask " + hex(members) + " leaves them out",
              Actor{w.agent, 0, nullptr, false, i.pc, w.id, __builtin_ctz(lanes & ~members)}, w.cta, 0);
}

SF_OP("bar.warp.sync") {   // o[0]: members
  Frag& f = *c.frag;
  f.state = FragState::WarpSync;
  f.w[0] = c.r32(i.o[0])[c.first()];
  check_members(c.m, c.w, i, c.mask, Mask(f.w[0]));
  release_warp_sync(c.w);
  return Flow::Jump;
}
SF_OP("nop") { return Flow::Next; }

SF_OP("griddepcontrol") {   // m[0]: wait, else launch_dependents
  if (i.m[0]) c.cta.waited = true;
  else c.m.released_early |= !c.cta.waited;
  return Flow::Next;
}

SF_OP("yield") { return Flow::Next; }

// Lanes that an instruction needs together are not all here: suspend until the others arrive.
static bool wait_for_lanes(Machine& m, Warp& w, Frag& f, const Insn& i, Mask mask) {
  if (i.sync == SYNC_ALIGNED) {
    if (f.mask != w.alive) return true;
    if (mask != f.mask && m.checks)
      m.finding("divergent", "an .aligned instruction runs with lanes " + hex(mask) + " of " + hex(w.alive),
                Actor{w.agent, 0, nullptr, false, i.pc, w.id, __builtin_ctz(mask)}, w.cta, 0);
    return false;
  }
  const int32_t off = i.o[i.n - 1];
  const uint32_t* members = reinterpret_cast<const uint32_t*>(off >= 0 ? w.regs + off : m.consts.data() + ~off);
  check_members(m, w, i, mask, members[__builtin_ctz(mask)]);
  const Mask need = members[__builtin_ctz(mask)] & w.alive;
  return (need & f.mask) != need;
}

// Finish the operations whose result registers the instruction uses; false when one cannot execute yet.
static bool settle_rows(Machine& m, Warp& w, const Insn& i) {
  if (i.copy && i.n > 4) return true;   // wgmma chains in order by itself
  for (int k = 0; k < i.n && w.n_busy; ++k)
    if (i.o[k] >= 0 && w.busy[i.o[k] / 128] && !m.force_row(w, i.o[k] / 128)) return false;
  return true;
}
static bool rows_poll(Ctx& c, const Insn& i) { return settle_rows(c.m, c.w, i); }
static std::string rows_describe(Ctx&, const Insn&) { return "waits for a register that a wgmma will write, which not all warps of the warpgroup have issued"; }
static const WaitKind ROWS{rows_poll, rows_describe, false, nullptr, true};

// Results of wgmma may be copied before wgmma.wait_group (compilers do), but not used; copies carry the mark along.
static void check_taint(Machine& m, Warp& w, const Insn& i) {
  for (int k = 0; k < i.n && !i.copy; ++k) {
    if (i.o[k] < 0 || w.taint[i.o[k] / 128] <= w.mma_waited) continue;
    if (m.checks)
      m.finding("in-flight register", "the result of wgmma is used before wgmma.wait_group", Actor{w.agent, 0, nullptr, false, i.pc, w.id, 0}, w.cta, 0);
    w.taint[i.o[k] / 128] = 0;
  }
  if (i.copy && i.n == 2 && i.o[0] >= 0) w.taint[i.o[0] / 128] = i.o[1] >= 0 ? w.taint[i.o[1] / 128] : 0;
}

// Run a warp for up to `quantum` instructions; returns false when it can do nothing.
bool run_warp(Machine& m, Warp& w, int quantum) {
  bool sticky = false;
  if (w.frags.size() > 1) {
    merge_fragments(w);
    if (!choose_fragment(w)) return false;
    if (m.below(16) == 0) {   // forward progress for lanes that a spinning fragment waits for
      const size_t k = m.below(uint32_t(w.frags.size()));
      if (w.frags[k].state == FragState::Run) w.cur = k, sticky = true;
    }
  }
  bool moved = false;
  while (quantum-- > 0 && !m.stop) {
    Frag& f = w.frags[w.cur];
    if (f.state != FragState::Run) break;
    const Insn& i = m.code[f.pc];
    Mask mask = f.mask;
    if (i.guard >= 0) {
      const Mask p = *reinterpret_cast<const Mask*>(w.regs + i.guard);
      mask &= i.guard_negated ? ~p : p;
    }
    ++m.now, ++w.counts[i.cls], ++m.stats[i.pc].executed;
    if (!mask) {
      ++f.pc;
    } else if (i.sync && wait_for_lanes(m, w, f, i, mask)) {
      f.state = FragState::Converge;
    } else if (w.n_busy && !settle_rows(m, w, i)) {
      f.state = FragState::Wait, f.wait = &ROWS, f.polled = 0;
    } else {
      if (w.mma_issued != w.mma_waited) check_taint(m, w, i);
      Ctx c{m, w, *w.cta, &w.frags[w.cur], mask};
      switch (i.fn(c, i)) {
        case Flow::Next: ++w.frags[w.cur].pc; break;
        case Flow::Jump: break;
        case Flow::Block: {
          Frag& b = w.frags[w.cur];
          b.state = FragState::Wait, b.polled = 0, b.since = m.now;
          ++w.barrier_waits;
          if (mask != b.mask) {
            Frag rest = b;
            rest.mask = b.mask & ~mask, rest.state = FragState::Run, ++rest.pc;
            b.mask = mask;
            w.frags.push_back(rest);
          }
        }
      }
    }
    moved = true;
    if (!w.alive) return true;
    if (w.frags.size() > 1) {
      merge_fragments(w);
      if (!sticky || w.frags[w.cur].state != FragState::Run) {
        if (!choose_fragment(w)) break;
        sticky = false;
      }
    } else if (w.frags[0].state != FragState::Run) {
      break;
    }
  }
  return moved;
}

}  // namespace sf
