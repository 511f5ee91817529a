"""Kernels of slots: the number of slots, the layout of outputs over them, and the schedule.

A candidate is generated for each number of slots, layout and schedule that suit a program; the
cheapest is taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from jax_gnn._ops.edge_region.cuda_text import (
    BYTES,
    REGISTER_TYPES,
    THREADS,
    WARP,
    Infeasible,
    Kernel,
    function,
    on_tensor_cores,
    struct,
)
from jax_gnn._ops.edge_region.row_program import RowProgram
from jax_gnn._ops.edge_region.slot_codegen import MAX_COMPONENTS, Layout, SlotCodegen
from jax_gnn._ops.edge_region.slot_loads import Limits

_MAX_SLOTS = 8192
_MAX_WRITTEN_OUT = 1 << 10  # weights of a product that is written out: compile time

# Cost of the walk itself for a lane, in elementary operations: per entry, step, and part of a step.
_ENTRY_COST, _STEP_COST, _PART_COST = 24, 32, 24

# In the order in which they are tried.
_LIMITS = Limits(math.inf, 400), Limits(6, 400), Limits(6, 1000), Limits(6, 4000, terms=512)


def generate_slots(program: RowProgram) -> Kernel:
    """Generate the kernel of a program whose outputs are by edge or by row.

    Raises:
        Infeasible: A value, or the whole, is beyond what a kernel can hold.
    """
    for instruction in program.instructions:
        if instruction.name == "dot" and not on_tensor_cores(program, instruction):
            weights = program.values[instruction.operands[1]].width
            if weights > _MAX_WRITTEN_OUT:
                raise Infeasible(f"a product with {weights} weights")
    reasons: list[str] = []
    # Limits are tried in order: fewer registers for loads in flight, and then more statements, are
    # accepted only if no number of slots has a kernel under the limits before.
    for limits in _LIMITS:
        kernels = [
            kernel
            for slots in _slot_counts(program)
            if (kernel := _cheapest(program, slots, limits, reasons)) is not None
        ]
        if kernels:
            return min(kernels, key=lambda kernel: kernel.cost)
    raise Infeasible(reasons[0] if reasons else "rows are too wide")


def _cheapest(program: RowProgram, slots: int, limits: Limits, reasons: list[str]) -> Kernel | None:
    """Return the cheapest kernel of the first schedule that has enough registers."""
    by_vec: dict[int, list[SlotCodegen]] = {}
    # Code depends on the schedule only by the slots of a lane, so that generators are kept by
    # `vec`, and their text is generated once for all numbers of entries and blocks.
    for schedule in _schedules(slots):
        if schedule.vec not in by_vec:
            by_vec[schedule.vec] = []
            for layout in _layouts(program, slots):
                try:
                    codegen = SlotCodegen(program, slots, schedule.vec, layout, limits)
                    by_vec[schedule.vec].append(codegen)
                except Infeasible as error:
                    reasons.append(str(error))
                except RecursionError:
                    reasons.append("too many values one after another")
        kernels = []
        for codegen in by_vec[schedule.vec]:
            try:
                kernels.append(_kernel(codegen, schedule))
            except Infeasible as error:
                reasons.append(str(error))
        if kernels:
            return min(kernels, key=lambda kernel: kernel.cost)
    return None


class _Schedule(NamedTuple):
    """The division of a multiprocessor's registers.

    Attributes:
        vec: Slots of a lane.
        unroll: Entries of a team's step.
        blocks: Blocks of a multiprocessor.
        registers: Registers of a lane as counted here; compilers need fewer.
    """

    vec: int
    unroll: int
    blocks: int
    registers: int


def _schedules(slots: int) -> Iterator[_Schedule]:
    """Yield schedules, the fastest first as measured: wide words, then many entries in flight."""
    pairs = [(4, 8), (4, 4), (2, 8), (2, 4), (4, 2), (2, 2), (1, 8), (1, 4)]
    # `sort` is stable: pairs with equal numbers of slots keep their order as measured.
    if slots > 2 * WARP:  # one team for a row rather than two
        pairs.sort(key=lambda pair: -pair[0])
    for vec, unroll in pairs:
        if slots % vec == 0:
            registers = 128 if unroll == 8 else 160 if (vec, unroll) == (2, 2) else 144
            yield _Schedule(vec, unroll, 4, registers)
    yield _Schedule(1, 4, 2, 250)
    for vec in (8, 7, 6, 5, 3):  # rows that one warp must hold
        if slots % vec == 0 and slots <= WARP * vec:
            for unroll, blocks, registers in ((8, 4, 128), (4, 4, 144), (4, 2, 250)):
                yield _Schedule(vec, unroll, blocks, registers)


def _slot_counts(program: RowProgram) -> list[int]:
    """Return the candidate numbers of slots, the largest first."""
    widths = {value.width for value in program.values}
    widths |= {int(step.params[1]) for step in program.instructions if step.name == "reduce"}
    outputs = _output_widths(program)
    # Every output must have a placement (see `_placement`): some elements for each slot, one
    # element for a group of slots, or the whole row in one slot.
    fitting = [
        n
        for n in widths | outputs | {1, math.lcm(*outputs)}
        if 1 <= n <= _MAX_SLOTS
        and all(
            (w % n == 0 and w // n <= MAX_COMPONENTS) or n % w == 0 or w <= MAX_COMPONENTS
            for w in outputs
        )
    ]
    return sorted(fitting, reverse=True)[:24]


def _output_widths(program: RowProgram) -> set[int]:
    return {program.values[output.value].width for output in program.outputs}


def _layouts(program: RowProgram, slots: int) -> Iterator[Layout]:
    widths = _output_widths(program)
    wide = any(w > slots for w in widths)
    narrow = any(1 < w < slots and slots % w == 0 for w in widths)
    for interleaved, grouped in itertools.product((False, True), (True, False)):
        if (wide or not interleaved) and (grouped or narrow):
            yield Layout(interleaved, grouped)


def _kernel(code: SlotCodegen, schedule: _Schedule) -> Kernel:
    """Return the kernel of a schedule.

    Raises:
        Infeasible: It needs too many registers.
    """
    parts, unroll = code.parts, schedule.unroll
    # Registers are estimated: elements of the entries in flight, values that all entries share,
    # ids of entries, and the running sums of the row.
    entry = unroll * (code.registers + 1) + code.registers_once + 2 * code.vec
    ids, sums = 6 * unroll + 40, 4 * len(parts) * BYTES[code.acc] / 4
    if ids + entry + sums > schedule.registers:
        raise Infeasible("an entry has too many numbers for the registers of a GPU")
    arrays = "const Arrays& in, "
    ids_of_entry = "Index row, Index col, Index place, unsigned first, "
    lines = [
        *code.tables,
        "struct Text {",
        f"using Acc = {REGISTER_TYPES[code.acc]};",
        f"static constexpr int kVec = {code.vec}, kParts = {len(parts)};",
        f"static constexpr int kUnroll = {unroll}, kMinBlocks = {schedule.blocks};",
        f"static constexpr int kThreads = {THREADS};",
        *parts.functions(),
        *struct("Entry", code.entry),
        *struct("Once", code.once),
        *function(f"load_once({arrays}bool active, unsigned first, Once& once)", code.loads_once),
        *function(f"load({arrays}bool valid, {ids_of_entry}Entry& entry)", code.loads),
        *function(
            f"value(const Entry& entry, const Once& once, {arrays}const Arrays& out, "
            f"bool active, bool there, bool valid, {ids_of_entry}Acc (&parts)[kParts])",
            code.body,
        ),
        *function(
            "store(const Arrays& out, Index row, unsigned first, const Acc (&run)[kParts])",
            code.stores,
        ),
        "};",
    ]
    lanes = code.lane_tiles * code.lanes
    step_cost = _STEP_COST + _PART_COST * len(parts)
    work = code.work * lanes * code.vec / code.slots
    return Kernel(
        source="\n".join(lines) + "\n",
        slots=code.slots,
        vec=code.vec,
        lanes=code.lanes,
        unroll=unroll,
        parts=len(parts),
        threads=THREADS,
        blocks=schedule.blocks,
        shared=0,
        acc=code.acc,
        words=tuple(code.words),
        exact=code.exact,
        cost=work + lanes * (_ENTRY_COST + step_cost / unroll),
    )
