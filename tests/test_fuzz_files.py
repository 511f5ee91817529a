"""A short run of the fuzzer of mutated files, and that it finds what it should."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parent / "fuzz"))

import files

LOADERS = """
    if form == "hypergcn":
        os.abort()
    if form == "planetoid":
        time.sleep(1000)
    if form == "hypergraph_npz":
        raise KeyError("k")
    if form == "hypergraph_npz_sparse":
        raise ValueError("of some file")
    if form == "graph_npz":
        raise ValueError(folder) from MemoryError()
    if form == "graph_npz_sparse":
        return np.ones(2**26)
    if form == "allset":
        warnings.warn("odd")
    return 3
"""
FOUND = [
    "the process ended with -6",
    "the process ended with 1\nTimeout",
    "KeyError: 'k'",
    "the error names no file",
    "memory was exhausted",
    "bytes of memory were taken",
    "UserWarning: odd",
    "AttributeError: 'int' object has no attribute",
]


def test_mutated_files_are_read_or_refused(pytestconfig):
    seed = pytestconfig.option.seed
    report = files.run(300, seed)
    assert not report.findings, "\n".join(
        f"tests/fuzz/files.py --seed {seed} --only {number}\n{text}"
        for number, text in report.findings.items()
    )
    assert report.counts.total() == 300
    assert all(report.counts[f"{form} refused"] for form in files.FORMATS)
    assert sum(count for outcome, count in report.counts.items() if outcome.endswith("read")) > 10


@pytest.mark.parametrize("form", files.TEXTS)
def test_texts_as_editors_write_them(tmp_path, monkeypatch, form):
    """Byte order marks, line ends, and a missing final_end line line_end change nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # the fuzzer sets it
    values = files.VALUES[form]() if form in files.VALUES else {}
    for name, value in values.items():
        (tmp_path / name).write_bytes(pickle.dumps(value))

    def read(mark, line_end, final_end):
        for name, data in files.TEXTS[form].items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            data = files.rewrite(data.removesuffix(b"\n") + final_end, mark, line_end)
            (tmp_path / name).write_bytes(data)
        return files.read_cache(tmp_path) if form == "cache" else vars(files.load(form, tmp_path))

    expected = read(False, b"\n", b"\n")
    assert expected != "refused"
    for ways in ((True, b"\n", b"\n\n"), (True, b"\r\n", b"\n"), (False, b"\r", b"")):
        np.testing.assert_equal(read(*ways), expected)


def test_the_fuzzer_finds(tmp_path):
    """The fuzzer reports all ways in which loaders can fail."""
    script, text = tmp_path / "files.py", Path(files.__file__).read_text()
    for old, new in (
        ("def load(form: str, folder: Path):", LOADERS),
        (f"TIMEOUT = {files.TIMEOUT}", "TIMEOUT = 5"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new if old.startswith("TIME") else old + new)
    script.write_text(text)
    command = [sys.executable, "-P", str(script), "--files", "8", "--workers", "1"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 1
    findings = process.stdout.split("--seed 0 --only ")[1:]
    for number, (message, finding) in enumerate(zip(FOUND, findings, strict=True)):
        assert finding.startswith(f"{number}\n")
        assert message in finding
    assert "8 findings" in process.stdout
