"""The pages' code, run as it is written there, and the files that they name."""

from __future__ import annotations

import pickle
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from jax_gnn import _cli as cli

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text())]
NEEDS_A_GPU = "jax-gnn tune"


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


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: page.stem)
def test_code_runs(page: Path, data: None, capsys: pytest.CaptureFixture[str]) -> None:
    """All Python, and the command's lines; none that install something first."""
    names: dict[str, Any] = {}
    for language, text in BLOCK.findall(page.read_text()):
        if language == "python":
            exec(compile(text, f"{page.name}: {text[:40]}", "exec"), names)
            continue
        for line in text.splitlines():
            if line.startswith("jax-gnn ") and not line.startswith(NEEDS_A_GPU):
                assert cli.main(shlex.split(line, comments=True)[1:]) == 0, line
    capsys.readouterr()
    if page.stem == "flax":  # whose two Linen networks hold the same layers
        assert names["logits"].shape == names["linen_logits"].shape
        assert np.isfinite(names["linen_logits"]).all()
        np.testing.assert_allclose(names["linen_logits"], names["nnx_logits"], rtol=1e-6)


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
