"""The dense tier: the weight is dequantised once into memory, then cuBLAS multiplies. For many rows."""

from swordfish.dense.dequant import DequantConfig, dequantize_into
from swordfish.dense.mm import WORKSPACE_BYTES, dense_mm

__all__ = ["WORKSPACE_BYTES", "DequantConfig", "dense_mm", "dequantize_into"]
