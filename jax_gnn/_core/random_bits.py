"""Counter-based random numbers: the same bits on every device, in C++ and in numpy.

``jax.random`` gives other bits with other settings and other kinds of keys. Sampling needs one
number for each (stream, index, step) on any platform: the block cipher Threefry-2x32 with 20 rounds
(Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) of that counter, under the
two words of the key.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from jax_gnn._core import arguments

_ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
_PARITY = np.uint32(0x1BD11BDA)
STEP_BITS = 24  # of a counter's second word, below the 8 bits of the stream

KeyWords = tuple[Array, Array]


def key_words(name: str, key: object) -> KeyWords:
    """Return the two words of a JAX key; keys of more words are hashed to two."""
    expected = f"{name} must be a key of jax.random, such as jax.random.key(0), got"
    if not isinstance(key, jax.Array | np.ndarray):
        raise TypeError(f"{expected} {type(key).__name__}")
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if key.shape:
            raise ValueError(f"{name} must be a single key, got shape {key.shape}")
        words = jax.random.key_data(jnp.asarray(key))
    elif key.dtype == np.uint32 and key.ndim == 1 and key.shape[0] % 2 == 0 and key.shape[0]:
        words = jnp.asarray(key)
    else:
        raise TypeError(f"{expected} {key.dtype} of shape {key.shape}")
    # The words of a Threefry key are taken as they are; keys of other kinds have four words.
    result = words[0], words[1]
    for i in range(2, words.shape[0], 2):
        result = threefry(result, words[i], words[i + 1])
    return result


def host_key_words(name: str, key: object) -> Any:
    """Return the two words of a key; uint32 words in numpy are read without asking a device."""
    if isinstance(key, jax.Array):
        first, second = key_words(name, key)
        return np.uint32(first), np.uint32(second)
    if not (isinstance(key, np.ndarray) and key.dtype == np.uint32 and key.shape == (2,)):
        raise TypeError(
            f"{name} must be a key of jax.random or (2,) uint32, got {arguments.described(key)}"
        )
    return key[0], key[1]


def threefry(key: KeyWords, first: Array, second: Array) -> KeyWords:
    """Apply Threefry-2x32 with 20 rounds to each pair of uint32 words."""
    words = key[0], key[1], key[0] ^ key[1] ^ _PARITY
    a, b = first + words[0], second + words[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            a = a + b
            b = (b << np.uint32(rotation)) | (b >> np.uint32(32 - rotation))
            b = b ^ a
        # The key is injected after every fourth round.
        a = a + words[(group + 1) % 3]
        b = b + words[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def bits(key: KeyWords, stream: int, index: Array, step: Array | int) -> tuple[Array, Array]:
    """Return 64 random bits for each index from 0, in two words.

    ``key`` is two words, from :func:`key_words`. Random streams have numbers below 256, such as
    that of a layer; ``step``, below 2²⁴, is the number of the draw of an index.
    """
    counter = jnp.uint32(stream << STEP_BITS) | jnp.asarray(step).astype(jnp.uint32)
    index = jnp.asarray(index).astype(jnp.uint32)
    return threefry(key, index, jnp.broadcast_to(counter, index.shape))


def integers_below(random: tuple[Array, Array], size: Array) -> Array:
    """Return random integers from 0, below `size` (uint32); 0 where `size` is 0.

    All are equally likely but for a part in 2⁶⁴ / `size`: the result is the product of `size` and a
    fraction of 64 bits, rounded down.
    """
    high, low = random
    partial = high * size
    total = partial + _high_product(low, size)
    carry = total < partial
    return _high_product(high, size) + carry.astype(jnp.uint32)


def fraction(word: Array) -> Array:
    """Return random words of 32 bits as float32 numbers from 0, below 1; exact."""
    mantissa = (word >> jnp.uint32(8)).astype(jnp.float32)
    return jnp.multiply(mantissa, jnp.float32(2**-24))


def _high_product(a: Array, b: Array) -> Array:
    """Return the upper 32 bits of a product of two uint32, without integers of 64 bits."""
    half, mask = np.uint32(16), np.uint32(0xFFFF)
    a_low, a_high, b_low, b_high = a & mask, a >> half, b & mask, b >> half
    middle = a_high * b_low + (a_low * b_low >> half)
    carry = a_low * b_high + (middle & mask)
    return a_high * b_high + (middle >> half) + (carry >> half)
