"""What can be done with a packed weight without the checkpoint: move, cut, join, store, copy."""

from __future__ import annotations

import copy
import io
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch._subclasses.fake_tensor import FakeTensorMode

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.packed import PackedWeight
from swordfish.scheme import Scheme
from swordfish.weights import QuantizedWeight, dequantize, pack_weight

BITS = pytest.mark.parametrize("bits", [4, 8])


def make(
    k: int = 384,
    n: int = 256,
    *,
    bits: int = 4,
    group_size: int = 128,
    zeros: str = "integer",
    act_order: bool = False,
    bias: bool = True,
    seed: int = 0,
) -> PackedWeight:
    g = torch.Generator().manual_seed(seed)
    groups = 1 if group_size == -1 else -(-k // group_size)
    order = torch.Generator().manual_seed(99)
    table: dict[str, torch.Tensor | None] = {
        "none": None,
        "integer": torch.randint(0, 1 << bits, (groups, n), generator=g),
        "offset": torch.randn(groups, n, generator=g),
    }
    q = QuantizedWeight(
        torch.randint(0, 1 << bits, (k, n), dtype=torch.uint8, generator=g),
        torch.randn(groups, n, generator=g) * 0.01,
        table[zeros],
        (torch.arange(k) // group_size)[torch.randperm(k, generator=order)] if act_order else None,
        torch.randn(n, generator=g) if bias else None,
        bits,
        group_size,
        zeros,  # type: ignore[arg-type]
    )
    return pack_weight(q, torch.bfloat16)


KINDS = {
    "int4": {"zeros": "none", "bias": False},
    "int8": {"bits": 8, "zeros": "none"},
    "zero points": {},
    "offsets": {"zeros": "offset"},
    "channelwise": {"group_size": -1, "zeros": "none"},
    "act-order": {"act_order": True},
    "odd shape": {"k": 200, "n": 70, "group_size": 32},
}
ALL = pytest.mark.parametrize("kind", KINDS)


def same(a: PackedWeight, b: PackedWeight) -> bool:
    left, right = a._tensors(), b._tensors()
    return (
        a.scheme == b.scheme
        and a.shape == b.shape
        and left.keys() == right.keys()
        and all(torch.equal(left[name], right[name]) for name in left)
        and torch.equal(dequantize(a), dequantize(b))
    )


class TestColumnShards:
    @ALL
    @pytest.mark.parametrize("world", [1, 2, 4])
    def test_side_by_side_they_are_the_weight(self, kind: str, world: int) -> None:
        w = make(**{**KINDS[kind], "k": 384, "n": 256})
        shards = [w.shard("n", rank, world) for rank in range(world)]
        assert torch.equal(torch.cat([dequantize(s) for s in shards], dim=1), dequantize(w))
        if w.bias is not None:
            assert torch.equal(torch.cat([s.bias for s in shards if s.bias is not None]), w.bias)
        assert same(PackedWeight.cat(shards), w)

    def test_a_shard_owns_its_memory(self) -> None:
        w = make()
        part = w.shard("n", 1, 4)
        for name, tensor in part._tensors().items():
            assert tensor.untyped_storage().nbytes() == tensor.nbytes, name
            assert tensor.is_contiguous()

    def test_rows_of_padding_stay(self) -> None:
        """A weight whose unequal act-order groups were filled up keeps its row order in every shard."""
        g = torch.Generator().manual_seed(3)
        codes = torch.randint(0, 16, (150, 128), dtype=torch.uint8, generator=g)
        g_idx = torch.randperm(256, generator=g)[:150] // 32
        w = pack_weight(
            QuantizedWeight(codes, torch.rand(8, 128, generator=g), None, g_idx, group_size=32),
            torch.float16,
        )
        assert w.packed_k > w.shape[0]
        shards = [w.shard("n", rank, 2) for rank in range(2)]
        assert {s.packed_k for s in shards} == {w.packed_k}
        assert torch.equal(torch.cat([dequantize(s) for s in shards], dim=1), dequantize(w))

    def test_repacking_the_columns_gives_the_same_shard(self) -> None:
        q = QuantizedWeight(
            torch.randint(0, 16, (128, 256), dtype=torch.uint8), torch.rand(2, 256), group_size=64
        )
        assert isinstance(q.codes, torch.Tensor)
        part = QuantizedWeight(q.codes[:, 128:192], q.scales[:, 128:192], group_size=64)
        assert same(
            pack_weight(q, torch.float16).shard("n", 2, 4),
            pack_weight(part, torch.float16),
        )


class TestRowShards:
    @ALL
    @pytest.mark.parametrize("world", [1, 2, 3, 6])
    def test_on_top_of_each_other_they_are_the_weight(self, kind: str, world: int) -> None:
        w = make(**{**KINDS[kind], "k": 384, "n": 256})
        if w.perm is not None and world > 1:
            with pytest.raises(ArgumentError, match=r"dim='k' is not .* act-order.*their g_idx instead"):
                w.shard("k", 0, world)
            return
        shards = [w.shard("k", rank, world) for rank in range(world)]
        assert torch.equal(torch.cat([dequantize(s) for s in shards]), dequantize(w))
        assert [s.bias is not None for s in shards] == [w.bias is not None and r == 0 for r in range(world)]

    @pytest.mark.parametrize(
        ("k", "group_size", "world", "expected"),
        [(384, 128, 2, 64), (768, 128, 4, 64), (256, 128, 4, 64), (384, 96, 2, 96), (320, 128, 5, 64)],
    )
    def test_a_cut_group_gets_a_smaller_group_size(
        self, k: int, group_size: int, world: int, expected: int
    ) -> None:
        w = make(k, 64, group_size=group_size)
        shards = [w.shard("k", rank, world) for rank in range(world)]
        assert {s.scheme.group_size for s in shards} == {expected}
        assert all(s.scales.shape[0] == k // world // expected for s in shards)
        assert torch.equal(torch.cat([dequantize(s) for s in shards]), dequantize(w))

    def test_products_add_up_with_the_bias_once(self) -> None:
        w = make()
        x = torch.randn(3, 384, dtype=torch.float64)
        assert w.bias is not None
        expected = x @ dequantize(w).double() + w.bias.double()
        total = torch.zeros(3, 256, dtype=torch.float64)
        for rank in range(2):
            s = w.shard("k", rank, 2)
            total += x[:, rank * 192 : (rank + 1) * 192] @ dequantize(s).double()
            total += 0 if s.bias is None else s.bias.double()
        torch.testing.assert_close(total, expected, rtol=1e-12, atol=1e-12)


class TestShardErrors:
    @pytest.mark.parametrize(
        ("shape", "args", "message"),
        [
            ((384, 256), ("m", 0, 2), r"dim='m' is not allowed: expected 'n' or 'k'"),
            ((384, 256), ("n", 2, 2), r"rank=2 is not allowed: expected 0 to 1"),
            ((384, 256), ("n", -1, 2), r"rank=-1 is not allowed: expected 0 to 1"),
            (
                (384, 256),
                ("n", 0, 3),
                r"world=3 is not allowed: expected one of \[1, 2, 4\], which cut N=256 ",
            ),
            (
                (384, 256),
                ("k", 0, 4),
                r"world=4 is not allowed: expected one of \[1, 2, 3, 6\], which cut K=384 .* checkpoint",
            ),
            ((384, 200), ("n", 0, 2), r"world=2 is not allowed: expected one of \[1\], which cut N=200"),
            ((384, 256), ("n", 0, 0), r"world=0 is not allowed"),
        ],
    )
    def test_messages(self, shape: tuple[int, int], args: tuple[str, int, int], message: str) -> None:
        with pytest.raises(ArgumentError, match=message):
            make(*shape).shard(*args)


class TestCat:
    @pytest.mark.parametrize("widths", [(192, 64, 128), (64, 70), (70, 64), (1, 2, 3), (200,)])
    @pytest.mark.parametrize("kind", ["int4", "int8", "zero points", "act-order"])
    def test_side_by_side(self, widths: tuple[int, ...], kind: str) -> None:
        parts = [make(**{**KINDS[kind], "k": 256, "n": n}, seed=n) for n in widths]
        joined = PackedWeight.cat(parts)
        assert joined.shape == (256, sum(widths))
        assert torch.equal(dequantize(joined), torch.cat([dequantize(p) for p in parts], dim=1))
        columns = joined.scale_rows.shape[1]
        assert columns % 64 == 0 and not joined.scale_rows[:, sum(widths) :].any()

    def test_a_missing_bias_counts_as_zero(self) -> None:
        a, b = make(n=64), make(n=70, bias=False)
        joined = PackedWeight.cat([a, b])
        assert joined.bias is not None and a.bias is not None
        assert torch.equal(joined.bias, torch.cat([a.bias, torch.zeros(70, dtype=torch.bfloat16)]))
        assert PackedWeight.cat([b, b]).bias is None

    def test_what_does_not_fit_is_named(self) -> None:
        w = make()
        with pytest.raises(
            ArgumentError, match=r"weights\[1\].scheme=Scheme\(.*that of weights\[0\], Scheme"
        ):
            PackedWeight.cat([w, make(group_size=64)])
        with pytest.raises(
            ArgumentError, match=r"weights\[1\].shape=\(256, 256\) .* K=384 like weights\[0\]"
        ):
            PackedWeight.cat([w, make(k=256)])
        with pytest.raises(ArgumentError, match=r"dim='k' is not allowed: expected 'n'"):
            PackedWeight.cat([w, w], "k")
        with pytest.raises(ArgumentError, match=r"weights=\[\] is not allowed: expected at least one"):
            PackedWeight.cat([])
        ordered = make(act_order=True)
        assert ordered.perm is not None
        other = replace(ordered, perm=ordered.perm.flip(0))
        with pytest.raises(ArgumentError, match=r"weights\[1\].perm=another row order is not allowed"):
            PackedWeight.cat([ordered, other])


class TestStorage:
    @ALL
    def test_safetensors(self, kind: str, tmp_path: Path) -> None:
        w = make(**KINDS[kind])
        w.save(tmp_path / "layer.safetensors")
        assert same(PackedWeight.load(tmp_path / "layer.safetensors"), w)

    @ALL
    def test_pickle_deepcopy_and_torch_save(self, kind: str) -> None:
        w = make(**KINDS[kind])
        buffer = io.BytesIO()
        torch.save(w, buffer)
        buffer.seek(0)
        copies = [
            pickle.loads(pickle.dumps(w)),
            copy.deepcopy(w),
            torch.load(buffer, weights_only=False),
        ]
        for other in copies:
            assert same(other, w)
            assert other.words.data_ptr() != w.words.data_ptr()

    @ALL
    def test_tensor_mapping_round_trip(self, kind: str) -> None:
        w = make(**KINDS[kind])
        assert same(PackedWeight._from_tensors(w._tensors(), w.scheme, w.shape), w)

    def test_a_raw_checkpoint_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "model.safetensors"
        save_file({"a.qweight": torch.zeros(2), "a.scales": torch.zeros(2)}, path)
        with pytest.raises(
            ArgumentError, match=r"path=.*model.safetensors is not.*swordfish.packed_weight, ver"
        ):
            PackedWeight.load(path)
        with pytest.raises(ArgumentError, match=r"It holds the tensors a.qweight, a.scales"):
            PackedWeight.load(path)

    def test_another_version_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "old.safetensors"
        save_file({"words": torch.zeros(2)}, path, {"format": "swordfish.packed_weight", "version": "0"})
        with pytest.raises(ArgumentError, match=r"version 1\). It is version 0: pack the checkpoint again"):
            PackedWeight.load(path)

    def test_a_damaged_file_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "cut.safetensors"
        make().save(path)
        path.write_bytes(path.read_bytes()[:200])
        with pytest.raises(ArgumentError, match=r"path=.*cut.safetensors is not allowed"):
            PackedWeight.load(path)


class TestMoving:
    def test_to_the_same_place_is_the_same_object(self) -> None:
        w = make()
        assert w.to("cpu") is w and w.to() is w and w.to(dtype=torch.bfloat16) is w
        assert w.to(torch.bfloat16) is w

    def test_to_another_device(self) -> None:
        w = make(act_order=True).to("meta")
        assert w.device.type == "meta"
        assert {t.device.type for t in w._tensors().values()} == {"meta"}
        assert w.shape == (384, 256) and tuple(w.scales.shape) == (3, 256)

    @pytest.mark.parametrize("args", [(torch.float16,), ("cpu", torch.float16)])
    def test_another_dtype_raises(self, args: tuple[Any, ...]) -> None:
        with pytest.raises(
            ArgumentTypeError, match=r"dtype=torch.float16 is not .* torch.bfloat16, which the w"
        ):
            make().to(*args)

    def test_fake_tensors(self) -> None:
        real = make()
        with FakeTensorMode() as mode:
            fake = {name: mode.from_tensor(t) for name, t in real._tensors().items()}
            w = PackedWeight._from_tensors(fake, real.scheme, real.shape)
            assert tuple(w.scales.shape) == (3, 256) and w.packed_k == 384


class TestDescription:
    def test_nbytes(self) -> None:
        w = make(128, 128, group_size=64, zeros="integer", act_order=True)
        words, scales, perm, bias = 128 * 128 // 2, 2 * 128 * 2, 128 * 4, 128 * 2
        assert w.nbytes == words + 2 * scales + perm + bias

    def test_repr(self) -> None:
        assert repr(make(128, 128, group_size=64, act_order=True)) == (
            "PackedWeight(K=128, N=128, int4, group_size=64, bfloat16, zeros=integer, "
            "act-order, bias, cpu, 0.01 MiB)"
        )
        text = repr(make(128, 128, group_size=-1, bits=8, zeros="none", bias=False))
        assert text == "PackedWeight(K=128, N=128, int8, channelwise, bfloat16, zeros=none, cpu, 0.02 MiB)"


class TestConstructor:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            (
                {"words": torch.zeros(4, 5, 512, dtype=torch.int32)},
                r"words.shape=\(4, 5, 512\) .* \(4, 6, 512\)",
            ),
            (
                {"words": torch.zeros(4, 6, 512)},
                r"words.dtype=torch.float32 is not allowed: expected torch.int32",
            ),
            ({"scale_rows": torch.zeros(3, 200).bfloat16()}, r"scale_rows.shape=\(3, 200\) .* \(3, 256\)"),
            ({"scale_rows": torch.zeros(3, 256).half()}, r"scale_rows.dtype=torch.float16 .* torch.bfloat16"),
            ({"zero_rows": None}, r"zero_rows=None is not allowed: expected a tensor for Scheme"),
            (
                {"perm": torch.arange(384, dtype=torch.int32)},
                r"perm=a tensor is not allowed: expected None for",
            ),
            ({"bias": torch.zeros(255).bfloat16()}, r"bias.shape=\(255,\) is not allowed: expected \(256,\)"),
            (
                {"scheme": Scheme(8, 128, "bfloat16", "integer")},
                r"words.shape=\(4, 6, 512\) .*\(4, 6, 1024\)",
            ),
        ],
    )
    def test_parts_that_do_not_fit(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
            replace(make(), **changes)
