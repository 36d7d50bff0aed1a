"""The cameras of the models that EnvPool draws, and which of them shows a task best."""

from __future__ import annotations

from gpi.envs import dmc
from gpi.errors import UsageError

CAMERAS = {
    "acrobot": ("fixed", "lookat"), "ball_in_cup": ("cam0", "cam1"), "cartpole": ("fixed", "lookatcart"),
    "cheetah": ("side", "back"), "finger": ("cam0", "cam1"),
    "fish": ("tracking_top", "tracking_x", "tracking_y", "fixed_top", "eye"), "hopper": ("cam0", "back"),
    "humanoid": ("back", "side", "egocentric"), "manipulator": ("fixed", "hand"), "pendulum": ("fixed", "lookat"),
    "point_mass": ("fixed", "cam0"), "reacher": ("fixed", "hand"), "swimmer": ("tracking1", "tracking2", "eyes"),
    "walker": ("side", "back"),
    "Ant": ("track",), "HalfCheetah": ("track",), "Hopper": ("track",), "Humanoid": ("track",),
    "HumanoidStandup": ("track",), "Swimmer": ("track",), "Walker2d": ("track",),
}  # fmt: skip
"""Names of the cameras of EnvPool's models, in the order of their ids, as the models' files have them."""
FREE = -1
"""The id of MuJoCo's own camera, which stands still and looks at the place where the robot starts."""
BEST = {"humanoid": "side", "fish-upright": "tracking_y"}
"""The camera by default, of a domain or a task, where it is not the first: the first of each model follows a robot that
travels and shows the whole scene of one that does not."""

SIZES = {"cartpole": (640, 480)}
"""Width and height by default, of a domain whose scene does not fit into EnvPool's 480x480: the cart's rail is long."""


def find_camera(task: str, camera: str | int | None) -> int:
    """Return the id of a camera of a task that EnvPool draws, given by name or id; None stands for the best one."""
    name = dmc.short_name(task)
    domain, suite = name.partition("-")[0], name in dmc.TASKS
    ids = {one: i for i, one in enumerate(CAMERAS.get(domain, ()))}
    if camera is None:  # Gymnasium's tasks have their own default, which follows too and has the id of none
        return ids[BEST.get(name, BEST.get(domain, next(iter(ids))))] if suite else FREE
    if suite:
        ids["free"] = FREE
    given = as_camera(camera)
    found = given if isinstance(given, int) else ids.get(given)
    if found is None or found not in ids.values():
        raise unknown_camera(task, camera, ids)
    return found


def as_camera(camera: str | int) -> str | int:
    """Return a camera's name or id as typed by a user, who types an id in digits."""
    return int(camera) if isinstance(camera, str) and camera.removeprefix("-").isdecimal() else camera


def unknown_camera(task: str, camera: str | int, ids: dict[str, int]) -> UsageError:
    """Return the error of a camera that a task does not have."""
    if not ids:
        return UsageError(f"camera = {camera!r} has no meaning for {task}, whose drawing has no cameras; leave it out")
    known = ", ".join(f"{name} ({i})" for name, i in ids.items())
    return UsageError(f"camera = {camera!r} must be one that {task} has, by name or id: {known}; leave it out")
