// What executes in order behind one thread's tcgen05.mma: cp, shift and commit.
#include "tcgen05_desc.hpp"
#include "tmem.hpp"

namespace sf {

void issue_in_pipe(Ctx& c, const Insn& i, int lane, const char* what, PipeOp fn) {
  Pipe* pipe = &tcgen(c.w).pipe[lane];
  if (!pipe->used) pipe->done.init(c.m.n_agents), pipe->used = true;
  auto know = std::make_shared<std::shared_ptr<Clock>>();   // filled once the operation has its event
  AsyncOp& op = c.m.issue(c, i, what, [pipe, know, fn = std::move(fn)](Machine& m, AsyncOp& self) {
    self.clk.join(pipe->done);
    if (*know) (*know)->join(pipe->done);
    fn(m, self, tmem_actor(self, *know));
    pipe->done.join(self.clk);
  });
  op.channel = tcgen_channel(c.w, lane);
  op.actor.lane = lane;
  *know = tmem_knowledge(c, op);
}

// Operands: mbarrier address (shared window), CTA mask when multicast. m: cta_group, multicast.
SF_OP("tcgen05.commit") {
  if (!check_group(c.m, c.cta, c.actor(i, c.first()), i.m[0])) return Flow::Next;
  each_lane(c.mask, [&](int lane) {
    const uint32_t addr = uint32_t(c.r32(i.o[0])[lane] + i.imm);
    const bool multicast = i.m[1];
    const uint32_t mask = multicast ? c.r32(i.o[1])[lane] & 0xffff : 0;
    issue_in_pipe(c, i, lane, "tcgen05.commit", [=](Machine& m, AsyncOp& self, const Actor&) {
      auto arrive = [&](uint32_t at) {
        if (Mbarrier* b = m.barrier_at(*self.cta, at, self.actor, "tcgen05.commit"))
          m.mbar_arrive(*b, 1, 0, &self.clk, self.actor, m.shared_owner(*self.cta, at), at);
      };
      if (!multicast) return arrive(addr);
      for (uint32_t r = 0; r < 16; ++r)
        if (mask >> r & 1) arrive(r << 24 | (addr & 0xffffff));
    });
  });
  return Flow::Next;
}

// Source rows of tcgen05.cp are K-major; each is copied to one or more lanes.
enum CpShape { CP128x256b, CP128x128b, CP64x128b_02_13, CP64x128b_01_23, CP32x128b_x4 };

static void copy_rows(Machine& m, AsyncOp& self, const Actor& actor, Cta& cta, CpShape shape, uint64_t desc, uint32_t addr) {
  const int rows = shape == CP64x128b_02_13 || shape == CP64x128b_01_23 ? 64 : shape == CP32x128b_x4 ? 32 : 128;
  const int chunks = shape == CP128x256b ? 2 : 1, col = int(addr & 0xffff);
  const MatrixDesc d(desc);
  if (d.version != 1 || !d.row_bytes()) {
    m.finding("tcgen05 descriptor", "matrix descriptor " + hex(desc) + " of tcgen05.cp is malformed", self.actor, &cta, d.start, true);
    return;
  }
  if (!tmem_access(m, cta, actor, TmemRect{0, TMEM_LANES, col, 4 * chunks}, true)) return;
  Tmem& t = tmem(cta);
  const uint32_t window = uint32_t(cta.rank) << 24;
  for (int r = 0; r < rows; ++r)
    for (int k = 0; k < chunks; ++k) {
      const uint8_t* p = m.shared(cta, window | d.place(d.k_major(r, k)), 16, READ, self.actor);
      if (!p) return;
      auto put = [&](int lane) { std::memcpy(&t.at(lane, col + 4 * k), p, 16); };
      const int half = r / 32, in = r % 32;
      switch (shape) {
        case CP64x128b_02_13: put(32 * half + in), put(32 * half + 64 + in); break;
        case CP64x128b_01_23: put(64 * half + in), put(64 * half + 32 + in); break;
        case CP32x128b_x4: for (int q = 0; q < 4; ++q) put(32 * q + in); break;
        default: put(r);
      }
    }
}

SF_OP("tcgen05.cp") {   // operands: tensor memory address, matrix descriptor; m: shape, cta_group
  if (!check_group(c.m, c.cta, c.actor(i, c.first()), i.m[1])) return Flow::Next;
  each_lane(c.mask, [&](int lane) {
    const uint32_t addr = c.r32(i.o[0])[lane];
    const uint64_t desc = c.r64(i.o[1])[lane];
    const CpShape shape = CpShape(i.m[0]);
    const bool pair = i.m[1] == 2;
    issue_in_pipe(c, i, lane, "tcgen05.cp", [=](Machine& m, AsyncOp& self, const Actor& actor) {
      copy_rows(m, self, actor, *self.cta, shape, desc, addr);
      if (pair) copy_rows(m, self, actor, *pair_peer(*self.cta), shape, desc, addr);
    });
  });
  return Flow::Next;
}

SF_OP("tcgen05.shift") {   // operand: tensor memory address; m: cta_group. Rows move down by one, 32 bytes of each.
  if (!check_group(c.m, c.cta, c.actor(i, c.first()), i.m[0])) return Flow::Next;
  each_lane(c.mask, [&](int lane) {
    const uint32_t addr = c.r32(i.o[0])[lane];
    const bool pair = i.m[0] == 2;
    issue_in_pipe(c, i, lane, "tcgen05.shift", [=](Machine& m, AsyncOp& self, const Actor& actor) {
      for (Cta* cta : {self.cta, pair ? pair_peer(*self.cta) : nullptr}) {
        if (!cta) continue;
        const int first = int(addr >> 16), col = int(addr & 0xffff);
        const TmemRect all{first, TMEM_LANES - first, col, 8};
        if (!tmem_access(m, *cta, actor, all, false) || !tmem_access(m, *cta, actor, all, true)) return;
        for (int l = first; l + 1 < TMEM_LANES; ++l) std::memcpy(&tmem(*cta).at(l, col), &tmem(*cta).at(l + 1, col), 32);
      }
    });
  });
  return Flow::Next;
}

}  // namespace sf
