"""A style sheet without variables: browsers know them, but librsvg, which turns figures into PDF or PNG, draws all
of it black.

Colours of `:root` stand where they are used, a mixture of two is computed, and a rule that uses `--m`, the colour of a
method, becomes one for each class `.m0`, `.m1`, … that sets it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

RULE = re.compile(r"([^{}]+)\{([^{}]*)\}")
VARIABLE = re.compile(r"var\(--([\w-]+)\)")
MIXTURE = re.compile(r"color-mix\(in srgb, #(\w{6}) (\d+)%, #(\w{6})\)")
COLOUR = "m"  # the variable that classes set


def without_variables(css: str) -> str:
    """The same rules with every colour written out."""
    rules = [(selector.strip(), _declarations(body)) for selector, body in RULE.findall(css)]
    known = {name[2:]: value for selector, body in rules if selector == ":root" for name, value in body}
    own = {s: _resolved(v, known) for s, body in rules for name, v in body if s != ":root" and name == f"--{COLOUR}"}
    told = []
    for selector, body in rules:
        coloured = [(n, v) for n, v in body if f"var(--{COLOUR})" in v]
        fixed = [(n, _resolved(v, known)) for n, v in body if not n.startswith("--") and (n, v) not in coloured]
        told += [_rule(selector, fixed)] if fixed else []
        for css_class, colour in own.items() if coloured else ():
            mine = [(n, _resolved(v, {**known, COLOUR: colour})) for n, v in coloured]
            told.append(_rule(_of_class(selector, css_class), mine))
    return "\n".join(told)


def _declarations(body: str) -> list[tuple[str, str]]:
    pairs = (each.partition(":") for each in body.split(";") if each.strip())
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _resolved(value: str, known: Mapping[str, str]) -> str:
    return MIXTURE.sub(_mixed, VARIABLE.sub(lambda found: known[found[1]], value))


def _mixed(found: re.Match[str]) -> str:
    """The colour of `color-mix`, channel by channel."""
    share = int(found[2]) / 100
    pairs = zip(bytes.fromhex(found[1]), bytes.fromhex(found[3]), strict=True)
    return "#" + bytes(round(share * a + (1 - share) * b) for a, b in pairs).hex()


def _of_class(selector: str, css_class: str) -> str:
    """`svg .line` where it has the class itself, and where something around it has: `.m0.line`, `.m0 .line`."""
    before, _, last = selector.rpartition(" ")
    return f"{before} {css_class}{last}, {before} {css_class} {last}".strip()


def _rule(selector: str, body: list[tuple[str, str]]) -> str:
    return f"{selector} {{ {'; '.join(f'{name}: {value}' for name, value in body)} }}"


__all__ = ["without_variables"]
