"""Deterministic operands: a counter-based generator, independent of numpy's version, and bit patterns."""

from __future__ import annotations

import zlib

import numpy as np

from .case import Array

__all__ = ["Stream", "bf16_bits", "bf16_value", "f16_bits", "f16_value", "f32_bits", "f32_value"]


class Stream:
    """SplitMix64 (Steele, Lea, Flood 2014) over a counter, seeded by a name."""

    def __init__(self, name: str) -> None:
        self._seed = np.uint64(zlib.crc32(name.encode()) << 32)
        self._used = 0

    def u64(self, *shape: int) -> Array:
        count = int(np.prod(shape)) if shape else 1
        index = np.arange(self._used + 1, self._used + count + 1, dtype=np.uint64)
        self._used += count
        with np.errstate(over="ignore"):
            z = self._seed + index * np.uint64(0x9E3779B97F4A7C15)
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (z ^ (z >> np.uint64(31))).reshape(shape)

    def u32(self, *shape: int) -> Array:
        return (self.u64(*shape) >> np.uint64(32)).astype(np.uint32)

    def u16(self, *shape: int) -> Array:
        return (self.u64(*shape) >> np.uint64(48)).astype(np.uint16)

    def integers(self, low: int, high: int, *shape: int) -> Array:
        """Integers in ``[low, high)``, int64."""
        return (self.u64(*shape) >> np.uint64(33)).astype(np.int64) % (high - low) + low

    def unit(self, *shape: int) -> Array:
        """float64 in ``[0, 1)``."""
        return (self.u64(*shape) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def bell(self, *shape: int) -> Array:
        """Close to a standard normal distribution: the sum of twelve uniform values, less six."""
        return self.unit(12, *shape).sum(axis=0) - 6.0

    def signs(self, *shape: int) -> Array:
        return 1.0 - 2.0 * (self.u64(*shape) >> np.uint64(63)).astype(np.float64)

    def permutation(self, count: int) -> Array:
        return np.argsort(self.u64(count), kind="stable")

    def choose(self, options: Array, *shape: int) -> Array:
        return options[self.integers(0, len(options), *shape)]


def f16_bits(value: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(np.float16).view(np.uint16)


def f16_value(bits: Array) -> Array:
    return np.asarray(bits, dtype=np.uint16).view(np.float16).astype(np.float64)


def f32_bits(value: Array) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(np.float32).view(np.uint32)


def f32_value(bits: Array) -> Array:
    return np.asarray(bits, dtype=np.uint32).view(np.float32).astype(np.float64)


def bf16_bits(value: Array) -> Array:
    """Round to nearest even through float32; the values used here are exact in float32 or far from its ties."""
    bits = f32_bits(value).astype(np.uint64)
    rounded = (bits + np.uint64(0x7FFF) + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)
    return np.where(
        (bits & 0x7FFFFFFF) > 0x7F800000, (bits >> np.uint64(16)) | np.uint64(0x40), rounded
    ).astype(np.uint16)


def bf16_value(bits: Array) -> Array:
    return f32_value(np.asarray(bits, dtype=np.uint32) << np.uint32(16))
