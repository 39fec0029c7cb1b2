"""Looks of the report's figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from analysis.report import format as f

# Okabe and Ito's palette, told apart with every common form of colour blindness and in grey by
# the line style that goes with each.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK = COLOURS
GREY = "#8c8c8c"

WIDE_IN, NARROW_IN = 9.2, 4.4

_SETTINGS: Any = {
    "font.size": 9.5,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Helvetica", "Arial"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.unicode_minus": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "svg.fonttype": "none",  # text stays text: small files that can be searched
    "svg.hashsalt": "agentload",  # same input, same bytes
    "figure.constrained_layout.use": True,
    "text.parse_math": False,  # names come from files
}


@contextmanager
def drawing(width_in: float, height_in: float) -> Iterator[Figure]:
    """A figure under the report's settings; nothing global is left changed."""
    with mpl.rc_context(_SETTINGS):
        yield Figure(figsize=(width_in, height_in))


def svg(figure: Figure) -> str:
    """The figure as SVG text without date or host."""
    buffer = StringIO()
    with mpl.rc_context(_SETTINGS):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def look(index: int) -> dict[str, Any]:
    """Colour and line style of the index-th arm."""
    i = index % len(COLOURS)
    return {"color": COLOURS[i], "linestyle": LINES[i]}


def seconds_axis(axis: Any) -> None:
    """Labels such as 20 ms and 1 s on a logarithmic axis; call it when the limits are set."""
    low, high = axis.get_view_interval()
    steps = (1.0, 2.0, 5.0) if high < 30 * low else (1.0,)
    axis.set_major_locator(LogLocator(base=10, subs=steps, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _short(float(value))))
    axis.set_minor_locator(NullLocator())  # ticks without labels cost most of the drawing time


def _short(value: float) -> str:
    return f.seconds(value).replace(".00 s", " s").replace(".0 s", " s").replace(".0 ms", " ms")


def legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside lower left", ncols=columns)


def clean(label: str) -> str:
    """Text from outside as a legend shows it: one that begins with _ would be left out."""
    return label if not label.startswith("_") else "\u2009" + label
