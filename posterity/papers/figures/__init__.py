"""Figures of the papers at one command each: `posterity reproduce V-F2` writes an SVG and the numbers behind it.

`catalogue` says what there is and which table's runs a figure is drawn from, `material` finds or makes these. `logs`
draws what logs show, `features`, `classifiers` and `toy` what models make of the data, `bubbles` the data themselves;
`sheet` puts panels on one sheet, `drawing` writes.
"""

from posterity.papers.figures.catalogue import Figure, figures, is_figure
from posterity.papers.figures.drawing import DrawnFigure, draw_figure

__all__ = ["DrawnFigure", "Figure", "draw_figure", "figures", "is_figure"]
