"""Requirements of the emitter on kernels, and the tensor maps of a kernel."""

from __future__ import annotations

from dataclasses import dataclass

from interlace.core.errors import PipelineError
from interlace.loops.cuda.indices import check_names
from interlace.loops.ir.statements import Copy, Load, LoopKernel, Matmul, Store
from interlace.loops.ir.traverse import walk


@dataclass(frozen=True)
class TensorMapSpec:
    """A tensor map that the host encodes: tensor, shape of its boxes, and whether it uses the 128-byte swizzle."""

    tensor: str
    box: tuple[int, ...]
    swizzled: bool

    @property
    def name(self) -> str:
        """Name of the kernel parameter."""
        return f"{self.tensor}_map_{'x'.join(map(str, self.box))}{'s' * self.swizzled}"


def check_emittable(kernel: LoopKernel) -> None:
    """Check what the emitter requires in addition to ``check_kernel``.

    Raises:
        PipelineError: the emitter does not support a name or a matmul.
    """
    check_names(kernel)
    for stmt in walk(kernel.body):
        if isinstance(stmt, Matmul):
            for tensor in (kernel.find_tensor(stmt.a.tensor), kernel.find_tensor(stmt.b.tensor)):
                if not tensor.swizzle_bytes:
                    raise PipelineError(
                        f"matmul reads {tensor.name!r} {tensor.tile}: it takes 64 elements along k, "
                        "rows of 128 bytes, swizzled by 128 bytes"
                    )


def find_map_spec(kernel: LoopKernel, stmt: Load | Store) -> TensorMapSpec:
    """Return the tensor map that a TMA copy uses."""
    inside, box = (stmt.dst, stmt.src) if isinstance(stmt, Load) else (stmt.src, stmt.dst)
    return TensorMapSpec(box.tensor, box.shape, kernel.find_tensor(inside.tensor).swizzle_bytes > 0)


def list_tensor_maps(kernel: LoopKernel) -> tuple[TensorMapSpec, ...]:
    """Return the distinct tensor maps of a kernel in the order of its parameters."""
    copies = (s for s in walk(kernel.body) if isinstance(s, Load | Store) and s.by is Copy.TMA)
    return tuple(dict.fromkeys(find_map_spec(kernel, s) for s in copies))


def find_products(kernel: LoopKernel) -> list[tuple[int, str]]:
    """Return the distinct pairs of columns and element type of a kernel's matrix products."""
    return sorted({(s.acc.shape[1], find_ptx_kind(kernel, s)) for s in walk(kernel.body) if isinstance(s, Matmul)})


def find_ptx_kind(kernel: LoopKernel, stmt: Matmul) -> str:
    """Return the element type of a product's operands, as PTX names it."""
    return kernel.find_tensor(stmt.a.tensor).dtype.ptx
