// clusterlaunchcontrol: a running cluster takes over a cluster of the grid that has not started.
#include "core.hpp"

namespace sf {

// The 16-byte response is opaque in the ISA; here: the first CTA's coordinates, and 1 if a cluster was taken.
struct Response { uint32_t ctaid[3]; uint32_t taken; };

// o[0]: shared address of the response, o[1]: mbarrier (64 bit); m[0]: multicast to all CTAs of the cluster
SF_OP("clc.try_cancel") {
  const int lane = c.first();
  const uint32_t to = uint32_t(c.r64(i.o[0])[lane]), bar = uint32_t(c.r64(i.o[1])[lane]);
  const bool all = i.m[0];
  const int own = c.cta.rank;
  c.m.issue(c, i, "clusterlaunchcontrol.try_cancel", [=](Machine& m, AsyncOp& self) {
    Response r{{0, 0, 0}, 0};
    const int next = m.take_cluster();
    if (next >= 0) {
      const int per[2] = {m.grid[0] / m.cluster[0], m.grid[1] / m.cluster[1]};
      r = {{uint32_t(next % per[0] * m.cluster[0]), uint32_t(next / per[0] % per[1] * m.cluster[1]),
            uint32_t(next / (per[0] * per[1]) * m.cluster[2])}, 1};
    }
    for (int rank = all ? 0 : own; rank < (all ? m.cl->size : own + 1); ++rank) {
      const uint32_t at = uint32_t(rank) << 24 | (to & 0xffffff), signal = uint32_t(rank) << 24 | (bar & 0xffffff);
      if (uint8_t* p = m.shared(*self.cta, at, sizeof r, WRITE, self.actor)) std::memcpy(p, &r, sizeof r);
      if (Mbarrier* b = m.barrier_at(*self.cta, signal, self.actor, "clusterlaunchcontrol.try_cancel"))
        m.mbar_arrive(*b, 0, sizeof r, &self.clk, self.actor, m.shared_owner(*self.cta, signal), signal);
    }
  });
  return Flow::Next;
}

// o[0]: result (predicate or 32 bit), o[1]: response (128 bit); m[0]: 0 is_canceled, 1 to 3 get_first_ctaid x, y, z
SF_OP("clc.query") {
  Mask taken = 0;
  each_lane(c.mask, [&](int l) {
    Response r;
    std::memcpy(&r, c.row(i.o[1]) + 16 * l, sizeof r);
    if (i.m[0]) c.r32(i.o[0])[l] = r.ctaid[i.m[0] - 1];
    else if (r.taken == 1) taken |= 1u << l;
  });
  if (!i.m[0]) c.set_pred(i.o[0], taken);
  return Flow::Next;
}

}  // namespace sf
