"""The pages: their code, run as it is written there, what they name, and how long they are."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import jax_gnn
from jax_gnn import cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text())]
NEEDS_A_GPU = "jax-gnn tune"
FOLDERS = (".ci", "benchmarks", "cpp", "docs", "flax_layers", "jax_gnn", "tests")
SOURCES = {".cc", ".cu", ".cuh", ".h", ".py"}
MOST_WORDS = {"README": 1000, "architecture": 2000}
MOST_WORDS_OF_A_SENTENCE = 35
NOBODY_READS = "tried"  # a list of measurements, for whoever looks one up


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where commands run, with a graph in place of Cora."""
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "planetoid"
    folder.mkdir()
    labels = np.eye(2, dtype=np.int32)[np.arange(700) % 2]
    x = scipy.sparse.csr_matrix(rng.uniform(size=(700, 8)) + labels[:, :1])
    graph = {i: [int(j) for j in rng.integers(700, size=3)] for i in range(700)}
    parts = {"x": x[:40], "y": labels[:40], "allx": x[:600], "ally": labels[:600]}
    parts |= {"tx": x[600:], "ty": labels[600:], "graph": graph}
    for name, value in parts.items():
        (folder / f"ind.cora.{name}").write_bytes(pickle.dumps(value, 4))
    (folder / "ind.cora.test.index").write_text("\n".join(map(str, range(600, 700))))


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")  # PyG's, as it is imported
@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_code_runs(page: Path, data: None, capsys: pytest.CaptureFixture[str]) -> None:
    """All Python, and the command's lines; none that install something first."""
    names: dict[str, Any] = {}
    missing = []
    for language, text in BLOCK.findall(page.read_text()):
        if language == "python":
            try:
                exec(compile(text, f"{page.name}: {text[:40]}", "exec"), names)
            except ImportError as error:  # of a package that jax_gnn.convert can do without
                if "is not installed: pip install" not in str(error):
                    raise
                missing.append(str(error))
            continue
        for line in text.splitlines():
            if line.startswith("jax-gnn ") and not line.startswith(NEEDS_A_GPU):
                assert cli.main(shlex.split(line, comments=True)[1:]) == 0, line
    capsys.readouterr()
    if page.stem == "flax":  # whose two Linen networks hold the same layers
        assert names["logits"].shape == names["linen_logits"].shape
        assert np.isfinite(names["linen_logits"]).all()
        np.testing.assert_allclose(names["linen_logits"], names["nnx_logits"], rtol=1e-6)
    if missing:
        pytest.skip(f"all other code ran: {'; '.join(missing)}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    """To files and to headings of pages."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        titles = re.findall(r"^#+ (.*)", file.read_text(), re.MULTILINE) if heading else []
        anchors = [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]
        assert not heading or heading in anchors, target


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "\n", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def in_code(page: Path) -> list[str]:
    """What stands between backticks in a page's text."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def matches(path: str) -> bool:
    """Whether a path of the checkout exists, where ``<op>`` and stars stand for anything."""
    return any(ROOT.glob(re.sub(r"<\w+>", "*", path)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_exist(page: Path) -> None:
    """Those of the checkout that are named in full, and sources that are named without a folder."""
    names = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*")}
    for code in in_code(page):
        for word in code.split():
            if re.fullmatch(rf"({'|'.join(map(re.escape, FOLDERS))})/[\w./<>*-]*", word):
                assert matches(word.rstrip("/")), word
            elif Path(word).suffix in SOURCES and re.fullmatch(r"[\w./-]+", word):
                assert Path(word).name in names, word


def found(name: str) -> bool:
    """Whether a dotted name is a module, or something in one; a star stands for any ending."""
    *parents, last = name.split(".")
    owner: Any = importlib.import_module(parents[0])
    for depth, parent in enumerate(parents[1:], 2):
        if not hasattr(owner, parent):
            importlib.import_module(".".join(parents[:depth]))
        owner = getattr(owner, parent)
    if last.endswith("*"):
        return any(each.startswith(last[:-1]) for each in dir(owner))
    return hasattr(owner, last) or importlib.util.find_spec(name) is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_exist(page: Path) -> None:
    """``jax_gnn.name`` and ``flax_layers.Name``, and ``Graph.name`` of what jax_gnn exports."""
    for code in in_code(page):
        for name in re.findall(r"(?<![\w./])(?:jax_gnn|flax_layers)(?:\.\w+)+\*?", code):
            assert found(name), name
        for owner, name in re.findall(r"(?<![\w.])([A-Z]\w+)\.(\w+)", code):
            if owner in jax_gnn.__all__:
                assert hasattr(getattr(jax_gnn, owner), name), f"{owner}.{name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pages_are_short(page: Path) -> None:
    """Pages and their sentences; what stands between backticks is a word, tables are left out."""
    assert len(page.read_text().split()) <= MOST_WORDS.get(page.stem, 10**5)
    text = re.sub(r"^[|#].*$", "\n", prose(page), flags=re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "code", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for paragraph in re.split(r"\n\s*\n|\n *(?:[-*]|\d+\.) ", text):
        for sentence in re.split(r"(?<=[.!?])[*\])]* ", " ".join(paragraph.split())):
            most = MOST_WORDS_OF_A_SENTENCE if page.stem != NOBODY_READS else 10**5
            assert len(sentence.split()) <= most, sentence
