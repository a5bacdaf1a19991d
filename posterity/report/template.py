"""A template of the package, filled: with its style sheet and its one script, everything else escaped."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

UNSEEN = dict.fromkeys((*range(9), *range(11, 32), 127, *range(0x202A, 0x202F), *range(0x2066, 0x206A)), "\ufffd")
"""Characters that a reader does not see and that reorder or end what stands around them: a label may hold any."""


def fill_template(name: str, **values: Any) -> str:
    """The page that a template makes of `values`, as text."""
    environment = Environment(
        loader=PackageLoader("posterity.report", "."),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css, script = (environment.get_template(each).render() for each in ("page.css", "page.js"))
    text = environment.get_template(name).render(css=css, script=script, policy=_policy(css, script), **values)
    return text.translate(UNSEEN)


def _policy(css: str, script: str) -> str:
    """Nothing is fetched, and no script or style but the page's own is obeyed, whatever a label may hold."""
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, css)]
    return (
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'".format(
            *digests
        )
    )


__all__ = ["fill_template"]
