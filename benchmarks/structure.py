"""How large the source is, and how much of it one job needs: the numbers by which refactorings are judged.

    python benchmarks/structure.py [CHECKOUT ...]     # before and after; by default this one

*Defined twice* are names of functions, classes and constants that two modules define. *Functions of one job* are those
of `gpi` that the runner's process calls in `gpi study run` of one job of CartPole-v1. *Branches* are the conditions in
the body of Algorithm 2 (`core/iteration.py`).
"""

import argparse
import ast
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parents[1]
STUDY = 'tasks = ["CartPole-v1"]\nseeds = 1\nsteps = 1024\n\n[[grid]]\nalgorithm = "geppo"\n'
TRACE = """
import inspect, sys
called = set()
def note(frame, event, _):
    path = frame.f_code.co_filename
    body = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # of a function; that of a class is a call too
    if event == "call" and body and "/gpi/" in path and not frame.f_code.co_name.startswith("<"):
        called.add((path, frame.f_code.co_qualname))
sys.setprofile(note)
import gpi.cli
code = gpi.cli.main(["study", "run", "one.toml", "--out", "out"])
sys.setprofile(None)
print(len(called), len({path for path, _ in called}), file=sys.stderr)
sys.exit(code)
"""


def trees(checkout: Path) -> dict[Path, ast.Module]:
    """Parse every module of the package."""
    return {path: ast.parse(path.read_text()) for path in sorted((checkout / "src" / "gpi").rglob("*.py"))}


def defined(module: ast.Module) -> set[str]:
    """Return the public names that a module defines at its top."""
    names = {node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in module.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return {name for name in names if not name.startswith("_")}


def branches(module: ast.Module) -> int:
    """Return the number of conditions in the function `iteration`."""
    [algorithm] = [n for n in module.body if isinstance(n, ast.FunctionDef) and n.name == "iteration"]
    return sum(isinstance(node, ast.If | ast.IfExp | ast.BoolOp) for node in ast.walk(algorithm))


def of_one_job(checkout: Path) -> tuple[str, str]:
    """Return how many functions, of how many files, a study of one job calls in the runner's process."""
    with tempfile.TemporaryDirectory() as where:
        (Path(where) / "one.toml").write_text(STUDY)
        done = subprocess.run(
            [sys.executable, "-c", TRACE], cwd=where, capture_output=True, text=True,
            env=os.environ | {"PYTHONPATH": str(checkout / "src")},
        )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    functions, files = done.stderr.strip().splitlines()[-1].split()
    return functions, files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[HERE], metavar="CHECKOUT")
    columns = []
    for checkout in map(Path.resolve, parser.parse_args().checkouts):
        modules = trees(checkout)
        twice = Counter(name for module in modules.values() for name in defined(module))
        functions, files = of_one_job(checkout)
        columns.append({
            "lines": sum(len(path.read_text().splitlines()) for path in modules), "files": len(modules),
            "names defined twice": sum(count > 1 for count in twice.values()),
            "branches in Algorithm 2": branches(modules[checkout / "src" / "gpi" / "core" / "iteration.py"]),
            "functions of one job": functions, "files of one job": files,
        })  # fmt: skip
    for name in columns[0]:
        print(f"{name:<26}" + "".join(f"{column[name]!s:>10}" for column in columns))


if __name__ == "__main__":
    main()
