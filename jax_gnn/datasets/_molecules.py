"""Molecules with positions: extended XYZ files, and archives such as those of MD17."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from jax_gnn._core.files import as_path, errors_in, read_npz, require_file
from jax_gnn.datasets._dataset import GraphsDataset
from jax_gnn.datasets._lines import read_lines

ELEMENTS = """
    X H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br
    Kr Rb Sr Y Zr Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er
    Tm Yb Lu Hf Ta W Re Os Ir Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es
    """.split()  # noqa: SIM905 (a list would take a line for each symbol)
"""Symbols of the elements by atomic number, up to 99."""

ATOM_FEATURES = "atomic_number", "x", "y", "z"
"""Names of the features of atoms in `GraphsDataset.x`."""

_KEYS = {
    "numbers": ("nuclear_charges", "z", "numbers"),
    "positions": ("coords", "R", "positions"),
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
    sizes, atoms, forces, energies = [], [], [], []
    with errors_in(path):
        lines = read_lines(path)
        for number, line in lines:
            if not line.strip():
                continue
            if not line.strip().isdecimal():
                raise ValueError(f"line {number}: expected a number of atoms, got {line!r:.80}")
            frame = [next(lines, (number, ""))[1] for _ in range(int(line) + 1)]
            try:
                rows, of_frame, energy = _frame(frame[0], frame[1:])
            except (IndexError, KeyError, ValueError) as error:
                raise ValueError(f"line {number}: frame is damaged: {error}") from error
            sizes.append(len(rows))
            atoms += rows
            forces += of_frame
            energies.append(energy)
        return _dataset(path, sizes, np.array(atoms, float), energies, forces)


def _frame(head: str, lines: Sequence[str]) -> tuple[list[list[float]], list[list[float]], float]:
    """Return atomic numbers and positions, forces if there are some, and the energy."""
    words = shlex.split(head)
    pairs = (word.partition("=") for word in words if "=" in word)
    values = {key.lower(): value for key, _, value in pairs}
    columns, start = {}, 0
    properties = values.get("properties", "species:S:1:pos:R:3").split(":")
    for name, _, width in zip(*[iter(properties)] * 3, strict=True):
        columns[name.lower()] = slice(start, start + int(width))
        start += int(width)
    energy = float(values.get("energy", words[0] if len(words) == 1 and not values else "nan"))
    atoms: list[list[float]] = []
    forces = []
    kind = columns.get("species", columns.get("z", slice(0, 1)))
    for line in lines:
        fields = line.split()
        symbol = fields[kind][0]
        atomic_number = int(symbol) if symbol.isdecimal() else ELEMENTS.index(symbol.capitalize())
        position = [float(field) for field in fields[columns["pos"]]]
        if len(position) != 3:
            raise ValueError(f"expected a symbol and a position, got {line!r:.80}")
        atoms.append([atomic_number, *position])
        if (column := columns.get("forces", columns.get("force"))) is not None:
            forces.append([float(field) for field in fields[column]])
    return atoms, forces, energy


def load_molecules(path: str | os.PathLike[str]) -> GraphsDataset:
    """Read molecules from an ``.npz`` file of plain arrays, as those of MD17 and rMD17.

    ``nuclear_charges`` or ``z``, ``(atoms,)`` or ``(molecules, atoms)`` with 0 for padding;
    ``coords`` or ``R``, ``(molecules, atoms, 3)``; ``energies`` or ``E``, ``(molecules,)``, to
    regress on; ``forces`` or ``F``, as ``coords``, may be missing. The rest is as in `load_xyz`.

    Args:
        path: the file; it is read without pickle.
    """
    path = require_file(as_path("path", path), "an .npz file")
    with errors_in(path):
        arrays = read_npz(path, "molecules", [key for keys in _KEYS.values() for key in keys])
        found = {
            name: next((arrays[key] for key in keys if key in arrays), None)
            for name, keys in _KEYS.items()
        }
        for name in ("numbers", "positions", "energies"):
            if found[name] is None:
                raise ValueError(f"lacks {' or '.join(_KEYS[name])}")
        numbers, positions, energies, forces = found.values()
        if positions.ndim != 3 or positions.shape[2] != 3:  # type: ignore[union-attr]
            raise ValueError(
                f"{_KEYS['positions'][0]}: expected shape (molecules, atoms, 3), got "
                f"{positions.shape}"  # type: ignore[union-attr]
            )
        shape = positions.shape[:2]  # type: ignore[union-attr]
        numbers = np.broadcast_to(numbers, shape)  # type: ignore[arg-type]
        is_atom = numbers > 0
        atoms = np.column_stack([numbers[is_atom], positions[is_atom]])  # type: ignore[index]
        of_atoms = () if forces is None else forces[is_atom]
        return _dataset(path, is_atom.sum(1), atoms, np.ravel(energies), of_atoms)  # type: ignore[arg-type]


def _dataset(
    path: Path,
    sizes: Sequence[int] | np.ndarray,
    atoms: np.ndarray,
    energies: Sequence[float] | np.ndarray,
    forces: Sequence[list[float]] | np.ndarray,
) -> GraphsDataset:
    atoms = atoms.reshape(-1, 4)
    numbers = atoms[:, 0]
    if not ((numbers >= 1) & (numbers < len(ELEMENTS)) & (numbers % 1 == 0)).all():
        raise ValueError(f"expected atomic numbers from 1 to {len(ELEMENTS) - 1}")
    if len(forces) not in (0, len(atoms)):
        raise ValueError(f"expected forces of all {len(atoms)} atoms or of none, got {len(forces)}")
    return GraphsDataset(
        name=path.name.removesuffix(".gz").rpartition(".")[0],
        num_nodes=len(atoms),
        x=atoms,
        y=np.asarray(energies, np.float32),
        feature_names=ATOM_FEATURES,
        sizes=np.asarray(sizes, np.int32),
        src=np.zeros(0, np.int32),
        dst=np.zeros(0, np.int32),
        forces=np.asarray(forces, np.float32) if len(forces) else None,
        format="molecules",
    )
