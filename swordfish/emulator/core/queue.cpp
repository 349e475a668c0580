// The queue of asynchronous operations: when and in which order they execute.
#include <algorithm>
#include <cmath>

#include "core.hpp"

namespace sf {

RowHook row_used = nullptr;

static uint64_t delay(Machine& m) {
  switch (m.policy) {
    case Policy::Eager: return 0;
    case Policy::Late: return UINT64_MAX / 2;
    case Policy::Heavy: {   // Pareto, exponent 2/3: mostly short, sometimes very long
      const double u = (double(m.random() >> 11) + 1) / 9007199254740993.0;
      return uint64_t(std::min(20.0 * std::pow(u, -1.5), 1e9));
    }
    case Policy::Mixed: break;
  }
  const uint32_t r = m.below(4);
  return r == 0 ? 0 : r == 1 ? UINT64_MAX / 2 : m.below(3000);
}

AsyncOp& Machine::issue(Ctx& c, const Insn& i, const char* what, std::function<void(Machine&, AsyncOp&)> fn) {
  auto op = std::make_unique<AsyncOp>();
  const int slot = int(cl->next_agent++ % ASYNC_AGENTS), agent = n_warps + slot;
  op->run = std::move(fn), op->what = what, op->seq = ++seq, op->due = now + delay(*this);
  op->clk = c.w.clock;
  op->clk.vc[agent] = op->clk.pvc[agent] = ++cl->agent_clk[slot];
  op->cta = &c.cta, op->warp = &c.w;
  op->actor = Actor{agent, cl->agent_clk[slot], &op->clk, true, i.pc, c.w.id, c.mask ? c.first() : 0, !c.cta.waited};
  c.release_tick();   // what the warp does from now on is not known to the operation
  ++async_ops, ++progress;
  cl->queue.push_back(std::move(op));
  return *cl->queue.back();
}

void Machine::complete(AsyncOp& op) {
  ++progress;
  wake();
  for (int32_t row : op.rows) --op.warp->busy[row], --op.warp->n_busy;
  for (const GroupRef& g : {op.group, op.tick})
    if (g) --g->open, g->clk.join(op.clk);
}

static void execute(Machine& m, Cluster& cl, size_t at) {
  std::unique_ptr<AsyncOp> op = std::move(cl.queue[at]);
  cl.queue.erase(cl.queue.begin() + long(at));
  op->run(m, *op);
  m.complete(*op);
}

static bool held(const AsyncOp& op) {
  return std::any_of(op.after.begin(), op.after.end(), [](const GroupRef& g) { return g->open > 0; });
}

bool Machine::run_async(bool idle) {
  Cluster& c = *cl;
  bool any = false;
  while (!c.queue.empty() && !stop) {
    std::vector<size_t> eligible;
    std::vector<int64_t> channels;
    for (size_t k = 0; k < c.queue.size(); ++k) {
      const AsyncOp& op = *c.queue[k];
      if (op.channel >= 0) {
        if (std::find(channels.begin(), channels.end(), op.channel) != channels.end()) continue;
        channels.push_back(op.channel);
      }
      if (!held(op) && (idle || op.due <= now)) eligible.push_back(k);
    }
    if (eligible.empty()) return any;
    size_t pick = eligible[below(uint32_t(eligible.size()))];
    if (policy == Policy::Late && below(2)) pick = eligible.back();
    if (policy == Policy::Eager) pick = eligible.front();
    execute(*this, c, pick);
    any = true;
    if (idle) return true;
  }
  return any;
}

bool Machine::force_channel(int64_t channel, const AsyncOp* upto) {
  Cluster& c = *cl;
  for (size_t k = 0; k < c.queue.size();) {
    if (c.queue[k]->channel != channel) {
      ++k;
      continue;
    }
    if (held(*c.queue[k])) return false;
    const bool last = c.queue[k].get() == upto;
    execute(*this, c, k);
    if (last) return true;
    k = 0;
  }
  return true;
}

bool Machine::force_row(Warp& w, int32_t row) {
  while (w.busy[row] > 0) {
    size_t at = 0;
    auto& q = cl->queue;
    while (at < q.size() && !(q[at]->warp == &w && std::find(q[at]->rows.begin(), q[at]->rows.end(), row) != q[at]->rows.end())) ++at;
    if (at == q.size()) {
      if (row_used) row_used(*this, w, row);
      w.n_busy -= w.busy[row], w.busy[row] = 0;
      return true;
    }
    if (q[at]->channel >= 0) {
      if (!force_channel(q[at]->channel, q[at].get())) return false;
    } else {
      if (held(*q[at])) return false;
      execute(*this, *cl, at);
    }
  }
  return true;
}

}  // namespace sf
