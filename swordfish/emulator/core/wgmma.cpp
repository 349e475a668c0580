// wgmma: m64nNk16 with 16-bit operands. Each warp of the warpgroup computes its 16 rows; a warp's operations stay in order.
#include <algorithm>
#include <array>
#include <map>

#include "core.hpp"
#include "dot.hpp"

namespace sf {

// Shared-memory matrix descriptor of wgmma, PTX ISA "Matrix descriptor format"; canonical layouts as in CUTLASS'
// documentation of GMMA layouts (in units of 16 bytes, T = elements in 16 bytes):
//   K-major   none ((8,m),(T,2)) : ((T,SBO),(1,LBO))      swizzled ((8,m),(T,2)) : ((S*T,SBO),(1,T)), S = 2, 4, 8
//   MN-major  none ((T,1,m),(8,k)) : ((1,T,SBO),(T,LBO))  swizzled ((T,S,m),(8,k)) : ((1,T,LBO),(S*T,SBO))
struct MatrixDesc {
  uint32_t start, lbo, sbo;
  int span;   // bytes of a swizzled row: 16 (none), 32, 64, 128
  explicit MatrixDesc(uint64_t d) {
    start = uint32_t(d & 0x3fff) << 4, lbo = uint32_t(d >> 16 & 0x3fff) << 4, sbo = uint32_t(d >> 32 & 0x3fff) << 4;
    const int mode = int(d >> 62);
    span = mode == 0 ? 16 : mode == 1 ? 128 : mode == 2 ? 64 : 32;
  }
  // Offset of the 16 bytes that hold elements (mn, k..k+7) of a K-major, or (mn..mn+7, k) of an MN-major 16-bit matrix
  uint32_t chunk(int mn, int k, bool mn_major) const {
    uint32_t at = start;
    if (!mn_major) {
      at += uint32_t(mn % 8) * uint32_t(span) + uint32_t(mn / 8) * sbo;
      at += span == 16 ? uint32_t(k / 8) * lbo : uint32_t(k / 8) * 16;
    } else if (span == 16) {
      at += uint32_t(mn / 8) * sbo + uint32_t(k % 8) * 16 + uint32_t(k / 8) * lbo;
    } else {
      const int per = span / 2;
      at += uint32_t(mn % per) * 2 + uint32_t(mn / per) * lbo + uint32_t(k % 8) * uint32_t(span) + uint32_t(k / 8) * sbo;
    }
    const uint32_t bits = span == 128 ? 7 : span == 64 ? 3 : span == 32 ? 1 : 0;
    return at ^ (at >> 7 & bits) << 4;
  }
};

static const Operand* table(bool brain) { return operand_table(brain ? BF16 : F16); }

// rows x 16 elements of a matrix, element (r, k) to out[r * rs + k * ks]
static void read_matrix(Machine& m, AsyncOp& op, uint64_t desc, int row0, int rows, bool mn_major, bool brain, float* v, int* e, int rs, int ks) {
  const MatrixDesc d(desc);
  const Operand* t = table(brain);
  const uint32_t rank = uint32_t(op.cta->rank) << 24;
  const int outer = mn_major ? 16 : rows, inner = mn_major ? rows : 16;
  for (int x = 0; x < outer; ++x)
    for (int y = 0; y < inner; y += 8) {
      const int mn = row0 + (mn_major ? y : x), k = mn_major ? x : y;
      uint16_t h[8];
      const uint8_t* p = m.shared(*op.cta, rank | d.chunk(mn, k, mn_major), 16, READ, op.actor);
      if (p) std::memcpy(h, p, 16);
      else std::memset(h, 0xff, 16);
      for (int j = 0; j < 8; ++j) {
        const Operand& o = t[h[j]];
        const int at = mn_major ? (y + j) * rs + x * ks : x * rs + (y + j) * ks;
        v[at] = o.v, e[at] = o.e;
      }
    }
}

struct WgmmaArgs {
  int n;
  bool brain, f16_acc, a_trans, b_trans, a_regs;
  float scale_a, scale_b;
  uint64_t a_desc, b_desc;
  std::array<std::array<uint32_t, LANES>, 4> a;
  Mask accumulate;
  std::vector<int32_t> d;
};

static void execute(Machine& m, AsyncOp& op, const WgmmaArgs& g) {
  Warp& w = *op.warp;
  float a[16 * 16], acc[16 * 256];
  int ea[16 * 16];
  static thread_local std::vector<float> b(16 * 256);
  static thread_local std::vector<int> eb(16 * 256);
  if (g.a_regs) {
    const Operand* t = table(g.brain);
    for (int r = 0; r < 16; ++r)
      for (int k = 0; k < 16; ++k) {
        const Operand& o = t[g.a[(r >= 8) + 2 * (k / 8)][r % 8 * 4 + k % 8 / 2] >> (16 * (k & 1)) & 0xffff];
        a[r * 16 + k] = o.v, ea[r * 16 + k] = o.e;
      }
  } else {
    read_matrix(m, op, g.a_desc, w.id % 4 * 16, 16, g.a_trans, g.brain, a, ea, 16, 1);
  }
  read_matrix(m, op, g.b_desc, 0, g.n, g.b_trans, g.brain, b.data(), eb.data(), 1, g.n);
  if (g.scale_a * g.scale_b < 0)
    for (float& x : a) x = -x;
  auto cell = [&](int r, int n) -> uint32_t& {   // the register that holds output (r, n)
    const int reg = g.f16_acc ? n / 8 * 2 + (r >= 8) : n / 8 * 4 + (r >= 8) * 2 + (n & 1);
    return reinterpret_cast<uint32_t*>(w.regs + g.d[size_t(reg)])[r % 8 * 4 + n % 8 / 2];
  };
  for (int r = 0; r < 16; ++r)
    for (int n = 0; n < g.n; ++n) {
      const uint32_t u = cell(r, n);
      acc[r * g.n + n] = !g.accumulate ? 0.0f : g.f16_acc ? half_to_float(u >> (16 * (n & 1)) & 0xffff) : f32_of(u);
    }
  dot(dot_model(DotKind::F16, m.arch, g.f16_acc), 16, g.n, 16, a, ea, b.data(), eb.data(), acc, g.n);
  for (int r = 0; r < 16; ++r)
    for (int n = 0; n < g.n; ++n) {
      uint32_t& u = cell(r, n);
      if (g.f16_acc) u = (n & 1) ? (u & 0xffff) | half_result(acc[r * g.n + n]) << 16 : (u & 0xffff0000) | half_result(acc[r * g.n + n]);
      else u = bits_of(acc[r * g.n + n]);
    }
}

// One wgmma of a warpgroup: it starts when its four warps have issued it, and is complete for each when all four parts are.
struct Wave { GroupRef gate = std::make_shared<Group>(); std::vector<GroupRef> groups; };
using WaveRef = std::shared_ptr<Wave>;
struct Waves { std::map<std::pair<int, uint32_t>, WaveRef> by_number; };   // (warpgroup, number of the wgmma)

static WaveRef join_wave(Warp& w) {
  if (!w.cta->ext[1]) w.cta->ext[1] = std::make_shared<Waves>();
  auto& waves = static_cast<Waves*>(w.cta->ext[1].get())->by_number;
  const auto key = std::make_pair(w.id / 4, w.mma_issued);
  WaveRef& at = waves[key];
  if (!at) at = std::make_shared<Wave>(), at->gate->open = 4;
  WaveRef wave = at;
  --wave->gate->open;
  wave->groups.push_back(w.mma_open);
  w.mma_open->open += 4;
  if (!wave->gate->open) waves.erase(key);
  return wave;
}

// o: d.., then A registers (4) or the A descriptor, B descriptor, scale-d predicate;
// m[0] N, m[1] flags: 1 bf16, 2 f16 accumulators, 4 A in registers, 8 A transposed, 16 B transposed; m[2], m[3]: scale of A, B
SF_OP("wgmma") {
  auto g = std::make_shared<WgmmaArgs>();
  g->n = i.m[0], g->brain = i.m[1] & 1, g->f16_acc = i.m[1] & 2, g->a_regs = i.m[1] & 4, g->a_trans = i.m[1] & 8, g->b_trans = i.m[1] & 16;
  g->scale_a = float(i.m[2]), g->scale_b = float(i.m[3]);
  const int nd = g->f16_acc ? g->n / 4 : g->n / 2;
  const int32_t* o = i.o + nd;
  g->d.assign(i.o, o);
  const int l = c.first();
  if (g->a_regs)
    for (int k = 0; k < 4; ++k) std::memcpy(g->a[size_t(k)].data(), c.row(*o++), 4 * LANES);
  else g->a_desc = c.r64(*o++)[l];
  g->b_desc = c.r64(*o++)[l];
  g->accumulate = c.pred(*o) & c.mask;
  if (!c.w.mma_open) c.w.mma_open = std::make_shared<Group>();
  WaveRef wave = join_wave(c.w);
  AsyncOp& op = c.m.issue(c, i, "wgmma", [g, wave](Machine& m, AsyncOp& self) {
    execute(m, self, *g);
    for (const GroupRef& group : wave->groups) --group->open, group->clk.join(self.clk);
  });
  op.channel = c.w.agent;
  op.after.push_back(wave->gate);
  c.m.wake();
  ++c.w.mma_issued;
  for (int32_t off : g->d) {
    const int32_t row = off / 128;
    op.rows.push_back(row);
    ++c.w.busy[row], ++c.w.n_busy;
    c.w.taint[row] = c.w.mma_issued;
  }
  return Flow::Next;
}
SF_OP("wgmma.fence") { return Flow::Next; }
SF_OP("wgmma.commit") {
  GroupRef g = c.w.mma_open;
  if (!g) g = std::make_shared<Group>();
  c.w.mma_groups.emplace_back(g, c.w.mma_issued);
  c.w.mma_open = nullptr;
  return Flow::Next;
}

static bool wait_poll(Ctx& c, const Insn& i) {
  auto& q = c.w.mma_groups;
  while (q.size() > size_t(i.m[0])) {
    if (q.front().first->open) return false;
    c.w.clock.join(q.front().first->clk);
    c.w.mma_waited = q.front().second;
    q.pop_front();
  }
  return true;
}
static std::string wait_describe(Ctx& c, const Insn&) {
  return "waits for wgmma groups, " + std::to_string(c.w.mma_groups.size()) + " outstanding";
}
static const WaitKind WAIT{wait_poll, wait_describe, false, nullptr};

SF_OP("wgmma.wait") {   // m[0]: groups that may stay in flight
  if (wait_poll(c, i)) return Flow::Next;
  return c.block(WAIT);
}

}  // namespace sf
