"""``sf.fold_act_order``: layers that write what the next one reads in its packed order."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from swordfish.errors import ArgumentError, ArgumentTypeError
from swordfish.linear import Linear

__all__ = ["fold_act_order"]


def fold_act_order(producers: Linear | Iterable[Linear], consumer: Linear) -> bool:
    """Brings the outputs of ``producers`` into the packed order of ``consumer``, in place, so that with
    act-order no kernel permutes what the consumer reads.

        for layer in model.model.layers:  # a Llama MLP: down(silu(gate(x)) * up(x))
            sf.fold_act_order([layer.mlp.gate_proj, layer.mlp.up_proj], layer.mlp.down_proj)

    What the layers cannot tell, and the caller must know: the input of ``consumer`` is made of the outputs of
    the producers element by element (activations, products; no norm with weights, no heads, no rotation),
    nothing else reads these outputs or adds to them, and every layer of which it is made is among
    ``producers``. In a row shard with rows of padding (``consumer.weight.packed_k`` above ``in_features``)
    what lies between must leave 0 as it is, and there are ``packed_k`` features between.

    Columns and bias of the producers are reordered; the consumer keeps its tensors but loses ``perm`` and
    ``scheme.act_order``. Tensors that a producer shares with other modules stay as they are for those.
    A model's ``state_dict`` from before is refused.

    Returns:
        Whether something was folded: ``False``, and nothing changed, for a consumer without act-order.

    Raises:
        ArgumentTypeError: something that is no :class:`Linear`.
        ArgumentError: no producers, a producer of another width, one that is the consumer, or a consumer
            without values (meta tensors). Nothing has changed then.
    """
    made = list(dict.fromkeys([producers] if isinstance(producers, Linear) else producers))
    named = {f"producers[{i}]": layer for i, layer in enumerate(made)} | {"consumer": consumer}
    for name, layer in named.items():
        if not isinstance(layer, Linear):
            raise ArgumentTypeError(name, type(layer).__name__, "a swordfish.Linear")
    if not made:
        raise ArgumentError("producers", "[]", "the layers whose outputs the consumer reads")
    features = consumer.in_features
    for i, layer in enumerate(made):
        if layer is consumer:
            raise ArgumentError(f"producers[{i}]", "the consumer", "another layer")
        if layer.out_features != features:
            allowed = f"{features}, the in_features of the consumer"
            raise ArgumentError(f"producers[{i}].out_features", layer.out_features, allowed)
    order = consumer.weight.perm
    if order is None:
        return False
    if order.is_meta:
        raise ArgumentError("consumer.device", order.device, "one with values", "Load the weights first.")
    with torch.no_grad():
        reordered = [layer.weight.reorder_columns(order.to(layer.words.device)) for layer in made]
    for layer, weight in zip(made, reordered, strict=True):
        if weight.bias is not None and layer.bias is not None:
            weight.bias.requires_grad_(layer.bias.requires_grad)
        layer.hold(weight)
    consumer.hold(consumer.weight.in_packed_order())
    return True
