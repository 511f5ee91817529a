"""Tensors of PyTorch as arrays of numpy, and back; half types included."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from jax_gnn.convert._data import package


def from_tensor(name: str, tensor: Any) -> np.ndarray:
    """A copy of a dense tensor on the host, in its dtype.

    Raises:
        TypeError: it is sparse, or of a layout of its own; the error calls it ``name``.
    """
    layout = str(getattr(tensor, "layout", type(tensor).__name__))
    if layout != "torch.strided":
        raise TypeError(f"{name} must be a dense tensor, got {layout}: call its to_dense() before")
    tensor = tensor.detach().cpu().contiguous().clone()
    if str(tensor.dtype) == "torch.bfloat16":  # which numpy does not know
        torch = package("torch", "torch")
        return tensor.view(torch.int16).numpy().view(jnp.bfloat16)
    return tensor.numpy()


def to_tensor(array: Any) -> Any:
    """A tensor of an array's values, in its dtype, on the host."""
    torch = package("torch", "torch")
    array = np.array(array)
    if array.dtype == jnp.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
