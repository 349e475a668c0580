"""Arguments of the subcommands; the work is in the module named after each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from swordfish.errors import SwordfishError

__all__ = ["app", "run"]

app = typer.Typer(
    help="Weight-quantised GEMM for NVIDIA Hopper and datacenter Blackwell.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
cache_app = typer.Typer(help="The disk cache of compiled kernels.", no_args_is_help=True)
app.add_typer(cache_app, name="cache")

ArchOption = Annotated[str, typer.Option("--arch", help="Architectures, separated by commas.")]


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; an error that Swordfish raises on purpose prints one line."""
    try:
        app(args=list(arguments) if arguments is not None else None)
    except SystemExit as stop:
        return int(stop.code or 0)
    except SwordfishError as error:
        print(f"swordfish: {error}", file=sys.stderr)
        return 1
    return 0


@app.command()
def demo(
    layer: Annotated[
        Path | None, typer.Option(help="A checkpoint folder instead of the layer shipped.")
    ] = None,
    rows: Annotated[int, typer.Option("--rows", "-m", min=1, help="Rows of the activation.")] = 1,
) -> None:
    """Pack a small real layer, multiply with it, check the result, and show the kernels that do it."""
    from swordfish.cli.demo import demo as command

    raise typer.Exit(command(layer, rows))


@app.command("compile")
def compile_kernels(
    arch: ArchOption = "sm_90a,sm_100a,sm_103a,sm_110a",
    checkpoint: Annotated[
        list[Path] | None, typer.Option(help="Checkpoint folder or .gguf file; repeatable.")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Weight shape KxN, such as 4096x14336; repeatable.")
    ] = None,
    experts: Annotated[
        list[str] | None,
        typer.Option(help="Expert layer ExKxN (hidden size K, gate and up of N columns each); repeatable."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Experts of a token; default: what the checkpoint says.")
    ] = None,
    activation: Annotated[str, typer.Option(help="Of experts: silu, gelu, gelu_tanh or swiglu.")] = "silu",
    expert_ranks: Annotated[int, typer.Option(min=1, help="GPUs that share a layer's experts.")] = 1,
    bits: Annotated[int, typer.Option(help="With --shape, --experts: 4 or 8.")] = 4,
    group_size: Annotated[int, typer.Option(help="With those: group size, -1 for channelwise.")] = 128,
    zeros: Annotated[str, typer.Option(help="With those: none, integer or offset zero points.")] = "none",
    act_order: Annotated[bool, typer.Option("--act-order", help="With --shape: permuted rows.")] = False,
    bias: Annotated[bool, typer.Option(help="With those: also the kernels that add a bias.")] = False,
    dtype: Annotated[str | None, typer.Option(help="Activations: float16 or bfloat16.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Builds at a time; default: one a CPU.")] = None,
) -> None:
    """Fill the cache with the kernels of a model or of single shapes; needs no GPU."""
    from swordfish.cli import weights as named
    from swordfish.cli.compile import compile_command

    found: list[named.Weight | named.Experts] = []
    for path in checkpoint or []:
        found += named.checkpoint_layers(path, dtype, top_k=top_k, activation=activation, ranks=expert_ranks)
    found += named.shape_weights(shape or [], bits, group_size, zeros, dtype, bias, act_order)
    found += named.shape_experts(
        experts or [],
        bits,
        group_size,
        zeros,
        dtype,
        bias,
        top_k=top_k,
        activation=activation,
        ranks=expert_ranks,
    )
    raise typer.Exit(compile_command(found, arch, workers))


@app.command()
def tune(
    checkpoint: Annotated[
        list[Path] | None, typer.Option(help="Checkpoint folder or .gguf file; repeatable.")
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Weight shape KxN, such as 4096x14336; repeatable.")
    ] = None,
    m: Annotated[str, typer.Option("--m", help="Rows, separated by commas, at most 256.")] = "1,2,4,8,16",
    bits: Annotated[int, typer.Option(help="With --shape: 4 or 8.")] = 4,
    group_size: Annotated[int, typer.Option(help="With --shape: group size, -1 for channelwise.")] = 128,
    zeros: Annotated[str, typer.Option(help="With --shape: none, integer or offset zero points.")] = "none",
    act_order: Annotated[bool, typer.Option("--act-order", help="With --shape: permuted rows.")] = False,
    dtype: Annotated[str | None, typer.Option(help="Activations: float16 or bfloat16.")] = None,
    device: Annotated[str, typer.Option(help="The GPU; nobody else should use it meanwhile.")] = "cuda:0",
    seconds: Annotated[float | None, typer.Option(min=1, help="Stop after about so long.")] = None,
    most: Annotated[int, typer.Option(min=1, help="Configurations to try for a shape and M.")] = 64,
    workers: Annotated[int | None, typer.Option(min=1, help="Builds at a time; default: one a CPU.")] = None,
    top: Annotated[int, typer.Option(min=0, help="Print so many of the fastest of each problem.")] = 0,
    report: Annotated[Path | None, typer.Option(help="Write everything measured to a JSON file.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure, but keep nothing.")] = False,
) -> None:
    """Time kernel configurations on this GPU and keep those that beat the default by more than 2 %."""
    from swordfish.cli.tune import parse_rows, tune_command
    from swordfish.cli.weights import checkpoint_weights, shape_weights

    weights = shape_weights(shape or [], bits, group_size, zeros, dtype, False, act_order)
    weights += [w for path in checkpoint or [] for w in checkpoint_weights(path, dtype)]
    code = tune_command(
        weights,
        parse_rows(m),
        device,
        seconds=seconds,
        most=most,
        workers=workers,
        top=top,
        report=report,
        dry_run=dry_run,
    )
    raise typer.Exit(code)


@app.command()
def doctor() -> None:
    """Print what is installed and what is wrong; the exit code is 1 if something that matters is."""
    from swordfish.cli.doctor import doctor as command

    raise typer.Exit(command())


@cache_app.command("info")
def cache_info() -> None:
    """Where compiled kernels are kept, how many, and how much room they take."""
    from swordfish.cli.cache import info

    raise typer.Exit(info())


@cache_app.command("clear")
def cache_clear() -> None:
    """Remove all compiled kernels from the disk cache."""
    from swordfish.cli.cache import clear

    raise typer.Exit(clear())
