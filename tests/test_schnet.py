"""SchNet: PyG's model with the same weights, molecules from files, and its training."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from flax_layers import SchNet, training
from jax_gnn import Batch, cli, load
from jax_gnn.datasets import load_graphs, load_molecules, load_xyz
from jax_gnn.transforms import radius_graph

CORNERS = np.array([[0, 0, 0], [1.2, 0, 0], [0, 1.2, 0], [0, 0, 1.2], [1.2, 1.2, 1.2]])
SYMBOLS = {1: "H", 6: "C", 8: "O"}
FORCES = "Properties=species:S:1:pos:R:3:forces:R:3"


def springs(rng: np.random.Generator, count: int) -> list[tuple[np.ndarray, ...]]:
    """Return molecules of 3 to 5 atoms: numbers, positions, energy and forces of springs."""
    molecules = []
    for size in rng.integers(3, 6, count):
        numbers = rng.choice([*SYMBOLS], size)
        positions = 0.2 * rng.normal(size=(size, 3)) + CORNERS[:size]
        offsets = positions[:, None] - positions
        lengths = np.sqrt((offsets**2).sum(-1)) + np.eye(size)
        stretch = np.where(np.eye(size), 0, lengths - 1.5)
        forces = -2 * (stretch / lengths)[..., None] * offsets
        molecules.append((numbers, positions, (stretch**2).sum() / 2 - 50 * size, forces.sum(1)))
    return molecules


def write_xyz(path: Path, molecules: list[tuple[np.ndarray, ...]], forces: bool = True) -> Path:
    lines = []
    for numbers, positions, energy, of_atoms in molecules:
        columns = "species:S:1:pos:R:3" + ":forces:R:3" * forces
        lines += [
            str(len(numbers)),
            f'Lattice="1 0 0" Properties={columns} energy={float(energy)!r}',
        ]
        rows = np.concatenate([positions, of_atoms], 1) if forces else positions
        lines += [
            f"{SYMBOLS[z]} {' '.join(map(repr, row.tolist()))}"
            for z, row in zip(numbers, rows, strict=True)
        ]
    path.write_text("\n".join(lines) + "\n")
    return path


# --- Files ----------------------------------------------------------------------------------------


def test_both_formats_hold_the_same_molecules(rng, tmp_path):
    molecules = springs(rng, 5)
    dataset = load_xyz(write_xyz(tmp_path / "m.extxyz", molecules))
    most = max(dataset.sizes)
    numbers, *arrays = np.zeros((5, most), int), np.zeros((5, most, 3)), np.zeros((5, most, 3))
    for i, (z, positions, _, forces) in enumerate(molecules):
        numbers[i, : len(z)], arrays[0][i, : len(z)], arrays[1][i, : len(z)] = z, positions, forces
    energies = [energy for _, _, energy, _ in molecules]
    np.savez(tmp_path / "m.npz", z=numbers, R=arrays[0], E=energies, F=arrays[1])
    for other in (load_molecules(tmp_path / "m.npz"), load_graphs(tmp_path / "m.npz")):
        for name in ("sizes", "x", "y", "forces"):
            np.testing.assert_array_equal(getattr(other, name), getattr(dataset, name))
    np.testing.assert_allclose(dataset.x[:, 0], np.concatenate([m[0] for m in molecules]))
    plain = tmp_path / "p.xyz"
    plain.write_text("2\n-1.5\nH 0 0 0\nh 0 0 0.74\n\n1\nno energy\nO 1 2 3\n")
    dataset = load_xyz(plain)
    np.testing.assert_array_equal(dataset.y, [-1.5, np.nan])
    assert dataset.sizes.tolist() == [2, 1] and dataset.x[:, 0].tolist() == [1, 1, 8]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a molecule or more, each of an atom or more"),
        ("two\n\n", "line 1: expected a number of atoms from 1 to 2147483647, got 'two'"),
        ("0\nenergy=1\n", "line 1: expected a number of atoms from 1"),
        ("2000000000\nenergy=1\nH 0 0 0\n", "line 1: expected 2000000000 atoms, and the file ends"),
        ("\n1\nenergy=1\nQq 0 0 0\n", "line 2: expected an element's symbol, position, got 'Qq 0"),
        ("1\nenergy=1\nH 0 nan 0\n", "expected an element's symbol, position, got 'H 0 nan 0'"),
        ("1\nenergy=1\nH 0 0\n", "expected an element's symbol, position, got 'H 0 0'"),
        ("1\nenergy=1\n\n", "expected an element's symbol, position, got ''"),
        ("1\nProperties=pos:R\nH 0 0 0\n", "Properties: expected NAME:TYPE:COLUMNS, got 'pos:R'"),
        ("1\nProperties=Z:I:1\n6\n", "Properties: expected pos among the columns, got 'Z:I:1'"),
        ("1\nenergy=low\nH 0 0 0\n", "line 1: could not convert string to float: 'low'"),
        (f"1\nenergy=1\nH 0 0 0\n1\n{FORCES}\nH 0 0 0 1 2 3\n", "line 4: expected forces in all"),
        (f"1\n{FORCES}\nH 0 0 0 1 2\n", "expected an element's symbol, position and forces, got"),
        ("1\nenergy=1\n120 0 0 0\n", "expected atomic numbers from 1 to 99"),
    ],
)
def test_damaged_xyz_files(text, message, tmp_path):
    (tmp_path / "bad.xyz").write_text(text)
    with pytest.raises(ValueError, match=rf"bad\.xyz: .*{re.escape(message)}"):
        load_xyz(tmp_path / "bad.xyz")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"R": np.zeros((3, 2, 2))}, "R: expected numbers of shape (3, 2, 3), got float64 of"),
        ({"R": np.zeros(3)}, "R: expected numbers of shape (molecules, atoms, 3), got float64 of"),
        ({"z": ["H", "H"]}, "z: expected numbers of shape (2,) or (3, 2), got <U1 of shape (2,)"),
        ({"E": np.zeros(2)}, "E: expected numbers of shape (3,) or (3, 1), got float64 of"),
        ({"F": np.zeros((3, 1, 3))}, "F: expected numbers of shape (3, 2, 3), got float64 of"),
        ({"z": [1, np.nan]}, "expected atomic numbers from 1 to 99"),
        ({"z": [1, -1]}, "expected atomic numbers from 1 to 99"),
        ({"z": [0, 0]}, "expected a molecule or more, each of an atom or more"),
        ({"R": np.full((3, 2, 3), np.inf)}, "x: row 0 is not finite"),
        ({"E": None}, "lacks energies or E or energy"),
    ],
)
def test_damaged_archives(changes, message, tmp_path):
    arrays = {"z": [1, 1], "R": np.zeros((3, 2, 3)), "E": np.zeros(3)} | changes
    np.savez(tmp_path / "bad.npz", **{k: v for k, v in arrays.items() if v is not None})
    with pytest.raises(ValueError, match=rf"bad\.npz: .*{re.escape(message)}"):
        load_molecules(tmp_path / "bad.npz")


# --- The model ------------------------------------------------------------------------------------


def batch_of(molecules: list[tuple[np.ndarray, ...]], cutoff: float, **capacity: int):
    """Return molecules as a batch, and their atoms."""
    edges = [np.stack(radius_graph(m[1], cutoff).edges()) for m in molecules]
    batch = Batch.from_edges(edges, [len(m[0]) for m in molecules], **capacity)
    atoms = np.concatenate([np.column_stack(m[:2]) for m in molecules])
    return batch, np.pad(atoms, ((0, batch.graph.num_nodes - len(atoms)), (0, 0)))


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_equals_pyg(rng, reduce):
    """Energies, forces, and gradients to parameters; an atom has no neighbour; padding."""
    torch = pytest.importorskip("torch")
    schnet = pytest.importorskip("torch_geometric.nn.models.schnet")
    molecules = springs(rng, 4)
    molecules[1][1][0] += 20
    options = {"num_filters": 7, "num_gaussians": 5, "cutoff": 4.0}
    sizes = [len(m[0]) for m in molecules]
    with jax.enable_x64(True):
        batch, atoms = batch_of(molecules, 4.0, num_nodes=30, num_edges=90, num_graphs=6)
        ours = SchNet(
            *(4, 8, 1),
            **options,
            num_layers=2,
            graph_reduce=reduce,
            param_dtype=jnp.float64,
            rngs=nnx.Rngs(0),
        )
        src, dst = (torch.tensor(np.asarray(ids)) for ids in batch.graph.edges())
        edges = torch.stack([src, dst])[:, : int(batch.num_inputs.sum())]
        lengths = lambda pos, _: (edges, (pos[edges[0]] - pos[edges[1]]).norm(dim=1))  # noqa: E731
        theirs = schnet.SchNet(
            *(8, 7, 2, 5, 4.0),
            interaction_graph=lengths,
            readout={"sum": "add"}.get(reduce, reduce),
        ).double()
        pairs = [(ours.embedding, theirs.embedding.weight, False)]
        for conv, last, block in zip(ours.convs, ours.maps, theirs.interactions, strict=True):
            pairs.append((conv.kernel, block.conv.lin1.weight, True))
            maps = [conv.output[0], last, *conv.filters]
            others = block.conv.lin2, block.lin, block.mlp[0], block.mlp[2]
            for one, other in zip(maps, others, strict=True):
                pairs += [(one.kernel, other.weight, True), (one.bias, other.bias, False)]
        for one, other in ((ours.hidden, theirs.lin1), (ours.output, theirs.lin2)):
            pairs += [(one.kernel, other.weight, True), (one.bias, other.bias, False)]
        assert len(pairs) == len(jax.tree.leaves(nnx.state(ours, nnx.Param)))
        for param, other, is_turned in pairs:
            torch.nn.init.normal_(other, 0.1, 0.4)
            array = other.detach().numpy()
            param[...] = array.T if is_turned else array
        with torch.no_grad():
            theirs.embedding.weight[0] = 0
        pos = torch.tensor(np.concatenate([m[1] for m in molecules]), requires_grad=True)
        z = torch.tensor(atoms[: sum(sizes), 0].astype(int))
        expected = theirs(z, pos, torch.repeat_interleave(torch.tensor(sizes)))
        expected.sum().backward()
        y = ours(batch, atoms)
        np.testing.assert_allclose(y[:4], expected.detach(), rtol=1e-6)
        forces = ours.forces(batch, atoms)
        np.testing.assert_allclose(forces[: sum(sizes)], -pos.grad, rtol=1e-5, atol=1e-7)
        assert not forces[sum(sizes) :].any()

        def total(model):
            return model(batch, atoms)[:4].sum()

        gradients = jax.tree.leaves(nnx.grad(total)(ours))
        norms = sorted(float(np.linalg.norm(g)) for g in gradients)
        expected = sorted(float(other.grad.norm()) for _, other, _ in pairs)
        np.testing.assert_allclose(norms, expected, rtol=1e-5)


def test_forces_of_atoms_at_one_place(rng):
    """Edges of length 0, such as of atoms to themselves, pull in no direction."""
    pos = rng.normal(size=(4, 3)).astype(np.float32)
    x = np.concatenate([np.full((4, 1), 6, np.float32), pos], 1)
    model = SchNet(
        4, 8, 1, num_layers=1, num_filters=4, num_gaussians=3, cutoff=9.0, rngs=nnx.Rngs(0)
    )
    forces = [
        model.forces(Batch.from_edges([radius_graph(pos, 9.0, loop=loop).edges()], [4]), x)
        for loop in (True, False)
    ]
    assert np.isfinite(forces[0]).all()
    # A loop's message has no gradient, but adds to what the next function reads.
    assert not np.allclose(*forces)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"in_features": 3}, "in_features must be 4, a number and a position, got 3"),
        ({"num_gaussians": 1}, "num_gaussians must be 2 or more, got 1"),
        ({"cutoff": -1.0}, r"cutoff must be a positive number, got -1\.0"),
        ({"graph_reduce": "max of"}, "graph_reduce must be"),
    ],
)
def test_options_are_checked(changes, message):
    options = {"in_features": 4, "hidden_features": 8, "out_features": 1} | changes
    with pytest.raises(ValueError, match=message):
        SchNet(**options, rngs=nnx.Rngs(0))


# --- Training -------------------------------------------------------------------------------------

SMALL = {"num_layers": 2, "hidden_features": 24, "num_filters": 24, "num_gaussians": 12}


@pytest.mark.parametrize("has_forces", [True, False])
def test_training_learns_energies_and_forces(rng, tmp_path, has_forces):
    """Energies of -50 per atom are told by the number of atoms, and the rest by the model."""
    dataset = load_xyz(write_xyz(tmp_path / "m.xyz", springs(rng, 120), has_forces))
    config = training.SchNetConfig(
        **SMALL, epochs=40, splits=1, batch_size=8, cutoff=6.0, learning_rate=5e-3
    )
    result = training.train(dataset, config)
    assert result.errors is not None and result.errors["r2"][0] > 0.999
    assert result.errors["mae"][0] < 2
    assert ("force_mae" in result.errors) == has_forces
    if has_forces:
        zeros = np.abs(dataset.forces[dataset.nodes_of(result.trained.split.test)]).mean()
        assert result.errors["force_mae"][0] < 0.7 * zeros
    energies = np.asarray(result.trained.predict(dataset))[:, 0]
    batch, atoms = batch_of(springs(np.random.default_rng(3), 2), 6.0)
    scale, mean = result.trained.preprocessing.target_std, result.trained.preprocessing.target_mean
    expected = result.trained.model(batch, atoms) * scale + mean * batch.num_nodes[:, None]
    np.testing.assert_allclose(result.trained(batch, atoms), expected, rtol=1e-5)
    assert np.abs(energies / dataset.sizes + 50).max() < 5


@pytest.mark.parametrize(
    ("frames", "options", "message"),
    [
        (["1\nno energy\nH 0 0 0"] * 5, {}, "0 labelled graphs; .* labels are energies, 'energy="),
        (
            ["1\n-2\nH 0 0 0"] * 5,
            {"feature_normalization": "row"},
            "feature_normalization must be 'none' for molecules, got 'row'",
        ),
        (["1\n-2\nH 0 0 0"] * 5, {}, "has the same label for all graphs"),
        ([f"2\n-{k}\nH 0 0 0\nH 0 0 0" for k in range(5)], {}, "two atoms at one position, in mol"),
        ([f"2\n-{k}\nH 0 0 0\nH 0 0 {k + 2}" for k in range(5)], {"cutoff": 1.5}, "cutoff of 1.5"),
    ],
)
def test_molecules_that_cannot_be_trained_on(frames, options, message, tmp_path):
    (tmp_path / "m.xyz").write_text("\n".join(frames))
    dataset = load_xyz(tmp_path / "m.xyz")
    with pytest.raises(ValueError, match=message):
        training.train(dataset, training.SchNetConfig(**SMALL, epochs=1, **options))


def test_other_datasets_are_no_molecules(rng, tmp_path):
    """Four molecules have one to test on, whose R2 is not known; the model predicts molecules."""
    dataset = load_xyz(write_xyz(tmp_path / "m.xyz", springs(rng, 4)))
    trained = training.train(dataset, training.SchNetConfig(**SMALL, epochs=1, splits=1)).trained
    numbers = np.where(np.arange(4) == 0, 100, dataset.x)
    for changes, message in (
        ({"feature_names": ("a", "b", "c", "d")}, "has no atoms|lacks the features"),
        ({"x": numbers}, "atomic numbers from 1 to 99"),
    ):
        other = dataclasses.replace(dataset, **changes)
        for predict in (trained.predict, trained.predict_forces):
            with pytest.raises(ValueError, match=message):
                predict(other)
    batch, atoms = batch_of(springs(rng, 3), 6.0)
    for number in (-1, 100, np.nan):
        energies = trained.model(batch, jnp.asarray(atoms).at[0, 0].set(number))
        np.testing.assert_array_equal(np.isnan(energies[:, 0]), [True, False, False])


def test_command(rng, tmp_path, capsys):
    data = ["--data", str(write_xyz(tmp_path / "m.xyz", springs(rng, 16)))]
    folder = tmp_path / "out"
    sizes = ["--layers", "1", "--hidden-features", "8", "--num-filters", "6", "--cutoff", "3"]
    options = [*sizes, "--num-gaussians", "5", "--epochs", "2", "--splits", "2"]
    assert cli.main(["train", "schnet", *data, *options, "--output", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "test MAE of forces" in out and "same predictions" in out and "16 graphs" in out
    assert " 0 edges" not in out
    results = json.loads((folder / "results.json").read_text())
    assert results["config"]["cutoff"] == 3 and len(results["test_errors"]["force_mae"]) == 2
    assert cli.main(["predict", str(folder / "checkpoint"), *data]) == 0
    assert "MAE" in capsys.readouterr().out
    others = write_xyz(tmp_path / "n.xyz", springs(rng, 3), forces=False)
    trained = load(folder)
    assert trained.predict(load_xyz(others)).shape == (3, 1)
    assert trained.predict_forces(load_xyz(others)).shape == (load_xyz(others).num_nodes, 3)
    assert cli.main(["train", "gcn", "--task", "graph", *data]) == 2
    assert "has no edges; schnet has those" in capsys.readouterr().err
    (tmp_path / "shapes.txt").write_text("1\n2 0\n0 1 1\n0 1 0\n")
    assert cli.main(["train", "schnet", "--data", str(tmp_path / "shapes.txt")]) == 2
    assert "has no atoms: molecules are extended XYZ files" in capsys.readouterr().err
