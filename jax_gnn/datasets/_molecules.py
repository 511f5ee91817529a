"""Molecules with positions: extended XYZ files, and archives such as those of MD17."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jax_gnn._core.files import as_path, errors_in, read_npz, require_file
from jax_gnn.datasets._dataset import GraphsDataset
from jax_gnn.datasets._lines import integers, is_blank, read_lines

ELEMENTS = """
    X H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br
    Kr Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er
    Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es
    """.split()  # noqa: SIM905 (a list would take a line for each symbol)
"""Symbols of the elements by atomic number, up to 99."""

ATOM_FEATURES = "atomic_number", "x", "y", "z"
"""Names of the features of atoms in `GraphsDataset.x`."""

_KEYS = {
    "positions": ("coords", "R", "positions"),
    "numbers": ("nuclear_charges", "z", "numbers"),
    "energies": ("energies", "E", "energy"),
    "forces": ("forces", "F"),
}


def load_xyz(path: str | os.PathLike[str]) -> GraphsDataset:
    """Read molecules from an extended XYZ file, as ASE writes them: one frame or more.

    A frame is a line with the number of atoms, a line of ``KEY=VALUE``, and a line for each atom.
    ``Properties`` names the columns; without it these are symbol and position. ``energy`` is the
    number to regress on, or else the only number in the line; columns ``forces`` are its negative
    gradient. Features of nodes are atomic numbers and positions. There are no edges.

    Args:
        path: the ``.xyz`` or ``.extxyz`` file, perhaps with ``.gz``.
    """
    path = require_file(as_path("path", path), "an .xyz file")
    sizes: list[int] = []
    rows: list[list[float]] = []
    energies = []
    with errors_in(path):
        lines = read_lines(path)
        for number, line in lines:
            if is_blank(line):
                continue
            (size,) = integers(number, "a number of atoms", [line], 1, 2**31)
            frame = [line for _, line in itertools.islice(lines, size + 1)]
            try:
                if len(frame) <= size:
                    raise ValueError(f"expected {size} atoms, and the file ends")
                atoms, energy = _frame(frame[0], frame[1:])
                if rows and len(atoms[0]) != len(rows[0]):
                    raise ValueError("expected forces in all frames or in none")
            except ValueError as error:
                raise ValueError(f"frame at line {number}: {error}") from error
            sizes.append(size)
            rows += atoms
            energies.append(energy)
        values = np.array(rows, float, ndmin=2)
        return _dataset(path, sizes, values[:, :4], values[:, 4:], energies)


def _frame(head: str, lines: Sequence[str]) -> tuple[list[list[float]], float]:
    """Return atomic numbers, positions and perhaps forces of the atoms, and the energy."""
    words = shlex.split(head)
    pairs = (word.partition("=") for word in words if "=" in word)
    values = {key.lower(): value for key, _, value in pairs}
    columns, start = {}, 0
    text = values.get("properties", "species:S:1:pos:R:3")
    properties = text.lower().split(":")
    if len(properties) % 3 or not all(map(str.isdecimal, properties[2::3])):
        raise ValueError(f"Properties: expected NAME:TYPE:COLUMNS, got {text!r:.80}")
    for name, width in zip(properties[::3], properties[2::3], strict=True):
        columns[name] = slice(start, start + int(width))
        start += int(width)
    if "pos" not in columns:
        raise ValueError(f"Properties: expected pos among the columns, got {text!r:.80}")
    energy = values.get("energy", words[0] if len(words) == 1 and not values else "nan")
    kind = columns.get("species", columns.get("z", slice(0, 1)))
    forces = columns.get("forces", columns.get("force"))
    vectors = [columns["pos"], *([] if forces is None else [forces])]
    return [_atom(line, kind, vectors) for line in lines], float(energy)


def _atom(line: str, kind: slice, vectors: Sequence[slice]) -> list[float]:
    """Return the atomic number and the vectors of an atom's line."""
    fields = line.split()
    try:
        (symbol,) = fields[kind]
        number = int(symbol) if symbol.isdecimal() else ELEMENTS.index(symbol.capitalize())
        parts = [list(map(float, fields[columns])) for columns in vectors]
        if any(len(part) != 3 or not np.isfinite(part).all() for part in parts):
            raise ValueError
    except ValueError:
        names = "position and forces" if len(vectors) > 1 else "position"
        raise ValueError(f"expected an element's symbol, {names}, got {line!r:.80}") from None
    return [number, *itertools.chain(*parts)]


def load_molecules(path: str | os.PathLike[str]) -> GraphsDataset:
    """Read molecules from an ``.npz`` file of plain arrays, as those of MD17 and rMD17.

    ``nuclear_charges`` or ``z``, ``(atoms,)`` or ``(molecules, atoms)`` with 0 for padding;
    ``coords`` or ``R``, ``(molecules, atoms, 3)``; ``energies`` or ``E``, ``(molecules,)``, to
    regress on; ``forces`` or ``F``, as ``coords``, may be missing. The rest is as in `load_xyz`.

    Args:
        path: the file; it is read without pickle.
    """
    path = require_file(as_path("path", path), "an .npz file")
    arrays = read_npz(path, "molecules", [key for names in _KEYS.values() for key in names])
    with errors_in(path):
        keys = {name: [key for key in names if key in arrays] for name, names in _KEYS.items()}
        for name, present in keys.items():
            if not present and name != "forces":
                raise ValueError(f"lacks {' or '.join(_KEYS[name])}")
        found = {name: arrays[present[0]] for name, present in keys.items() if present}
        positions = found["positions"]
        atoms = positions.shape[:2] if positions.ndim == 3 else ("molecules", "atoms")
        shapes = {
            "positions": [(*atoms, 3)],
            "numbers": [atoms[1:], atoms],
            "energies": [atoms[:1], (*atoms[:1], 1)],
            "forces": [(*atoms, 3)],
        }
        for name, array in found.items():
            if array.shape not in shapes[name] or array.dtype.kind not in "iuf":
                expected = " or ".join(map(str, shapes[name])).replace("'", "")
                got = f"{array.dtype} of shape {array.shape}"
                raise ValueError(
                    f"{keys[name][0]}: expected numbers of shape {expected}, got {got}"
                )
        numbers = np.broadcast_to(found["numbers"], positions.shape[:2])
        is_atom = numbers != 0
        rows = np.column_stack([numbers[is_atom], positions[is_atom]])
        forces = found["forces"][is_atom] if "forces" in found else np.zeros((len(rows), 0))
        return _dataset(path, is_atom.sum(1), rows, forces, found["energies"].ravel())


def _dataset(
    path: Path,
    sizes: Sequence[int] | np.ndarray,
    atoms: np.ndarray,
    forces: np.ndarray,
    energies: Sequence[float] | np.ndarray,
) -> GraphsDataset:
    """Return a dataset of molecules; forces have no columns if they are not known."""
    if not (len(sizes) and np.all(sizes)):
        raise ValueError("expected a molecule or more, each of an atom or more")
    numbers = atoms[:, 0]
    if not ((numbers >= 1) & (numbers < len(ELEMENTS)) & (numbers % 1 == 0)).all():
        raise ValueError(f"expected atomic numbers from 1 to {len(ELEMENTS) - 1}")
    return GraphsDataset(
        name=path.name.removesuffix(".gz").rpartition(".")[0],
        num_nodes=len(atoms),
        x=atoms,
        y=np.asarray(energies, np.float32),
        feature_names=ATOM_FEATURES,
        sizes=np.asarray(sizes, np.int32),
        src=np.zeros(0, np.int32),
        dst=np.zeros(0, np.int32),
        forces=forces if forces.size else None,
        format="molecules",
    )
