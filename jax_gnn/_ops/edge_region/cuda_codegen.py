"""CUDA code generation for walks: the C++ struct ``Text`` that ``edge_region.cuh`` runs per entry.

A program has one of three templates. Products by channel have
:mod:`jax_gnn._ops.edge_region.channel_kernel`, products with large shared matrices
:mod:`jax_gnn._ops.edge_region.tile_kernel`, and all others
:mod:`jax_gnn._ops.edge_region.slot_kernel`.

Entries are compared with extremes that another kernel made, to the same bits. Such kernels contract
no products with sums, and add up the elements of a row in an order that the template's sizes do not
change.

Generated source contains no user strings, only numbers and what stands in these files.
"""

from __future__ import annotations

import functools

from jax_gnn._ops.edge_region.channels import channels_of
from jax_gnn._ops.edge_region.cuda_text import MAX_ARRAYS, Infeasible, Kernel, has_tiles
from jax_gnn._ops.edge_region.row_program import RowProgram, Unsupported


def kernel_of(program: RowProgram) -> Kernel:
    """Generate the kernel of a walk.

    Raises:
        Unsupported: A value, or the whole, is beyond what a kernel can hold.
    """
    kernel = _kernel_or_reason(program)
    if isinstance(kernel, str):
        raise Unsupported(None, kernel)
    return kernel


@functools.lru_cache(maxsize=1024)
def _kernel_or_reason(program: RowProgram) -> Kernel | str:
    """Return the kernel, or why there is none: alternatives of a plan ask for the same ones."""
    # Generators are ten modules, which a machine without kernels of regions never needs.
    from jax_gnn._ops.edge_region.channel_kernel import generate_channels
    from jax_gnn._ops.edge_region.slot_kernel import generate_slots
    from jax_gnn._ops.edge_region.tile_kernel import generate_tiles

    if max(len(program.inputs), len(program.outputs)) > MAX_ARRAYS:
        return f"more than {MAX_ARRAYS} arrays"
    templates = [generate_tiles if has_tiles(program) else generate_slots]
    if channels_of(program) is not None:
        templates.insert(0, generate_channels)
    reasons: list[str] = []
    for generate in templates:
        try:
            return generate(program)
        except Infeasible as error:
            reasons.append(str(error))
    return reasons[0]
