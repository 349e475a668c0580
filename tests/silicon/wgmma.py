"""wgmma with float16 and bfloat16 operands: accumulation, shared-memory layouts, A in registers, k chains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .case import Arg, Array, Case
from .data import Stream, bf16_bits, f16_bits
from .fragments import pack_a, pack_c16, pack_c32
from .matmul_data import KINDS, operands
from .ptx import copy_in, kernel, registers

__all__ = ["Tile", "cases"]

_SWIZZLE_CODE = {0: 0, 128: 1, 64: 2, 32: 3}


@dataclass(frozen=True)
class Tile:
    """An operand ``[mn, k]`` of 16-bit elements in a canonical shared-memory layout (PTX ISA, wgmma)."""

    mn: int
    k: int
    major: str
    swizzle: int

    @property
    def _span(self) -> int:
        return self.swizzle // 2

    @property
    def leading(self) -> int:
        """Leading byte offset of the descriptor."""
        if self.major == "k":
            return 128 * (self.mn // 8) if self.swizzle == 0 else 16
        return 128 if self.swizzle == 0 else 8 * self.swizzle * (self.k // 8)

    @property
    def stride(self) -> int:
        """Stride byte offset of the descriptor."""
        if self.major == "k":
            return 128 if self.swizzle == 0 else 8 * self.swizzle
        return 128 * (self.k // 8) if self.swizzle == 0 else 8 * self.swizzle

    def address(self, mn: Array, k: Array) -> Array:
        """Byte offset of element ``(mn, k)``."""
        s = self.swizzle
        if s == 0:
            across, along = (self.stride, self.leading)
            line = mn % 8 * 16 + k % 8 * 2 if self.major == "k" else k % 8 * 16 + mn % 8 * 2
            return mn // 8 * across + k // 8 * along + line
        if self.major == "k":
            plain = k // self._span * (self.mn * s) + mn // 8 * self.stride + mn % 8 * s + k % self._span * 2
        else:
            plain = mn // self._span * self.leading + k // 8 * self.stride + k % 8 * s + mn % self._span * 2
        return plain ^ ((plain >> 7) % (s // 16) << 4)

    def step(self, k: int) -> int:
        """Byte offset of the k16 step that starts at element ``k``."""
        if self.swizzle and self.major == "k":
            return k // self._span * (self.mn * self.swizzle) + k % self._span * 2
        return k // 8 * (self.leading if self.swizzle == 0 else self.stride)

    @property
    def size(self) -> int:
        """Bytes of the image, a multiple of 1024."""
        mn, k = np.meshgrid(np.arange(self.mn), np.arange(self.k), indexing="ij")
        return (int(self.address(mn, k).max()) | 1023) + 1

    def image(self, matrix: Array) -> Array:
        """Place ``[batch, mn, k]`` patterns; unused bytes are zero. uint32 ``[batch, size / 4]``."""
        mn, k = np.meshgrid(np.arange(self.mn), np.arange(self.k), indexing="ij")
        out = np.zeros((matrix.shape[0], self.size // 2), dtype=np.uint16)
        out[:, self.address(mn, k) // 2] = matrix
        return out.view(np.uint32)

    def descriptor(self) -> int:
        """All fields but the address."""
        return self.leading // 16 << 16 | self.stride // 16 << 32 | _SWIZZLE_CODE[self.swizzle] << 62


@dataclass(frozen=True)
class _Config:
    n: int
    fmt: str
    acc: str
    a: Tile | None
    b: Tile
    steps: int = 1
    scale_d: int = 1
    scale_a: int = 1
    scale_b: int = 1


def _descriptor(register: str, base: str, tile: Tile, k: int) -> str:
    return (
        f"add.u32 %r79, {base}, {tile.step(k)};\nshr.u32 %r79, %r79, 4;\nand.b32 %r79, %r79, 0x3FFF;\n"
        f"cvt.u64.u32 {register}, %r79;\nor.b64 {register}, {register}, 0x{tile.descriptor():x};"
    )


def wgmma_ptx(cfg: _Config) -> str:
    """Arguments: A (image, or fragments), B image, C fragments, D fragments; one problem a CTA."""
    prefix, count = ("%f", cfg.n // 2) if cfg.acc == "f32" else ("%r", cfg.n // 4)
    d = registers(prefix, count)
    lines = [".reg .b32 sb;", ".reg .b32 ra<64>;"]
    a_bytes = cfg.a.size if cfg.a else 0
    lines.append(f"add.u32 sb, smem, {a_bytes};")
    if cfg.a:
        lines.append(f"mul.wide.u32 %rd0, cta, {a_bytes};\nadd.u64 P0, P0, %rd0;")
        lines.append(copy_in("P0", a_bytes // 4, 128))
    else:
        regs = 4 * cfg.steps
        lines.append(f"mul.wide.u32 %rd0, gtid, {4 * regs};\nadd.u64 P0, P0, %rd0;")
        lines += [f"ld.global.b32 ra{i}, [P0+{4 * i}];" for i in range(regs)]
    lines.append(f"mul.wide.u32 %rd0, cta, {cfg.b.size};\nadd.u64 P1, P1, %rd0;")
    lines.append(copy_in("P1", cfg.b.size // 4, 128, shared="sb"))
    lines.append(f"mul.wide.u32 %rd0, gtid, {4 * count};\nadd.u64 P2, P2, %rd0;\nadd.u64 P3, P3, %rd0;")
    lines += [f"ld.global.b32 {prefix}{i}, [P2+{4 * i}];" for i in range(count)]
    lines.append(
        "fence.proxy.async.shared::cta;\nbar.sync 0;\n"
        f"setp.ne.u32 %p0, 1, {1 - cfg.scale_d};\nsetp.eq.u32 %p1, 1, 1;"
    )
    steps = []
    for step in range(cfg.steps):
        lines.append(_descriptor(f"%rd{2 + 2 * step}", "sb", cfg.b, 16 * step))
        tail = f"{'%p0' if step == 0 else '%p1'}, {cfg.scale_a}, {cfg.scale_b}"
        if cfg.a:
            lines.append(_descriptor(f"%rd{3 + 2 * step}", "smem", cfg.a, 16 * step))
            source, tail = (
                f"%rd{3 + 2 * step}",
                tail + f", {int(cfg.a.major == 'mn')}, {int(cfg.b.major == 'mn')}",
            )
        else:
            source, tail = registers("ra", 4, 4 * step), tail + f", {int(cfg.b.major == 'mn')}"
        steps.append(
            f"wgmma.mma_async.sync.aligned.m64n{cfg.n}k16.{cfg.acc}.{cfg.fmt}.{cfg.fmt} {d}, {source}, %rd{2 + 2 * step}, {tail};"
        )
    lines += [
        "wgmma.fence.sync.aligned;",
        *steps,
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
    ]
    lines += [f"st.global.b32 [P3+{4 * i}], {prefix}{i};" for i in range(count)]
    return kernel("ptr ptr ptr ptr", "\n".join(lines))


def _case(name: str, cfg: _Config, data: str, batch: int) -> Case:
    k = 16 * cfg.steps

    def inputs() -> list[Arg]:
        if data == "integers":
            s = Stream(name)
            bits = f16_bits if cfg.fmt == "f16" else bf16_bits
            a, b = bits(s.integers(-3, 4, batch, 64, k)), bits(s.integers(-3, 4, batch, k, cfg.n))
            c = s.integers(-8, 8, batch, 64, cfg.n).astype(np.float32)
            c = c.view(np.uint32) if cfg.acc == "f32" else f16_bits(c)
        else:
            a, b, c = operands(data, cfg.fmt, cfg.acc, batch, 64, cfg.n, k, name=name)
        packed = pack_c32(c) if cfg.acc == "f32" else pack_c16(c)
        if cfg.a:
            left = cfg.a.image(a)
        else:
            left = np.concatenate([pack_a(a[:, :, i : i + 16]) for i in range(0, k, 16)], axis=-1)
        return [left, cfg.b.image(b.transpose(0, 2, 1)), packed, np.zeros_like(packed)]

    shared = (cfg.a.size if cfg.a else 0) + cfg.b.size
    return Case(
        f"wgmma/{name}",
        wgmma_ptx(cfg),
        inputs,
        {3: ()},
        grid=(batch, 1, 1),
        block=(128, 1, 1),
        shared_bytes=shared,
    )


def cases() -> Iterator[Case]:
    plain = Tile(64, 16, "k", 0)
    for fmt, acc in (("f16", "f32"), ("bf16", "f32"), ("f16", "f16")):
        cfg = _Config(8, fmt, acc, plain, Tile(8, 16, "k", 0))
        for kind in KINDS:
            yield _case(f"m64n8k16.{acc}.{fmt}.{kind}", cfg, kind, 8 if kind in ("powers", "order") else 2)
    for kind in ("normal", "close", "powers"):
        yield _case(f"registers.f32.f16.{kind}", _Config(8, "f16", "f32", None, Tile(8, 16, "k", 0)), kind, 2)
    for swizzle in (0, 32, 64, 128):
        for a_major in ("k", "mn"):
            for b_major in ("k", "mn"):
                fmt = "f16" if a_major == b_major else "bf16"
                cfg = _Config(
                    32, fmt, "f32", Tile(64, 64, a_major, swizzle), Tile(32, 64, b_major, swizzle), steps=4
                )
                yield _case(f"layout.swizzle{swizzle}.a_{a_major}.b_{b_major}", cfg, "integers", 1)
        cfg = _Config(32, "f16", "f32", None, Tile(32, 64, "mn", swizzle), steps=4)
        yield _case(f"layout.swizzle{swizzle}.a_registers.b_mn", cfg, "integers", 1)
    mixed = _Config(16, "bf16", "f32", Tile(64, 32, "mn", 128), Tile(16, 32, "k", 64), steps=2)
    yield _case("layout.mixed", mixed, "integers", 1)
    for n in (16, 24, 64, 104, 128, 256):
        cfg = _Config(n, "f16", "f32" if n != 128 else "f16", Tile(64, 16, "k", 32), Tile(n, 16, "k", 32))
        yield _case(f"columns.n{n}", cfg, "integers", 1)
    yield _case(
        "columns.n128.b_mn",
        _Config(128, "bf16", "f32", Tile(64, 16, "k", 32), Tile(128, 16, "mn", 128)),
        "integers",
        1,
    )
    for fmt, acc in (("f16", "f32"), ("bf16", "f32"), ("f16", "f16")):
        cfg = _Config(8, fmt, acc, Tile(64, 64, "k", 128), Tile(8, 64, "k", 128), steps=4)
        yield _case(f"chain.{acc}.{fmt}", cfg, "normal", 1)
    small = Tile(8, 16, "k", 0)
    yield _case("scale_d0", _Config(8, "f16", "f32", plain, small, scale_d=0), "normal", 1)
    yield _case(
        "scale_d0.chain",
        _Config(8, "f16", "f32", None, Tile(8, 32, "k", 64), steps=2, scale_d=0),
        "special",
        1,
    )
    yield _case("negate_a", _Config(8, "f16", "f32", plain, small, scale_a=-1), "normal", 1)
    yield _case("negate_b", _Config(8, "bf16", "f32", plain, small, scale_b=-1), "special", 1)
    yield _case("negate_both", _Config(8, "f16", "f16", plain, small, scale_a=-1, scale_b=-1), "special", 1)
