"""The quantisation config of a checkpoint folder, merged from the files that may hold it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.formats.base import Config

__all__ = ["SIDE_FILES", "FolderConfig", "pick_dtype", "read_config"]

SIDE_FILES = ("quantize_config.json", "quantization_config.json", "quant_config.json")
"""Files besides ``config.json`` that may hold a quantisation config, in order of precedence."""

DEFAULT_METHOD = {"quantize_config.json": "gptq", "quant_config.json": "awq"}
"""``quant_method`` of a file without that key: AutoGPTQ and AutoAWQ wrote these without it."""

ALIASES = {
    "w_bit": "bits",
    "q_group_size": "group_size",
    "method": "quant_method",
    "format": "checkpoint_format",
}
"""Older or alternative spellings of a key, used where the key itself is missing."""

EXPERTS_PER_TOKEN = ("num_experts_per_tok", "experts_per_token")
"""What configs of mixtures of experts call it."""

COMPARED = (
    "quant_method",
    "bits",
    "group_size",
    "sym",
    "desc_act",
    "checkpoint_format",
    "zero_point",
    "version",
    "lm_head",
    "dynamic",
    "modules_to_not_convert",
    "config_groups",
    "ignore",
)
"""The keys that have a meaning here: two files that give different values for one are refused."""


@dataclass(frozen=True)
class FolderConfig:
    """What a checkpoint folder says about itself.

    ``quantization`` is the merged quantisation config. ``dtype`` is the model's dtype as written, or
    ``None``. ``tied_head`` tells whether the output head shares the embedding's weight. ``sources`` names
    the files. ``experts_per_token`` is the model's, of a mixture of experts.
    """

    quantization: Config
    dtype: str | None
    tied_head: bool
    experts_per_token: int | None
    sources: tuple[str, ...]


def read_config(folder: Path) -> FolderConfig:
    """Read and merge the configs of ``folder``.

    ``config.json`` (key ``quantization_config``, or the older ``compression_config``, also inside
    ``text_config``) comes before the side files; a key missing in one file is taken from the next. Raises
    ``ArgumentError`` when no file holds a quantisation config, a file is no JSON object, or two files
    disagree on a key that matters.
    """
    model = _read_json(folder / "config.json") or {}
    nested = model.get("text_config")
    text: dict[str, Any] = nested if isinstance(nested, dict) else {}
    found: dict[str, dict[str, Any]] = {}
    for holder in (model, text):
        for key in ("quantization_config", "compression_config"):
            if isinstance(holder.get(key), dict) and "config.json" not in found:
                found["config.json"] = _canonical(holder[key], None)
    for name in SIDE_FILES:
        side = _read_json(folder / name)
        if side is not None:
            found[name] = _canonical(side, DEFAULT_METHOD.get(name))
    if not found:
        files = ", ".join(SIDE_FILES)
        raise ArgumentError("folder", folder, f"config.json with a quantization_config, or one of {files}")
    _refuse_disagreement(found)
    merged: dict[str, Any] = {}
    for config in reversed(found.values()):
        merged.update(config)
    dtype = next((str(h[key]) for h in (model, text) for key in ("torch_dtype", "dtype") if h.get(key)), None)
    tied = any(holder.get("tie_word_embeddings") is True for holder in (model, text))
    counts = (holder.get(key) for holder in (model, text) for key in EXPERTS_PER_TOKEN)
    top_k = next((count for count in counts if isinstance(count, int)), None)
    return FolderConfig(merged, dtype, tied, top_k, tuple(found))


def pick_dtype(dtype: torch.dtype | None, stated: str | None) -> torch.dtype:
    """The activation dtype: the one asked for, else the config's if it is float16 or bfloat16, else bfloat16.

    Raises ``ArgumentTypeError`` on any other dtype that is asked for.
    """
    allowed = {"float16": torch.float16, "bfloat16": torch.bfloat16}
    if dtype is None:
        return allowed.get((stated or "").removeprefix("torch."), torch.bfloat16)
    if dtype not in allowed.values():
        raise ArgumentTypeError("dtype", dtype, "torch.float16 or torch.bfloat16")
    return dtype


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ArgumentError("folder", path, f"a JSON file ({error})") from None
    if not isinstance(value, dict):
        raise ArgumentError("folder", path, "a JSON object")
    return value


def _canonical(config: dict[str, Any], default_method: str | None) -> dict[str, Any]:
    """``config`` with aliases resolved, the method in lower case and settled when the file implies it."""
    result = dict(config)
    for alias, key in ALIASES.items():
        if alias in result and result.get(key) is None:
            result[key] = result[alias]
    if result.get("quant_method") is None and default_method is not None:
        result["quant_method"] = default_method
    if result.get("quant_method") is not None:
        result["quant_method"] = str(result["quant_method"]).lower()
    return result


def _refuse_disagreement(found: dict[str, dict[str, Any]]) -> None:
    for key in COMPARED:
        stated = [(name, config[key]) for name, config in found.items() if config.get(key) is not None]
        for name, value in stated[1:]:
            first, expected = stated[0]
            if not _same(value, expected):
                raise ArgumentError(
                    key, f"{value!r} in {name}", f"{expected!r} as in {first}: the files disagree"
                )


def _same(a: object, b: object) -> bool:
    """Equality that does not tell 4, 4.0 and "4", or "GEMM" and "gemm", apart."""
    if isinstance(a, dict | list | bool) or isinstance(b, dict | list | bool):
        return a == b
    return str(a).lower().removesuffix(".0") == str(b).lower().removesuffix(".0")
