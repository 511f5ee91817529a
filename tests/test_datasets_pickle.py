"""Pickles are read without running anything, whatever they name or forge."""

import os
import pickle
import pickletools
import shutil
import subprocess
import sys
from collections import defaultdict

import numpy as np
import pytest
import scipy.sparse
from test_datasets import X, Y, assert_same, dump, write_hypergcn

from jax_gnn.datasets import PickleFormatError, load_hypergcn
from jax_gnn.datasets._pickle import load_pickle

FILES = "hypergraph", "labels", "features", "splits/2"


def as_python_2(data):
    """Return a pickle of protocol 3 with old names of modules, and with strings for bytes."""
    strings = {"SHORT_BINBYTES": b"U", "BINBYTES": b"T", "PROTO": b"\x80\x02"}
    changed = bytearray(data)
    for opcode, _, position in pickletools.genops(data):
        new = strings.get(opcode.name, b"")
        changed[position : position + len(new)] = new
    names = {b"numpy._core.": b"numpy.core.", b"sparse._csr": b"sparse.csr"}
    for name, old_name in (names | {b"builtins": b"__builtin__"}).items():
        changed = changed.replace(name, old_name)
    return bytes(changed)


def test_python_2(tmp_path):
    folder, expected = write_hypergcn(tmp_path, protocol=3)  # names globals in plain text
    dump(folder / "labels.pickle", np.array(Y, "<i2"), 3)
    for file in folder.rglob("*.pickle"):
        new = as_python_2(file.read_bytes())
        assert new.startswith(b"\x80\x02")
        file.write_bytes(new)
    assert_same(load_hypergcn(folder), expected)
    # -1 has bytes above 127, which text would decode.
    y = np.array([2, 0, 1, 0, -1], "<i2")
    (folder / "labels.pickle").write_bytes(as_python_2(pickle.dumps(y, 3)))
    shutil.rmtree(folder / "splits")
    # {'M\xfcller': set([0, 1, 3]), 'b': [2]} as Python 2 writes it.
    members = b"c__builtin__\nset\n((lI0\naI1\naI3\natRs"
    text = b"(dS'M\\xfcller'\n" + members + b"S'b'\n(lI2\nas."
    (folder / "hypergraph.pickle").write_bytes(text)
    data = load_hypergcn(folder)
    assert (data.node_idx.tolist(), data.y.tolist()) == ([0, 1, 3, 2], y.tolist())


def test_default_dictionaries_forget_their_factory(tmp_path):
    folder, expected = write_hypergcn(tmp_path)
    # The pickle names a factory, which could be any function.
    hypergraph = defaultdict(list, {"a": [0, 1, 3], "b": [2], "c": [0, 2, 3]})
    for protocol in range(5):
        dump(folder / "hypergraph.pickle", hypergraph, protocol)
        assert_same(load_hypergcn(folder), expected)
    value = load_pickle(folder / "hypergraph.pickle")
    assert isinstance(value, dict)
    with pytest.raises(KeyError):
        value["absent"]


@pytest.mark.parametrize("file", FILES)
def test_hypergcn_damage(tmp_path, file):
    folder, _ = write_hypergcn(tmp_path)
    path = folder / f"{file}.pickle"
    intact = path.read_bytes()
    # Cut at any byte, a pickle is refused.
    for length in range(len(intact)):
        path.write_bytes(intact[:length])
        with pytest.raises(PickleFormatError, match="not a readable pickle") as caught:
            load_hypergcn(folder)
        assert str(path) in str(caught.value)


class Call:
    """Object whose pickle is a call of ``function``, which plain unpickling runs."""

    def __init__(self, function, *args, state=None):
        self.reduced = (function, args, state)

    def __reduce__(self):
        return self.reduced


def named(module, name):
    """Return the start of a pickle that names a global, importable or not, with or without dots."""
    return f"c{module}\n{name}\n".encode()


def attacks(command, code, npy):
    """Return objects to pickle, and the names to be refused."""
    run = Call(os.system, command)
    array = np.zeros(2).__reduce__()
    return {
        "os.system": (run, r"(posix|nt)\.system"),
        "subprocess": (Call(subprocess.check_call, command, -1, None), r"subprocess\.check_call"),
        "builtins.eval": (Call(eval, code), r"builtins\.eval"),
        "builtins.exec": (Call(exec, code), r"builtins\.exec"),
        "getattr": (Call(getattr, Call(__import__, "os"), "system"), r"builtins\.getattr"),
        "in a hyperedge": ({"a": [0, 1], "b": [run]}, r"(posix|nt)\.system"),
        "as a key": ({run: [0, 1]}, r"(posix|nt)\.system"),
        "in a set": ({"a": {0, run}}, r"(posix|nt)\.system"),
        "in arguments of numpy": (Call(array[0], run, (0,), b"b"), r"(posix|nt)\.system"),
        "in arguments of a call": (Call(set, [Call(eval, code)]), r"builtins\.eval"),
        "in an array of objects": (np.array([run, 1], object), r"(posix|nt)\.system"),
        "through numpy.load": (Call(np.load, npy, None, True), r"numpy\.load"),
    }


@pytest.fixture
def trap(tmp_path):
    """A file that every attack creates, and the attacks."""
    touched, npy = tmp_path / "touched", tmp_path / "evil.npy"
    code = f"__import__('pathlib').Path({str(touched)!r}).touch()"
    np.save(npy, np.array([Call(eval, code)], object), allow_pickle=True)
    return touched, attacks(f'"{sys.executable}" -c "{code}"', code, str(npy))


@pytest.mark.parametrize("attack", attacks("", "", ""))
@pytest.mark.parametrize("file", FILES)
def test_pickle_does_not_execute(tmp_path, trap, attack, file):
    folder, _ = write_hypergcn(tmp_path)
    touched, all_attacks = trap
    value, culprit = all_attacks[attack]
    path = folder / f"{file}.pickle"
    dump(path, value)
    with pytest.raises(pickle.UnpicklingError, match=f"pickle names {culprit}") as caught:
        load_hypergcn(folder)
    assert str(path) in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert not touched.exists()


@pytest.mark.parametrize("attack", ["builtins.eval", "in a hyperedge", "through numpy.load"])
def test_the_attacks_are_real(tmp_path, trap, attack):
    touched, all_attacks = trap
    dump(tmp_path / "evil.pickle", all_attacks[attack][0])
    pickle.loads((tmp_path / "evil.pickle").read_bytes())
    assert touched.exists()


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("numpy", "ndarray.__class__"),
        ("numpy", "fromfile"),
        ("numpy.f2py.crackfortran", "myeval"),
        ("numpy.testing._private.utils", "runstring"),
        ("numpy._core.multiarray", "_reconstruct.__globals__"),
        ("builtins", "set.__class__"),
        ("collections", "defaultdict.__class__"),
        ("collections", "OrderedDict"),
        ("jax_gnn.datasets._pickle", "load_pickle"),
        ("scipy.sparse", "load_npz"),
    ],
)
def test_pickle_refuses_names(tmp_path, module, name):
    folder, _ = write_hypergcn(tmp_path)
    (folder / "labels.pickle").write_bytes(named(module, name) + b"(S'argument'\ntR.")
    with pytest.raises(PickleFormatError, match=f"pickle names {module}.{name},"):
        load_hypergcn(folder)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("numpy", "dtype"),
        ("numpy._core.multiarray", "scalar"),
        ("builtins", "set"),
        ("collections", "defaultdict"),
    ],
)
@pytest.mark.parametrize("state", [{"evil": 1}, (None, {"evil": 1, "to_numpy": 1, "__new__": 1})])
def test_pickle_cannot_change_what_it_names(tmp_path, module, name, state):
    folder, expected = write_hypergcn(tmp_path)
    good = (folder / "labels.pickle").read_bytes()
    set_state = pickle.dumps(state, 0)[:-1] + b"b."
    (folder / "labels.pickle").write_bytes(named(module, name) + set_state)
    with pytest.raises(PickleFormatError, match="not a readable pickle"):
        load_hypergcn(folder)
    (folder / "labels.pickle").write_bytes(good)
    assert_same(load_hypergcn(folder), expected)


def forged(shape, dtype, raw):
    function, args, state = np.zeros(1).__reduce__()
    return Call(function, *args, state=(state[0], shape, dtype, False, raw))


def forged_csr(**changes):
    state = scipy.sparse.csr_matrix(X).__dict__ | changes
    return Call(scipy.sparse.csr_matrix, state=state)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (forged((5,), np.dtype("O"), bytes(40)), "dtype 'O8' is not a plain number type"),
        (forged((5,), Call(np.dtype, "O8", False, True), bytes(40)), "dtype 'O8' is not a plain"),
        (forged((5,), Call(np.dtype, [("a", "O")]), bytes(40)), "dtype .* is not a plain"),
        (forged((5,), np.dtype("i4"), bytes(16)), r"shape \(5,\) and int32 is not 20 bytes long"),
        (forged((2**40, 2**40), np.dtype("i4"), bytes(16)), "bytes long"),
        (forged((-5,), np.dtype("i4"), bytes(20)), "is not the shape of an array"),
        (forged((5.0,), np.dtype("i4"), bytes(20)), "is not the shape of an array"),
        (forged((2**40, 0), np.dtype("i4"), b""), r"shape \(1099511627776, 0\) is empty"),
        (forged((5,), "i4", bytes(20)), "an array without a proper dtype"),
        (forged((5,), np.dtype("i4"), [1] * 5), "bytes long"),
        (Call(*np.zeros(1).__reduce__()[:1], np.ndarray, (0,), b"b"), "without a proper state"),
    ],
)
def test_forged_arrays(tmp_path, value, message):
    folder, _ = write_hypergcn(tmp_path)
    dump(folder / "labels.pickle", value)
    with pytest.raises(ValueError, match=f"labels.pickle: .*{message}"):
        load_hypergcn(folder)


def itself():
    loop = [0]
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    "value",
    [
        np.ndarray,  # the class, not an array
        scipy.sparse.csr_matrix,
        [np.dtype("i4")],
        itself(),
        None,
    ],
)
@pytest.mark.parametrize("file", FILES)
def test_unexpected_values(tmp_path, value, file):
    folder, _ = write_hypergcn(tmp_path)
    dump(folder / f"{file}.pickle", value)
    with pytest.raises(ValueError, match=f"{file}.pickle: "):
        load_hypergcn(folder)


@pytest.mark.parametrize("opcodes", [b")\x81.", b"(tR."])
@pytest.mark.parametrize("name", ["_reconstruct", "csr_matrix", "scalar"])
def test_calls_without_state(tmp_path, name, opcodes):
    folder, _ = write_hypergcn(tmp_path)
    module = "scipy.sparse._csr" if name == "csr_matrix" else "numpy._core.multiarray"
    (folder / "features.pickle").write_bytes(b"\x80\x02" + named(module, name) + opcodes)
    with pytest.raises(
        ValueError, match=r"features.pickle: .*(proper state|without data|missing 2)"
    ):
        load_hypergcn(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"indices": np.full(6, 3, np.int32)},
        {"indptr": np.array([0, 2, 2, 4, 5, 60], np.int32)},
        {"indices": [0] * 6},
        {"data": np.ones(5, np.float32)},
        {"indptr": np.array([0, 10**9, 0], np.int32), "_shape": (2, 3)},
        {"indptr": np.array([0, 2**30, 2**31 - 1, -(2**30), 1], np.int32), "_shape": (4, 3)},
        {"_shape": (5, 2 * 10**8)},
        {"_shape": ([], [])},
        {"_shape": (5, -3)},
        {"_shape": None},
    ],
)
def test_forged_csr_matrices(tmp_path, changes):
    folder, expected = write_hypergcn(tmp_path)
    dump(folder / "features.pickle", forged_csr())
    assert_same(load_hypergcn(folder), expected)
    dump(folder / "features.pickle", forged_csr(**changes))
    with pytest.raises(ValueError, match=r"features.pickle: .*(CSR matrix|shape|memory)"):
        load_hypergcn(folder)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_hypergcn_of_any_protocol(tmp_path, protocol):
    folder, expected = write_hypergcn(tmp_path, protocol)
    assert_same(load_hypergcn(folder), expected)
    dump(folder / "splits" / "2.pickle", {"train": {0, 4}, "test": {1, 2, 3}}, protocol)
    dump(folder / "features.pickle", np.asfortranarray(X.astype(">f8")), protocol)
    assert_same(load_hypergcn(folder), expected)
    dump(folder / "features.pickle", scipy.sparse.csr_matrix(np.zeros((5, 3))), protocol)
    np.testing.assert_array_equal(load_hypergcn(folder).x, np.zeros((5, 3)))


@pytest.mark.parametrize(
    "call",
    [
        b"c_codecs\nencode\n(V61\nVhex\ntR.",
        b"c_codecs\nencode\n(VA\nVutf-16\ntR.",
        b"c_codecs\nencode\n(I1000000000\ntR.",
        b"c__builtin__\nbytes\n(I1000000000\ntR.",
        b"ccopy_reg\n_reconstructor\n(cnumpy\nndarray\nc__builtin__\nobject\nNtR.",
    ],
)
def test_calls_of_old_protocols_are_only_what_they_stand_for(tmp_path, call):
    (tmp_path / "a.pickle").write_bytes(call)
    with pytest.raises(PickleFormatError, match="not a readable pickle"):
        load_pickle(tmp_path / "a.pickle")


def nested(depth):
    """A tuple that holds twice what holds twice, and so on: more numbers than anyone can read."""
    return b"K\x01" + b"2\x86" * depth


BOMBS = {
    "a far place in the memo": b"}r\x00\x00\x00\x04.",
    "a long bytearray": b"\x96\x00\x00\x00\x40\x00\x00\x00\x00.",
    "long bytes": b"\x8e\x00\x00\x00\x40\x00\x00\x00\x00.",
    "a long frame": b"\x95\x00\x00\x00\x40\x00\x00\x00\x00}.",
    "numbers": nested(25) + b".",
    "in a list": b"]" + nested(25) + b"a.",
    "a hyperedge": b"}K\x01" + nested(25) + b"s.",
    "a hyperedge's name": b"}" + nested(30) + b"K\x01s.",
    "in a set": b"\x8f(" + nested(30) + b"\x90.",
    "in a set by a call": b"c__builtin__\nset\n(]" + nested(30) + b"atR.",
    "frozen sets": b"}(\x91" + nested(1) + b"K\x01s.",
    "a dtype": named("numpy", "dtype") + nested(25) + b"\x85R.",
    "strings": pickle.dumps({"a": ["x" * 10_000] + ["y"] * 10_000}),
    "a list in many hyperedges": pickle.dumps(dict.fromkeys(range(20_000), [0, 1] * 10_000)),
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("file", FILES)
def test_few_bytes_take_little_memory(tmp_path, taking_less_than, file, bomb):
    folder, _ = write_hypergcn(tmp_path)
    (folder / f"{file}.pickle").write_bytes(b"\x80\x04" + BOMBS[bomb])
    with taking_less_than(2**28):
        try:
            load_hypergcn(folder)
        except ValueError as error:
            assert str(folder) in str(error)


def test_a_list_may_be_in_several_hyperedges(tmp_path):
    folder, _ = write_hypergcn(tmp_path)
    dump(folder / "hypergraph.pickle", dict(zip("abc", [[0, 1, 3]] * 3, strict=True)))
    assert load_hypergcn(folder).node_idx.tolist() == [0, 1, 3] * 3
