"""A Llama MLP over several GPUs: gate and up are split by columns, down by rows, one all-reduce at the end.

    torchrun --nproc-per-node 2 examples/tensor_parallel_mlp.py
    torchrun --nproc-per-node 2 examples/tensor_parallel_mlp.py --device cpu --hidden 256 --intermediate 512

Every rank cuts its part out of the packed weights (``PackedWeight.shard`` copies blocks, nothing is packed
again) and compares the parallel result with the whole MLP on its own device.

The two are not equal bit for bit, and cannot be: whole, a sum over the intermediate dimension is rounded
once; in parts, the sum of each rank is rounded and then their total. What is asserted is that they differ by
no more than these roundings: half a unit each of the whole result, of the total and of every rank's part,
over each output column. A missing shard is beyond that dozens of times over.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass

import torch
import torch.distributed as dist

import swordfish as sf


@dataclass(frozen=True)
class MLP:
    """``down(silu(gate(x)) * up(x))``; gate and up are one weight, side by side."""

    gate_up: sf.PackedWeight
    down: sf.PackedWeight

    @classmethod
    def of(cls, gate: sf.PackedWeight, up: sf.PackedWeight, down: sf.PackedWeight) -> MLP:
        return cls(sf.PackedWeight.cat([gate, up]), down)

    @classmethod
    def shard(
        cls, gate: sf.PackedWeight, up: sf.PackedWeight, down: sf.PackedWeight, rank: int, world: int
    ) -> MLP:
        """The part of one rank: the same columns of gate and up, and the rows of down that meet them.

        A row shard that cuts a quantisation group gets smaller groups. Bias stays with rank 0. With act-order
        down is cut in its packed order, which the columns of gate and up must then have, too.
        """
        if down.perm is not None:
            gate, up = gate.reorder_columns(down.perm), up.reorder_columns(down.perm)
        columns = (w.shard("n", rank, world) for w in (gate, up))
        return cls.of(*columns, down.in_packed_order().shard("k", rank, world))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = sf.mm(x, self.gate_up).chunk(2, dim=-1)
        return sf.mm(torch.nn.functional.silu(gate) * up, self.down)


def parallel(mlp: MLP, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum over ranks, in fp32, rounded once to the dtype of x; and the sum of magnitudes."""
    part = mlp(x).float()
    total = torch.stack([part, part.abs()])
    dist.all_reduce(total)
    return total[0].to(x.dtype), total[1]


def random_weight(
    k: int, n: int, device: torch.device, *, bias: bool = False, act_order: bool = False
) -> sf.PackedWeight:
    """int4 with zero points in groups of 128, values of standard deviation about 1/sqrt(K)."""
    codes = torch.randint(0, 16, (k, n), dtype=torch.uint8, device=device)
    groups = -(-k // 128)
    scales = (torch.rand(groups, n, device=device) + 0.5) / (4.6 * k**0.5)
    zeros = torch.randint(6, 11, (groups, n), device=device)
    return sf.pack(
        codes,
        scales,
        zeros,
        torch.randperm(k, device=device) // 128 if act_order else None,
        bits=4,
        group_size=128,
        dtype=torch.bfloat16,
        bias=torch.randn(n, device=device) if bias else None,
    )


def compare(total: torch.Tensor, magnitudes: torch.Tensor, whole: torch.Tensor) -> float:
    """Norm of a column's differences over the norm of what rounding explains, the largest; raises beyond
    1."""
    half_unit = torch.finfo(whole.dtype).eps / 2
    explained = half_unit * (whole.double().abs() + total.double().abs() + magnitudes.double())
    columns = (total.double() - whole.double()).norm(dim=0) / explained.norm(dim=0)
    worst = float(columns.max())
    if not worst <= 1:
        raise RuntimeError(f"column {int(columns.argmax())} differs by {worst:.2f} of what rounding explains")
    return worst


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--intermediate", type=int, default=14336)
    parser.add_argument("--act-order", action="store_true", help="a permuted group index of down")
    parser.add_argument("--tokens", default="16,128,1024", help="numbers of tokens")
    options = parser.parse_args()

    device = torch.device(options.device)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)  # all ranks make the same weights and tokens
    hidden, intermediate = options.hidden, options.intermediate
    gate, up = (random_weight(hidden, intermediate, device) for _ in range(2))
    down = random_weight(intermediate, hidden, device, bias=True, act_order=options.act_order)
    mine = MLP.shard(gate, up, down, rank, world)
    whole = MLP.of(gate, up, down)
    if rank == 0:
        print(f"{world} ranks on {device.type}; rank 0 of gate_up {mine.gate_up}, of down {mine.down}")
    for m in map(int, options.tokens.split(",")):
        x = torch.randn(m, hidden, device=device).bfloat16()
        worst = compare(*parallel(mine, x), whole(x))
        if rank == 0:
            print(f"{m} tokens: parts and whole differ by at most {worst:.2f} of what rounding explains")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
