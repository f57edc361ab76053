"""Launches of a run, bound to the tensors that they were built for, so that later runs on these skip the checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, Any

from interlace.executors.launch import AnyLaunch

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class BoundLaunches:
    """Launches on checked tensors, with the locations of these.

    Attributes:
        tensors: the tensors as passed.
        addresses, layouts: address and layout of each tensor by name; a layout is shape and strides.
        launches: launches of one run.
    """

    tensors: tuple[torch.Tensor, ...]
    addresses: Mapping[str, int]
    layouts: Mapping[str, tuple[Any, ...]]
    launches: list[AnyLaunch]

    @classmethod
    def bind(cls, tensors: Mapping[str, torch.Tensor], launches: list[AnyLaunch]) -> BoundLaunches:
        """Return launches bound to these tensors."""
        return cls(tuple(tensors.values()), _list_addresses(tensors), _list_layouts(tensors), launches)

    def is_bound_to(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Return whether these are the checked tensors, unchanged since then.

        Addresses alone do not suffice: another view of the same memory, such as a transposed one, has the address of a
        checked tensor. Nor does identity: a tensor that is transposed in place (``t_``) is the same object.
        """
        return (
            len(tensors) == len(self.tensors)
            and all(map(is_, tensors.values(), self.tensors))
            and _list_addresses(tensors) == self.addresses
            and _list_layouts(tensors) == self.layouts
        )

    def is_valid_for(self, tensors: Mapping[str, torch.Tensor], any_layout: bool) -> bool:
        """Return whether the launches are valid for these tensors, too, which have been checked.

        Args:
            any_layout: True if shapes and strides follow from the graph, so that launches depend on addresses alone.
        """
        return _list_addresses(tensors) == self.addresses and (any_layout or _list_layouts(tensors) == self.layouts)


def make_tensor_key(torch: Any, tensors: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
    """Return all that a launch or a check depends on in tensors; equal results mean equal launches.

    A tensor without an address, such as a sparse one, is represented by its identity; no launch exists for it.
    """
    strided = torch.strided
    return tuple(
        (name, t.data_ptr(), t.shape, t.stride(), t.dtype, t.device)
        if isinstance(t, torch.Tensor) and t.layout is strided
        else (name, id(t))
        for name, t in tensors.items()
    )


def _list_addresses(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


def _list_layouts(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[Any, ...]]:
    return {name: (tensor.shape, tensor.stride()) for name, tensor in tensors.items()}
