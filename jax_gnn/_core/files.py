"""Untrusted files: paths, bounds of the memory that reading takes, and ``.npz`` archives."""

from __future__ import annotations

import math
import os
import struct
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

MEMORY_FACTOR = 4096
"""Bytes of memory that a dataset may take for each byte of its files."""

ID_BYTES = 64
"""Bytes of memory that an id takes while a dataset is built."""

_READING_FACTOR = 1024  # bytes for each byte read, whatever it holds: an empty set is one byte
_SMALL_FILE = 2**16
_NPY_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


class Memory:
    """Budget of bytes for reading a dataset, in proportion to the bytes of its files.

    Readers claim bytes before they allocate what the size of a file does not bound: compressed
    arrays, sizes that are a mere number in the file, and values that the dataset repeats.

    Attributes:
        limit: total number of bytes that may be claimed.
    """

    def __init__(self, *files: Path) -> None:
        size = max(sum(file.stat().st_size for file in files), _SMALL_FILE)
        self.limit = MEMORY_FACTOR * size
        self._left = self.limit - _READING_FACTOR * size

    def claim(self, what: str, num_bytes: int) -> None:
        """Subtract bytes from the budget; raise ``ValueError``, which says for what, if too few."""
        self._left -= num_bytes
        if self._left < 0:
            raise ValueError(
                f"{what} would take {num_bytes:,} bytes of memory, which with all else is more "
                f"than {MEMORY_FACTOR:,} for each byte of the files"
            )


@contextmanager
def errors_in(path: Path | str) -> Iterator[None]:
    """Put the name of a file or table before the messages of errors about its contents."""
    try:
        yield
    except (ValueError, TypeError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path}: {error}") from error


def as_path(name: str, path: object) -> Path:
    """Check an argument that is the path of a file or folder."""
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"{name} must be the path of a file or folder, got {path!r:.80}")
    if not os.fspath(path):  # pathlib would take it for the working directory
        raise ValueError(f"{name} must be the path of a file or folder, got {path!r}")
    return Path(path)


def require_file(path: Path, what: str) -> Path:
    """Return the path of an existing file; errors say that ``what`` was expected there."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; expected {what}")
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "no regular file"
        raise ValueError(f"{path} is {kind}; expected {what}")
    return path


# --- Archives of arrays --------------------------------------------------------------------------


def open_npz(path: Path) -> zipfile.ZipFile:
    """Open a ``.npz`` file; any damage is a ``ValueError``."""
    try:
        archive = zipfile.ZipFile(path) if zipfile.is_zipfile(path) else None
    except Exception as error:  # zipfile raises many types for damaged archives
        raise ValueError(f"{path}: damaged .npz file: {error}") from error
    if archive is None:
        raise ValueError(f"{path}: not a .npz file, or cut off")
    return archive


def read_npz(path: Path, what: str, keys: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """Read arrays of a ``.npz`` file without pickle, within the memory that its size allows.

    If ``keys`` is None, all arrays are read.
    """
    memory = Memory(require_file(path, what))
    with open_npz(path) as archive:
        return {
            array_key(member): read_array(path, archive, member, memory)
            for member in archive.infolist()
            if keys is None or array_key(member) in keys
        }


def map_npz(path: Path, key: str) -> np.ndarray:
    """Return a memory map of an array in a ``.npz`` file that is not compressed."""
    with open_npz(path) as archive, errors_in(path):
        if f"{key}.npy" not in archive.namelist():
            raise ValueError(f"it has no array {key!r}")
        member = archive.getinfo(f"{key}.npy")
        if member.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{key!r} is compressed, which cannot be mapped")
        with archive.open(member) as file:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError(f"{key!r} is an array of an unknown version")
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
            header_size = file.tell()
        if dtype.hasobject or is_fortran:
            raise ValueError(f"{key!r} must be a plain array, got {dtype}")
        if not math.prod(shape):
            return np.zeros(shape, dtype)
        with path.open("rb") as raw:  # the name and extra field precede the contents
            raw.seek(member.header_offset + 26)
            start = member.header_offset + 30 + sum(struct.unpack("<HH", raw.read(4)))
        return np.memmap(path, dtype, "r", start + header_size, shape)


def array_key(member: zipfile.ZipInfo) -> str:
    """Return the key of an array in a ``.npz`` file."""
    return member.filename.removesuffix(".npy")


def read_array(
    path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo, memory: Memory
) -> np.ndarray:
    """Read one array of a ``.npz`` file; errors name the file and the array's key."""
    key = array_key(member)
    try:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError("it is compressed by a method that can make gigabytes of a block")
        # The header is read first, so that its claim comes before the array is allocated.
        with archive.open(member) as file:
            version = np.lib.format.read_magic(file)
            if version not in _NPY_HEADERS:
                raise ValueError(f"arrays of version {version} are not supported")
            shape, _, dtype = _NPY_HEADERS[version](file)
        # Rows of no elements count too. Features are copied to float32; other arrays are sorted.
        work = 8 if key == "x" or key.endswith("_utf8") else dtype.itemsize + ID_BYTES
        memory.claim("it", math.prod(max(size, 1) for size in shape) * (dtype.itemsize + work))
        with archive.open(member) as file:
            array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
            return array
    except Exception as error:
        raise ValueError(f"{path}: cannot read {key!r}: {error}") from error
