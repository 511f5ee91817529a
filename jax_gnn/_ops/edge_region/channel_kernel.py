"""Kernels of programs with channels: a lane computes all numbers of one channel of an entry.

``edge_channel_walk.cuh`` is the walk. A lane adds up the rows of a destination in registers.
Results are cut into *groups* of components, each for blocks of its own, so that these sums fit.
Sums over channels are added up by each warp, for the channels that it has, and then over warps by
XLA: results of such kernels have several parts side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from jax_gnn._core import ffi
from jax_gnn._ops.edge_region.channels import (
    SUM,
    Channels,
    NoPolynomial,
    Polynomial,
    Polynomials,
    channels_of,
)
from jax_gnn._ops.edge_region.cuda_text import (
    BYTES,
    FLOATS,
    REGISTER_TYPES,
    STORED_TYPES,
    THREADS,
    WARP,
    Infeasible,
    Kernel,
    affine,
    elementwise,
    literal,
    register_type,
)
from jax_gnn._ops.edge_region.factoring import Node, Sums, Term
from jax_gnn._ops.edge_region.row_program import Instruction, RowProgram

# Words of sums of a lane, or of numbers that the entries of a row share.
_MAX_PARTS = 64
_MAX_ROW_NUMBERS = 96  # that a lane keeps for all entries of a row
_COMMON_REGISTERS = 64  # of the walk, and of what is computed
_FIXED_BYTES = 1 << 10  # of shared memory


@dataclass
class _Group:
    """The components of results that one block makes.

    Attributes:
        rows: Components of results by row: the output, and the index of each channel's number.
        edges: Likewise of results by entry.
        sums: For outputs that are sums over channels, the share of each number.
        size: Registers of sums, or of numbers that entries of a row share.
    """

    rows: list[tuple[int, np.ndarray]] = field(default_factory=list)
    edges: list[tuple[int, np.ndarray]] = field(default_factory=list)
    sums: dict[int, list[Polynomial]] = field(default_factory=dict)
    size: int = 0

    def add(self, other: _Group) -> None:
        """Add the components of another group."""
        self.rows += other.rows
        self.edges += other.edges
        self.size += other.size
        for number, shares in other.sums.items():
            before = self.sums.get(number, [{}] * len(shares))
            self.sums[number] = [a | b for a, b in zip(before, shares, strict=True)]


def generate_channels(program: RowProgram) -> Kernel:
    """Generate the kernel of a program that has channels.

    Raises:
        Infeasible: Results are no functions of channels, or too large.
    """
    channels = channels_of(program)
    if channels is None:
        raise Infeasible("rows without channels")
    try:
        return _Text(program, channels).kernel()
    except NoPolynomial as error:
        raise Infeasible(str(error)) from error
    except RecursionError as error:
        raise Infeasible("too many values one after another") from error


class _Text:
    """Text of a program's kernel."""

    def __init__(self, program: RowProgram, channels: Channels) -> None:
        self.program, self.channels = program, channels
        self.polynomials = Polynomials(program, channels)
        outputs = program.outputs
        if any(x.dest == "all" or x.reduce not in ("sum", "none") for x in outputs):
            raise Infeasible("reductions of channels other than sums by row")
        dtypes = [program.values[x.value].dtype_name for x in outputs]
        if not set(dtypes) <= set(FLOATS):
            raise Infeasible("results that are no floats")
        self.acc = "float64" if "float64" in dtypes else "float32"
        self.kind = REGISTER_TYPES[self.acc]
        self.tiles = -(-channels.size // WARP)
        self.is_whole = channels.size % WARP == 0
        self.max_parts = _MAX_PARTS * 4 // BYTES[self.acc]
        self.groups = self._groups()
        # Each group and warp stores its share of a sum over channels.
        contributors = [sum(i in group.sums for group in self.groups) for i in range(len(outputs))]
        self.copies = tuple(count * self.tiles for count in contributors)
        self.words = [x.dtype.itemsize for x in program.inputs]
        self.words += [
            BYTES[self.acc if copies else dtype]
            for dtype, copies in zip(dtypes, self.copies, strict=True)
        ]

    def kernel(self) -> Kernel:
        """Return the kernel."""
        seen = [0] * len(self.program.outputs)
        bodies = []
        for group in self.groups:
            bodies.append(_Body(self, group, seen))
            for number in group.sums:
                seen[number] += self.tiles
        parts = max(1, *(len(group.rows) for group in self.groups))
        entry = max(1, *(len(body.entry) for body in bodies))
        row = max(1, *(len(body.row) for body in bodies))
        staged = WARP * max(1, *(body.staged for body in bodies))
        registers = (parts + row + 2 * entry) * BYTES[self.acc] // 4 + _COMMON_REGISTERS
        blocks = max(1, min(4, 65536 // THREADS // registers))
        channel = "[[maybe_unused]] unsigned channel"
        arrays = "const Arrays& in, bool valid"
        out = f"[[maybe_unused]] const Arrays& out, Index place, {channel}"
        by_row = [i for i, x in enumerate(self.program.outputs) if x.dest == "row"]
        pointers = "".join(f"[[maybe_unused]] void* out{i}, " for i in by_row)
        call = "".join(f"out.at[{i}], " for i in by_row)
        functions = {
            "load_row": f"{arrays}, Index row, {channel}, Acc (&of_row)[kRow]",
            "load": f"{arrays}, Index row, Index col, Index place, {channel}, Acc (&entry)[kEntry]",
            "value": f"const Acc (&entry)[kEntry], const Acc (&of_row)[kRow], {out}, "
            "Acc (&run)[kParts]",
            "blank": out,
            "put_row": f"{pointers}Index row, {channel}, const Acc (&run)[kParts]",
            "store_row": f"const Arrays& out, Index row, {channel}, const Acc (&run)[kParts]",
        }
        shared = BYTES[self.acc] * staged * THREADS // WARP
        if shared + 2 * THREADS * parts * BYTES[self.acc] + _FIXED_BYTES > ffi.shared_memory():
            raise Infeasible("sums beyond the shared memory of a GPU")
        lines = [
            "struct Text {",
            f"using Acc = {self.kind};",
            f"static constexpr int kVec = 1, kParts = {parts}, kUnroll = 16, kThreads = {THREADS};",
            f"static constexpr int kMinBlocks = {blocks}, kGroups = {len(self.groups)};",
            f"static constexpr int kRow = {row}, kEntry = {entry}, kChannelWords = {staged};",
            f"static constexpr unsigned kSlots = {self.tiles * WARP};",
            f"static constexpr unsigned kChannels = {self.channels.size};",
            "struct Entry {};",
            "struct Once {};",
            "static __device__ constexpr Join kind(int) { return Join::kSum; }",
            "static __device__ constexpr int extreme_of(int part) { return part; }",
            "static __device__ __forceinline__ Acc* staged() {",
            f"return reinterpret_cast<Acc*>(dynamic_shared()) + {2 * THREADS} * kParts + "
            "threadIdx.x / 32 * kChannelWords;",
            "}",
        ]
        for name, parameters in functions.items():
            texts: list[str] = []
            for i, body in enumerate(bodies):
                texts += [f"if constexpr (kGroup == {i}) {{", *body.lines[name], "}"]
            # Rows are stored at several places of the walk, none of which is in a hurry.
            inlined = "__noinline__" if name == "put_row" else "__forceinline__"
            if name == "store_row":
                texts = [f"put_row<kGroup>({call}row, channel, run);"]
            lines += [
                "template <int kGroup>",
                f"static __device__ {inlined} void {name}({parameters}) {{",
                *texts,
                "}",
            ]
        return Kernel(
            source="\n".join([*lines, "};"]) + "\n",
            slots=len(self.groups) * self.tiles * WARP,
            vec=1,
            lanes=WARP,
            unroll=16,
            parts=parts,
            threads=THREADS,
            blocks=blocks,
            shared=shared,
            acc=self.acc,
            words=tuple(self.words),
            exact=False,
            cost=WARP * self.tiles * sum(body.work for body in bodies),
            copies=self.copies,
        )

    def access(self, leaf: int) -> str:
        """Return how entries read a leaf; "" for functions."""
        number, inputs = self.polynomials.leaves[leaf].value, self.program.inputs
        return inputs[number].access if number < len(inputs) else ""

    def numbers(self, components: Sequence[tuple[int, np.ndarray]]) -> list[Polynomial]:
        """Return the polynomials of components."""
        outputs = self.program.outputs
        return [self.polynomials.of(outputs[i].value, indices) for i, indices in components]

    # ---- Groups ---------------------------------------------------------------------------------

    def _groups(self) -> list[_Group]:
        """Deal out components to groups, whole blocks of channels where these fit."""
        by_block: dict[int, _Group] = {}
        for number, output in enumerate(self.program.outputs):
            width = self.program.values[output.value].width
            block = self.channels.block[self.channels.starts[output.value] + np.arange(width)]
            if (block < 0).all() and output.dest == "edge":
                for i, group in self._sums(number, width).items():
                    by_block.setdefault(i, _Group()).add(group)
                continue
            for i in np.unique(block):
                components = self._components(output.value, np.flatnonzero(block == i), int(i))
                group = by_block.setdefault(max(0, int(i)), _Group())
                added = [(number, indices) for indices in components]
                (group.rows if output.dest == "row" else group.edges).extend(added)
        groups: list[_Group] = []
        for _, whole in sorted(by_block.items()):
            pieces = max(1, -(-len(whole.rows) // self.max_parts))
            share = -(-len(whole.rows) // pieces)
            rest = [
                _Group(rows=whole.rows[i * share : (i + 1) * share], size=share)
                for i in range(1, pieces)
            ]
            whole.rows = whole.rows[:share]
            polynomials = self.numbers([*whole.rows, *whole.edges])
            leaves = {i for x in polynomials for monomial in x for i in monomial}
            of_row = [i for i in leaves if self.access(i) == "row"]
            whole.size = max(len(whole.rows), len(of_row))
            for group in (whole, *rest):
                if groups and groups[-1].size + group.size <= self.max_parts:
                    groups[-1].add(group)
                else:
                    groups.append(group)
        return groups

    def _components(self, value: int, members: np.ndarray, block: int) -> list[np.ndarray]:
        """Return the indices of each component of a block: a number of each channel."""
        count = self.channels.size
        if len(members) % count:
            raise Infeasible("a row with numbers of some channels only")
        if block < 0:  # numbers that depend on no channel
            return list(members.reshape(-1, count))
        order = np.argsort(self.channels.of(value, members), kind="stable")
        return list(np.ascontiguousarray(members[order].reshape(count, -1).T))

    def _sums(self, number: int, width: int) -> dict[int, _Group]:
        """Return the shares of an output in each block of channels that it sums."""
        groups: dict[int, _Group] = {0: _Group(sums={number: [{} for _ in range(width)]})}
        for i in range(width):
            indices = np.full(self.channels.size, i)
            value = self.program.outputs[number].value
            for monomial, x in self.polynomials.of(value, indices).items():
                block = self.polynomials.block_of(monomial)
                group = groups.setdefault(block, _Group(sums={number: [{} for _ in range(width)]}))
                group.sums[number][i][monomial] = x
        return groups


class _Body:
    """The functions of a group.

    Attributes:
        lines: Lines of each function.
        entry: Leaves that are loaded for each entry.
        row: Leaves that are loaded for each row.
        staged: Numbers of a channel that are stored together.
        work: Operations of a channel.
    """

    def __init__(self, text: _Text, group: _Group, seen: Sequence[int]) -> None:
        self.text, self.group = text, group
        self.program, self.leaves = text.program, text.polynomials.leaves
        self.entry: list[int] = []
        self.row: list[int] = []
        self.staged, self.work = 1, 0
        self.lines: dict[str, list[str]] = {
            name: [] for name in ("load_row", "load", "value", "blank", "put_row", "store_row")
        }
        self._names: dict[Node, str] = {}
        self._nodes: dict[Node, list[Term]] = {}
        self._body = self.lines["value"]
        shares = [share for columns in group.sums.values() for share in columns]
        summed = [{m[1:]: x for m, x in share.items() if m[:1] == (SUM,)} for share in shares]
        alone = [{m: x for m, x in share.items() if m[:1] != (SUM,)} for share in shares]
        numbers = text.numbers([*group.rows, *group.edges])
        sums = Sums([*numbers, *summed, *alone], lambda leaf: self.leaves[leaf].value)
        self._nodes |= sums.nodes
        results = iter(sums.terms)
        for i, terms in zip(range(len(group.rows)), results, strict=False):
            if terms:
                self._body.append(f"run[{i}] = {self._text(terms, f'run[{i}]')};")
        sums_of_rows = [f"run[{i}]" for i in range(len(group.rows))]
        self._store("put_row", "row", group.rows, sums_of_rows)
        edges = [self._text(terms) for _, terms in zip(group.edges, results, strict=False)]
        self._store("value", "place", group.edges, edges)
        self._store("blank", "place", group.edges, ["0"] * len(edges))
        rest = list(results)
        pairs = iter(zip(rest[: len(shares)], rest[len(shares) :], strict=True))
        for number, columns in group.sums.items():
            self._store_sums(number, seen[number], [next(pairs) for _ in columns])
        self._load()

    # ---- Numbers --------------------------------------------------------------------------------

    def _text(self, terms: Sequence[Term], start: str = "") -> str:
        """Return the C++ expression of a sum, added to `start`."""
        texts = [start] if start else []
        for coefficient, *factors in terms:
            names = [self._name(node) for node in factors if node is not None]
            sign = "-" if coefficient == -1 and names else ""
            if abs(coefficient) != 1 or not names:
                names.insert(0, literal(coefficient, self.text.acc))
            texts.append(sign + " * ".join(names))
            self.work += len(names)
        return " + ".join(texts) or "0"

    def _name(self, node: Node) -> str:
        """Return the C++ variable of a node, which is computed at its first use."""
        if node not in self._names:
            if isinstance(node, int):
                self._names[node] = self._leaf(node)
            else:
                text = self._text(self._nodes[node])
                self._names[node] = self._define(self.text.kind, text)
        return self._names[node]

    def _define(self, kind: str, text: str) -> str:
        name = f"v{len(self._names)}"
        self._body.append(f"const {kind} {name} = {text};")
        return name

    def _leaf(self, number: int) -> str:
        leaf, access = self.leaves[number], self.text.access(number)
        if not access:
            step = self.program.values[leaf.value]
            assert isinstance(step, Instruction)
            sums = Sums(leaf.operands, lambda leaf: self.leaves[leaf].value)
            self._nodes |= sums.nodes
            texts = [f"({self._text(terms)})" for terms in sums.terms]
            if not leaf.is_function:
                return self._define(self.text.kind, texts[0])
            for i, (operand, polynomial) in enumerate(
                zip(step.operands, leaf.operands, strict=True)
            ):
                if not set(polynomial) - {()}:  # a literal of its dtype
                    dtype = self.program.values[operand].dtype_name
                    texts[i] = literal(np.float64(polynomial.get((), 0.0)), dtype)
            self.work += 8
            text = elementwise(self.program, step)(*texts)
            return self._define(register_type(step.dtype_name), text)
        is_of_row = access in ("row", "shared") and len(self.row) < _MAX_ROW_NUMBERS
        loaded, name = (self.row, "of_row") if is_of_row else (self.entry, "entry")
        loaded.append(number)
        text = f"{name}[{len(loaded) - 1}]"
        is_bool = self.program.inputs[leaf.value].dtype == bool
        return f"({text} != 0)" if is_bool else text

    # ---- Memory ---------------------------------------------------------------------------------

    def _load(self) -> None:
        """Load leaves: numbers of a row that are as far apart in all channels by one pointer."""
        rows = {"edge": "place", "row": "row", "col": "col", "shared": "0"}
        for name, array, leaves in (
            ("load_row", "of_row", self.row),
            ("load", "entry", self.entry),
        ):
            pointers: dict[str, str] = {}
            lines = self.lines[name]
            lines.append("if (!valid) return;")
            for i, leaf in enumerate(self.leaves[number] for number in leaves):
                source = self.program.inputs[leaf.value]
                if source.dtype_name not in (*FLOATS, "bool"):
                    raise Infeasible(f"channels that read {source.dtype_name}")
                kind, start = STORED_TYPES[source.dtype_name], int(leaf.indices[0])
                row = f"row_of<const {kind}, {source.width}>(in.at[{leaf.value}], "
                base = f"{row}{rows[source.access]}) + {self._index(leaf.indices - start)}"
                if base not in pointers:
                    pointers[base] = f"p{len(pointers)}"
                    lines.append(f"const {kind}* const {pointers[base]} = {base};")
                is_streamed = source.access == "edge" and leaf.indices[1] == start + 1
                word = f"{pointers[base]}{f' + {start}' if start else ''}"
                word = f"load_global<{'true' if is_streamed else 'false'}>({word})"
                lines.append(f"{array}[{i}] = static_cast<Acc>(number({word}));")

    def _index(self, indices: np.ndarray) -> str:
        """Return the index of a channel's number as a C++ expression."""
        text = affine(indices.astype(np.int64), "channel")
        if text is None:
            raise Infeasible("channels that lie in no order")
        return text

    def _store(
        self,
        function_name: str,
        row: str,
        components: Sequence[tuple[int, np.ndarray]],
        values: Sequence[str],
    ) -> None:
        """Store numbers of results: those that lie side by side together."""
        lines, count = self.lines[function_name], self.text.channels.size
        order = sorted(range(len(values)), key=lambda i: (components[i][0], components[i][1][0]))
        while order:
            number, indices = components[order[0]]
            output = self.program.values[self.program.outputs[number].value]
            kind = STORED_TYPES[output.dtype_name]
            array = f"out{number}" if row == "row" else f"out.at[{number}]"
            to = f"row_of<{kind}, {output.width}>({array}, {row})"
            step = int(indices[1] - indices[0])
            together = order[:step] if 0 < step <= WARP else []
            start = int(indices[0])
            expected = [start + i + step * np.arange(count) for i in range(step)]
            is_dense = len(together) == step and all(
                components[i][0] == number and (components[i][1] == x).all()
                for i, x in zip(together, expected, strict=True)
            )
            if is_dense and self.text.is_whole:
                numbers = ", ".join(values[i] for i in together)
                lines += [
                    f"{{ const Acc numbers[{step}] = {{{numbers}}};",
                    f"store_channels(staged(), {to} + {start} + channel / 32 * {32 * step}, "
                    "numbers); }",
                ]
                self.staged = max(self.staged, step)
                del order[:step]
                continue
            store = f"({to})[{self._index(indices)}] = cast<{kind}>({values[order[0]]});"
            lines.append(store if self.text.is_whole else f"if (channel < {count}) {store}")
            del order[0]

    def _store_sums(
        self, number: int, first: int, columns: Sequence[tuple[list[Term], list[Term]]]
    ) -> None:
        """Store a warp's share of sums over channels, of up to 32 at once."""
        text, width = self.text, len(columns)
        row = f"row_of<Acc, {text.copies[number] * width}>(out.at[{number}], place)"
        to = f"({row} + ({first} + channel / 32) * {width})"
        for start in range(0, width, WARP):
            count = min(WARP, width - start)
            sums = f"sums{number}_{start}"
            self._body.append(f"Acc {sums}[{1 << (count - 1).bit_length()}] = {{}};")
            for i, (summed, alone) in enumerate(columns[start : start + count]):
                value = self._text(summed)
                if not text.is_whole:
                    value = f"(channel < {text.channels.size} ? {value} : 0)"
                if alone:  # once for all channels
                    value += f" + (channel == 0 ? {self._text(alone)} : 0)"
                self._body.append(f"{sums}[{i}] = {value};")
            self._body.append(f"store_sums<{count}>({to} + {start}, {sums});")
        self.lines["blank"].append(
            f"for (unsigned i = channel % 32; i < {width}; i += 32) {to}[i] = 0;"
        )
