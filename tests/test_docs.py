"""The pages: their code, run as it is written there, what they name, and how long they are."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any
from unittest import SkipTest

import jax
import numpy as np
import pytest
import scipy.sparse
from sybil import Example, Sybil
from sybil.evaluators.skip import Skipper
from sybil.parsers.myst import CodeBlockParser, PythonCodeBlockParser, SkipParser

import jax_gnn
from jax_gnn import cli

ROOT = Path(__file__).parents[1]
DOCS = sorted(page for page in (ROOT / "docs").rglob("*.md") if "_" not in page.parts[-2])
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
FOLDERS = (".ci", "benchmarks", "cpp", "docs", "flax_layers", "jax_gnn", "tests")
SOURCES = {".cc", ".cu", ".cuh", ".h", ".py"}
MOST_WORDS = {"README": 1000, "architecture": 2000, "index": 300, "start": 1200}
MOST_WORDS_OF_A_SENTENCE = 35
NO_CODE = (
    "text",
    "{toctree}",
    "{eval-rst}",
    "{include}",
    "{literalinclude}",
    "{code-block} py",
)  # others' programs
REFERENCE_PAGE = "tried"  # a list of measurements to look up, without a limit of sentences


def name(page: Path) -> str:
    return str(page.relative_to(ROOT).with_suffix("")).removeprefix("docs/")


on_all_pages = pytest.mark.parametrize("page", PAGES, ids=name)


def run_shell(example: Example) -> None:
    """Runs the lines of the command in this process, and looks at what is to be installed."""
    for line in example.parsed.replace("\\\n", "").splitlines():
        for command in line.split(" && "):
            words = shlex.split(command, comments=True)
            if words[:2] == ["pip", "install"]:
                for extras in re.findall(r"\[([\w,-]+)\]", command):
                    assert EXTRAS.keys() >= set(extras.split(",")), command
            elif words:
                assert words[0] == "jax-gnn", f"mark the block to be skipped, or run {words[0]}"
                assert cli.main(words[1:]) == 0, line


# A block that no test can run has `<!-- skip: next "the reason" -->` before it.
BLOCKS = Sybil([PythonCodeBlockParser(), CodeBlockParser("bash", run_shell), SkipParser()])


# Tables beside another package run with it, below; programs run here, and there beside its own.
PROGRAMS = [page for page in DOCS if page.stem.endswith("-programs")]
COLUMNS = [page for page in DOCS if page.parent.name == "from" and page not in PROGRAMS]
WITH_CODE = [page for page in PAGES if "```" in page.read_text() and page not in COLUMNS]


def is_mark(example: Example) -> bool:
    return isinstance(example.region.evaluator, Skipper)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to a folder with a random graph in Cora's files."""
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "planetoid"
    folder.mkdir()
    labels = np.eye(2, dtype=np.int32)[np.arange(700) % 2]
    x = scipy.sparse.csr_matrix(rng.uniform(size=(700, 8)) + labels[:, :1])
    graph = {i: [int(j) for j in rng.integers(700, size=3)] for i in range(700)}
    parts = {"x": x[:40], "y": labels[:40], "allx": x[:600], "ally": labels[:600]}
    parts |= {"tx": x[600:], "ty": labels[600:], "graph": graph}
    for part, value in parts.items():
        (folder / f"ind.cora.{part}").write_bytes(pickle.dumps(value, 4))
    (folder / "ind.cora.test.index").write_text("\n".join(map(str, range(600, 700))))


def test_every_block_is_found() -> None:
    """Blocks of no other languages, each of them run or marked, with a reason; -s prints counts."""
    num_blocks = num_skipped = 0
    for page in PAGES:
        examples = list(BLOCKS.parse(page).examples())
        marks = [example for example in examples if is_mark(example)]
        assert all(mark.parsed[0] == "next" and mark.parsed[1] for mark in marks), page
        fences = re.findall(r"^ *```(.*)\n(?:.*\n)*?^ *```$", page.read_text(), re.MULTILINE)
        code = [info for info in fences if not info.startswith(NO_CODE)]
        assert len(code) == len(examples) - len(marks), (page, fences)
        num_blocks, num_skipped = num_blocks + len(code), num_skipped + len(marks)
    print(
        f"{num_blocks} blocks: {num_blocks - num_skipped} run, {num_skipped} marked to be skipped"
    )


@pytest.mark.filterwarnings("ignore:from_table:UserWarning")  # of tables that lack something
@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")  # PyG's, as it is imported
@pytest.mark.parametrize("page", WITH_CODE, ids=name)
def test_code_runs(page: Path, data: None, capsys: pytest.CaptureFixture[str]) -> None:
    missing = []
    document = BLOCKS.parse(page)
    for example in document.examples():
        try:
            example.evaluate()
        except SkipTest:  # marked
            pass
        except ImportError as error:  # of a package that jax_gnn.convert can do without
            if error.name != "pandas" and "is not installed: pip install" not in str(error):
                raise
            missing.append(str(error))
    capsys.readouterr()
    if missing:
        pytest.skip(f"all other code ran: {'; '.join(missing)}")


# Pages for who comes from another package: tables of code, its lines between backticks.
OTHERS = {"pyg": "torch_geometric", "pyg-table": "torch_geometric"}


def rows_of_code(page: Path) -> list[tuple[str, list[str], list[str]]]:
    """Return the subject and the lines of both columns of each row of code."""
    rows = []
    for line in page.read_text().splitlines():
        cells = [re.findall(r"`([^`]+)`", cell) for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 3 and cells[1] and cells[2]:
            rows.append((line.split("|")[1].strip(), cells[1], cells[2]))
    return rows


def last_value(lines: list[str], names: dict[str, Any]) -> list[np.ndarray]:
    """Run lines; return the arrays in the value of the last."""
    *before, result = lines
    for line in before:
        exec(line, names)
    value = eval(result, names)
    detached = jax.tree.map(lambda leaf: leaf.detach() if hasattr(leaf, "detach") else leaf, value)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(detached)]


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
@pytest.mark.parametrize("page", COLUMNS, ids=name)
def test_both_columns(page: Path, data: None) -> None:
    """Both columns of a row make the same numbers."""
    rows = rows_of_code(page)
    assert len(rows) >= 12
    pytest.importorskip(OTHERS.get(page.stem, page.stem))
    document = BLOCKS.parse(page)
    for example in document.examples():
        example.evaluate()
    for what, theirs, ours in rows:
        expected, got = (last_value(lines, document.namespace) for lines in (theirs, ours))
        assert len(expected) == len(got) > 0, what
        for expected_value, right in zip(expected, got, strict=True):
            np.testing.assert_allclose(right, expected_value, rtol=1e-5, atol=1e-5, err_msg=what)


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
@pytest.mark.parametrize("page", PROGRAMS, ids=name)
def test_programs_beside_the_original(page: Path) -> None:
    """Both programs of a section end with the same numbers, as its comments say how closely."""
    package = page.stem.removesuffix("-programs")
    pytest.importorskip(OTHERS.get(package, package))
    block = r"^```(python|\{code-block\} py)\n(?::.*\n)*((?:.*\n)*?)```$"
    parts = re.findall(rf"{block}|^<!-- compare: (\w+) (\S+) -->$", page.read_text(), re.MULTILINE)
    assert sum(bool(what) for *_, what, _ in parts) >= 3
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    for kind, code, what, tolerance in parts:
        if kind == "python":
            exec(code, ours)
        elif kind:
            names = ours | theirs  # data are those of blocks before
            exec(code, names)
            theirs |= {key: value for key, value in names.items() if value is not ours.get(key)}
        else:
            expected = theirs[what]
            right = expected.detach() if hasattr(expected, "detach") else expected
            np.testing.assert_allclose(ours[what], right, 0, float(tolerance), err_msg=what)


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
def test_all_of_pyg_is_named() -> None:
    pytest.importorskip("torch_geometric")
    text = (ROOT / "docs" / "from" / "pyg-table.md").read_text()
    rows = [what for what, *_ in rows_of_code(ROOT / "docs" / "from" / "pyg-table.md")]
    named = set(re.findall(r"`(\w+)`", text)) | {what.split(",")[0] for what in rows}
    for module in ("nn.conv", "nn.aggr", "nn.pool", "transforms", "loader"):
        names = importlib.import_module(f"torch_geometric.{module}").__all__
        assert not set(names) - named, module


@on_all_pages
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


def test_the_page_on_pypi_has_absolute_links(tmp_path: Path) -> None:
    """A workflow knows the repository, whose address it writes into both files, once."""
    (tmp_path / ".ci").mkdir()
    for file in ("README.md", "pyproject.toml", ".ci/pypi-page"):
        shutil.copy(ROOT / file, tmp_path / file)
    places = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "o/name"}
    places |= {"GITHUB_REPOSITORY_OWNER": "o", "GITHUB_REF_NAME": "v1", "PATH": os.environ["PATH"]}
    for _ in range(2):
        subprocess.run([tmp_path / ".ci" / "pypi-page"], env=places, check=True)
    links = re.findall(r"\]\(([^)\s]+)\)", (tmp_path / "README.md").read_text())
    assert "https://github.com/o/name/blob/v1/docs/speed.md" in links
    assert all(re.match("https://|#", link) for link in links)
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["urls"]
    assert urls["Documentation"] == "https://o.github.io/name/"


def prose(page: Path) -> str:
    """A page without its blocks of code, comments, inline marks of numbers and front matter."""
    text = re.sub(r"<!--= .*?-->|<!-- -->", "", page.read_text())
    without = r"\A---\n.*?^---$|^ *```.*?^ *```|<!--.*?-->"
    return re.sub(without, "\n", text, flags=re.MULTILINE | re.DOTALL)


def in_code(page: Path) -> list[str]:
    """Return the text between backticks of a page, without rows of code, which are run."""
    text = re.sub(r"^\|[^`|]*\| `.*` \| `.*` \|$", "", prose(page), flags=re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", text if page in COLUMNS else prose(page))


def matches(path: str) -> bool:
    """Whether a path of the checkout exists, where ``<op>`` and stars stand for anything."""
    return any(ROOT.glob(re.sub(r"<\w+>", "*", path)))


@on_all_pages
def test_files_exist(page: Path) -> None:
    """Pages name existing files, by full path or, for sources, by file name."""
    names = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*")}
    for code in in_code(page):
        for word in code.split():
            if re.fullmatch(rf"({'|'.join(map(re.escape, FOLDERS))})/[\w./<>*-]*", word):
                assert matches(word.rstrip("/")), word
            elif Path(word).suffix in SOURCES and re.fullmatch(r"[\w./-]+", word):
                assert Path(word).name in names, word


def exists(name: str) -> bool:
    """Whether a dotted name is a module or a member of one; a star matches any ending."""
    *parents, attribute = name.split(".")
    owner: Any = importlib.import_module(parents[0])
    for depth, parent in enumerate(parents[1:], 2):
        if not hasattr(owner, parent):
            importlib.import_module(".".join(parents[:depth]))
        owner = getattr(owner, parent)
    if attribute.endswith("*"):
        return any(member.startswith(attribute[:-1]) for member in dir(owner))
    return hasattr(owner, attribute) or importlib.util.find_spec(name) is not None


@on_all_pages
def test_names_exist(page: Path) -> None:
    """``jax_gnn.name`` and ``flax_layers.Name``, and ``Graph.name`` of what jax_gnn exports."""
    for code in in_code(page):
        for name in re.findall(r"(?<![\w./])(?:jax_gnn|flax_layers)(?:\.\w+)+\*?", code):
            assert exists(name), name
        for owner, name in re.findall(r"(?<![\w.])([A-Z]\w+)\.(\w+)", code):
            if owner in jax_gnn.__all__:
                assert hasattr(getattr(jax_gnn, owner), name), f"{owner}.{name}"


@on_all_pages
def test_pages_are_short(page: Path) -> None:
    """Pages and their sentences; what stands between backticks is a word, tables are left out."""
    words = re.sub(r"<!--.*?-->", "", page.read_text()).split()
    assert len(words) <= MOST_WORDS.get(name(page), 10**5)
    text = re.sub(r"^[|#].*$", "\n", prose(page), flags=re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "code", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for paragraph in re.split(r"\n\s*\n|\n *(?:[-*]|\d+\.) ", text):
        for sentence in re.split(r"(?<=[.!?])[*\])]* ", " ".join(paragraph.split())):
            most = MOST_WORDS_OF_A_SENTENCE if page.stem != REFERENCE_PAGE else 10**5
            assert len(sentence.split()) <= most, sentence


def test_tables_of_changed_trees_are_named() -> None:
    """The page lists tables whose commit ends with a "+"; four tables of hypergnn are one name."""
    text = (ROOT / "docs" / "speed.md").read_text()
    paragraph = text.partition('**A commit with a "+"**')[2].partition("\n- **")[0]
    count = re.search(r"These are (\d+)", paragraph)
    tables = [
        file.stem.rpartition("-nvidia")[0] or file.stem.removesuffix("-cpu")
        for file in (ROOT / "benchmarks" / "results").glob("*.md")
        if re.search(r"commit \w+\+;", file.read_text())
    ]
    assert count is not None and int(count[1]) == len(tables)
    named = set(re.findall(r"`(\w+)`", paragraph)) - {"segment_softmax"}
    assert named == {re.sub("^hypergnn_.*", "hypergnn", table) for table in tables}
