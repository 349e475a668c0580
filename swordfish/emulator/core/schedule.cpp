// The scheduler: which warp of which cluster runs next, when asynchronous operations get their turn, and deadlocks.
//
// Clusters run one after another. Only when the running ones wait, or spin, for something that another cluster may have to
// do does the next one start beside them.
#include <algorithm>

#include "core.hpp"

namespace sf {

bool run_warp(Machine& m, Warp& w, int quantum);
std::unique_ptr<Cluster> make_cluster(Machine& m, int index);
void finish_cluster(Machine& m, Cluster& c);

constexpr uint64_t POLLING = 20000, SPINNING = 200000;   // instructions without progress
constexpr int RESIDENT_CTAS = 132;

struct Resident { std::unique_ptr<Cluster> cluster; std::vector<Warp*> active; size_t cursor = 0; bool idle = false; };
using Residents = std::vector<std::unique_ptr<Resident>>;

// Poll what the warp's fragments wait for; true if one can run.
static bool ready(Machine& m, Warp& w) {
  bool run = false;
  for (size_t k = 0; k < w.frags.size(); ++k) {
    Frag& f = w.frags[k];
    if (f.state == FragState::Run) run = true;
    if (f.state != FragState::Wait) continue;
    if (f.polled == m.events) continue;
    f.polled = m.events;
    Ctx c{m, w, *w.cta, &f, f.mask};
    if (f.wait->poll(c, m.code[f.pc])) {
      Frag& g = w.frags[k];
      g.state = FragState::Run, run = true;
      if (!g.wait->again) ++g.pc;
    }
  }
  return run;
}

static bool give_up_timed(Machine& m, Residents& live) {
  bool any = false;
  for (auto& r : live)
    for (auto& w : r->cluster->warps)
      for (auto& f : w->frags) {
        if (f.state != FragState::Wait || !f.wait->timed) continue;
        Ctx c{m, *w, *w->cta, &f, f.mask};
        f.wait->give_up(c, m.code[f.pc]);
        f.state = FragState::Run, ++f.pc, any = true;
      }
  return any;
}

static std::string what_it_does(Ctx& c, const Insn& i) {
  const Frag& f = *c.frag;
  if (f.state == FragState::Wait) return f.wait->describe(c, i);
  if (f.state == FragState::WarpSync) return "waits at bar.warp.sync for lanes " + hex(f.w[0] & c.w.alive & ~f.mask);
  if (f.state == FragState::Converge) return "waits for the other lanes of its warp (" + hex(c.w.alive & ~f.mask) + ")";
  return "runs";
}

static void report_deadlock(Machine& m, Residents& live, const char* kind) {
  std::string all;
  int shown = 0;
  Actor where;
  const Cta* at = nullptr;
  for (auto& r : live)
    for (auto& w : r->cluster->warps)
      for (auto& f : w->frags) {
        if (!f.mask) continue;
        const Insn& i = m.code[f.pc];
        if (!at) at = w->cta, where = Actor{w->agent, 0, nullptr, false, i.pc, w->id, __builtin_ctz(f.mask)};
        if (++shown > 64) continue;
        Ctx c{m, *w, *w->cta, &f, f.mask};
        all += "\n  CTA " + std::to_string(w->cta->linear) + " warp " + std::to_string(w->id) + " lanes " + hex(f.mask) + " line " +
               std::to_string(i.line) + ": " + what_it_does(c, i);
      }
  m.finding(kind, "no warp can go on:" + all, where, at, 0, true);
}

static Warp* pick(Machine& m, Resident& r) {
  const size_t n = r.active.size();
  size_t start = r.cursor % n;
  if (m.warp_policy == WarpPolicy::Random) start = m.below(uint32_t(n));
  else if (m.warp_policy == WarpPolicy::RoundRobin) start = r.cursor + 1;
  for (size_t k = 0; k < n; ++k) {
    const size_t at = (start + k) % n;
    if (ready(m, *r.active[at])) {
      r.cursor = at;
      return r.active[at];
    }
  }
  return nullptr;
}

// One turn of a cluster; false when no warp can run and nothing asynchronous is left.
static bool turn(Machine& m, Resident& r) {
  Warp* w = pick(m, r);
  if (!w) return m.run_async(true);
  const bool greedy = m.warp_policy == WarpPolicy::Greedy;
  const int quantum = greedy ? 4096 : 1 + int(m.below(m.below(4) ? 128 : 4));
  const uint64_t before = m.now;
  run_warp(m, *w, quantum);
  if (greedy && m.now - before >= uint64_t(quantum)) ++r.cursor;   // it may be polling
  if (!w->alive) r.active.erase(std::find(r.active.begin(), r.active.end(), w));
  if (!r.cluster->queue.empty()) m.run_async(false);
  return true;
}

static bool start_cluster(Machine& m, Residents& live) {
  const int size = m.cluster[0] * m.cluster[1] * m.cluster[2];
  if (m.next_cluster >= m.n_clusters || (!live.empty() && (int(live.size()) + 1) * size > RESIDENT_CTAS)) return false;
  auto r = std::make_unique<Resident>();
  r->cluster = make_cluster(m, m.next_cluster++);
  for (auto& w : r->cluster->warps) r->active.push_back(w.get());
  live.push_back(std::move(r));
  return true;
}

void Machine::run() {
  stats.assign(code.size(), LineStats{});
  n_clusters = grid[0] / cluster[0] * (grid[1] / cluster[1]) * (grid[2] / cluster[2]);
  next_cluster = 0;
  Residents live;
  uint64_t seen = ~0ull, seen_at = 0, idle_progress = ~0ull;
  int idle_rounds = 0;
  while (!stop && (!live.empty() || start_cluster(*this, live))) {
    const size_t at = live.size() == 1 ? 0 : below(uint32_t(live.size()));
    Resident& r = *live[at];
    cl = r.cluster.get();
    if (progress != seen) seen = progress, seen_at = now;
    const uint64_t quiet = now - seen_at;
    if (quiet > POLLING && run_async(true)) continue;   // polling warps must not starve what waits for an idle moment
    if (quiet > SPINNING && start_cluster(*this, live)) {
      seen_at = now;
      continue;
    }
    if (quiet > step_limit) {
      report_deadlock(*this, live, "livelock");
      break;
    }
    r.idle = !turn(*this, r);
    if (r.active.empty()) {
      while (!stop && run_async(true)) {}
      finish_cluster(*this, *r.cluster);
      live.erase(live.begin() + long(at));
      continue;
    }
    if (!r.idle || !std::all_of(live.begin(), live.end(), [](const auto& x) { return x->idle; })) continue;
    for (auto& x : live) x->idle = false;
    idle_rounds = progress == idle_progress ? idle_rounds + 1 : 0;
    idle_progress = progress;
    if (idle_rounds < 4 && give_up_timed(*this, live)) continue;
    if (start_cluster(*this, live)) continue;
    report_deadlock(*this, live, "deadlock");
  }
  for (auto& r : live) finish_cluster(*this, *r->cluster);
  cl = nullptr;
}

int Machine::take_cluster() { return next_cluster < n_clusters && below(4) ? next_cluster++ : -1; }

}  // namespace sf
