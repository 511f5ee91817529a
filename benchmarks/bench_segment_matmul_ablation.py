"""FASTEN's optimisations on and off (its figure 13), on this library's own kernels.

A schedule is forced for each stage; ``jax_gnn`` is what is chosen otherwise. Stages build on each
other:

* ``basic`` deals out tiles of 64 rows one by one: a block fetches a weight for nearly each;
* ``tile 128`` fetches less often; where groups are small, tiles of 64 stay better;
* ``groups of`` neighbouring tiles go to a block together, and the weight stays where it is;
* ``ranges``: each block has one range of all tiles.

In ``dW``, ``basic`` gives each group to one block, however large it is; in ``+ 3D`` blocks share
the rows of a group. On a CPU, which has no schedules, all are alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from benchmarks.bench_segment_matmul import INPUTS, jax_gnn_candidates, product
from benchmarks.bench_segment_matmul import OP as WHOLE
from benchmarks.definition import Candidate, Case, Family, Problem
from benchmarks.peers import jax_candidate
from benchmarks.report import OURS
from benchmarks.workloads import Groups

BASIC = "basic"
PERSISTENT = 396
"""As many blocks as an H200 has room for. Where they suffice for one tile each, nothing is dealt
out at all."""


def candidates(groups: Groups, case: Case, problem: Problem) -> Iterator[Candidate]:
    """A candidate for each stage; tiles of both sizes, of which the better counts."""
    from jax_gnn._ops.segment_matmul.schedule import FAMILY, MatmulSchedule

    operands = (groups.sizes,)
    if case.mode == "dW":
        blocks = FAMILY.choose(
            "segment_outer",
            rows=groups.num_rows,
            groups=groups.num_groups,
            k=case.width,
            n=case.width,
            itemsize=problem.output_dtype.itemsize,
        ).blocks
        stages = {
            BASIC: (MatmulSchedule("persistent", 64, 1, blocks), True),
            "+ 3D": (MatmulSchedule("persistent", 64, 0, blocks), True),
            "+ 3D, not deterministic": (MatmulSchedule("persistent", 64, 0, blocks), False),
        }
        for name, (schedule, deterministic) in stages.items():
            function = product(case.mode, deterministic=deterministic)
            candidate = jax_candidate(name, function, problem, operands, INPUTS)
            yield replace(candidate, schedule=schedule)
        return
    for tile in (64, 128):
        for chunk, stage in (
            (1, BASIC if tile == 64 else "tile 128"),
            (8, f"tile {tile}, groups of 8"),
            (16, f"tile {tile}, groups of 16"),
            (0, f"tile {tile}, ranges"),
        ):
            candidate = jax_candidate(stage, product(case.mode), problem, operands, INPUTS)
            yield replace(candidate, schedule=MatmulSchedule("persistent", tile, chunk, PERSISTENT))


OP = replace(
    WHOLE,
    name="segment_matmul_ablation",
    title="Segmented matrix multiplication under other schedules",
    modes={"fwd": (), "dW": ()},
    families=(
        Family(OURS, "jax", ("jax_gnn",), jax_gnn_candidates),
        Family("schedules", "jax", ("jax_gnn",), candidates),
    ),
    baseline=BASIC,
)
