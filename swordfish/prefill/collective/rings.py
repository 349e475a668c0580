"""Rings of stages: shared memory or TMEM, and the two mbarriers of each stage."""

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32
from cutlass.experimental import primitives as prims

LEADER = 0
"""Rank in the pair of the CTA that issues the MMAs and owns their barriers."""


@dataclass(frozen=True)
class Ring:
    """``stages`` stages with a ``full`` and an ``empty`` mbarrier each, in the shared memory of every CTA.

    ``producers`` and ``consumers`` are the arrivals that complete a phase (transaction bytes apart).
    """

    full: Any
    empty: Any
    stages: int
    producers: int
    consumers: int

    @classmethod
    def at(cls, barriers, first, stages, producers, consumers):
        """A ring whose barriers begin behind those of ``first`` other stages."""
        return cls(
            barriers.subview(2 * first), barriers.subview(2 * first + stages), stages, producers, consumers
        )

    def initialise(self):
        """Set up the barriers; one thread of each CTA."""
        for i in range(self.stages):
            prims.mbarrier_init(self.full.subview(i), self.producers)
            prims.mbarrier_init(self.empty.subview(i), self.consumers)


@cute.jit
def wait(barrier, parity):
    """Block until the phase of ``parity`` is complete."""
    while not prims.mbarrier_try_wait_parity(barrier, parity):
        pass


def advance(stage, parity, stages):
    """The stage after ``stage`` of a ring, and its parity, which flips at every wrap."""
    following = stage + 1
    wrapped = following == stages
    return cutlass.select_(wrapped, Int32(0), following), parity ^ Int32(wrapped)


def arrive_leader(barrier):
    """Arrive on a barrier of the pair's leader, given its cluster address.

    The scope is spelled out: the default for a cluster address is release.cluster, a MEMBAR.ALL.GPU in the
    loop. What the arrival publishes was ordered before it by a tcgen05 or proxy fence.
    """
    prims.mbarrier_arrive(barrier, scope=prims.MemScope.CTA)


def commit(barrier, ctas):
    """Arrive on ``barrier`` of every CTA of the pair once the MMAs issued so far are done."""
    if ctas == 2:
        prims.tcgen05_commit(barrier, multicast_mask=3, group=prims.CTAGroup.CTA_2)
    else:
        prims.tcgen05_commit(barrier, group=prims.CTAGroup.CTA_1)
