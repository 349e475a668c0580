// Builds the clusters of a launch, and gathers their counts.
#include <algorithm>

#include "core.hpp"

namespace sf {

enum Sreg { TID = 0, NTID = 3, CTAID = 6, NCTAID = 9, LANEID = 12, WARPID, NWARPID, SMID, NSMID, GRIDID, CLUSTERID = 18, NCLUSTERID = 21,
            CLUSTER_CTAID = 24, CLUSTER_NCTAID = 27, CTARANK = 30, NCTARANK, MASK_EQ, MASK_LE, MASK_LT, MASK_GE, MASK_GT, EXPLICIT,
            DYNAMIC_SMEM, TOTAL_SMEM, AGGR_SMEM, RESERVED_BEGIN, RESERVED_CAP, SHARED_BASE };

static uint32_t sreg(const Machine& m, const Cta& cta, const Warp& w, int which, int lane) {
  const uint32_t t = uint32_t(w.id * LANES + lane);
  const int* b = m.block;
  auto in = [&](int base) { return which >= base && which < base + 3; };
  if (in(TID)) return which == 0 ? t % b[0] : which == 1 ? t / b[0] % b[1] : t / (b[0] * b[1]);
  if (in(NTID)) return b[which - NTID];
  if (in(CTAID)) return cta.id[which - CTAID];
  if (in(NCTAID)) return m.grid[which - NCTAID];
  if (in(CLUSTERID)) return cta.id[which - CLUSTERID] / m.cluster[which - CLUSTERID];
  if (in(NCLUSTERID)) return m.grid[which - NCLUSTERID] / m.cluster[which - NCLUSTERID];
  if (in(CLUSTER_CTAID)) return cta.id[which - CLUSTER_CTAID] % m.cluster[which - CLUSTER_CTAID];
  if (in(CLUSTER_NCTAID)) return m.cluster[which - CLUSTER_NCTAID];
  switch (which) {
    case LANEID: return lane;
    case WARPID: return w.id;
    case NWARPID: return cta.n_warps;
    case SMID: return cta.linear;
    case NSMID: return m.grid[0] * m.grid[1] * m.grid[2];
    case CTARANK: return cta.rank;
    case NCTARANK: return m.cluster[0] * m.cluster[1] * m.cluster[2];
    case MASK_EQ: return 1u << lane;
    case MASK_LE: return FULL >> (31 - lane);
    case MASK_LT: return (1u << lane) - 1;
    case MASK_GE: return FULL << lane;
    case MASK_GT: return lane == 31 ? 0 : FULL << (lane + 1);
    case EXPLICIT: return m.cluster[0] * m.cluster[1] * m.cluster[2] > 1;
    case DYNAMIC_SMEM: return m.dyn_smem;
    case TOTAL_SMEM: case AGGR_SMEM: return m.smem_bytes;
    case RESERVED_CAP: return SMEM_BASE;
    case SHARED_BASE: return uint32_t(cta.rank) << 24;
    default: return 0;
  }
}

static void fill_sregs(const Machine& m, const Cta& cta, Warp& w) {
  for (auto& [which, off] : m.sregs)
    for (int l = 0; l < LANES; ++l) reinterpret_cast<uint32_t*>(w.regs + off)[l] = sreg(m, cta, w, which, l);
}

SF_OP("sreg.clock") {   // o[0]: destination; m[0]: 0 low word, 1 high word, 2 both; m[1]: nanoseconds instead of cycles
  const uint64_t v = i.m[1] ? c.m.now / 2 + 1 : c.m.now;
  each_lane(c.mask, [&](int l) {
    if (i.m[0] == 2) c.r64(i.o[0])[l] = v;
    else c.r32(i.o[0])[l] = uint32_t(i.m[0] ? v >> 32 : v);
  });
  return Flow::Next;
}

std::unique_ptr<Cluster> make_cluster(Machine& m, int index) {
  auto made = std::make_unique<Cluster>();
  Cluster& c = *made;
  const int *grid = m.grid, *cluster = m.cluster, *block = m.block;
  c.m = &m, c.index = index, c.size = cluster[0] * cluster[1] * cluster[2];
  const int threads = block[0] * block[1] * block[2], warps = (threads + LANES - 1) / LANES;
  const int n_agents = warps * c.size + ASYNC_AGENTS;
  m.n_warps = warps * c.size, m.n_agents = n_agents;
  c.agent_clk.assign(ASYNC_AGENTS, 0);
  c.bar_arriving.init(n_agents), c.bar_done.init(n_agents);
  const int per[3] = {grid[0] / cluster[0], grid[1] / cluster[1], grid[2] / cluster[2]};
  const int base[3] = {index % per[0] * cluster[0], index / per[0] % per[1] * cluster[1], index / (per[0] * per[1]) * cluster[2]};
  size_t classes = 1;
  for (auto& i : m.code) classes = std::max<size_t>(classes, i.cls + 1u);
  for (int r = 0; r < c.size; ++r) {
    auto cta = std::make_unique<Cta>();
    cta->cl = &c, cta->rank = r, cta->n_warps = cta->live_warps = warps;
    const int in[3] = {r % cluster[0], r / cluster[0] % cluster[1], r / (cluster[0] * cluster[1])};
    for (int d = 0; d < 3; ++d) cta->id[d] = base[d] + in[d];
    cta->linear = cta->id[0] + grid[0] * (cta->id[1] + grid[1] * cta->id[2]);
    cta->smem.assign(size_t(m.smem_bytes), 0xff);   // NaN in every floating type
    cta->shadow.assign(m.checks ? size_t(m.smem_bytes + 15) / 16 : 0, Cell{});
    for (auto& b : cta->bar) b.arriving.init(n_agents), b.done.init(n_agents);
    for (int k = 0; k < warps; ++k) {
      auto w = std::make_unique<Warp>();
      w->cta = cta.get(), w->id = k, w->agent = r * warps + k;
      const int lanes = std::min(LANES, threads - k * LANES);
      w->alive = lanes == LANES ? FULL : (1u << lanes) - 1;
      w->store.assign(size_t(m.reg_bytes) + 256, 0xff);
      w->regs = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(w->store.data()) + 127) & ~uintptr_t(127));
      w->local.assign(size_t(m.local_bytes) * LANES, 0xff);
      w->busy.assign(size_t(m.reg_bytes) / 128 + 2, 0), w->taint.assign(size_t(m.reg_bytes) / 128 + 2, 0);
      w->clock.init(n_agents), w->relaxed.init(n_agents), w->fenced.init(n_agents);
      w->clock.vc[w->agent] = 1;
      w->counts.assign(classes, 0);
      Frag f;
      f.mask = w->alive, f.pc = 0;
      w->frags.push_back(f);
      fill_sregs(m, *cta, *w);
      cta->warps.push_back(w.get());
      c.warps.push_back(std::move(w));
    }
    c.ctas.push_back(std::move(cta));
  }
  return made;
}

// Adds up what a cluster counted, and looks at what it left behind.
void finish_cluster(Machine& m, Cluster& c) {
  m.class_by_warp.resize(c.ctas[0]->warps.size()), m.waits_by_warp.resize(c.ctas[0]->warps.size());
  for (auto& w : c.warps) {
    auto& sum = m.class_by_warp[w->id];
    sum.resize(w->counts.size());
    for (size_t k = 0; k < sum.size(); ++k) sum[k] += w->counts[k], m.instructions += w->counts[k];
    m.waits_by_warp[w->id] += w->barrier_waits;
  }
  for (auto& cta : c.ctas) {
    if (m.stop || !m.checks) break;
    for (auto& [off, b] : cta->mbar)
      if (b.live && b.tx != 0)
        m.finding("mbarrier", "the kernel ends with " + std::to_string(b.tx) + " transaction bytes outstanding on the mbarrier at " + hex(off),
                Actor{0, 0, nullptr, false, b.init_pc, 0, 0}, cta.get(), off);
  }
}

}  // namespace sf
