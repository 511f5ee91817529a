"""Rows in memory of the host, which a program sends to its device block by block."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, SingleDeviceSharding
from jax.typing import ArrayLike, DTypeLike

from jax_gnn._core import arguments
from jax_gnn._core.arrays import STATIC, accumulator_dtype, row_wise
from jax_gnn._core.op import align_varying
from jax_gnn._core.public import public

BLOCK_BYTES = 2**26
"""Bytes of a block: a hundred times what keeps a link to a GPU busy, and little of its memory."""

Result = TypeVar("Result")
HostSharding = TypeVar("HostSharding", NamedSharding, SingleDeviceSharding)


@public
@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False, repr=False)
class HostRows:
    """Features of nodes in memory of the host, for graphs whose features do not fit a device.

    Layers that map features before they sum them take it in place of an array. The compiled program
    sends a block of rows, maps it and drops it, so that a device holds one block and the results of
    the map. Gradients of the map send all blocks once more; the features have none. A training step
    therefore sends the features twice, at the speed of the link.

    Attributes:
        blocks: ``(num_blocks, block_rows, features)``, in page-locked memory where a device has
            such. Rows are in order; spare rows are zeros at the end of the first block. Blocks of a
            `ShardedGraph` have a leading axis of devices, except within its ``apply``.
        num_rows: number of rows.
        dtype: dtype in which blocks are mapped; they travel in the dtype of ``blocks``.

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
        cls,
        values: ArrayLike,
        *,
        block_rows: int | None = None,
        device: jax.Device | jax.sharding.Sharding | None = None,
    ) -> HostRows:
        """Put rows into blocks in memory of the host.

        Args:
            values: ``(num_rows, features)`` of floating-point numbers, not traced.
            block_rows: largest number of rows of a block; None for about 64 MiB.
            device: the device that blocks are sent to; by default that of new arrays.

        Raises:
            TypeError: ``values`` are not floating-point numbers, or are traced.
            ValueError: ``values`` has other axes, ``block_rows`` is below 1, or ``device`` is a
                sharding over several devices.
        """
        rows = check_rows(values, block_rows)
        devices = jnp.zeros(0, device=device).devices()
        if len(devices) > 1:
            raise ValueError(f"device must be one device, got {device}")
        (target,) = devices
        sharding = on_host(SingleDeviceSharding(target), target)
        blocks = to_blocks(rows, block_shape(rows.shape, rows.dtype, block_rows))
        return cls(jax.device_put(blocks, sharding), len(rows), rows.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """``(num_rows, features)``, after an axis of devices if `blocks` have one."""
        return (*self.blocks.shape[:-3], self.num_rows, self.blocks.shape[-1])

    @property
    def ndim(self) -> int:
        """Number of axes of `shape`."""
        return len(self.shape)

    def astype(self, dtype: DTypeLike) -> HostRows:
        """Return the same rows, to be mapped in another dtype."""
        return replace(self, dtype=jnp.dtype(dtype))

    def map(self, function: Callable[..., Result], *operands: object) -> Result:
        """Call a function on each block of rows, and concatenate its results.

        Only reverse-mode derivatives are supported.

        Args:
            function: takes ``(block_rows, features)`` and the operands, and returns a pytree of
                arrays with as many rows. Each row depends on the same row alone.
            *operands: pytrees of arrays of floating-point numbers, which get gradients. Arrays that
                a function closes over get none.

        Returns:
            The same pytree, of arrays with `num_rows` rows.

        Raises:
            TypeError: the function cannot be called, or an operand is not an array of numbers.
            ValueError: rows are of all devices, or a result has other rows than its block.
        """
        if self.blocks.ndim != 3:
            raise ValueError(f"x must be of one device, as in ShardedGraph.apply, got {self}")
        arguments.check_callable("function", function)
        num_blocks, size, _ = self.blocks.shape
        leaves, operand_tree = _flatten(operands)
        leaves = [arguments.as_array("operands", leaf) for leaf in leaves]
        dtypes = [leaf.dtype for leaf in leaves]

        def map_block(blocks: Array, index: Array, leaves: list[Array]) -> Result:
            # A slice is sent with its axis: jaxlib 0.11 cannot take a row in the host's memory.
            block = jax.lax.dynamic_slice_in_dim(blocks, index, 1)
            rows = jax.device_put(block, jax.memory.Space.Device)[0].astype(self.dtype)
            cast_leaves = [leaf.astype(dtype) for leaf, dtype in zip(leaves, dtypes, strict=True)]
            return function(rows, *operand_tree.unflatten(cast_leaves))

        # Gradients of the operands are summed over blocks, in the accumulator's dtype.
        leaves = [leaf.astype(accumulator_dtype(leaf.dtype)) for leaf in leaves]
        shapes, result_tree = _flatten(jax.eval_shape(map_block, self.blocks, 0, leaves))
        for shape in shapes:
            if shape.shape[:1] != (size,):
                raise ValueError(f"function must return {size} rows for a block, got {shape.shape}")
        # The barrier keeps XLA from sharing these zeros with others, which would copy them here.
        zero = jax.lax.optimization_barrier(jnp.zeros(()))
        results = [
            jnp.broadcast_to(zero.astype(shape.dtype), (self.num_rows, *shape.shape[1:]))
            for shape in shapes
        ]
        if not self.num_rows:
            return cast(Result, result_tree.unflatten(results))
        blocks, *aligned = align_varying([self.blocks, *results, *leaves])
        results, leaves = aligned[: len(shapes)], aligned[len(shapes) :]
        spare = num_blocks * size - self.num_rows

        # Blocks are written in order. The spare rows of block 0 are overwritten by block 1.
        def start_of(index: Array) -> Array:
            return jnp.maximum(index * size - spare, 0)

        @jax.custom_vjp
        def map_all(blocks: Array, leaves: list[Array], results: list[Array]) -> list[Array]:
            def write(results: list[Array], index: Array) -> tuple[list[Array], None]:
                rows, start = jax.tree.leaves(map_block(blocks, index, leaves)), start_of(index)
                update = jax.lax.dynamic_update_slice_in_dim
                pairs = zip(results, rows, strict=True)
                return [update(result, row, start, 0) for result, row in pairs], None

            return jax.lax.scan(write, results, jnp.arange(num_blocks))[0]

        def forward(
            blocks: Array, leaves: list[Array], results: list[Array]
        ) -> tuple[list[Array], tuple[Array, list[Array]]]:
            return map_all(blocks, leaves, results), (blocks, leaves)

        def backward(
            residuals: tuple[Array, list[Array]], cotangents: list[Array]
        ) -> tuple[None, list[Array], None]:
            blocks, leaves = residuals

            def add(total: list[Array], index: Array) -> tuple[list[Array], None]:
                start = start_of(index)
                rows = [jax.lax.dynamic_slice_in_dim(ct, start, size) for ct in cotangents]
                if spare:  # rows of block 1 in the slice of block 0 must not count twice
                    valid = (index > 0) | (jnp.arange(size) < size - spare)
                    rows = [jnp.where(row_wise(valid, row), row, 0) for row in rows]
                _, transpose = jax.vjp(
                    lambda leaves: jax.tree.leaves(map_block(blocks, index, leaves)), leaves
                )
                return jax.tree.map(jnp.add, total, *transpose(rows)), None

            zeros = jax.tree.map(jnp.zeros_like, leaves)
            return None, jax.lax.scan(add, zeros, jnp.arange(num_blocks))[0], None

        map_all.defvjp(forward, backward)
        return cast(Result, result_tree.unflatten(map_all(blocks, leaves, results)))

    def __repr__(self) -> str:
        if not getattr(self.blocks, "shape", None):  # JAX puts other leaves than arrays here
            return f"HostRows({self.blocks}, {self.num_rows}, {self.dtype})"
        return (
            f"HostRows(shape={self.shape}, dtype={self.dtype}, num_blocks={self.blocks.shape[-3]})"
        )


def _flatten(tree: object) -> tuple[list[Any], Any]:
    leaves, structure = jax.tree.flatten(tree)
    return leaves, structure


def check_rows(values: ArrayLike, block_rows: int | None) -> np.ndarray:
    """Return the values as a matrix in numpy, in a dtype of JAX."""
    rows = arguments.to_numpy("values", values)
    # Without 64-bit types in JAX, float64 becomes float32.
    rows = rows.astype(jax.dtypes.canonicalize_dtype(rows.dtype), copy=False)
    if not jnp.issubdtype(rows.dtype, jnp.floating):
        raise TypeError(f"values must be floating-point numbers, got {rows.dtype}")
    arguments.check_shape("values", rows, "(rows, features)", None, None)
    if block_rows is not None and arguments.check_integer("block_rows", block_rows) < 1:
        raise ValueError(f"block_rows must be positive, got {block_rows}")
    return rows


def block_shape(
    shape: tuple[int, ...], dtype: np.dtype, block_rows: int | None
) -> tuple[int, int, int]:
    """Return the shape of the fewest blocks of equal size that hold an array of rows."""
    num_rows, width = shape
    max_rows = block_rows or max(BLOCK_BYTES // max(width * dtype.itemsize, 1), 1)
    num_blocks = max(-(-num_rows // max_rows), 1)
    return num_blocks, -(-num_rows // num_blocks), width


def to_blocks(rows: np.ndarray, shape: tuple[int, int, int]) -> np.ndarray:
    """Return the rows as blocks of this shape; zeros fill the end of the first block."""
    num_blocks, size, width = shape
    num_rows = num_blocks * size
    if len(rows) == num_rows:
        return rows.reshape(shape)
    blocks, first = np.zeros((num_rows, width), rows.dtype), size - (num_rows - len(rows))
    blocks[:first], blocks[size:] = rows[:first], rows[first:]
    return blocks.reshape(shape)


def on_host(sharding: HostSharding, device: jax.Device) -> HostSharding:
    """Return the sharding in page-locked memory of the host, if the device has such."""
    kinds = [memory.kind for memory in device.addressable_memories()]
    return sharding.with_memory_kind("pinned_host") if "pinned_host" in kinds else sharding
