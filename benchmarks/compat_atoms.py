"""Force fields of others for ``python -m benchmarks compat``: energies and forces are the output.

Each model gets a padded batch: two boxes of atoms, then an atom and edges that are padding, as its
package pads them. A training step therefore has second derivatives.
"""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.compat_models import WIDTH, Make, Model, checkout

CUTOFF, SPECIES = 4.0, 4


class Atoms(NamedTuple):
    """Two boxes of atoms with periodic neighbours, and padding.

    Attributes:
        positions: ``(nodes, 3)``; the last node is padding.
        species: ``(nodes,)`` indices.
        senders: ``(edges,)`` ids; those of padding are the last node's.
        receivers: Likewise, in ascending order.
        shifts: ``(edges, 3)``, how many cells lie between the ends.
        cells: ``(3, 3, 3)``; that of the padding is zero.
        num_nodes: ``(3,)`` by graph.
        num_edges: Likewise.
    """

    positions: Any
    species: Any
    senders: Any
    receivers: Any
    shifts: Any
    cells: Any
    num_nodes: Any
    num_edges: Any


def boxes(rng: np.random.Generator, atoms: int) -> Atoms:
    """Return two boxes of so many atoms at a density of 0.07 per cubic unit."""
    side = max((atoms / 0.07) ** (1 / 3), CUTOFF)
    images = np.stack(np.meshgrid(*[[-1, 0, 1]] * 3, indexing="ij"), -1).reshape(-1, 3)
    edges, positions = [], []
    for graph in range(2):
        grid = np.stack(np.meshgrid(*[np.arange(np.ceil(atoms ** (1 / 3)))] * 3), -1)
        x = rng.permutation(grid.reshape(-1, 3))[:atoms] + rng.uniform(-0.3, 0.3, (atoms, 3))
        x *= side / np.ceil(atoms ** (1 / 3))
        # From senders to receivers: x[senders] - x[receivers] + shifts @ cell.
        vectors = x[None, :, None] - x[:, None, None] + side * images
        distances = np.linalg.norm(vectors, axis=-1)
        dst, src, image = np.nonzero((distances < CUTOFF) & (distances > 0.1))
        edges.append((src + graph * atoms, dst + graph * atoms, images[image]))
        positions.append(x)
    counts = [len(src) for src, *_ in edges]
    padding = sum(counts) // 10 + 2
    src, dst, shifts = (np.concatenate(arrays) for arrays in zip(*edges, strict=True))
    ends = [np.pad(ids, (0, padding), constant_values=2 * atoms) for ids in (src, dst)]
    return Atoms(
        np.concatenate([*positions, np.zeros((1, 3))]),
        np.r_[rng.integers(SPECIES, size=2 * atoms), 0].astype(np.int32),
        ends[0].astype(np.int32),
        ends[1].astype(np.int32),
        np.pad(shifts, ((0, padding), (0, 0))).astype(float),
        np.stack([side * np.eye(3)] * 2 + [np.zeros((3, 3))]),
        np.array([atoms, atoms, 1], np.int32),
        np.array([*counts, padding], np.int32),
    )


def _joined(*arrays: Any) -> Any:
    return jnp.concatenate([jnp.ravel(x) for x in arrays])


def _random(rng: np.random.Generator, tree: Any) -> Any:
    """Return random weights, of models whose weights are no part of their repository's text."""

    def weights(a: Any) -> np.ndarray:
        is_matrix = a.ndim > 1
        return (rng.normal if is_matrix else rng.uniform)(size=a.shape) / np.sqrt(a.shape[-1])

    return jax.tree.map(weights, tree)


def nequix(scale: float, rng: np.random.Generator, _: Path | None) -> Model:
    """nequix, three layers of 32 channels up to l = 2: energies, forces and stress."""
    import equinox
    import jraph
    from nequix.model import Nequix

    atoms = boxes(rng, int(32 * scale))
    model = Nequix(
        jax.random.key(0),
        n_species=SPECIES,
        lmax=2,
        cutoff=CUTOFF,
        hidden_irreps="32x0e + 16x1o + 8x2e",
        n_layers=3,
        radial_mlp_size=32,
        radial_mlp_layers=2,
        avg_n_neighbors=20.0,
    )
    parameters, rest = equinox.partition(model, equinox.is_inexact_array)

    def output(p: Any, atoms: Atoms) -> Any:
        graph = jraph.GraphsTuple(
            nodes={"species": atoms.species, "positions": atoms.positions},
            edges={"shifts": atoms.shifts},
            senders=atoms.senders,
            receivers=atoms.receivers,
            globals={"cell": atoms.cells},
            n_node=atoms.num_nodes,
            n_edge=atoms.num_edges,
        )
        return _joined(*equinox.combine(p, rest)(graph))

    return Model(parameters, atoms, output)


def _mlip(name: str, config: dict[str, Any], scale: float, rng: np.random.Generator) -> Model:
    """A force field of mlip: energies, forces and stress."""
    from mlip import graph as graphs
    from mlip import models
    from mlip.data import DatasetInfo
    from mlip.models import ForceField
    from mlip.typing.properties import Properties

    numbers = np.array([1, 6, 7, 8])
    atoms = boxes(rng, int(32 * scale))
    info = DatasetInfo(
        atomic_energies_map={int(z): -float(z) for z in numbers},
        total_charge_set={0},
        avg_num_neighbors=20.0,
        avg_r_min_angstrom=1.0,
        graph_cutoff_angstrom=CUTOFF,
        scaling_mean=0.0,
        scaling_stdev=1.0,
    )
    kind: Any = getattr(models, name)
    network = kind(kind.Config(**config), info)
    field = ForceField.from_mlip_network(network, Properties(stress=True), seed=0)

    def output(p: Any, atoms: Atoms) -> Any:
        graph = graphs.Graph(
            nodes=graphs.GraphNodes(
                positions=atoms.positions, atomic_numbers=jnp.asarray(numbers)[atoms.species]
            ),
            edges=graphs.GraphEdges(shifts=atoms.shifts),
            globals=graphs.GraphGlobals(
                cell=atoms.cells, weight=jnp.ones(3, atoms.positions.dtype)
            ),
            senders=atoms.senders,
            receivers=atoms.receivers,
            n_node=atoms.num_nodes,
            n_edge=atoms.num_edges,
            ordering=graphs.EdgeOrdering.SENDER,
        )
        made = field.predictor.apply(p, graph)
        mask = graph.graph_mask()
        stress = jnp.where(mask[:, None, None], made.globals.stress, 0)
        return _joined(jnp.where(mask, made.globals.energy, 0), made.nodes.forces, stress)

    return Model(field.params, atoms, output)


def mace(scale: float, rng: np.random.Generator, _: Path | None) -> Model:
    """MACE of mlip, two layers."""
    config: dict[str, Any] = {"num_layers": 2, "num_channels": 16, "correlation": 2, "l_max": 2}
    config |= {"node_symmetry": 1, "readout_irreps": ("8x0e", "0e")}
    return _mlip("Mace", config, scale, rng)


def nequip(scale: float, rng: np.random.Generator, _: Path | None) -> Model:
    """NequIP of mlip, two layers."""
    config = {"num_layers": 2, "l_max": 2, "target_irreps": "16x0e + 16x0o + 16x1o + 16x1e + 16x2e"}
    return _mlip("Nequip", config, scale, rng)


def visnet(scale: float, rng: np.random.Generator, _: Path | None) -> Model:
    """ViSNet of mlip, two layers."""
    config = {"num_layers": 2, "num_channels": 32, "num_heads": 4, "l_max": 2, "num_rbf": 16}
    return _mlip("Visnet", config, scale, rng)


class _Shapes(dict[str, Any]):
    """The shapes of Orb's weights by their names in a checkpoint."""

    def __missing__(self, name: str) -> tuple[int, ...]:
        width, *_, kind = WIDTH, *name.split(".")
        if kind == "bias" or "layer_norm" in name:
            return (1,) if "_attn" in name or name.startswith("heads.energy.mlp.NN-1") else (width,)
        if "_attn" in name or name.startswith("heads.energy.mlp.NN-1"):
            return (1, width)
        first = {"_edge_fn": 128, "gnn_stacks": 3 * width} if "NN-0" in name else {}
        return (width, next((n for part, n in first.items() if part in name), width))


def orb(scale: float, rng: np.random.Generator, checkouts: Path | None) -> Model:
    """Orb v3 of jax-md, three layers: the energy of a box, and forces."""
    module: Any = _jax_md(checkouts, "orb")
    shapes = _Shapes(
        {
            "model.rbf_transform.bessel_weights": (8,),
            "model.rbf_transform.prefactor": (1,),
            "model.atom_emb.embeddings.weight": (119, WIDTH),
            "model.conditioner.charge_embedding.W": (WIDTH // 4,),
            "model.conditioner.spin_embedding.W": (WIDTH // 4,),
            "heads.energy.normalizer.bn.running_var": (1,),
            "heads.energy.normalizer.bn.running_mean": (1,),
            "heads.energy.reference.linear.weight": (119,),
            "covalent_radii": (120,),
        }
    )
    config = {
        "params": shapes,
        "parameter_dtype": "float32",
        "cutoff": CUTOFF,
        "num_layers": 3,
        "mlp_num_layers": 2,
        "zbl_coulomb_ev_angstrom": 14.4,
        "zbl_polynomial_p": 6,
        "zbl_atomic_number_exponent": 0.3,
        "zbl_screening_length_scale": 0.4543,
        "zbl_screening_weights": (0.1818, 0.5099, 0.2802, 0.02817),
        "zbl_screening_exponents": (3.2, 0.9423, 0.4028, 0.2016),
    }
    zeros = jnp.zeros(1)

    def energy(model: Any, atoms: Any, lists: Any) -> Any:
        return model(atoms.positions, atoms.species, zeros, zeros, **lists)

    return _of_box(module.Orb(config=config), energy, scale, rng)


def so3lr(scale: float, rng: np.random.Generator, checkouts: Path | None) -> Model:
    """SO3LR of jax-md, two layers: the energy of a box, and forces."""
    module: Any = _jax_md(checkouts, "so3lr")
    metadata = {
        "cutoff": CUTOFF,
        "lr_cutoff": CUTOFF,
        "dispersion_energy_cutoff_lr_damping": 1.0,
        "ev_to_kjmol": 96.5,
        "bohr_angstrom": 0.529,
        "hartree_ev": 27.2,
        "coulomb_ev_angstrom": 14.4,
        "fine_structure": 0.0073,
        "dispersion_alphas": rng.uniform(1, 10, 20),
        "dispersion_c6": rng.uniform(1, 50, 20),
    }
    model = {
        "num_layers": 2,
        "num_features": WIDTH,
        "num_heads": 4,
        "num_species": 20,
        "observable_num_species": 20,
        "hirshfeld_latent_features": 16,
        "num_radial_basis_fn": 16,
        "electrostatic_energy_scale": 4.0,
        "dispersion_energy_scale": 1.2,
    }
    config = {"model": model, "data": {"avg_num_neighbors": 20.0}}

    def energy(model: Any, atoms: Any, lists: Any) -> Any:
        return model(atoms.positions, atoms.species + 1, neighbors_lr=lists["neighbors"], **lists)

    return _of_box(module.SO3LR(metadata, config), energy, scale, rng)


def _jax_md(checkouts: Path | None, name: str) -> Any:
    """Return a module of jax-md's networks, of which releases have some only."""
    try:
        importlib.import_module("jax_md")
        module = importlib.import_module(f"jax_md._nn.{name}.model")
    except ImportError:
        for loaded in [x for x in sys.modules if x.split(".")[0] == "jax_md"]:
            del sys.modules[loaded]
        sys.path.insert(0, str(checkout(checkouts, "jax-md")))
        module = importlib.import_module(f"jax_md._nn.{name}.model")
    jax.config.update("jax_default_matmul_precision", None)  # which it sets
    return module


def _of_box(model: Any, energy: Any, scale: float, rng: np.random.Generator) -> Model:
    """A model of a single box, whose list of neighbours has room for more."""
    import equinox
    from jax_md import partition, space

    box = boxes(rng, int(64 * scale))
    num_atoms, num_edges = int(box.num_nodes[0]), int(box.num_edges[0])
    side = float(box.cells[0, 0, 0])
    ends = np.stack([box.receivers, box.senders])[:, :num_edges]
    room = np.full((2, num_edges // 10), num_atoms, np.int32)
    atoms = box._replace(
        positions=box.positions[:num_atoms],
        species=box.species[:num_atoms],
        senders=np.concatenate([ends, room], 1),
    )
    weights, rest = equinox.partition(model, equinox.is_inexact_array)
    displacement, _ = space.periodic(side)

    def output(p: Any, atoms: Atoms) -> Any:
        neighbors = types.SimpleNamespace(
            idx=atoms.senders,
            reference_position=atoms.positions,
            format=partition.NeighborListFormat.Sparse,
        )
        lists = {"neighbors": neighbors, "displacement_fn": displacement}

        def total(positions: Any) -> Any:
            moved = atoms._replace(positions=positions)
            return energy(equinox.combine(p, rest), moved, lists)

        return _joined(*jax.value_and_grad(total)(atoms.positions))

    return Model(_random(rng, weights), atoms, output)


def jax_md_nequip(scale: float, rng: np.random.Generator, checkouts: Path | None) -> Model:
    """NequIP of jax-md over e3nn-jax, two layers: energies and forces."""
    import jraph

    module: Any = importlib.import_module("jax_md._nn.nequip")
    atoms = boxes(rng, int(32 * scale))
    network = module.NequIPEnergyModel(
        graph_net_steps=2,
        use_sc=True,
        nonlinearities={"e": "raw_swish", "o": "tanh"},
        n_elements=SPECIES,
        hidden_irreps="16x0e + 8x1o",
        sh_irreps="1x0e + 1x1o",
        r_max=CUTOFF,
        radial_net_n_hidden=16,
        n_neighbors=20.0,
    )

    def energies(p: Any, positions: Any, atoms: Atoms) -> Any:
        cells = jnp.repeat(
            atoms.cells, atoms.num_edges, axis=0, total_repeat_length=len(atoms.senders)
        )
        vectors = positions[atoms.senders] - positions[atoms.receivers]
        graph = jraph.GraphsTuple(
            nodes=jax.nn.one_hot(atoms.species, SPECIES, dtype=positions.dtype),
            edges=vectors + jnp.einsum("ei,eij->ej", atoms.shifts, cells),
            senders=atoms.senders,
            receivers=atoms.receivers,
            globals=None,
            n_node=atoms.num_nodes,
            n_edge=atoms.num_edges,
        )
        return network.apply(p, graph) if p is not None else network.init(jax.random.key(0), graph)

    def output(p: Any, atoms: Atoms) -> Any:
        made, slopes = jax.vjp(lambda x: energies(p, x, atoms)[:2], atoms.positions)
        return _joined(made, *slopes(jnp.ones_like(made)))

    parameters = energies(None, jnp.asarray(atoms.positions), atoms)
    return Model(parameters, atoms, output)


def mace_jax(scale: float, rng: np.random.Generator, checkouts: Path | None) -> Model:
    """MACE of mace-jax, two layers: energies and forces."""
    import e3nn_jax
    from flax import nnx

    sys.path.insert(0, str(checkout(checkouts, "mace-jax")))
    modules: Any = importlib.import_module("mace_jax.modules")
    atoms = boxes(rng, int(32 * scale))
    model = modules.ScaleShiftMACE(
        r_max=CUTOFF,
        num_bessel=8,
        num_polynomial_cutoff=5,
        max_ell=2,
        interaction_cls=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
        interaction_cls_first=modules.interaction_classes["RealAgnosticInteractionBlock"],
        atomic_energies=np.arange(SPECIES, dtype=float),
        atomic_numbers=tuple(range(1, SPECIES + 1)),
        num_interactions=2,
        num_elements=SPECIES,
        hidden_irreps=e3nn_jax.Irreps("16x0e + 16x1o"),
        MLP_irreps=e3nn_jax.Irreps("8x0e"),
        avg_num_neighbors=20.0,
        correlation=2,
        gate=jax.nn.silu,
        radial_MLP=[16, 16],
        rngs=nnx.Rngs(0),
    )
    split: Any = nnx.split
    definition, parameters, rest = split(model, nnx.Param, ...)

    def output(p: Any, atoms: Atoms) -> Any:
        cells = jnp.repeat(
            atoms.cells, atoms.num_edges, axis=0, total_repeat_length=len(atoms.senders)
        )
        is_padding = atoms.senders == len(atoms.positions) - 1
        shifts = is_padding[:, None] - jnp.einsum("ei,eij->ej", atoms.shifts, cells)
        batch = jnp.repeat(jnp.arange(3), atoms.num_nodes, total_repeat_length=len(atoms.positions))
        data = {
            "positions": atoms.positions,
            "node_attrs": jax.nn.one_hot(atoms.species, SPECIES, dtype=shifts.dtype),
            "edge_index": jnp.stack([atoms.senders, atoms.receivers]),
            "shifts": shifts,
            "unit_shifts": -atoms.shifts,
            "cell": atoms.cells,
            "batch": batch,
            "ptr": jnp.cumulative_sum(atoms.num_nodes, include_initial=True),
        }
        made = nnx.merge(definition, p, rest)(data)
        return _joined(made["energy"], made["forces"])

    return Model(parameters, atoms, output)


MODELS: dict[str, Make] = {
    "nequix": nequix,
    "mlip MACE": mace,
    "mlip NequIP": nequip,
    "mlip ViSNet": visnet,
    "jax-md NequIP": jax_md_nequip,
    "jax-md Orb": orb,
    "jax-md SO3LR": so3lr,
    "mace-jax MACE": mace_jax,
}
