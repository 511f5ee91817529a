"""The site: `.ci/docs` builds it. Pages are MyST; the reference is made of docstrings."""

import ast
import fnmatch
import functools
import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util import logging

import jax_gnn

ROOT = Path(__file__).parents[1]

project = "jax-gnn-kernels"
version = release = jax_gnn.__version__
copyright = "the jax-gnn-kernels developers, Apache-2.0"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(ROOT / "docs" / "_static" / "scorer.js")
templates_path = ["_templates"]
default_role = "code"
html_theme = "furo"
html_title = f"jax-gnn-kernels {release}"
html_theme_options = {"dark_css_variables": {"mystnb-source-border-color": "#3c3c3c"}}
html_math_renderer = "mathml"  # browsers typeset it: no script, no font from elsewhere
pygments_dark_style = "github-dark"
linkcheck_timeout = 10

myst_heading_anchors = 4
nb_execution_mode = "cache"  # notebooks run where they have changed
nb_execution_in_temp = True  # what they write is not kept
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_show_tb = True
nb_merge_streams = True

# The headings of a module's page, with the patterns of their names; what has none comes last.
TOPICS = {
    "jax_gnn": {
        "Graphs and hypergraphs": "Graph HeteroGraph RelationalGraph Hypergraph RelationMaps",
        "Batches of small graphs": "Batch batch batch_budget pack unbatch",
        "Message passing": "spmm sddmm index_segment_reduce",
        "Attention": "additive_* gatv2_* dot_attention",
        "Products by type (ragged_dot)": "segment_matmul segment_outer TypePlan",
        "Segment reductions": "segment_* SegmentIndex",
        "Relations (heterogeneous graphs)": "relational_* rgat_* hgt_* RGAT* HGT*",
        "Hypergraph neural networks": "hyper* Hyper* node_to_* incidence_*",
        "Message passing of your own": "program Program Node* Edge Relation Global lift Lifted",
        "Saving, export and settings": "save load host_* shared_* implementation EXPORT*",
    },
    "jax_gnn.datasets": {
        "Datasets": "*Dataset digits*",
        "Loading of files": "load_* known_* Pickle*",
        "Splits, negatives and features": "*",
    },
    "jax_gnn.sampling": {
        "Neighbor sampling": "*neighbor* Blocks Seed* Edge* block_*",
        "Links": "link_* corrupted_* negative_*",
        "Walks and subgraphs": "*walk* *subgraph* Sub* saint* cluster*",
        "Features and chunks": "*",
    },
    "flax_layers": {
        "Graph layers": "GCNConv GINConv GINBlock SAGEConv GAT*Conv TransformerConv gcn_norm",
        "Layers of edge functions and points": "GINEConv Gated*Conv ResGated* PNAConv EdgeConv "
        "NNConv CGConv GENConv SuperGAT* AGNNConv FAConv GMMConv PDNConv Point* CFConv EGNNConv "
        "PaiNNConv GPSConv",
        "Graph models": "GCN GIN GINE SAGE GAT* GatedGCN PNA GraphTransformer",
        "Hypergraph layers": "HGNN*Conv Hyper*Conv All*Conv Uni*Conv unigcn_norm",
        "Hypergraph models": "HGNN* Hyper* All* Uni*",
        "Layers of relations and types (heterogeneous)": "R*Conv HGTConv Comp*Conv Hetero* Typed* "
        "SimpleHGNConv FiLMConv HEATConv HANConv",
        "Models of relations": "RGCN RGAT HGT CompGCN SimpleHGN HEAT HAN",
        "Readouts and classifiers of graphs": "*Readout readout Set2Set *Classifier jumping_*",
        "Norms": "*Norm",
        "Link prediction": "GAE VGAE *[Ll]ink* DistMult ComplEx ConvE edge_* *_loss",
        "Layers of your own functions": "Program* axes dense",
        "Bases, options and inference": "*",
    },
    "flax_layers.training": {
        "Training": "train train_links TrainResult Trained* LinkResult Predictor Answers",
        "Settings of models": "*Config",
        "Checkpoints and pictures": "*checkpoint plot_*",
        "Recipes, records and checks": "*",
    },
}
MODULES = re.findall(
    r"^   ([a-z_.]+)$", (ROOT / "docs" / "reference" / "index.md").read_text(), re.MULTILINE
)


# Public names of small letters alone that stand for nothing else between backticks.
NO_WORDS = ("spmm", "sddmm", "unbatch", "pack", "readout", "program", "attribute")


def topics(module: str, names: list[str]) -> dict[str, list[str]]:
    """Return the names under each heading of the page of a module."""
    rest, groups = [name for name in names if not name.startswith("__")], {}
    for heading, patterns in TOPICS.get(module, {}).items():
        matches = [n for n in rest if any(fnmatch.fnmatchcase(n, p) for p in patterns.split())]
        groups[heading] = matches
        rest = [name for name in rest if name not in matches]
    return {k: v for k, v in (groups | {"All names" if not groups else "More": rest}).items() if v}


autosummary_context = {
    "topics": {name: topics(name, importlib.import_module(name).__all__) for name in MODULES}
}
autosummary_ignore_module_all = False
autosummary_imported_members = True
autodoc_typehints = "none"  # the text says what each argument is
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_attr_annotations = False
napoleon_use_rtype = False


def links_of_the_checkout(app: Sphinx, page: str, source: list[str]) -> None:
    """Files outside docs/ are served as they are, but for the two that are pages here, too."""
    text = source[0].replace("](../CONTRIBUTING.md", "](contributing.md")
    source[0] = re.sub(r"\]\(((?:\.\./)+[\w./-]+\.md)(?:#[\w-]+)?\)", r"](path:\1)", text)


def list_topics(app: Sphinx, page: str, source: list[str]) -> None:
    """The index of the reference names the headings of all modules, with their names."""
    if page == "reference/index":
        for module, headings in autosummary_context["topics"].items():
            for number, (heading, names) in enumerate(headings.items()):
                title = heading if module in TOPICS else module
                links = ", ".join(f"{{py:obj}}`{name} <{module}.{name}>`" for name in names)
                source[0] += f"| [{title}](#{module}-{number}) | {links} |\n"


def docstring_of_constant(
    app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]
) -> None:
    """The text under a constant where it is defined, not that of its type."""
    if what != "data":
        return
    attribute, lines[:] = ("", name.rpartition(".")[2]), []
    for module in [m for m in sys.modules if m.startswith(("jax_gnn", "flax_layers"))]:
        if getattr(sys.modules[module], attribute[1], None) is value:
            texts = ModuleAnalyzer.for_module(module).find_attr_docs()
            lines[:] = lines or texts.get(attribute, [])
    if not lines:
        logging.getLogger(__name__).warning("%s has no text under it", name)


def all_names_have_an_entry(app: Sphinx, env: Any) -> None:
    """Of all that is public; what has none is a warning, which ends the build."""
    entries = {name for name, *_ in env.get_domain("py").get_objects()}
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            if f"{module}.{name}" not in entries and not name.startswith("__"):
                logging.getLogger(__name__).warning("%s.%s is in no page", module, name)


@functools.cache
def public() -> tuple[dict[str, str], set[str]]:
    """Return the full name of each public name, and those that are also an argument's."""
    full: dict[str, str] = {}
    arguments: set[str] = set()
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            full[f"{module}.{name}"] = f"{module}.{name}"
            value = getattr(sys.modules[module], name)
            if full.setdefault(name, f"{module}.{name}") != f"{module}.{name}":
                arguments.add(name)  # of two modules
            for callee in (value, *vars(value).values()) if isinstance(value, type) else (value,):
                if inspect.isfunction(callee):
                    arguments |= set(inspect.signature(callee).parameters)
    return full, arguments


def entry_of(text: str) -> str | None:
    """Return the full name of what a text between backticks names, if that is public.

    A name that is a word or an argument as well (`load`, `batch`) counts where it is qualified or
    called. `graph.edge_values` is `Graph.edge_values`.
    """
    match = re.fullmatch(r"@?([A-Za-z_]\w*(?:\.\w+)*)(\(.*\))?", text, re.DOTALL)
    if match is None:
        return None
    (full, arguments), (name, call) = public(), match.groups()
    is_word = name in arguments or (re.fullmatch("[a-z]+", name) and name not in NO_WORDS)
    if name in full and (call not in (None, "()") or not is_word):  # model.train() is of Flax
        return full[name]
    owner, _, member = name.rpartition(".")
    owners = [n for n in full if owner and (n == owner or n.lower() == owner) and n[-1:] != "_"]
    for owner in owners:
        module, _, attribute = full[owner].rpartition(".")
        value = getattr(sys.modules[module], attribute)
        if member in getattr(value, "__dataclass_fields__", ()):
            return full[owner]  # whose text lists its fields
        if isinstance(value, type) and hasattr(value, member):
            return f"{full[owner]}.{member}"
    return name if name in MODULES and "." in name else None


SPELLINGS = {
    "neighbour": "neighbor",
    "colour": "color",
    "behaviour": "behavior",
    "centre": "center",
}
SPELLINGS |= {
    f"{stem}is": f"{stem}iz" for stem in ("normal", "optim", "initial", "regular", "serial")
}


def both_spellings(app: Sphinx, doctree: nodes.document) -> None:
    """A search finds British words by American spellings, and these by British ones."""
    words = {word for node in doctree.findall(nodes.Text) for word in re.findall(r"\w+", node)}
    pairs = [*SPELLINGS.items(), *((to, one) for one, to in SPELLINGS.items())]
    others = {w.lower().replace(one, to) for w in words for one, to in pairs if one in w.lower()}
    doctree += nodes.meta(name="keywords", content=" ".join(sorted(others - words)))


def leave_out_of_navigation(app: Sphinx, doctree: nodes.document) -> None:
    """Entries are in the tables of their module; the sidebar of each page would have 300 lines."""
    if app.env.docname.startswith("reference/generated/"):
        for tree in list(doctree.findall(addnodes.toctree)):
            tree.parent.remove(tree)


def readable_defaults(
    app: Sphinx, what: str, name: str, value: Any, options: Any, signature: Any, returned: Any
) -> tuple[Any, Any]:
    """Functions and classes that are defaults, by their names."""
    shown = re.sub(r"<class '(?:[\w.]+\.)?(\w+)'>", r"\1", signature or "")
    return re.sub(
        r"<function (\w+)(?:[\w.]|<locals>)*(?: at \w+)?>", r"\1", shown
    ) or None, returned


FORMULA = re.compile(r"\^-|\^T|Theta|[ΘΣ⟨ᵀ√]|\] [A-Z]\[|\(1 [+-] (?:eps|ε|[αβ]|alpha|beta)\b")
GREEK = {"Theta": r"\Theta", "alpha": r"\alpha", "beta": r"\beta", "eps": r"\varepsilon"}
SIGNS = {
    "Σ": r"\sum ", "⟨": r"\langle ", "⟩": r"\rangle ", "<": r"\langle ", ">": r"\rangle ",
    "·": r"\cdot ", "→": r"\to ", "√": r"\sqrt ", "…": r"\ldots ", "in": r"\in ",
    "ᵀ": r"^{\top}", "^T": r"^{\top}", "[": "_{", "]": "}",
}  # fmt: skip
PAIRS = ("()", "[]", "⟨⟩", "<>")
PARTS = (
    r"Theta|\^T\b|\^-?\w+(?:/\d)?|_\((?:[^()]|\([^()]*\))*\)"  # powers, (subscripts)
    r"|[A-Za-z]{2,}_\w{2,}|_\w+|[A-Za-z]+\d?|."
)


def latex(formula: str) -> str:
    """Return a formula of a docstring for TeX: ``D^-1/2 X W_r``, ``softmax(s)[e] x[j]``."""
    text, was_word = "", False
    for part in re.findall(PARTS, formula, re.DOTALL):
        is_word = False
        if part in SIGNS or part in GREEK:
            text += SIGNS.get(part) or GREEK[part]
        elif part[0] == "^" or re.fullmatch(r"_\w", part):
            text += f"{part[0]}{{{part[1:]}}}"
        elif part[0] == "_":
            inner = latex(part[2:-1]) if part[1] == "(" else rf"\text{{{part[1:]}}}"
            text += f"_{{{inner}}}"
        elif match := re.fullmatch(r"([DXd])([ve0])(_\w+)?", part):
            suffix = rf",\text{{{match[3][1:]}}}" if match[3] else ""
            text += f"{match[1]}_{{{match[2]}{suffix}}}"
        elif re.fullmatch(r"[A-Za-z]\w+", part):
            is_word = True
            text += (r"\ " if was_word else "") + rf"\text{{{part}}}".replace("_", r"\_")
        else:
            text += part
        was_word = is_word or (was_word and part.isspace())
    return text


def typeset_formulas(app: Sphinx, doctree: nodes.document) -> None:
    """Formulas between backticks, in docstrings and pages, as formulas."""
    for literal in list(doctree.findall(nodes.literal)):
        text = literal.astext()
        if FORMULA.search(text) and "@" not in text and not app.env.docname.startswith("from/"):
            terms: list[str] = []  # of balanced parentheses, between which a line may end
            for word in text.split():
                is_open = terms and any(terms[-1].count(a) > terms[-1].count(b) for a, b in PAIRS)
                terms[-1:] = [f"{terms[-1]} {word}"] if is_open else [*terms[-1:], word]
            formulas = [[nodes.math(term, latex(term)), nodes.Text(" ")] for term in terms]
            literal.replace_self([node for formula in formulas for node in formula][:-1])


def visit_math(self: Any, node: nodes.Element) -> None:
    """Write MathML."""
    self.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def names_of(text: str) -> tuple[set[str], set[str]]:
    """Return the names that a block of code takes from elsewhere, and those that it assigns."""
    loaded, assigned = set(), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name):
            (loaded if isinstance(node.ctx, ast.Load) else assigned).add(node.id)
        elif isinstance(node, ast.alias):
            assigned.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            assigned.add(node.name)
    return loaded - assigned, assigned


def mark_blocks(app: Sphinx, doctree: nodes.document) -> None:
    """Mark blocks that go on from blocks before, as tests run a page, and those that tests skip."""
    earlier: set[str] = set()
    is_skipped = False
    for block in doctree.findall(lambda n: isinstance(n, nodes.raw | nodes.literal_block)):
        if isinstance(block, nodes.raw):
            is_skipped = block.astext().startswith("<!-- skip: next")
        elif is_skipped:
            block["classes"].append("unchecked")
            is_skipped = False
        elif block.get("language") == "python" and not block.astext().startswith(">>>"):
            loaded, assigned = names_of(block.astext())
            block["classes"] += ["continues"] if loaded & earlier else []
            earlier |= assigned


def link_names(app: Sphinx, doctree: nodes.document) -> None:
    """Public names between backticks lead to their entries; elsewhere's columns are as they are."""
    page = app.env.docname
    for literal in list(doctree.findall(nodes.literal)):
        parents, node = [], literal.parent
        while node is not None:
            parents.append(node)
            node = node.parent
        skipped = (nodes.title, nodes.reference, addnodes.pending_xref, addnodes.desc_signature)
        cells = [parent for parent in parents if isinstance(parent, nodes.entry)]
        is_theirs = (
            page.startswith("from/") and cells and cells[0].next_node(descend=False, siblings=True)
        )
        name = entry_of(literal.astext())
        if name is None or is_theirs or any(isinstance(parent, skipped) for parent in parents):
            continue
        if page.endswith(f"/{name}"):
            continue
        kind = "mod" if name in MODULES else "obj"
        link = addnodes.pending_xref(
            "", refdomain="py", reftype=kind, reftarget=name, refdoc=page, refexplicit=True
        )
        literal.replace_self(link)
        link += literal


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("source-read", list_topics)
    app.connect("source-read", links_of_the_checkout)
    app.connect("autodoc-process-docstring", docstring_of_constant)
    app.connect("autodoc-process-signature", readable_defaults)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.connect("doctree-read", mark_blocks)
    app.connect("doctree-read", both_spellings)
    app.connect("doctree-read", typeset_formulas)
    app.connect("doctree-read", link_names)
    app.connect("doctree-read", leave_out_of_navigation, priority=400)  # before it is collected
    app.connect("env-check-consistency", all_names_have_an_entry)
