"""The checks of `gpi doctor`: the machine and the packages, tried where that is possible, each with its remedy.

A check that may crash or hang (JAX on a broken CUDA, a simulator, OpenGL) runs in a separate process with a time limit.
"""

from __future__ import annotations

import importlib.metadata
import json
import locale
import math
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from gpi import machine
from gpi.envs.envpool import ENVPOOL, TRIED
from gpi.requirements import PACKAGE, TESTED_JAX, Requirement, facts, pin_of, requirements, satisfies
from gpi.training.devices import compilation_cache

State = Literal["ok", "note", "problem"]
PATIENCE = 120.0  # seconds for JAX or a simulator to start, on a slow and busy machine
GIB = 2**30
RAISED = re.compile(r"[\w.]*(?:Error|Exception|Fault|Exit|Interrupt): ")  # where a traceback names its exception
USE_JAX = """
import json, jax
jax.numpy.ones(2).sum().block_until_ready()
print(json.dumps([jax.default_backend(), len(jax.devices()), jax.devices()[0].device_kind]))
"""
USE_ENVIRONMENT = """
from gpi.envs import tasks
pool = tasks.make_host_pool(tasks.find({name!r}, {backend!r}), [1])
pool.reset()
pool.close()
"""
DRAW = """
from gpi.envs import rendering, tasks
scene = rendering.make_renderer(tasks.find("cartpole-balance"), None, 1, (64, 64))
frame = scene.reset().frame
scene.close()
assert frame.std() > 0, "the picture is empty"
"""


class Finding(NamedTuple):
    """The result of one check; where it is not ok, the remedy is a command."""

    name: str
    state: State
    found: str
    remedy: str = ""


def examine() -> Iterator[Finding]:
    """Look at everything, one after the other; nothing that is broken ends this."""
    yield from look({"Python": python, "packages": packages, "cores": cores, "memory": memory, "disk": disk})
    used = jax_devices()  # started once, looked at twice
    yield from look({
        "JAX": lambda: jax_works(used), "GPU": lambda: gpu(used, gpus()), "EnvPool": envpool, "Gymnasium": gymnasium,
        "rendering": rendering, "ffmpeg": ffmpeg, "ONNX": lambda: extra("ONNX", "onnx", "gpi export --format onnx"),
        "Ray": lambda: extra("Ray", "ray", "gpi study run --engine ray"), "TensorBoard": tensorboard, "cache": cache,
        "encoding": encoding,
    })  # fmt: skip


def look(checks: dict[str, Callable[[], Finding]]) -> Iterator[Finding]:
    """Yield what each check finds; a check that fails itself is a note."""
    for name, check in checks.items():
        try:
            yield check()
        except Exception as error:  # a check that fails must not stop the others
            yield Finding(name, "note", f"check failed: {type(error).__name__}: {one_line(str(error))}")


def lines_of(finding: Finding) -> list[str]:
    """Return a finding as lines for people, in plain ASCII."""
    text = one_line(finding.found)
    head = f"{finding.state:<8} {finding.name:<12} "
    lines = textwrap.wrap(
        head + text, 79, subsequent_indent=" " * len(head), break_on_hyphens=False, break_long_words=False
    )
    return [*lines, f"{'':<21} -> {finding.remedy}"] if finding.remedy else lines


def verdict(findings: Sequence[Finding]) -> str:
    """Return the last line: whether training works here, or what to do."""
    problems = [finding.name for finding in findings if finding.state == "problem"]
    if problems:
        return (
            f"training does not work yet: see {', '.join(problems)} above, do what -> says, then run `gpi doctor` again"
        )
    if any(finding.name == "EnvPool" and finding.state != "ok" for finding in findings):
        return "training works, but for DeepMind Control's tasks; begin with: gpi train CartPole-v1 --steps 50000"
    return "everything that training needs is here; begin with: gpi train cheetah-run --steps 200000"


def one_line(text: str, limit: int = 300) -> str:
    """Return a text in one line of ASCII, which every terminal shows."""
    text = " ".join(text.split()).encode("ascii", "backslashreplace").decode()
    return text if len(text) <= limit else text[: limit - 3] + "..."


def python() -> Finding:
    """Look at Python's version."""
    wanted = facts().get_all("Requires-Python", [""])[0]
    if satisfies(platform.python_version(), wanted):
        return Finding("Python", "ok", f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    return Finding("Python", "problem", f"{platform.python_version()}; gpi needs {wanted}", "python3.12 -m venv .venv")


def packages() -> Finding:
    """Compare the packages that are always needed with the pins of gpi's own metadata."""
    needed = [requirement for requirement in requirements() if not requirement.extra]
    if not needed:
        return Finding("packages", "note", f"{PACKAGE} is not installed, so its pins are not known", "pip install .")
    wrong = [requirement for requirement in needed if not requirement.met()]
    if not wrong:
        pinned = [f"{r.name} {r.installed()}" for r in needed]
        return Finding("packages", "ok", f"{', '.join(pinned)}, as {PACKAGE} asks for")
    said = [f"{r.name} {r.installed() or 'is missing'} (needed: {r.versions or 'any'})" for r in wrong]
    remedy = " ".join(f'"{r.name}{r.versions}"' for r in wrong)
    optional = all(r.name == "envpool" and not r.installed() for r in wrong)  # Gymnasium's tasks train without it
    return Finding("packages", "note" if optional else "problem", "; ".join(said), f"pip install {remedy}")


def extra(name: str, key: str, purpose: str) -> Finding:
    """Look at the packages of an extra, which only one command needs."""
    wanted = [requirement for requirement in requirements() if requirement.extra == key]
    wrong = [requirement for requirement in wanted if not requirement.met()]
    if wrong:
        said = ", ".join(f"{r.name} {r.installed() or 'is missing'}" for r in wrong)
        return Finding(name, "note", f"{said}; `{purpose}` needs it", f'pip install "{PACKAGE}[{key}]"')
    return Finding(name, "ok", ", ".join(f"{r.name} {r.installed()}" for r in wanted))


def tensorboard() -> Finding:
    """Look at the writer of TensorBoard's events, and at the viewer, which is another package."""
    found = extra("TensorBoard", "tensorboard", "gpi train --tensorboard")
    if found.state == "ok" and not Requirement("tensorboard", "", "").met():
        return found._replace(
            state="note", found=f"{found.found}; the viewer is missing", remedy="pip install tensorboard"
        )
    return found


def cores() -> Finding:
    """Count the cores that this process may use."""
    mine, there, quota = machine.cores(), os.cpu_count() or 1, machine.core_quota()
    text = f"{mine}" if mine == there else f"{mine} of {there}, by the affinity of this process"
    if quota < mine:
        threads = max(1, math.floor(quota))
        return Finding(
            "cores", "note", f"{text}, but the container grants {quota:g} of them", f"export PJRT_NPROC={threads}"
        )
    return Finding("cores", "ok", text)


def memory() -> Finding:
    """Measure the memory that this process can still take."""
    free = machine.available_memory()
    text = f"{free / GIB:.1f} GiB available"
    if free < GIB // 2:
        return Finding("memory", "problem", f"{text}; a run needs about 1 GiB", "ps aux --sort=-rss | head")
    if free < 2 * GIB:
        return Finding("memory", "note", f"{text}; many seeds or large batches may not fit", "gpi train TASK --seeds 1")
    return Finding("memory", "ok", text)


def disk(directory: Path = Path()) -> Finding:
    """Measure the disk of the current directory, where runs/ will be."""
    free = shutil.disk_usage(directory).free
    text = f"{free / GIB:.1f} GiB free in the current directory"
    if not os.access(directory, os.W_OK):
        return Finding("disk", "note", "the current directory is not writable", "gpi train TASK --out DIR")
    if free < GIB // 10:
        return Finding("disk", "problem", text, "gpi train TASK --out DIR  # on another disk")
    return Finding("disk", "ok" if free > GIB else "note", text, "" if free > GIB else "df -h")


def cache() -> Finding:
    """Look at the directory of compiled programs: without it every start compiles again."""
    place = compilation_cache()
    if "://" in place:
        return Finding("cache", "ok", place)
    there = next(path for path in (Path(place), *Path(place).absolute().parents) if path.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        return Finding("cache", "note", f"{place} is not writable: every start compiles again",
                       "export JAX_COMPILATION_CACHE_DIR=DIR")  # fmt: skip
    size = sum(path.stat().st_size for path in Path(place).rglob("*") if path.is_file())
    return Finding("cache", "ok", f"{size / 2**20:.0f} MiB of compiled programs in {place}")


def encoding() -> Finding:
    """Look at the encoding of the terminal and of files."""
    used = {sys.stdout.encoding or "none", locale.getpreferredencoding(False)}
    foreign = sorted(name for name in used if name.lower().replace("-", "") not in ("utf8", "utf8sig"))
    if foreign:
        return Finding("encoding", "note", f"{', '.join(foreign)}; UTF-8 shows everything", "export PYTHONUTF8=1")
    return Finding("encoding", "ok", "UTF-8")


class Tried(NamedTuple):
    """How a program ended: whether it worked, and its last line."""

    worked: bool
    said: str


def attempt(program: str, timeout: float = PATIENCE, **environment: str) -> Tried:
    """Run a Python program in a separate process; every outcome is an answer, even a crash."""
    paths = [os.path.abspath(path) for path in sys.path if path and os.path.abspath(path) != os.getcwd()]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "JAX_TRACEBACK_FILTERING": "off", **environment}
    return run([sys.executable, "-P", "-c", program], timeout, variables)


def run(command: Sequence[str], timeout: float, variables: dict[str, str] | None = None) -> Tried:
    """Run a command with a time limit, in a temporary directory: MuJoCo leaves its log where it runs."""
    with tempfile.TemporaryDirectory(prefix="gpi-") as directory:
        try:
            done = subprocess.run(
                command, cwd=directory, env=variables, timeout=timeout, capture_output=True, text=True,
                errors="replace", stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Tried(False, f"it did not answer within {timeout:g} s")
        except OSError as error:
            return Tried(False, error.strerror or type(error).__name__)
    said = [line.strip() for line in (done.stderr if done.returncode else done.stdout).splitlines() if line.strip()]
    raised = [line.split(".", line.partition(":")[0].count("."))[-1] for line in said if RAISED.match(line)]
    last = (raised if done.returncode and raised else said or [f"exit code {done.returncode}"])[-1]
    return Tried(done.returncode == 0, one_line(last))


class Devices(NamedTuple):
    """The devices that JAX uses, or why it has none."""

    backend: str  # cpu, gpu; empty if JAX does not start
    text: str


def jax_devices() -> Devices:
    """Start JAX, compute something, and return the devices it used."""
    tried = attempt(USE_JAX)
    if not tried.worked:
        return Devices("", tried.said)
    backend, count, kind = json.loads(tried.said)
    return Devices(backend, f"{count} {kind} device{'s' if count > 1 else ''}")


def jax_works(used: Devices) -> Finding:
    """Look at whether JAX computes."""
    if used.backend:
        version = importlib.metadata.version("jax")
        text = f"{version} computes on the {used.backend.upper()} ({used.text})"
        if version not in TESTED_JAX:
            remedy = f'pip install "jax=={TESTED_JAX[0]}" "jaxlib=={TESTED_JAX[0]}"'
            return Finding("JAX", "note", f"{text}; tested with gpi are {', '.join(TESTED_JAX)}", remedy)
        return Finding("JAX", "ok", f"{text}; this version was tested with gpi")
    pin = pin_of("jax")
    remedy = "export JAX_PLATFORMS=cpu" if gpus() else f'pip install --force-reinstall "jax{pin}" "jaxlib{pin}"'
    return Finding("JAX", "problem", f"does not start: {used.text}", remedy)


def gpus() -> str:
    """Return the NVIDIA GPUs of the machine with their driver, as nvidia-smi names them; nothing if there are none."""
    if shutil.which("nvidia-smi"):
        return next((", ".join(row) for row in machine.nvidia_gpus("name", "driver_version")), "")
    return "an NVIDIA GPU" if Path("/proc/driver/nvidia/version").exists() else ""


def gpu(used: Devices, there: str) -> Finding:
    """Look at whether JAX uses the GPU, if there is one."""
    if used.backend in ("gpu", "cuda", "rocm"):
        return Finding("GPU", "ok", f"{there or used.text}; JAX uses it, and learning runs there")
    if not there:
        return Finding("GPU", "ok", "none found; the CPU does everything")
    driver = re.search(r", (\d+)\.", there)
    cuda = "cuda12" if driver and int(driver[1]) < 580 else "cuda13"  # CUDA 13 needs driver 580
    pin = f"=={importlib.metadata.version('jax')}"
    return Finding("GPU", "note", f"{there}; JAX does not use it", f'pip install -U "jax[{cuda}]{pin}"')


def envpool() -> Finding:
    """Make and reset one of EnvPool's environments."""
    pin = pin_of("envpool") or f"=={ENVPOOL}"
    if not Requirement("envpool", "", "").met():
        why = f"is missing; the 28 tasks of DeepMind Control need it, others train without it ({TRIED})"
        return Finding("EnvPool", "note", why, f'pip install "envpool{pin}"')
    tried = attempt(USE_ENVIRONMENT.format(name="cartpole-balance", backend="auto"), JAX_PLATFORMS="cpu")
    if tried.worked:
        return Finding("EnvPool", "ok", f"{importlib.metadata.version('envpool')} simulates")
    library = "lib" in tried.said and ".so" in tried.said
    remedy = "apt-get install libegl1 libopengl0" if library else f'pip install "envpool{pin}"'
    return Finding("EnvPool", "problem", f"does not simulate: {tried.said}", remedy)


def gymnasium() -> Finding:
    """Make and reset one of Gymnasium's environments."""
    tried = attempt(USE_ENVIRONMENT.format(name="CartPole-v1", backend="gymnasium"), JAX_PLATFORMS="cpu")
    if tried.worked:
        return Finding("Gymnasium", "ok", f"{importlib.metadata.version('gymnasium')} simulates")
    pin = pin_of("gymnasium")
    return Finding("Gymnasium", "problem", f"does not simulate: {tried.said}", f'pip install -U "gymnasium{pin}"')


def rendering() -> Finding:
    """Draw a frame without a screen."""
    tried = attempt(DRAW, JAX_PLATFORMS="cpu")
    if tried.worked:
        return Finding("rendering", "ok", "a frame was drawn without a screen")
    remedy = "apt-get install libegl1 libgl1-mesa-dri"
    return Finding("rendering", "note", f"`gpi record` cannot draw: {tried.said}", remedy)


def ffmpeg() -> Finding:
    """Start ffmpeg: the one in the package imageio-ffmpeg, or else the system's."""
    try:
        from imageio_ffmpeg import get_ffmpeg_exe

        found: str | None = get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        found = shutil.which("ffmpeg")
    tried = run([found, "-version"], 20) if found else Tried(False, "it is missing")
    if tried.worked:
        return Finding("ffmpeg", "ok", str(found))
    return Finding("ffmpeg", "note", f"{tried.said}; `gpi record` writes no .mp4", f'pip install "{PACKAGE}[video]"')
