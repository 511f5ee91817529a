"""A short run of the fuzzer of mutated files, and that it finds what it should."""

import subprocess
import sys
from pathlib import Path

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


def test_the_fuzzer_finds(tmp_path):
    """With loaders that do what none should."""
    script, text = tmp_path / "files.py", Path(files.__file__).read_text()
    for old, new in (
        ("def load(form: str, folder: Path) -> Any:", LOADERS),
        (f"TIMEOUT = {files.TIMEOUT}", "TIMEOUT = 5"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new if old.startswith("TIME") else old + new)
    script.write_text(text)
    command = [sys.executable, "-P", str(script), "--files", "8", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    findings = done.stdout.split("--seed 0 --only ")[1:]
    for number, (found, finding) in enumerate(zip(FOUND, findings, strict=True)):
        assert finding.startswith(f"{number}\n")
        assert found in finding
    assert "8 findings" in done.stdout
