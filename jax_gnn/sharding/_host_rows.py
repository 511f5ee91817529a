"""Rows in memory of the host, which a program sends to its device as it needs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike, DTypeLike

from jax_gnn._core import arguments
from jax_gnn._core.arrays import STATIC, accumulator_dtype, row_wise
from jax_gnn._core.op import align_varying
from jax_gnn._core.public import public

BLOCK_BYTES = 2**26
"""Of a block: a hundred times what keeps a link to a GPU busy, and little of its memory."""


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class HostRows:
    """Features of nodes in memory of the host, for graphs whose features do not fit a device.

    Layers that map features before they sum them take it in the place of an array. The compiled
    program sends a block of rows, maps it and drops it, so that a device has one block and what the
    map makes. Gradients of the map send all blocks once more; the features have none. So a step
    sends them twice, at the speed of the link.

    Attributes:
        blocks: ``(num_blocks, block_rows, features)``, in page-locked memory where a device has
            such. Rows are in order; where blocks have room for more, zeros end the first. Of a
            `ShardedGraph` there is a first axis of devices, which are within its ``apply`` alone.
        num_rows: number of rows.
        dtype: in which blocks are mapped; they travel in their own.

    Example:
        >>> graph = Graph.from_edges([0, 1, 2], [1, 0, 0], num_nodes=3)
        >>> x = HostRows.put(jnp.ones((3, 4)), block_rows=2)
        >>> x
        HostRows(shape=(3, 4), dtype=float32, num_blocks=2)
        >>> GCN(4, 8, 2, rngs=nnx.Rngs(0))(graph, x, deterministic=True).shape
        (3, 2)
    """

    blocks: Array
    num_rows: int = field(metadata=STATIC)
    dtype: np.dtype = field(metadata=STATIC)

    @classmethod
    def put(
        cls, values: ArrayLike, *, block_rows: int | None = None, device: Any = None
    ) -> HostRows:
        """Rows of numpy, in blocks.

        Args:
            values: ``(num_rows, features)`` of floating-point numbers, not traced.
            block_rows: how many rows a block has at most; None for about 64 MiB.
            device: which device they go to; by default where JAX puts arrays.

        Raises:
            TypeError: ``values`` are no floating-point numbers, or are traced.
            ValueError: ``values`` has other axes, ``block_rows`` is below 1, or ``device`` is
                several.
        """
        rows = check_rows(values, block_rows)
        devices = jnp.zeros(0, device=device).devices()
        if len(devices) > 1:
            raise ValueError(f"device must be one device, got {device}")
        (device,) = devices
        sharding = on_host(jax.sharding.SingleDeviceSharding(device), device)
        blocks = in_blocks(rows, blocks_of(rows.shape, rows.dtype, block_rows))
        return cls(jax.device_put(blocks, sharding), len(rows), rows.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """``(num_rows, features)``, of a `ShardedGraph` behind the axis of devices."""
        return (*self.blocks.shape[:-3], self.num_rows, self.blocks.shape[-1])

    @property
    def ndim(self) -> int:
        """Number of axes of `shape`."""
        return len(self.shape)

    def astype(self, dtype: DTypeLike) -> HostRows:
        """The same rows, which are mapped in another dtype."""
        return replace(self, dtype=jnp.dtype(dtype))

    def map(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Calls a function on each block of rows, and joins what it makes.

        It has derivatives of reverse mode alone.

        Args:
            function: takes ``(block_rows, features)`` and the operands, and returns a pytree of
                arrays with as many rows. Each row depends on the same row alone.
            *operands: pytrees of arrays of floating-point numbers, to which gradients go. They go
                to none that a function closes over.

        Returns:
            The same pytree, of arrays with `num_rows` rows.

        Raises:
            TypeError: the function cannot be called, or an operand is no array of numbers.
            ValueError: rows are of all devices, or a result has other rows than its block.
        """
        if self.blocks.ndim != 3:
            raise ValueError(f"x must be of one device, as in ShardedGraph.apply, got {self}")
        arguments.check_callable("function", function)
        count, size, _ = self.blocks.shape
        found: Any = jax.tree.flatten(operands)
        leaves, tree = [arguments.as_array("operands", leaf) for leaf in found[0]], found[1]
        dtypes = [leaf.dtype for leaf in leaves]

        def of_block(blocks: Array, number: Any, leaves: list[Array]) -> Any:
            # The axis goes on the device: of a row in the host's memory jaxlib 0.11 cannot take it.
            block = jax.lax.dynamic_slice_in_dim(blocks, number, 1)
            rows = jax.device_put(block, jax.memory.Space.Device)[0].astype(self.dtype)
            own = [leaf.astype(dtype) for leaf, dtype in zip(leaves, dtypes, strict=True)]
            return function(rows, *tree.unflatten(own))

        # What blocks add to a gradient is summed up in the dtype that kernels add in.
        leaves = [leaf.astype(accumulator_dtype(leaf.dtype)) for leaf in leaves]
        found = jax.tree.flatten(jax.eval_shape(of_block, self.blocks, 0, leaves))
        like, made = found
        for each in like:
            if each.shape[:1] != (size,):
                raise ValueError(f"function must return {size} rows for a block, got {each.shape}")
        # Of a constant XLA would make one array for all that is 0 in the program, and copy it here.
        zero = jax.lax.optimization_barrier(jnp.zeros(()))
        shapes = [(self.num_rows, *each.shape[1:]) for each in like]
        results = [
            jnp.broadcast_to(zero.astype(each.dtype), shape)
            for each, shape in zip(like, shapes, strict=True)
        ]
        if not self.num_rows:
            return made.unflatten(results)
        blocks, *aligned = align_varying([self.blocks, *results, *leaves])
        results, leaves = aligned[: len(like)], aligned[len(like) :]
        spare = count * size - self.num_rows

        def start_of(number: Array) -> Array:
            return jnp.maximum(number * size - spare, 0)

        @jax.custom_vjp
        def joined(blocks: Array, leaves: list[Array], results: list[Array]) -> list[Array]:
            def write(results: list[Array], number: Array) -> tuple[list[Array], None]:
                rows = jax.tree.leaves(of_block(blocks, number, leaves))
                update, start = jax.lax.dynamic_update_slice_in_dim, start_of(number)
                return [update(*each, start, 0) for each in zip(results, rows, strict=True)], None

            return jax.lax.scan(write, results, jnp.arange(count))[0]

        def forward(blocks: Array, leaves: list[Array], results: list[Array]) -> Any:
            return joined(blocks, leaves, results), (blocks, leaves)

        def backward(kept: Any, cts: list[Array]) -> Any:
            blocks, leaves = kept

            def add(total: list[Array], number: Array) -> tuple[list[Array], None]:
                own = (number > 0) | (jnp.arange(size) < size - spare)  # no rows of the next block
                slices = [jax.lax.dynamic_slice_in_dim(ct, start_of(number), size) for ct in cts]
                rows = [jnp.where(row_wise(own, ct), ct, 0) for ct in slices] if spare else slices
                _, back = jax.vjp(
                    lambda leaves: jax.tree.leaves(of_block(blocks, number, leaves)), leaves
                )
                return jax.tree.map(jnp.add, total, *back(rows)), None

            zeros = jax.tree.map(jnp.zeros_like, leaves)
            return None, jax.lax.scan(add, zeros, jnp.arange(count))[0], None

        joined.defvjp(forward, backward)
        return made.unflatten(joined(blocks, leaves, results))

    def __repr__(self) -> str:
        if not getattr(self.blocks, "shape", None):  # a pytree of something else than arrays
            return f"HostRows({self.blocks}, {self.num_rows}, {self.dtype})"
        return (
            f"HostRows(shape={self.shape}, dtype={self.dtype}, num_blocks={self.blocks.shape[-3]})"
        )


def check_rows(values: Any, block_rows: int | None) -> np.ndarray:
    """The values as an array of numpy, in a dtype of JAX."""
    rows = arguments.to_numpy("values", values)
    rows = rows.astype(jax.dtypes.canonicalize_dtype(rows.dtype), copy=False)
    if not jnp.issubdtype(rows.dtype, jnp.floating):
        raise TypeError(f"values must be floating-point numbers, got {rows.dtype}")
    if rows.ndim != 2:
        raise ValueError(f"values must be (rows, features), got shape {rows.shape}")
    if block_rows is not None and arguments.check_integer("block_rows", block_rows) < 1:
        raise ValueError(f"block_rows must be positive, got {block_rows}")
    return rows


def blocks_of(
    shape: tuple[int, ...], dtype: np.dtype, block_rows: int | None
) -> tuple[int, int, int]:
    """The shape of blocks: as many as there must be, of one size."""
    num_rows, width = shape
    most = block_rows or max(BLOCK_BYTES // max(width * dtype.itemsize, 1), 1)
    count = max(-(-num_rows // most), 1)
    return count, -(-num_rows // count), width


def in_blocks(rows: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """The rows in blocks of that shape, of which the first ends with zeros."""
    count, size, width = shape
    if len(rows) == count * size:
        return rows.reshape(shape)
    blocks, first = np.zeros((count * size, width), rows.dtype), size - (count * size - len(rows))
    blocks[:first], blocks[size:] = rows[:first], rows[first:]
    return blocks.reshape(shape)


def on_host(sharding: Any, device: Any) -> Any:
    """The sharding, in page-locked memory of the host, where the device has such."""
    kinds = [memory.kind for memory in device.addressable_memories()]
    return sharding.with_memory_kind("pinned_host") if "pinned_host" in kinds else sharding
