"""Random numbers by counter, the same on every device, in C++ and in numpy.

``jax.random`` gives other bits with other settings and other kinds of keys. Sampling wants one
number for each (stream, index, round), whatever computes it, and however many there are: the block
cipher Threefry-2x32 with 20 rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
SC 2011) of that counter, under the words of the key.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = np.uint32(0x1BD11BDA)
ROUND_BITS = 24  # a counter's second word: the stream above, the round below


def key_words(name: str, key: Any) -> tuple[Array, Array]:
    """The two words that a key of JAX is taken for: those of a Threefry key are its own.

    Raises:
        TypeError: it is no key of JAX.
        ValueError: it is several keys.
    """
    wanted = f"{name} must be a key of jax.random, such as jax.random.key(0), got"
    if not isinstance(key, jax.Array | np.ndarray):
        raise TypeError(f"{wanted} {type(key).__name__}")
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if key.shape:
            raise ValueError(f"{name} must be a single key, got shape {key.shape}")
        words = jax.random.key_data(key)
    elif key.dtype == np.uint32 and key.ndim == 1 and key.shape[0] % 2 == 0 and key.shape[0]:
        words = jnp.asarray(key)
    else:
        raise TypeError(f"{wanted} {key.dtype} of shape {key.shape}")
    pairs = [(words[i], words[i + 1]) for i in range(0, words.shape[0], 2)]
    first = pairs[0]
    for pair in pairs[1:]:
        first = threefry(first, *pair)
    return first


def host_words(name: str, key: Any) -> tuple[Any, Any]:
    """The two words of a key: of ``jax.random``, or uint32 of numpy, which no device is asked for.

    Raises:
        TypeError: it is no key.
        ValueError: it is several keys of ``jax.random``.
    """
    if isinstance(key, jax.Array):
        first, second = (np.uint32(word) for word in key_words(name, key))
        return first, second
    if not (isinstance(key, np.ndarray) and key.dtype == np.uint32 and key.shape == (2,)):
        given = f"{key.dtype} of shape {key.shape}" if hasattr(key, "dtype") else type(key).__name__
        raise TypeError(f"{name} must be a key of jax.random or (2,) uint32, got {given}")
    return key[0], key[1]


def threefry(key: tuple[Any, Any], first: Any, second: Any) -> tuple[Array, Array]:
    """Threefry-2x32, 20 rounds, of two words for each element, all uint32."""
    words = *key, key[0] ^ key[1] ^ _PARITY
    a, b = first + words[0], second + words[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            a = a + b
            b = (b << np.uint32(rotation)) | (b >> np.uint32(32 - rotation))
            b = b ^ a
        a = a + words[(group + 1) % 3]
        b = b + words[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def bits(key: tuple[Any, Any], stream: int, index: Any, step: Any) -> tuple[Array, Array]:
    """64 random bits for each index, in two words.

    Args:
        key: two words, of :func:`key_words`.
        stream: below 256, which numbers of the key these are; a layer's, for example.
        index: integers from 0, an array.
        step: integers from 0, below 2²⁴: how many numbers the index had before.
    """
    counter = jnp.uint32(stream << ROUND_BITS) | jnp.asarray(step).astype(jnp.uint32)
    index = jnp.asarray(index).astype(jnp.uint32)
    return threefry(key, index, jnp.broadcast_to(counter, index.shape))


def below(random: tuple[Array, Array], size: Array) -> Array:
    """An integer from 0, below ``size`` (uint32), equally likely but for a part in 2⁶⁴ / ``size``.

    The product of ``size`` and a fraction of 64 bits, rounded down; 0 where ``size`` is 0.
    """
    high, low = random
    carried = high * size
    total = carried + _high_product(low, size)
    return _high_product(high, size) + (total < carried).astype(jnp.uint32)


def _high_product(a: Array, b: Array) -> Array:
    """The upper 32 bits of a product of two uint32: there need not be any of 64 bits."""
    half, mask = np.uint32(16), np.uint32(0xFFFF)
    a_low, a_high, b_low, b_high = a & mask, a >> half, b & mask, b >> half
    first = a_high * b_low + (a_low * b_low >> half)
    second = a_low * b_high + (first & mask)
    return a_high * b_high + (first >> half) + (second >> half)
