"""Conversions between tensors of PyTorch and arrays of numpy, half types included."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jax_gnn.convert._data import package

Tensor: TypeAlias = Any
"""A ``torch.Tensor``; PyTorch is imported only on use."""


def from_tensor(name: str, tensor: Tensor) -> np.ndarray:
    """Copy a dense tensor, which errors call ``name``, to an array of its dtype."""
    layout = str(getattr(tensor, "layout", type(tensor).__name__))
    if layout != "torch.strided":
        raise TypeError(f"{name} must be a dense tensor, got {layout}: call its to_dense() before")
    tensor = tensor.detach().cpu().contiguous().clone()
    if str(tensor.dtype) == "torch.bfloat16":  # numpy itself has no such type
        torch = package("torch", "torch")
        return np.asarray(tensor.view(torch.int16).numpy().view(jnp.bfloat16))
    return np.asarray(tensor.numpy())


def to_tensor(array: ArrayLike | None) -> Tensor:
    """Copy an array to a tensor of its dtype on the host."""
    torch, values = package("torch", "torch"), np.array(array)
    if values.dtype == jnp.bfloat16:
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)
