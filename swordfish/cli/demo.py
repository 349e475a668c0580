"""``swordfish demo``: a small real layer packed, multiplied and checked, with the kernels that do it."""

from __future__ import annotations

import time
from importlib import resources
from pathlib import Path

import torch
from rich.console import Console

from swordfish.cli.compile import kernel_requests, kernel_table, make_console
from swordfish.cli.timing import cold_read_floor, cold_time
from swordfish.cli.weights import Weight
from swordfish.emulator import native
from swordfish.errors import SwordfishError
from swordfish.formats import list_layers, load_layer
from swordfish.matmul import mm
from swordfish.packed import PackedWeight
from swordfish.runtime import DeviceProps, compile_many, device_props, emulate
from swordfish.weights import dequantize

__all__ = ["demo", "relative_error"]

_TARGETS = ("sm_90a", "sm_100a", "sm_110a")
_REPEATS = 32  # copies of the layer side by side, so that there is something to read on a GPU

# Rounding of the output to 16 bits, twice over: half a unit in the last place is 2^-12 and 2^-9 of a value.
_TOLERANCE = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


def demo(folder: Path | None, rows: int) -> int:
    """Run the demo on the first layer of ``folder`` (default: the layer shipped); 1 if a result is wrong."""
    console = make_console()
    with resources.as_file(resources.files("swordfish") / "data" / "demo") as shipped:
        place = folder or shipped
        name = list_layers(place)[0]
        start = time.perf_counter()
        weight = load_layer(place, name)
        seconds = time.perf_counter() - start
    console.print(f"{name}\n{weight!r}\nread and packed in {seconds:.2f} s\n", soft_wrap=True, markup=False)
    x = torch.randn(rows, weight.shape[0], generator=torch.Generator().manual_seed(1)).to(weight.dtype)
    good = _on_gpu(console, x, weight) if torch.cuda.is_available() else _on_cpu(console, x, weight)
    _show_kernels(console, weight)
    console.print("\nall results are right" if good else "\na result is wrong")
    return 0 if good else 1


def relative_error(y: torch.Tensor, x: torch.Tensor, weight: PackedWeight) -> float:
    """``|y - x @ W| / |x @ W|`` in the Frobenius norm, with W dequantised and the product in float64."""
    reference = x.cpu().double() @ dequantize(weight).cpu().double()
    if weight.bias is not None:
        reference += weight.bias.cpu().double()
    return float((y.cpu().double() - reference).norm() / reference.norm())


def _report(
    console: Console, what: str, y: torch.Tensor, x: torch.Tensor, weight: PackedWeight, more: str = ""
) -> bool:
    error, allowed = relative_error(y, x, weight), _TOLERANCE[weight.dtype]
    console.print(f"{what}: error {error:.1e} against the dequantised reference, {allowed:.1e} allowed{more}")
    return error <= allowed


def _on_gpu(console: Console, x: torch.Tensor, weight: PackedWeight) -> bool:
    device = torch.device("cuda", torch.cuda.current_device())
    props = device_props(device)
    console.print(f"on {props.name} ({props.arch}, {props.sm_count} SMs)")
    good = True
    for copies in (1, _REPEATS):
        wide = PackedWeight.cat([weight.to(device)] * copies, "n")
        x_gpu = x.to(device)
        y = mm(x_gpu, wide)
        size = wide.words.nbytes + wide.scale_rows.nbytes
        seconds, floor = cold_time(x_gpu, wide, props), cold_read_floor(size, props)
        timing = (
            f"\n    {seconds * 1e6:.1f} us, {size / seconds / 1e9:.0f} GB/s of packed weight, "
            f"{seconds / floor:.2f} x the cold read of the same bytes ({floor * 1e6:.1f} us)"
        )
        k, n = wide.shape
        good &= _report(console, f"sf.mm, M={len(x)}, K={k}, N={n}", y, x, wide, timing)
    return good


def _on_cpu(console: Console, x: torch.Tensor, weight: PackedWeight) -> bool:
    console.print("no GPU here: the exact reference runs, then the real kernel on the emulator")
    good = _report(console, "sf.mm, reference", mm(x, weight), x, weight)
    part = weight.shard("n", 0, _shards(weight.shape[1]))  # a part of the columns is enough to see it work
    try:
        console.print("making the emulator ready (some tens of seconds the first time) ...")
        start = time.perf_counter()
        native.build()
        built = time.perf_counter()
        with emulate("sm_90a"):
            y = mm(x, part)
    except SwordfishError as error:
        console.print(f"the emulator is not available: {error}", markup=False)
        return good
    what = f"sf.mm, emulated sm_90a, N={part.shape[1]}"
    ran, made = time.perf_counter() - built, built - start
    took = f"\n    in {ran:.1f} s, after {made:.1f} s to make the emulator ready"
    return _report(console, what, y, x, part, took) and good


def _shards(columns: int) -> int:
    """The most parts of whole blocks of 64 columns that ``columns`` divides into."""
    return max(s for s in range(1, columns // 64 + 1) if columns % (64 * s) == 0) if columns % 64 == 0 else 1


def _show_kernels(console: Console, weight: PackedWeight) -> None:
    wanted = Weight(weight.scheme, weight.packed_k, weight.shape[1], weight.bias is not None)
    requests = kernel_requests([wanted], [DeviceProps.for_target(arch) for arch in _TARGETS])
    start = time.perf_counter()
    artifacts = compile_many(requests)
    seconds = time.perf_counter() - start
    console.print(
        f"\nthe kernels for this layer, {len(artifacts)} built or read from the cache in {seconds:.2f} s"
    )
    console.print(kernel_table(list(zip(requests.values(), artifacts, strict=True))))
