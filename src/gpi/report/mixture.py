"""Figure 1 of the paper: the benefit of the optimal mixture. Reads nothing but `gpi.theory.mixture`."""

from collections.abc import Callable
from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from gpi.report.pictures import save_figure
from gpi.theory.mixture import Mixture, mixture, uniform_mixture

BATCHES = (2, 3, 5, 10, 50)
LARGE = 400
KAPPAS = tuple(j / 100 for j in range(101))
MARKERS = {0.0: "o", 0.5: "s", 1.0: "D"}
UNIFORM = "#d1495b"
OWN_COLOUR = "#d9730d"
INK = "#333333"


def figure_1(path: Path, B: int | None = None, kappa: float | None = None) -> None:
    """Draw figure 1: the benefit of the GPI update over the on-policy case, with the user's own (B, kappa) marked."""
    figure = Figure(figsize=(9.6, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    lines = _by_batch(left)
    _style(left, "Optimal weights, several B", lines)
    if B is not None and kappa is not None:
        _own_point(left, B, kappa)
    lines = [
        _curve(right, mixture, LARGE, colormaps["viridis"](0.0), "optimal weights"),
        _curve(right, uniform_mixture, LARGE, UNIFORM, "uniform weights"),
    ]
    _style(right, f"Optimal and uniform weights, large B ({LARGE})", lines)
    left.set_ylabel("increase in total TV update size", color=INK)
    save_figure(figure, path, dpi=200)


def _by_batch(axes: Axes) -> list[Line2D]:
    shade = colormaps["viridis"]
    last = len(BATCHES) - 1
    return [_curve(axes, mixture, B, shade(0.82 * (1 - j / last)), f"B = {B}") for j, B in enumerate(BATCHES)]


def _curve(axes: Axes, family: Callable[[int, float], Mixture], B: int, color: object, label: str) -> Line2D:
    """Draw one curve over kappa, with its three markers."""
    points = {kappa: family(B, kappa) for kappa in KAPPAS}
    x, y = [m.ess_gain for m in points.values()], [m.tv_gain for m in points.values()]
    for kappa, marker in MARKERS.items():
        m = points[kappa]
        axes.plot(m.ess_gain, m.tv_gain, marker, color=color, ms=6.5, mfc="white", mew=1.6, clip_on=False, zorder=3)
    return axes.plot(x, y, color=color, lw=1.9, label=label)[0]


def _own_point(axes: Axes, B: int, kappa: float) -> None:
    m = mixture(B, kappa)
    axes.plot(m.ess_gain, m.tv_gain, "*", color=OWN_COLOUR, ms=16, mec="white", mew=0.8, clip_on=False, zorder=4)
    if B not in BATCHES and B <= LARGE:  # beyond, it is the curve on the right
        own = [mixture(B, kappa) for kappa in KAPPAS]
        axes.plot([m.ess_gain for m in own], [m.tv_gain for m in own], ":", color=OWN_COLOUR, lw=1.6, zorder=2)
    text = f"★ B = {B}, κ = {kappa:g}\n{m.ess_gain:+.0%} effective sample size\n{m.tv_gain:+.0%} TV update size"
    axes.annotate(
        text, (0.53, 0.68), xycoords="axes fraction", va="top", color=OWN_COLOUR, fontsize=9.5, linespacing=1.4
    )


def _style(axes: Axes, title: str, lines: list[Line2D]) -> None:
    axes.set_title(title, fontsize=11, color=INK, pad=10)
    axes.set_xlabel("increase in effective sample size", color=INK)
    axes.set_xlim(0, 1.35)
    axes.set_ylim(0, 1.35)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks([0, 0.25, 0.5, 0.75, 1, 1.25])
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(color="0.92", lw=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK, labelleft=True)
    markers = [
        Line2D([], [], marker=marker, ls="none", color=INK, ms=6.5, mfc="white", mew=1.6, label=f"κ = {kappa:g}")
        for kappa, marker in MARKERS.items()
    ]
    look = {"frameon": False, "fontsize": 9.5, "labelcolor": INK}
    axes.add_artist(axes.legend(handles=lines, loc="upper right", bbox_to_anchor=(0.8, 1), **look))
    axes.legend(handles=markers, loc="upper right", handletextpad=0.1, **look)
