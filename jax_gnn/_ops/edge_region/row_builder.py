"""Row programs in the making: instructions, of which equal ones are merged and constants folded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_gnn._ops.edge_region.row_program import Input, Instruction


class Builder:
    """A row program in the making: merges equal instructions and folds constants.

    Attributes:
        inputs: Values 0, 1, …
        instructions: The values after the inputs, so far.
    """

    def __init__(self, inputs: Iterable[Input]) -> None:
        self.inputs = tuple(inputs)
        self.instructions: list[Instruction] = []
        self._index_of: dict[str, int] = {}

    def emit(
        self,
        name: str,
        operands: Iterable[int],
        width: int,
        dtype: np.dtype[Any] | type,
        params: Iterable[object] = (),
    ) -> int:
        """Return the value of an instruction, which is new unless an equal one exists."""
        instruction = Instruction(name, tuple(operands), width, np.dtype(dtype), tuple(params))
        key = repr(instruction)  # unlike ==, distinguishes -0.0 from 0.0
        if key not in self._index_of:
            self._index_of[key] = len(self.inputs) + len(self.instructions)
            self.instructions.append(instruction)
        return self._index_of[key]

    def constant(self, value: np.ndarray) -> int:
        """Emit a constant."""
        # float64 holds all smaller floats exactly. Python floats have a `repr` that is unique,
        # which `emit` needs for its keys.
        wide = value.astype(np.float64) if jnp.issubdtype(value.dtype, jnp.floating) else value
        return self.emit("constant", (), value.size, value.dtype, wide.ravel().tolist())

    def constant_of(self, index: int) -> np.ndarray | None:
        """Return the elements of a constant value; None for other values."""
        value = self.value(index)
        if isinstance(value, Instruction) and value.name == "constant":
            return np.asarray(value.params, value.dtype)
        return None

    def value(self, index: int) -> Input | Instruction:
        """Return the input or instruction with an index."""
        count = len(self.inputs)
        return self.inputs[index] if index < count else self.instructions[index - count]

    def take(self, value: int, indices: np.ndarray) -> int:
        """Emit the elements of a value at flat indices."""
        source, indices = self.value(value), indices.ravel()
        if indices.size == source.width and np.array_equal(indices, np.arange(source.width)):
            return value
        numbers = self.constant_of(value)
        if numbers is not None:
            return self.constant(numbers[indices])
        if isinstance(source, Instruction) and source.name == "take":
            return self.take(source.operands[0], np.asarray(source.params, int)[indices])
        return self.emit("take", (value,), indices.size, source.dtype, indices.tolist())

    def concatenate(self, values: Sequence[int]) -> int:
        """Emit flat rows one after the other."""
        values = [value for value in values if self.value(value).width]
        if len(values) == 1:
            return values[0]
        width = sum(self.value(value).width for value in values)
        constants = [self.constant_of(value) for value in values]
        if all(numbers is not None for numbers in constants):
            return self.constant(np.concatenate(constants))  # type: ignore[arg-type]
        return self.emit("concatenate", values, width, self.value(values[0]).dtype)

    def reduce(self, kind: str, value: int, shape: Sequence[int], axes: Sequence[int]) -> int:
        """Emit a reduction over axes."""
        # `reduce` has the last axis only: a take moves the reduced axes there first.
        indices = np.moveaxis(flat_indices(shape), tuple(axes), tuple(range(-len(axes), 0)))
        count = math.prod(shape[axis] for axis in axes)
        value = self.take(value, indices)
        if count == 1:
            return value
        numbers = self.constant_of(value)
        if numbers is not None and count:
            rows = numbers.reshape(-1, count)
            return self.constant(getattr(np, kind)(rows, 1).astype(numbers.dtype))
        width = math.prod(size for axis, size in enumerate(shape) if axis not in axes)
        return self.emit("reduce", (value,), width, self.value(value).dtype, (kind, count))


def flat_indices(shape: Sequence[int]) -> np.ndarray:
    """Return the flat index of each element of a row."""
    return np.arange(math.prod(shape)).reshape(shape)
