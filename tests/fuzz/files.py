"""Mutated files: every loader, and the tuning cache, read them or refuse them as documented.

    python tests/fuzz/files.py --files 50000 --seed 1

A small dataset of each format is damaged: bytes, numbers and line ends in text, characters that are
odd or escaped, opcodes of pickles, arrays and their headers in archives that are whole, index
arrays of sparse matrices. Worker processes read
the files. A crash, a hang, an exception that is not documented, an error that does not name the
file, a dataset that cannot be used, or memory beyond the documented factor is a finding, which
``--seed SEED --only NUMBER`` repeats in this process. It exits with 1 if there are any.
"""

from __future__ import annotations

import argparse
import faulthandler
import gzip
import io
import json
import os
import pickle
import pickletools
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from jax_gnn import Graph, datasets, hypergraph_aggregate, schedules, spmm
from jax_gnn._core import schedule_cache
from jax_gnn._core.files import Memory
from jax_gnn.datasets._pickle import _ALLOWED

TIMEOUT = 60  # seconds a file may take, on a machine that does other things too
HEADROOM = 4 * 2**30  # of address space, for reading a file and building its graph

Rng = np.random.Generator
Files = dict[str, bytes]

INTEGERS = sorted(
    {
        sign * 2**power + offset
        for power in (0, 7, 8, 15, 16, 24, 31, 32, 33, 62, 63)
        for sign in (-1, 1)
        for offset in (-1, 0, 1)
    }
    | {-2, 0, 3, 5, 10**6, 2 * 10**8, 10**9, 10**12}
)
NUMBERS = [*map(str, INTEGERS), "", "1 1", "1\n1", "\x00", "9" * 400, "9" * 5000, "[" * 2000]
NUMBERS += ["nan", "inf", "-inf", "1e308", "1e309", "-0.0", "1e-320", "0.5", "1_0", "0x10"]
NUMBERS += ["true", "null", "(1,)", "é", '"', "1,1"]
# Line ends, blanks and digits of Python, but of no format; escapes, some of them invalid.
ODD = list("\ufeff\x85\u2028\u2029\x0b\x0c\x1c\x1e\xa0\u3000\u0661²é\t\r#<>\\")
ODD += [r"\u00E9", r"\U0001F600", r"\n", r"\\", r"\"", r"\uD800", r"\U00110000", r"\u00Z", r"\x"]
ODD += ["+1", "@en", "^^<t>"]
DTYPES = ["?", "i1", "u1", "i2", ">i4", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "U3", "S2"]

X = np.array([[0.5, 0, 2], [0, 0, 0], [1, -1, 0], [0, 3, 0], [0, 0, 0.25], [1, 2, 3]], np.float32)
Y = np.array([2, 0, 1, 0, 2, 1], np.int32)


def pick(rng: Rng, options):
    """One of a sequence; unlike ``rng.choice``, as it is."""
    return options[int(rng.integers(len(options)))]


# --- Whole files ---------------------------------------------------------------------------------


def hypergcn_values() -> dict[str, Any]:
    split = {"train": [np.int64(0), 3], "test": [1, 2]}
    return {
        "hypergraph.pickle": {"a": {0, 1, 3}, "b": [2], 7: (0, 2, 3)},
        "labels.pickle": Y,
        "features.pickle": scipy.sparse.csr_matrix(X),
        "splits/1.pickle": split,
        "splits/2.pickle": split,
    }


def planetoid_values() -> dict[str, Any]:
    one_hot = np.eye(3, dtype=np.int32)[Y]
    values: dict[str, Any] = {}
    for prefix, rows in (("", slice(0, 2)), ("t", slice(4, 6)), ("all", slice(0, 4))):
        values[f"ind.toy.{prefix}x"] = scipy.sparse.csr_matrix(X[rows])
        values[f"ind.toy.{prefix}y"] = one_hot[rows]
    return values | {"ind.toy.graph": {0: [1, 2], 1: [0], 2: [0, 5], 3: [], 5: [2]}}


def npz_arrays(structure, sparse: bool) -> dict[str, np.ndarray]:
    x = scipy.sparse.csr_matrix(X)
    features = {"x": X}
    if sparse:
        parts = {"data": x.data, "indices": x.indices, "indptr": x.indptr, "shape": x.shape}
        features = {f"x_{name}": np.asarray(part) for name, part in parts.items()}
    names = {"label_names": np.array(["red", "green", "blue"]), "node_names": np.array([*"abcdeé"])}
    split = {"train_idx": np.array([0, 3]), "val_idx": np.array([1]), "test_idx": np.array([2])}
    fields = {"num_nodes": 6, "y": Y, **structure, **features, **names, **split}
    return {name: np.asarray(value) for name, value in fields.items()}


HYPERGRAPH = {
    "num_hyperedges": 3,
    "node_idx": [0, 1, 3, 2, 0, 2, 3],
    "hyperedge_idx": [0, 0, 0, 1, 2, 2, 2],
    "train_splits": np.array([[0, 3], [1, 2]]),
}
GRAPH = {"src": [0, 1, 2, 5], "dst": [1, 0, 5, 2]}
RELATIONAL = {
    **GRAPH,
    "rel": [0, 1, 1, 0],
    "num_relations": 3,
    "relation_names": ["a", "b", "c"],
    "node_type": [0, 0, 1, 1, 1, -1],
    "node_type_names": ["p", "q"],
    "x_p": X[:2],
    "x_q_data": [1.0, 2.0],
    "x_q_indices": [0, 1],
    "x_q_indptr": [0, 1, 1, 2],
    "x_q_shape": [3, 2],
    "y_multilabel": [[0, 1], [1, 1], [0, 1], [1, 0]],
    "node_names_utf8": np.frombuffer(b"a\nb\nc\nd\ne\nf", np.uint8),
}


def cache_text() -> bytes:
    schedules = {
        "segment_reduce width 64 itemsize 4 entries 2^10 rows 2^7": ("gather", 4, 128, 77),
        "segment_matmul k 32 n 64 itemsize 4 rows 2^10 groups 2^3": ("single", 64, 8, 77),
        "hypergraph_aggregate width 64 itemsize 4 incidences 2^10 nodes 2^7 hyperedges 2^7": (
            *(128, 2, 1),
        ),
    }
    tuned = {key: (schedule, 1.5, 2) for key, schedule in schedules.items()}
    document = {"version": schedule_cache.VERSION, "devices": {"gpu": tuned}}
    return json.dumps(document, indent=1).encode()


TEXTS: dict[str, Files] = {
    "allset": {
        "toy.content": b"".join(
            f"{i} {' '.join(map(str, X[i]))} {10 * Y[i]}\n".encode() for i in (3, 0, 5, 4, 2, 1)
        ),
        "toy.edges": b"0 6\n1 6\n3 6\n2 7\n5\t8\n0 8\n",
    },
    "cornell": {
        "hyperedges-toy.txt": b"1,2,4\n3\n1,3,4\n",
        "node-labels-toy.txt": b"3\n1\n2\n1\n3\n2\n",
        "label-names-toy.txt": b"red\ngreen\nblue\n",
        "node-names-toy.txt": "Ann\nBo, Jr.\nÇelik\n\nEve\nF\n".encode(),
    },
    "planetoid": {"ind.toy.test.index": b"5\n4\n"},
    "rdf": {
        "toy.nt": b'<a> <r> <b> .\n<b> <s> "1"^^<int> .\n\n# end\n_:c <r> "x"@en .\n' * 2,
        "completeDataset.tsv": b"id\tnode\tlabel\n1\ta\t0\n2\tb\t1\n",
        "trainingSet.tsv": b"node\tid\tlabel\na\t1.0\t0.0\n",
        "testSet.tsv": b"node\tid\tlabel\nb\t2.0\t1.0\n",
    },
    "hgb": {
        "node.dat": b"0\tOne\t0\t0.5,1\n1\tTwo\t0\n4\tFive\t0\n2\t\t1\n3\tThree\t1\t\n",
        "link.dat": b"0\t2\t0\t1\n2\t0\t1\t1.0\n1\t3\t0\t1\n",
        "label.dat": b"0\tOne\t0\t2,0\n3\tThree\t1\t1\n",
        "label.dat.test": b"1\tTwo\t0\t1\n",
        "info.dat": b'{"node.dat": {"node type": {"0": "movie", "1": "actor"}}, "link.dat": {"link '
        b'type": {"0": {"start": 0, "end": 1, "meaning": "has"}}}, "label.dat": {"node type": '
        b'{"0": {"0": "a", "1": "b", "2": "c"}}}}',
    },
    "triples": {
        "train.txt": "Zürich\tin\tCH\nBern\tin\tCH\nGenf\tnear\tFR\n".encode(),
        "valid.txt": b"Genf\tin\tCH\n",
        "test.txt": b"FR\tnear\tCH\n",
        "relations.dict": b"1\tin\n0\tnear\n",
        "entity2id.txt": "5\nCH\t0\nBern\t1\nGenf\t2\nFR\t3\nZürich\t4\n".encode(),
    },
    "csv": {
        "nodes.csv": 'id,label,split,x,kind\nann,red,train,0.5,a\n"b,o",,,1e3,\n007,red,val,0,a\n'
        "Çel,blue,test,-2,é\n".encode(),
        "edges.csv": 'src,dst,weight\nann,"b,o",1\nÇel,007,0.5\nann,"b,o",2\n'.encode(),
    },
    "types_csv": {
        "nodes/author.csv": b"name,h\nann,3\nbob,\n",
        "nodes/paper.csv": b"id,label,split,year\n1,a,train,2000\n2,,,2001\n",
        "edges/author-writes-paper.csv": b"author,paper\nann,1\nbob,2\nann,2\n",
    },
    "hypergraph_csv": {
        "nodes.csv": b"node,x,y\n1,0.5,1\n2,1,\n3,$2,0\n",
        "hyperedges.csv": "node,hyperedge\n1,é\n2,é\n3,f\n".encode(),
    },
    "graphs_csv": {
        "nodes.csv": b"graph,id,atom\ng1,0,C\ng1,1,N\ng2,0,C\n",
        "edges.csv": b"graph,from,to\ng1,0,1\n",
        "graphs.csv": b"id,target\ng1,0.5\ng2,\n",
    },
    "times_csv": {
        "nodes.csv": b"id,time\na,2020-01-01\nb,2020-02-01\n",
        "edges.csv": b"Source,Target,time\na,b,2020-01-03\nb,a,2020-01-03 10:00\n",
    },
    "cache": {"jax_gnn/schedules.json": cache_text()},
}
VALUES = {"hypergcn": hypergcn_values, "planetoid": planetoid_values}
ARRAYS = {
    f"{kind}_npz{'_sparse' if sparse else ''}": (structure, sparse)
    for kind, structure in (
        ("hypergraph", HYPERGRAPH),
        ("graph", GRAPH),
        ("relational", RELATIONAL),
    )
    for sparse in (False, True)
}
RELATIONAL_ARRAYS = ("relational_npz", "relational_npz_sparse")
# The number of a file decides its format: the order is part of what `--only` repeats.
PLAIN_ARRAYS = [form for form in ARRAYS if form not in RELATIONAL_ARRAYS]
FORMATS = ["hypergcn", "planetoid", *PLAIN_ARRAYS, "allset", "cornell", *RELATIONAL_ARRAYS]
FORMATS += ["rdf", "rdf_gz", "hgb", "triples", "csv", "cache"]
FORMATS += ["types_csv", "hypergraph_csv", "graphs_csv", "times_csv"]


# --- Damage --------------------------------------------------------------------------------------


def damage_bytes(rng: Rng, data: bytes) -> bytes:
    """Bytes flipped, left out, put in, doubled, exchanged, or made an extreme integer."""
    size = len(data)
    i, j = sorted(int(n) for n in rng.integers(size + 1, size=2))
    length = int(2 ** rng.uniform(0, 6))
    kind = rng.integers(9)
    if kind == 0 and size:
        i = min(i, size - 1)
        return data[:i] + bytes([data[i] ^ 1 << int(rng.integers(8))]) + data[i + 1 :]
    if kind == 1 and size:
        i = min(i, size - 1)
        return data[:i] + rng.bytes(1) + data[i + 1 :]
    if kind == 2:
        return data[:i] + data[i + length :]
    if kind == 3:
        return data[:i] + rng.bytes(length) + data[i:]
    if kind == 4:
        return data[:j] + data[i : i + length] * int(2 ** rng.uniform(0, 8)) + data[j:]
    if kind == 5:
        return data[:i]
    if kind == 6:
        end, tail = data[i + length : j], data[j + length :]
        return data[:i] + data[j : j + length] + end + data[i : i + length] + tail
    if kind == 7:
        return data[:i] + bytes(length) + data[i + length :]
    # Binary numbers, such as sizes and offsets.
    width = pick(rng, (1, 2, 4, 8))
    value = pick(rng, INTEGERS) % 2 ** (8 * width)
    return data[:i] + value.to_bytes(width, pick(rng, ("little", "big"))) + data[i + width :]


def damage_numbers(rng: Rng, data: bytes) -> bytes:
    """Replace a number in a text."""
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?|true", data))
    if not numbers:
        return damage_bytes(rng, data)
    old, new = pick(rng, numbers), pick(rng, NUMBERS).encode()
    return data[: old.start()] + new + data[old.end() :]


def rewrite(data: bytes, mark: bool, line_end: bytes) -> bytes:
    """Return a text with a byte order mark or other line ends, as editors write it."""
    return b"\xef\xbb\xbf" * mark + data.replace(b"\n", line_end)


def damage_text(rng: Rng, data: bytes) -> bytes:
    """Rewrite a text as an editor does, or insert odd characters."""
    if rng.integers(3) == 0:
        return rewrite(data, bool(rng.integers(2)), pick(rng, (b"\n", b"\r\n", b"\r", b"\n\n")))
    for _ in range(int(rng.integers(1, 4))):
        i = int(rng.integers(len(data) + 1))
        data = data[:i] + pick(rng, ODD).encode() + data[i + int(rng.integers(2)) :]
    return data


def damage_array(rng: Rng, array: np.ndarray) -> np.ndarray:
    """Change elements, type, shape or length."""
    kind = rng.integers(6)
    flat = array.reshape(-1).copy()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind <= 1 and flat.size and flat.dtype.kind in "iufb":
            # Some elements become limits of integer types.
            count = int(rng.integers(1, 4))
            new = np.array([pick(rng, INTEGERS) for _ in range(count)], object)
            places = rng.integers(flat.size, size=count)
            if flat.dtype.kind == "f":
                flat[places] = [pick(rng, (np.nan, np.inf, 1e30, -1.0)) for _ in range(count)]
            else:
                flat[places] = (new % 2 ** (8 * flat.itemsize)).astype("u8").astype(flat.dtype)
            return flat.reshape(array.shape)
        if kind == 2:
            try:
                return array.astype(pick(rng, DTYPES))
            except ValueError:  # names
                return np.zeros(array.shape, "S1")
        if kind == 3:
            return flat[: int(rng.integers(flat.size + 1))]
        if kind == 4:
            shape = pick(rng, ((-1, 1), (1, -1), (-1, 1, 1), (0, 10**6), (10**5, 0), (10**7, 0)))
            return flat.reshape(shape) if -1 in shape else np.zeros(shape, array.dtype)
        return np.repeat(flat, int(2 ** rng.uniform(0, 12)))


def damage_value(rng: Rng, value):
    """Damage an array of a sparse matrix, or replace a number in a container."""
    if isinstance(value, np.ndarray):
        return damage_array(rng, value)
    if scipy.sparse.issparse(value):
        field = pick(rng, ("indptr", "indices", "data", "_shape"))
        if field == "_shape":
            value._shape = tuple(pick(rng, (*INTEGERS, size)) for size in value.shape)
        else:
            setattr(value, field, damage_array(rng, getattr(value, field)))
        return value
    if isinstance(value, dict):
        key = pick(rng, list(value))
        kind = rng.integers(5)
        if kind == 0:
            value.pop(key)
        elif kind == 1:
            value[pick(rng, (*INTEGERS, "new", None, 0.5, (), (0, 1)))] = value[key]
        elif kind == 2:
            value |= {name: value[key] for name in range(int(2 ** rng.uniform(0, 8)))}
        else:
            value[key] = damage_value(rng, value[key])
        return value
    if isinstance(value, list | tuple | set):
        items = list(value)
        place = int(rng.integers(len(items) + 1))
        items[place : place + int(rng.integers(2))] = [damage_value(rng, 0)]
        items *= int(2 ** rng.uniform(0, 4))
        try:
            return pick(rng, (list, tuple, set, np.array))(items)
        except (TypeError, ValueError, OverflowError):
            return items
    other_types = None, True, 0.5, "text", b"raw", [], [0], {}, {"a": 1}, np.int16(2), np.float32(1)
    return pick(rng, (*INTEGERS, *other_types, np.arange(4), scipy.sparse.csr_matrix(X)))


def damage_opcodes(rng: Rng, data: bytes) -> bytes:
    """Drop, repeat, exchange or insert opcodes of a pickle."""
    places = [place for _, _, place in pickletools.genops(data)]
    parts = [data[i:j] for i, j in zip(places, [*places[1:], len(data)], strict=True)]
    parts = [part for part in parts if part[:1] != pickle.FRAME]  # their lengths would be wrong
    for _ in range(int(rng.integers(1, 4))):
        i, j = (int(n) for n in rng.integers(len(parts), size=2))
        kind = rng.integers(6)
        if kind == 0:
            del parts[i]
        elif kind == 1:
            parts[i:i] = parts[j : j + int(rng.integers(1, 5))] * int(2 ** rng.uniform(0, 6))
        elif kind == 2:
            parts[i], parts[j] = parts[j], parts[i]
        elif kind == 3:
            parts[i] = parts[j]
        else:
            snippet = opcode(rng)
            parts[i : i + int(kind == 4)] = [snippet] * int(2 ** rng.uniform(0, 5))
        parts = parts or [pickle.STOP]
    return b"".join(parts)


def opcode(rng: Rng) -> bytes:
    """Any opcode, with an argument that is often extreme."""
    code = pick(rng, pickletools.opcodes)
    start = code.code.encode("latin-1")
    size = {"uint1": 1, "uint2": 2, "int4": 4, "uint4": 4, "uint8": 8}
    kind = code.arg.name if code.arg else ""
    value = pick(rng, INTEGERS) if rng.integers(2) else int(rng.integers(8))
    if kind in size:
        return start + (value % 2 ** (8 * size[kind])).to_bytes(size[kind], "little")
    if code.name == "GLOBAL" or rng.integers(8) == 0:
        return b"c%s\n%s\n" % tuple(part.encode() for part in pick(rng, tuple(_ALLOWED)))
    for prefix in ("1", "4", "8"):
        if kind.endswith(prefix) and code.arg.n < 0:
            claimed = value if rng.integers(2) else 3
            width = int(prefix)
            return start + (claimed % 2 ** (8 * width)).to_bytes(width, "little") + b"abc"
    if code.arg is None:
        return start * int(2 ** rng.uniform(0, 6))
    return start + (rng.bytes(8) if code.arg.n == 8 else f"{value}\n".encode())


def archive(rng: Rng, arrays: Mapping[str, np.ndarray], damaged: str = "") -> bytes:
    """Write a ``.npz`` file, which is intact except for a damaged array."""
    method = pick(rng, (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    if damaged and rng.integers(20) == 0:
        method = pick(rng, (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for key, array in arrays.items():
            data = io.BytesIO()
            np.lib.format.write_array(data, array)
            raw = data.getvalue()
            if key == damaged:
                # The header is text of a length that precedes it.
                size = int.from_bytes(raw[8:10], "little")
                header, body = raw[10 : 10 + size], raw[10 + size :]
                kind = rng.integers(3)
                if kind == 0:
                    header = damage_numbers(rng, header)
                elif kind == 1:
                    header = damage_bytes(rng, header)
                else:
                    body = damage_bytes(rng, body)
                raw = raw[:8] + (len(header) % 2**16).to_bytes(2, "little") + header + body
                if rng.integers(4) == 0:
                    # Deflate compresses zeros to almost nothing.
                    raw += bytes(int(2 ** rng.uniform(0, 24)))
            file.writestr(f"{key}.npy", raw)
    return buffer.getvalue()


def make(form: str, rng: Rng) -> Files:
    """Make the files of a small dataset, most of them intact."""
    files = dict(TEXTS.get(form.removesuffix("_gz"), {}))
    if form == "rdf_gz":  # damaged before or after compression
        text = files.pop("toy.nt")
        text = pick(rng, (damage_bytes, damage_text, lambda _, text: text))(rng, text)
        files["toy.nt.gz"] = gzip.compress(text * int(2 ** rng.uniform(0, 12)))
    if form == "hgb" and rng.integers(4) == 0:
        files.pop("node.dat")
    by_structure = rng.integers(3)
    if form in ARRAYS:
        arrays = npz_arrays(*ARRAYS[form])
        key = pick(rng, list(arrays))
        if by_structure == 0:
            arrays[key] = damage_array(rng, arrays[key])
            if rng.integers(8) == 0:
                arrays.pop(pick(rng, list(arrays)))
        files["toy.npz"] = archive(rng, arrays, key if by_structure == 1 else "")
    else:
        values = VALUES[form]() if form in VALUES else {}
        damaged = pick(rng, list(values)) if values and by_structure == 0 else ""
        protocol = int(rng.integers(pickle.HIGHEST_PROTOCOL + 1))
        for name, value in values.items():
            value = damage_value(rng, value) if name == damaged else value
            files[name] = pickle.dumps(value, protocol)
    if by_structure == 0 and (form in ARRAYS or form in VALUES):
        return files
    name = pick(rng, list(files))
    pickled = form in VALUES and name not in TEXTS.get(form, {})
    if by_structure == 1 and form in ARRAYS:
        return files
    if by_structure == 1 and pickled:
        files[name] = damage_opcodes(rng, files[name])
        return files
    for _ in range(int(rng.integers(1, 4))):
        text = form not in ARRAYS and not pickled and not name.endswith(".gz")
        how = pick(rng, (damage_numbers, damage_text, damage_bytes)) if text else damage_bytes
        files[name] = how(rng, files[name])
    return files


# --- Reading -------------------------------------------------------------------------------------


class Finding(Exception):
    """Error of a loader that neither reads nor refuses a file as documented."""


def resident(field: str) -> int:
    """Return bytes of this process: ``VmRSS`` in memory, ``VmHWM`` the peak since `forget_peak`."""
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith(field))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def load(form: str, folder: Path):
    """Load the dataset in a folder."""
    if form in ("hypergcn", "allset", "cornell", "hypergraph_csv"):
        return datasets.load_hypergraph(folder)
    if form in ("planetoid", "csv", "times_csv"):
        return datasets.load_graph(folder)
    if form == "graphs_csv":
        return datasets.load_graphs(folder)
    if form in ("rdf", "rdf_gz", "hgb", "triples", "types_csv"):
        return datasets.load_relational(folder)
    if form.startswith("relational"):
        return datasets.load_relational_npz(folder / "toy.npz")
    loader = datasets.load_npz if form.startswith("hypergraph") else datasets.load_graph_npz
    return loader(folder / "toy.npz")


def read_dataset(form: str, folder: Path, thorough: bool) -> str:
    """Return whether the dataset was "read" or "refused"; else raise a `Finding`."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    # The documented bound, against the peak that the kernel measured.
    allowed = Memory(*paths).limit
    forget_peak()
    before = resident("VmRSS")
    data = None
    try:
        data = load(form, folder)
    except ValueError as error:
        if str(folder) not in str(error):
            raise Finding(f"the error names no file: {error!r:.300}") from error
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, MemoryError):
                raise Finding(f"memory was exhausted: {error!r:.300}") from error
            cause = cause.__cause__ or cause.__context__
    peak = resident("VmHWM") - before
    if peak > allowed:
        raise Finding(f"{peak:,} bytes of memory were taken, {allowed:,} are allowed")
    if data is None:
        return "refused"
    use(data, thorough)
    return "read"


def use(data, thorough: bool) -> None:
    """Build the graph, and run an op on it if ``thorough``."""
    y, size = data.y, data.num_nodes
    if y.shape != (data.num_examples,) or not (data.x is None or np.isfinite(data.x).all()):
        raise Finding(f"{data!r} is not what a dataset promises")
    if isinstance(data, datasets.RelationalDataset):
        graph, count = data.graph(inverse=False, self_relation=False).nodes, data.num_edges
    elif isinstance(data, datasets.GraphDataset | datasets.GraphsDataset):
        graph, count = Graph.from_edges(data.src, data.dst, num_nodes=size), data.num_edges
    else:
        hypergraph = data.hypergraph(self_loops="none")
        graph, count = hypergraph.graph, data.num_incidences
    # Whatever was read must be a valid graph, on which ops work.
    degrees = np.diff(np.asarray(graph.indptr))
    if degrees.sum() != count or degrees.min(initial=0) < 0 or graph.num_src != size:
        raise Finding(f"{graph!r} of {data!r}")
    if thorough and size < 1000:
        x = jnp.ones((size, 1))
        if not isinstance(data, datasets.HypergraphDataset):
            differs = np.asarray(spmm(graph, x))[:, 0] != degrees
        else:
            reached = np.zeros(size)
            np.add.at(reached, data.node_idx, degrees[data.hyperedge_idx])
            differs = np.asarray(hypergraph_aggregate(hypergraph, x))[:, 0] != reached
        if differs.any():
            raise Finding(f"a sum over {data!r} is wrong")


def read_cache(folder: Path) -> str:
    """Return whether the tuning cache was "read" or "refused"; else raise a `Finding`."""
    os.environ["XDG_CACHE_HOME"] = str(folder)
    schedule_cache._cached.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        entries = schedule_cache.read()
    for warning in caught:
        if warning.category is not RuntimeWarning or str(folder) not in str(warning.message):
            raise Finding(f"a warning that is not documented: {warning.message!r:.300}")
    if caught and (entries or len(caught) > 1):
        raise Finding("a warning, and entries")
    for by_key in entries.values():
        for key, tuned in by_key.items():
            check_schedule(key, tuned)
    return "refused" if caught else "read"


def check_schedule(key: str, tuned: schedule_cache.Tuned) -> None:
    fields = tuned.schedule
    op = key.partition(" ")[0]
    if op in ("segment_matmul", "segment_outer"):
        kernel, tile, chunk, blocks = schedules.MatmulSchedule(*fields)
        good = kernel in ("persistent", "single") and tile in (64, 128)
        good = good and 0 <= chunk < 2**16 and 0 < blocks < 2**13
    elif op == "hypergraph_aggregate":
        threads, *rounds = schedules.HypergraphSchedule(*fields)
        good = threads % 32 == 0 and 0 < threads <= 1024 and all(0 < r < 2**16 for r in rounds)
    elif op not in ("segment_reduce", "segment_reduce_vjp", "segment_select", "softmax"):
        good = True  # of an op that nothing asks for
    else:
        kernel, lanes, threads, blocks = schedules.Schedule(*fields)
        good = kernel in ("walk", "gather", "step")
        good = good and lanes.bit_count() == 1 and 0 < lanes <= 32 and 0 < blocks < 2**16
        good = good and threads % 32 == 0 and 0 < threads <= 1024
    times = np.array([tuned.microseconds, tuned.rule_microseconds])
    if not good or not np.isfinite(times).all() or not (times > 0).all():
        raise Finding(f"{tuned} was read for {key!r}")


# --- Processes -----------------------------------------------------------------------------------


def run_one(seed: int, number: int, folder: Path) -> str:
    """Makes the files and reads them; what came of it, as "FORMAT read" or "FORMAT refused"."""
    form = FORMATS[number % len(FORMATS)]
    for path in sorted(folder.rglob("*"), reverse=True):  # files before their folders
        path.rmdir() if path.is_dir() else path.unlink()
    for name, data in make(form, np.random.default_rng([seed, number])).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    thorough = number % 37 == 0
    outcome = read_cache(folder) if form == "cache" else read_dataset(form, folder, thorough)
    return f"{form} {outcome}"


def work(seed: int, numbers: range, deadline: float) -> None:
    """A worker: prints a line of JSON for each file. It dies of what takes too long."""
    jax.block_until_ready(jnp.ones(1))  # its threads, one for each core, are not the files'
    size = resident("VmSize")
    resource.setrlimit(resource.RLIMIT_AS, (size + HEADROOM, resource.RLIM_INFINITY))
    faulthandler.enable()
    warnings.simplefilter("error")  # but those that are documented
    warnings.filterwarnings("ignore", "Reading `.npy` or `.npz` file required additional header")
    warnings.filterwarnings("ignore", ".* has numbers beyond 2..24, which float32 rounds")
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            if time.monotonic() > deadline:
                break
            faulthandler.dump_traceback_later(TIMEOUT, exit=True)
            try:
                result = {"outcome": run_one(seed, number, Path(folder))}
            except Exception:
                result = {"outcome": "finding", "text": traceback.format_exc()}
            print(json.dumps({"number": number, **result}), flush=True)
        faulthandler.cancel_dump_traceback_later()


class Report(NamedTuple):
    """Number of files by outcome, and findings by number of the file."""

    counts: Counter[str]
    findings: dict[int, str]


def run(num_files: int, seed: int, seconds: float = 1e9, workers: int = 2) -> Report:
    """Read files in several processes, up to a number of files and a time."""
    report = Report(Counter(), {})
    deadline = time.monotonic() + seconds

    def serve(start: int) -> None:
        while start < num_files and time.monotonic() < deadline:
            arguments = [seed, start, num_files, workers, deadline]
            command = [sys.executable, "-P", __file__, "--worker", *map(str, arguments)]
            with (
                tempfile.TemporaryFile("w+") as errors,
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=errors, text=True
                ) as child,
            ):
                for line in child.stdout or ():
                    result = json.loads(line)
                    if result["outcome"] == "finding":
                        report.findings[result["number"]] = result["text"]
                    report.counts[result["outcome"]] += 1
                    start = result["number"] + workers
                if child.wait() == 0:
                    return
                errors.seek(0)
                text = f"the process ended with {child.returncode}\n{errors.read()[-4000:]}"
            report.findings[start] = text
            report.counts["finding"] += 1
            start += workers

    # A worker that crashes is replaced, and the file that it read is a finding.
    threads = [threading.Thread(target=serve, args=(start,)) for start in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return report


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the damage (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1e9, help="stops after so many")
    parser.add_argument("--workers", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--only", type=int, help="reads the file of this number in this process")
    parser.add_argument("--keep", type=Path, help="with --only: the folder for the files")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        seed, start, stop, step = map(int, args.worker[:4])
        work(seed, range(start, stop, step), float(args.worker[4]))
        return 0
    if args.only is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(run_one(args.seed, args.only, args.keep or Path(folder)))
        return 0
    begin = time.monotonic()
    report = run(args.files, args.seed, args.seconds, args.workers)
    elapsed = time.monotonic() - begin
    for number, text in sorted(report.findings.items()):
        print(f"--seed {args.seed} --only {number}\n{text}")
    for outcome, count in sorted(report.counts.items()):
        print(f"{count:8}  {outcome}")
    total = report.counts.total()
    print(f"{total:8}  files in {elapsed:.0f} s, seed {args.seed}: {len(report.findings)} findings")
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
