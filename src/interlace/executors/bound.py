"""The launches of a run with the tensors that they were made for: which later run need not check its own again?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import is_
from typing import TYPE_CHECKING, Any

from interlace.executors.launch import AnyLaunch

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Bound:
    """Launches on tensors that were checked, with where these lay.

    Attributes:
        tensors: as they were given.
        addresses, layouts: by the tensor's name; a layout is shape and strides.
        launches: of one run.
    """

    tensors: tuple[torch.Tensor, ...]
    addresses: Mapping[str, int]
    layouts: Mapping[str, tuple[Any, ...]]
    launches: list[AnyLaunch]

    @classmethod
    def on(cls, tensors: Mapping[str, torch.Tensor], launches: list[AnyLaunch]) -> Bound:
        """Launches on these tensors."""
        return cls(tuple(tensors.values()), _addresses(tensors), _layouts(tensors), launches)

    def holds(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Whether these are the tensors that were checked, as they were then.

        Another view of the same memory, such as a transposed one, has the address of a tensor that was checked, and a
        tensor that is transposed in place (``t_``) is the same one too.
        """
        return (
            len(tensors) == len(self.tensors)
            and all(map(is_, tensors.values(), self.tensors))
            and _addresses(tensors) == self.addresses
            and _layouts(tensors) == self.layouts
        )

    def serves(self, tensors: Mapping[str, torch.Tensor], any_layout: bool) -> bool:
        """Whether the launches are those on these tensors, too, which have been checked.

        Args:
            any_layout: shapes and strides follow from the graph, so addresses are all that a launch takes of a tensor.
        """
        return _addresses(tensors) == self.addresses and (any_layout or _layouts(tensors) == self.layouts)


def places_of(torch: Any, tensors: Mapping[str, torch.Tensor]) -> tuple[Any, ...]:
    """What a launch takes of tensors, and all that is checked of them: launches of equal ones are equal.

    Of what has no place, such as a sparse tensor, its identity; no such launch was ever made.
    """
    strided = torch.strided
    return tuple(
        (name, t.data_ptr(), t.shape, t.stride(), t.dtype, t.device)
        if isinstance(t, torch.Tensor) and t.layout is strided
        else (name, id(t))
        for name, t in tensors.items()
    )


def _addresses(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    return {name: tensor.data_ptr() for name, tensor in tensors.items()}


def _layouts(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[Any, ...]]:
    return {name: (tensor.shape, tensor.stride()) for name, tensor in tensors.items()}
