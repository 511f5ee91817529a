"""The site: `.ci/docs` builds it. Pages are MyST; the reference is made of docstrings."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

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
templates_path = ["_templates"]
default_role = "code"
html_theme = "furo"
html_title = f"jax-gnn-kernels {release}"
html_theme_options = {"dark_css_variables": {"mystnb-source-border-color": "#3c3c3c"}}
pygments_dark_style = "github-dark"
linkcheck_timeout = 10

myst_heading_anchors = 4
nb_execution_mode = "cache"  # notebooks run where they have changed
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_execution_show_tb = True
nb_merge_streams = True

autosummary_ignore_module_all = False
autosummary_imported_members = True
autodoc_typehints = "none"  # the text says what each argument is
autodoc_preserve_defaults = True
napoleon_use_ivar = True
napoleon_use_rtype = False


def links_of_the_checkout(app: Sphinx, page: str, source: list[str]) -> None:
    """Files outside docs/ are served as they are, but for the two that are pages here, too."""
    text = source[0].replace("](../CONTRIBUTING.md", "](contributing.md")
    source[0] = re.sub(r"\]\(((?:\.\./)+[\w./-]+\.md)(?:#[\w-]+)?\)", r"](path:\1)", text)


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
    text = (ROOT / "docs" / "reference" / "index.md").read_text()
    for module in re.findall(r"^   ([a-z_.]+)$", text, re.MULTILINE):
        for name in importlib.import_module(module).__all__:
            if f"{module}.{name}" not in entries and not name.startswith("__"):
                logging.getLogger(__name__).warning("%s.%s is in no page", module, name)


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("source-read", links_of_the_checkout)
    app.connect("autodoc-process-docstring", docstring_of_constant)
    app.connect("env-check-consistency", all_names_have_an_entry)
