"""Decode kernels on silicon: results recorded on a GPU, to which the emulator must be equal bit for bit.

    python -m tests.silicon.decode --out tests/silicon/recorded/decode_h200.npz      # on the GPU

Inputs come from numpy's MT19937, which gives the same numbers everywhere.
"""

from __future__ import annotations

import argparse
import ast
from dataclasses import dataclass

import numpy as np
import torch

import swordfish as sf
from swordfish.calls import DecodeCall
from swordfish.decode import DecodeConfig, RingConfig, WideConfig

__all__ = ["CASES", "Case", "chosen", "operands", "parse", "run"]


@dataclass(frozen=True)
class Case:
    """One product ``[m, k] @ [k, n]``."""

    m: int
    k: int
    n: int
    bits: int = 4
    group_size: int = 128
    dtype: str = "bfloat16"
    zeros: str = "none"
    act_order: bool = False
    bias: bool = False

    @property
    def name(self) -> str:
        fields = (self.m, self.k, self.n, self.bits, self.group_size, self.dtype, self.zeros)
        extra = ("-act" if self.act_order else "") + ("-bias" if self.bias else "")
        return "-".join(map(str, fields)) + extra


CASES = [
    Case(1, 256, 64),
    Case(1, 4096, 64),
    Case(2, 320, 72, group_size=64, bias=True),
    Case(3, 256, 72, dtype="float16"),
    Case(4, 192, 64, bits=8, group_size=32),
    Case(5, 256, 64, bits=8, dtype="float16", zeros="integer"),
    Case(7, 96, 40, group_size=32, zeros="offset"),
    Case(8, 512, 64, group_size=-1),
    Case(9, 256, 128, zeros="integer"),
    Case(16, 256, 64, dtype="float16", zeros="offset", group_size=32),
    Case(1, 256, 64, act_order=True, group_size=64),
    Case(6, 256, 64, act_order=True, group_size=64, bias=True),
    Case(17, 256, 128),
    Case(33, 192, 128, zeros="integer", group_size=64),
    Case(64, 256, 128, dtype="float16", bias=True),
    Case(100, 128, 64, bits=8),
]


def operands(case: Case) -> tuple[torch.Tensor, sf.PackedWeight]:
    """Activations and weight of a case, on the CPU."""
    rng = np.random.RandomState(case.m * 1000 + case.k + case.n)
    dtype = getattr(torch, case.dtype)
    groups = 1 if case.group_size == -1 else -(-case.k // case.group_size)
    codes = rng.randint(0, 1 << case.bits, (case.k, case.n)).astype(np.uint8)
    scales = (rng.random_sample((groups, case.n)) * 0.02 + 0.002) * rng.choice([-1, 1], (groups, case.n))
    zeros = None
    if case.zeros == "integer":
        zeros = torch.from_numpy(rng.randint(0, (1 << case.bits) + 1, (groups, case.n)))
    elif case.zeros == "offset":
        zeros = torch.from_numpy(rng.standard_normal((groups, case.n)) * 0.05).float()
    g_idx = None
    if case.act_order:
        g_idx = torch.from_numpy((rng.permutation(case.k) // case.group_size).astype(np.int32))
    bias = torch.from_numpy(rng.standard_normal(case.n)).float() if case.bias else None
    w = sf.pack(
        torch.from_numpy(codes),
        torch.from_numpy(scales).float(),
        zeros,
        g_idx,
        bits=case.bits,
        group_size=case.group_size,
        dtype=dtype,
        zero_kind=case.zeros,  # type: ignore[arg-type]
        bias=bias,
    )
    x = torch.from_numpy(rng.standard_normal((case.m, case.k))).to(dtype)
    return x, w


def run(case: Case, config: DecodeConfig, arch: str, device: str = "cpu") -> np.ndarray:
    """The result of a configuration as 16-bit patterns, uint16 ``[m, n]``."""
    x, w = operands(case)
    x, w = x.to(device), w.to(device)
    y = torch.empty(case.m, case.n, dtype=x.dtype, device=device)
    call = DecodeCall(config, w.scheme, case.m, w.packed_k, case.n, bias=case.bias, arch=arch)
    call(x, w, w.bias, y)
    return y.cpu().view(torch.int16).numpy().view(np.uint16)


def chosen(case: Case, device: str = "cpu") -> DecodeConfig:
    """The configuration that dispatch takes there."""
    config = sf.explain(operands(case)[1].to(device), case.m).config
    assert isinstance(config, RingConfig | WideConfig)
    return config


def parse(text: str) -> DecodeConfig:
    """``str`` of a configuration undone."""
    kind, fields = text.rstrip(")").split("(")
    values = {name: ast.literal_eval(value) for name, value in (f.split("=") for f in fields.split(", "))}
    return {"ring": RingConfig, "wide": WideConfig}[kind](**values)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    found = {case: chosen(case, "cuda") for case in CASES}
    results = {case.name: run(case, config, "sm_90a", "cuda") for case, config in found.items()}
    configs = {f"config:{case.name}": np.array(str(config)) for case, config in found.items()}
    np.savez_compressed(args.out, device=np.array(torch.cuda.get_device_name()), **results, **configs)
    print(f"{len(results)} results on {torch.cuda.get_device_name()}")


if __name__ == "__main__":
    main()
