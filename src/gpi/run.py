"""A run as Python and notebooks have it: what its directory holds, and everything that can be done with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpi import evaluation, video
from gpi.analysis.audit import AuditSummary, summarise
from gpi.errors import UsageError
from gpi.evaluation import Evaluation
from gpi.export import Exported, export
from gpi.files import path_of
from gpi.report.pictures import Picture, encode_figure, require_picture, save_figure
from gpi.report.summary import as_html, as_text
from gpi.rundir import run as files

if TYPE_CHECKING:
    from gpi.envs.importing import Make
    from gpi.rundir.policies import Which
    from gpi.video import Recorded

__all__ = ["Run"]


class Run(files.Run):
    """A run, by its directory: its settings, results and policies, and what can be done with them.

    A notebook shows its settings, returns, audit and learning curve.
    """

    def __init__(self, dir: str | os.PathLike[str], env: str | Make | None = None):
        """Read nothing yet, but make sure that there is something to read; `env` as in `gpi.rundir.run.Run`."""
        super().__init__(path_of(dir, "run"), env)
        if not self.dir.is_dir():
            raise UsageError(f"{dir} does not exist; name a directory that `gpi train` made")

    def plot(self, out: str | Path | None = None) -> Picture:
        """Draw the learning curve; write it to `out`, a .png, .pdf or .svg, if that is given."""
        from gpi.report.curves import curves_figure  # matplotlib takes long to import

        path = None if out is None else require_picture(Path(out))
        figure = curves_figure([self])
        if path is not None:
            save_figure(figure, path)
        return Picture(encode_figure(figure), path)

    def audit(self) -> AuditSummary:
        """Count how often each bound of the theory held over all updates and seeds, and find the worst update."""
        return summarise(self)

    def evaluate(
        self, env: str | Make | None = None, *, episodes: int = 10, deterministic: bool = True,
        seed: int | Literal["best"] | None = None, policy: Which = "last", max_steps: int = 100_000,
        quiet: bool = False,
    ) -> Evaluation:  # fmt: skip
        """Play episodes with the policies in environments unseen in training: `gpi.evaluate` of this run."""
        return evaluation.evaluate(
            self, env, episodes=episodes, deterministic=deterministic, seed=seed, policy=policy, max_steps=max_steps,
            quiet=quiet,
        )  # fmt: skip

    def export(
        self, out: str | Path, format: str = "numpy", *, seed: int | Literal["best"] | None = None,
        policy: Which = "last",
    ) -> Exported:  # fmt: skip
        """Write a seed's policy, by default the first, for machines without gpi: `gpi.export.export` of this run."""
        return export(self.dir, out, format, seed, policy)

    def record(
        self, out: str | Path = "episode.mp4", env: str | Make | None = None, *,
        seed: int | Literal["best"] | None = None, policy: Which = "last", steps: int = 1000, fps: float = video.FPS,
        size: tuple[int, int] | None = None, camera: str | int | None = None, sampled: bool = False,
        quiet: bool = False,
    ) -> Recorded:  # fmt: skip
        """Film an episode of a seed's policy, by default the first, as .mp4, .webp or .gif, by `gpi.video.record`."""
        policies = evaluation.policies_of(self.dir, seed, policy)
        task, make, note = evaluation.task_of(policies, self, env)
        member, acting = next(iter(policies.items()))
        film = video.record(
            acting, task, out, make=make, seed=member, steps=steps, fps=fps, size=size, camera=camera, sampled=sampled,
            quiet=quiet,
        )  # fmt: skip
        evaluation.tell(note, quiet=quiet)
        return film

    def __repr__(self) -> str:
        """Describe the run in a few lines."""
        return as_text(self)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: settings, returns, the verdict of the audit, and the learning curve."""
        return as_html(self)
