"""Bulk tensor copies: swizzles, 1D to 5D boxes, bounds, element strides, multicast, stores, reductions.

The innermost coordinate times the element size is a multiple of 16 bytes everywhere, and stores have no negative
coordinates: an H200 refuses others with an illegal-instruction error (see also ``faults.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from .case import Arg, Array, Case, TensorMapSpec
from .data import Stream, bf16_bits, f16_bits
from .elementwise import f32_patterns
from .ptx import copy_in, copy_out, kernel, mbarrier_wait, thread0

__all__ = ["cases"]

_SIZE = {"UINT8": 1, "UINT16": 2, "FLOAT16": 2, "BFLOAT16": 2, "UINT32": 4, "INT32": 4, "FLOAT32": 4, "FLOAT32_FTZ": 4,
         "UINT64": 8, "INT64": 8, "FLOAT64": 8, "TFLOAT32": 4, "TFLOAT32_FTZ": 4}  # fmt: skip
_BARRIER = 0
_TILE = 1024
_THREADS = 64


def cases() -> Iterator[Case]:
    yield from _swizzles()
    yield from _dimensions()
    yield from _bounds()
    yield from _types()
    yield from _multicasts()
    yield from _stores()
    yield from _reductions()


def tensor(
    buffer: int,
    dtype: str,
    dims: Sequence[int],
    box: Sequence[int],
    *,
    element_strides: tuple[int, ...] = (),
    swizzle: int = 0,
    nan_fill: bool = False,
) -> TensorMapSpec:
    """A map over a packed tensor whose rows are padded to 16 bytes."""
    size = _SIZE[dtype]
    pitch = -(-dims[0] * size // 16) * 16
    strides = tuple(pitch * math.prod(dims[1:i]) for i in range(1, len(dims)))
    return TensorMapSpec(buffer, dtype, tuple(dims), strides, tuple(box), element_strides, swizzle, nan_fill)


def _words(spec: TensorMapSpec) -> int:
    """32-bit words of the tensor's memory."""
    pitch = spec.strides[0] if spec.strides else -(-spec.dims[0] * _SIZE[spec.dtype] // 16) * 16
    return pitch * math.prod(spec.dims[1:]) // 4


def _box_bytes(spec: TensorMapSpec) -> int:
    strides = spec.element_strides or (1,) * len(spec.box)
    return math.prod(-(-b // s) for b, s in zip(spec.box, strides, strict=True)) * _SIZE[spec.dtype]


def _init_barrier(count: int = 1) -> str:
    return thread0(f"mbarrier.init.shared::cta.b64 [smem], {count};\nfence.mbarrier_init.release.cluster;")


def _coordinates(coords: Sequence[int]) -> str:
    return "{" + ", ".join(str(c) for c in coords) + "}"


def _load_case(name: str, spec: TensorMapSpec, coords: Sequence[Sequence[int]], *, offset: int = 0) -> Case:
    """Load one box for each tuple of coordinates into the same tile and copy it out each time."""
    box = _box_bytes(spec)
    span = -(-box // 4)
    rank = len(spec.dims)
    body = [_init_barrier(), f"add.u32 %r0, smem, {_TILE + offset};"]
    for i, c in enumerate(coords):
        body.append(
            thread0(
                f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {box};\n"
                f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes "
                f"[%r0], [T0, {_coordinates(c)}], [smem];"
            )
        )
        body.append(mbarrier_wait("smem", i % 2))
        body.append(f"add.u64 %rd1, P2, {i * span * 4};")
        body.append(copy_out("%rd1", span, _THREADS, shared="%r0"))
        body.append("bar.sync 0;")

    def inputs() -> list[Arg]:
        return [spec, _content(name, spec), np.zeros((len(coords), span), dtype=np.uint32)]

    shared = _TILE + offset + span * 4
    return Case(
        f"tma/{name}",
        kernel("map ptr ptr", "\n".join(body)),
        inputs,
        {2: ()},
        block=(_THREADS, 1, 1),
        shared_bytes=shared,
    )


def _narrow_case(name: str, spec: TensorMapSpec, coords: Sequence[int]) -> Case:
    """An innermost box smaller than the swizzle span: is its pitch the box or the span, and how many bytes are counted?

    The first output word says whether the box's own bytes completed the phase; the tile is copied out in full.
    """
    box = _box_bytes(spec)
    words = spec.swizzle * spec.box[1] // 4
    body = [
        _init_barrier(),
        f"add.u32 %r0, smem, {_TILE};\nmad.lo.u32 %r1, tid, 4, %r0;",
        *[f"st.shared.b32 [%r1+{4 * i}], 0xEEEEEEEE;" for i in range(0, words, _THREADS)],
        "fence.proxy.async.shared::cta;\nbar.sync 0;",
        thread0(
            f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {box};\n"
            f"cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
            f"[%r0], [T0, {_coordinates(coords)}], [smem];"
        ),
        mbarrier_wait("smem", 0).replace("trap;", ""),
        "mbarrier.test_wait.parity.shared::cta.b64 %p1, [smem], 0;\n"
        "selp.u32 %r2, 1, 0, %p1;\nst.global.u32 [P2], %r2;",
        "nanosleep.u32 100000;\nbar.sync 0;\nadd.u64 %rd1, P2, 4;",
        copy_out("%rd1", words, _THREADS, shared="%r0"),
    ]

    def inputs() -> list[Arg]:
        return [spec, _content(name, spec), np.zeros(1 + words, dtype=np.uint32)]

    return Case(
        f"tma/{name}",
        kernel("map ptr ptr", "\n".join(body)),
        inputs,
        {2: ()},
        block=(_THREADS, 1, 1),
        shared_bytes=_TILE + 4 * words,
    )


def _content(name: str, spec: TensorMapSpec) -> Array:
    """Random words; among floats whose load converts them also subnormals and ties of the tf32 rounding."""
    s = Stream(name)
    words = s.u32(_words(spec))
    if not spec.dtype.endswith(("FTZ", "TFLOAT32")):
        return words
    pick = s.integers(0, 4, len(words))
    tie = (words & np.uint32(0xFFFFE000)) | np.uint32(0x1000)
    special = s.choose(
        np.array([0x7F800000, 0xFF800000, 0x7F800001, 0x7FFFFFFF, 0x7F7FFFFF, 0x80000000]), len(words)
    )
    words = np.where(pick == 1, words & np.uint32(0x807FFFFF), np.where(pick == 2, tie, words))
    return np.where(s.unit(len(words)) < 0.1, special.astype(np.uint32), words)


def _swizzles() -> Iterator[Case]:
    for swizzle in (0, 32, 64, 128):
        inner = (swizzle or 64) // 2
        spec = tensor(1, "FLOAT16", (80, 24), (inner, 16), swizzle=swizzle)
        yield _load_case(f"load.swizzle{swizzle}", spec, [(8, 3)])
    yield _narrow_case("load.swizzle128.narrow", tensor(1, "UINT32", (40, 24), (16, 8), swizzle=128), (4, 1))
    yield _narrow_case("load.swizzle64.narrow", tensor(1, "UINT8", (80, 24), (48, 8), swizzle=64), (16, 2))
    yield _load_case(
        "load.swizzle128.offset",
        tensor(1, "BFLOAT16", (64, 16), (64, 8), swizzle=128),
        [(0, 5)],
        offset=128 * 3,
    )
    yield _load_case(
        "load.swizzle64.offset", tensor(1, "BFLOAT16", (64, 16), (32, 8), swizzle=64), [(32, 2)], offset=256
    )
    yield _load_case(
        "load.swizzle128.3d", tensor(1, "FLOAT16", (64, 6, 5), (64, 3, 3), swizzle=128), [(0, 1, 1)]
    )


def _dimensions() -> Iterator[Case]:
    yield _load_case("load.1d", tensor(1, "UINT32", (200,), (64,)), [(0,), (100,)])
    yield _load_case("load.2d", tensor(1, "UINT16", (48, 20), (24, 6)), [(0, 0), (16, 9)])
    yield _load_case("load.3d", tensor(1, "FLOAT32", (12, 7, 6), (8, 3, 2)), [(0, 0, 0), (4, 2, 1)])
    yield _load_case("load.4d", tensor(1, "UINT32", (8, 5, 4, 3), (4, 2, 3, 2)), [(0, 0, 0, 0), (4, 3, 1, 1)])
    yield _load_case(
        "load.5d", tensor(1, "UINT16", (16, 4, 3, 3, 2), (8, 2, 2, 2, 2)), [(0, 0, 0, 0, 0), (8, 1, 1, 1, 0)]
    )


def _bounds() -> Iterator[Case]:
    spots = [(-8, -2), (40, 13), (-96, 0), (64, 60), (32, -3)]
    yield _load_case("load.2d.zero_fill", tensor(1, "FLOAT16", (48, 16), (16, 6)), spots)
    for dtype in ("FLOAT16", "BFLOAT16", "FLOAT32"):
        yield _load_case(
            f"load.2d.nan_fill.{dtype.lower()}", tensor(1, dtype, (48, 16), (16, 6), nan_fill=True), spots
        )
    yield _load_case(
        "load.2d.zero_fill.swizzle128",
        tensor(1, "FLOAT16", (72, 16), (64, 8), swizzle=128),
        [(24, 11), (-8, -3)],
    )
    yield _load_case("load.1d.zero_fill", tensor(1, "UINT8", (100,), (48,)), [(80,), (-16,)])
    yield _load_case(
        "load.3d.zero_fill", tensor(1, "UINT32", (8, 5, 4), (8, 3, 3)), [(-4, 3, -1), (4, -1, 3)]
    )
    yield _load_case(
        "load.5d.zero_fill",
        tensor(1, "UINT16", (16, 3, 2, 2, 2), (16, 2, 2, 2, 2)),
        [(8, 2, 1, -1, 1), (-8, -1, 0, 1, 0)],
    )
    yield _load_case(
        "load.2d.strided",
        tensor(1, "UINT16", (48, 30), (16, 12), element_strides=(1, 3)),
        [(0, 0), (8, 5), (40, 25)],
    )
    yield _load_case(
        "load.3d.strided",
        tensor(1, "UINT32", (8, 12, 9), (8, 6, 5), element_strides=(1, 2, 2)),
        [(0, 1, 0), (4, 9, 5)],
    )


def _types() -> Iterator[Case]:
    for dtype in ("UINT8", "INT32", "UINT64", "INT64", "FLOAT64", "FLOAT32_FTZ", "TFLOAT32", "TFLOAT32_FTZ"):
        yield _load_case(
            f"load.type.{dtype.lower()}", tensor(1, dtype, (40, 10), (16, 4)), [(16, 2), (32, 8)]
        )


def _multicasts() -> Iterator[Case]:
    """Each CTA of the cluster loads its own slice and multicasts it to the CTAs of a mask."""
    for size, masks in ((2, (3, 3)), (4, (15, 5, 10, 12)), (4, (2, 4, 8, 1))):
        yield _multicast(size, masks)


def _multicast(size: int, masks: Sequence[int]) -> Case:
    name = f"load.multicast.{size}." + "_".join(str(m) for m in masks)
    spec = tensor(1, "FLOAT16", (64, 4 * size), (64, 4), swizzle=128)
    box = _box_bytes(spec)
    received = [sum(m >> rank & 1 for m in masks) * box for rank in range(size)]
    body = [
        ".reg .b32 rank, bytes, mask;",
        "mov.u32 rank, %cluster_ctarank;",
        _init_barrier(),
        "mov.u32 bytes, 0;\nmov.u32 mask, 0;",
    ]
    for rank in range(size):
        body.append(
            f"setp.eq.u32 %p0, rank, {rank};\n@%p0 mov.u32 bytes, {received[rank]};\n"
            f"@%p0 mov.u32 mask, {masks[rank]};"
        )
    body += [
        f"mov.u32 %r5, 0;\nadd.u32 %r0, smem, {_TILE};",
        "mad.lo.u32 %r2, tid, 4, %r0;",
        *[f"st.shared.b32 [%r2+{i}], 0;" for i in range(0, box * size, 4 * _THREADS)],
        "fence.proxy.async.shared::cta;\nbar.sync 0;",
        thread0("mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], bytes;"),
        "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
        f"mad.lo.u32 %r1, rank, {box}, %r0;\nmul.lo.u32 %r3, rank, 4;\ncvt.u16.u32 %rs0, mask;",
        thread0(
            "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
            "[%r1], [T0, {0, %r3}], [smem], %rs0;"
        ),
        mbarrier_wait("smem", 0),
        f"mul.wide.u32 %rd0, cta, {box * size};\nadd.u64 P2, P2, %rd0;",
        copy_out("P2", box * size // 4, _THREADS, shared="%r0"),
        "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
    ]

    def inputs() -> list[Arg]:
        return [spec, _content(name, spec), np.zeros((size, box * size // 4), dtype=np.uint32)]

    return Case(
        f"tma/{name}", kernel("map ptr ptr", "\n".join(body)), inputs, {2: ()}, (size, 1, 1), (_THREADS, 1, 1), (size, 1, 1),
        _TILE + box * size,
    )  # fmt: skip


def _store_case(
    name: str, spec: TensorMapSpec, coords: Sequence[Sequence[int]], tile: Array, target: Array, op: str = ""
) -> Case:
    """Store (or reduce with ``op``) a tile to the tensor at each of the coordinates, one after the other."""
    rank = len(spec.dims)
    what = f"cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.{op}.tile.bulk_group" if op else (
        f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
    )  # fmt: skip
    words = tile.nbytes // 4
    body = [
        f"add.u32 %r0, smem, {_TILE};",
        copy_in("P1", words, _THREADS, shared="%r0"),
        "fence.proxy.async.shared::cta;\nbar.sync 0;",
        thread0(
            "\n".join(
                f"{what} [T0, {_coordinates(c)}], [%r0];\ncp.async.bulk.commit_group;\n"
                "cp.async.bulk.wait_group 0;"
                for c in coords
            )
        ),
    ]

    def inputs() -> list[Arg]:
        return [spec, tile.view(np.uint32), target.view(np.uint32).copy()]

    shared = _TILE + tile.nbytes
    return Case(
        f"tma/{name}",
        kernel("map ptr ptr", "\n".join(body)),
        inputs,
        {2: ()},
        block=(_THREADS, 1, 1),
        shared_bytes=shared,
    )


def _stores() -> Iterator[Case]:
    def store(name: str, spec: TensorMapSpec, coords: Sequence[Sequence[int]]) -> Case:
        tile = Stream(name).u32(-(-_box_bytes(spec) // 4))
        return _store_case(name, spec, coords, tile, np.full(_words(spec), 0xEEEEEEEE, dtype=np.uint32))

    for swizzle in (0, 32, 64, 128):
        spec = tensor(2, "FLOAT16", (80, 20), ((swizzle or 64) // 2, 12), swizzle=swizzle)
        yield store(f"store.swizzle{swizzle}", spec, [(8, 3)])
    yield store("store.1d", tensor(2, "UINT32", (100,), (32,)), [(4,), (88,)])
    yield store("store.2d.bounds", tensor(2, "UINT16", (40, 12), (16, 6)), [(32, 9), (16, 2)])
    yield store("store.3d.bounds", tensor(2, "UINT32", (8, 5, 4), (4, 3, 2)), [(4, 3, 3), (0, 2, 1)])
    negative = store("store.2d.negative_row", tensor(2, "UINT16", (40, 12), (16, 6)), [(8, -2)])
    yield replace(negative, outputs={}, faults=True)
    yield store("store.4d", tensor(2, "UINT16", (16, 3, 3, 3), (8, 2, 2, 2)), [(8, 1, 0, 1)])
    yield store("store.5d", tensor(2, "UINT32", (4, 3, 2, 2, 2), (4, 2, 2, 2, 1)), [(0, 1, 0, 0, 1)])
    yield store(
        "store.2d.strided",
        tensor(2, "UINT16", (48, 30), (16, 12), element_strides=(1, 3)),
        [(0, 0), (24, 20)],
    )


def _reductions() -> Iterator[Case]:
    floats = {"FLOAT16": f16_bits, "BFLOAT16": bf16_bits}
    for dtype, ops in (
        ("UINT32", ("add", "min", "max", "inc", "dec", "and", "or", "xor")),
        ("INT32", ("add", "min", "max")),
        ("UINT64", ("add", "min", "max")),
        ("INT64", ("min", "max")),
        ("FLOAT32", ("add",)),
        ("FLOAT32_FTZ", ("add",)),
        ("FLOAT16", ("add", "min", "max")),
        ("BFLOAT16", ("add", "min", "max")),
    ):
        for op in ops:
            name = f"reduce.{op}.{dtype.lower()}"
            spec = tensor(2, dtype, (24, 10), (16, 4))
            s = Stream(name)
            tile, target = s.u32(_box_bytes(spec) // 4), s.u32(_words(spec))
            if dtype.startswith("FLOAT32"):
                tile, target = (f32_patterns(s, 120 + len(x), -140, -120)[-len(x) :] for x in (tile, target))
            elif dtype in floats:
                count = _box_bytes(spec) // _SIZE[dtype]
                tile = floats[dtype](s.signs(count) * np.ldexp(1.0 + s.unit(count), s.integers(-6, 6, count)))
                count = _words(spec) * 4 // _SIZE[dtype]
                target = floats[dtype](
                    s.signs(count) * np.ldexp(1.0 + s.unit(count), s.integers(-6, 6, count))
                )
            elif op in ("inc", "dec"):
                tile, target = tile & np.uint32(3), target & np.uint32(3)
            yield _store_case(name, spec, [(8, 3), (16, 8)], tile, target, op)
