"""The packed weight format: its definition as layouts, and what is derived from it.

* :mod:`swordfish.layouts.format`: the block as a bit layout, its byte, word, lane and TMA views
* :mod:`swordfish.layouts.packing`: packer, unpacker and zero-copy views of tensors
* :mod:`swordfish.layouts.codes`: int32-packed checkpoint codes, read in slabs
* :mod:`swordfish.layouts.swizzle`: shared-memory swizzles in the byte and the element domain
* :mod:`swordfish.layouts.fragments`: which lane and register of an ``mma`` operand a code belongs to

Importing this package needs torch only; ``format``, ``swizzle`` and ``fragments`` import ``tensor_layouts``.
"""

from swordfish.layouts.codes import Int32Codes
from swordfish.layouts.packing import (
    BLOCK,
    ColumnSource,
    DenseCodes,
    byte_view,
    lane_group_view,
    lane_word_view,
    pack_words,
    packed_shape,
    unpack_words,
)

__all__ = [
    "BLOCK",
    "ColumnSource",
    "DenseCodes",
    "Int32Codes",
    "byte_view",
    "lane_group_view",
    "lane_word_view",
    "pack_words",
    "packed_shape",
    "unpack_words",
]
