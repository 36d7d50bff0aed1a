"""A made-up report of the size of the paper's study, with everything that a report can hold."""

from collections.abc import Sequence

import numpy as np

from gpi.study.report.blocks import Chart, Line, Report, Section, Table, Tags, Verdict

TASKS = (
    "acrobot-swingup", "acrobot-swingup_sparse", "ball_in_cup-catch", "cartpole-balance", "cartpole-balance_sparse",
    "cartpole-swingup", "cartpole-swingup_sparse", "cheetah-run", "finger-spin", "finger-turn_easy",
    "finger-turn_hard", "fish-swim", "fish-upright", "hopper-hop", "hopper-stand", "humanoid-run", "humanoid-stand",
    "humanoid-walk", "manipulator-bring_ball", "pendulum-swingup", "point_mass-easy", "reacher-easy", "reacher-hard",
    "swimmer-swimmer15", "swimmer-swimmer6", "walker-run", "walker-stand", "walker-walk",
)  # fmt: skip
ARMS = tuple(
    Tags(algorithm=algorithm, kappa=kappa)
    for algorithm in ("ppo", "trpo", "vmpo", "geppo", "getrpo", "gevmpo")
    for kappa in (("0", "0.5", "1") if algorithm.startswith("ge") else ("",))
)
HOSTILE = (
    "</script><img src=x onerror=alert(1)>", '"><svg onload=alert(2)>', "'; alert(3); '", "<!--", "]]>", "&lt;b&gt;",
    "$\\frac{1}{0$", "../../etc/passwd", "=HYPERLINK(1)", "\x00\x1b[31m\ud800\u202e", "javascript:alert(4)",
    "a,b?c&d=e#f", "任务 🤖", "x" * 300,
)  # fmt: skip
SEEDS, POINTS, STEPS = 5, 100, 1_000_000


def label(arm: Tags) -> str:
    return f"{arm.algorithm} κ={arm.kappa}" if arm.kappa else arm.algorithm


def curves(rng: np.random.Generator, tasks: Sequence[str], arms: Sequence[Tags]) -> np.ndarray:
    """Returns `[tasks, arms, seeds, points]`: sigmoids of chance height and place, with noise."""
    x = np.linspace(0, 1, POINTS)
    shape = (len(tasks), len(arms), SEEDS, 1)
    task = (len(tasks), 1, 1, 1)
    arm = (len(tasks), len(arms), 1, 1)
    reuse = np.array([0.75 + 0.06 * bool(one.kappa) for one in arms]).reshape(1, -1, 1, 1)
    height = rng.choice([1000, 980, 900, 700, 350, 80, 5], task) * np.clip(
        reuse + rng.normal(0.0, 0.1, arm) + rng.normal(0.0, 0.05, shape), 0.02, 1
    )
    height *= (rng.uniform(size=task) < 0.7) | (rng.uniform(size=shape) < 0.7)  # some seeds never find the reward
    start = rng.uniform(0.05, 0.5, task) + rng.normal(0, 0.08, arm) + rng.normal(0, 0.03, shape)
    noise = np.cumsum(rng.normal(0, 0.012, (*shape[:3], POINTS)), axis=-1)
    return np.clip(height * (1 / (1 + np.exp(-(x - start) / 0.07)) + noise), 0, 1000)


def band(seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean over the first axis, and the ends of an interval."""
    mean, error = seeds.mean(axis=0), 2.8 * seeds.std(axis=0, ddof=1) / np.sqrt(len(seeds))
    return mean, np.maximum(mean - error, 0), mean + error


def learning_curve(task: str, seeds: np.ndarray, arms: Sequence[Tags]) -> Chart:
    x = np.arange(1, POINTS + 1) * STEPS / POINTS
    lines = []
    for arm, runs in zip(arms, seeds, strict=True):
        mean, low, high = band(runs)
        lines.append(Line(label(arm), x, mean, low, high, runs, arm._replace(task=task)))
    note = "Mean of the episodes that ended in each 10,000 steps; band: Student's 95 % interval over seeds."
    return Chart(f"curve-{task}", task, note, "environment steps", "episode return", tuple(lines), tags=Tags(task=task))


def made_up_report(tasks: Sequence[str] = TASKS, arms: Sequence[Tags] = ARMS) -> Report:
    """The whole report; the same arguments give the same report."""
    rng = np.random.default_rng(0)
    runs = curves(rng, tasks, arms)
    finals = runs[..., -20:].mean(axis=-1)  # [tasks, arms, seeds]
    charts = tuple(learning_curve(task, runs[i], arms) for i, task in enumerate(tasks))
    return Report(
        "Generalized policy improvement on 28 tasks",
        (
            "28 tasks of the DeepMind Control Suite, six algorithms, three kappas, five seeds, a million steps: what "
            "the paper claims, and what these runs say.",
            "Final performance is the mean training return over the last 204,800 steps. Intervals are over seeds "
            "within tasks, 95 %, with Student's correction for few seeds.",
        ),
        (
            claims(),
            comparison(tasks, finals),
            aggregates(rng, arms, finals),
            Section("learning-curves", "Learning curves", ("Every task, every arm, every seed.",), charts),
            details(rng, tasks, arms, finals),
            reuse(rng, tasks),
        ),
        (
            "gpi study run paper --out studies/paper",
            "gpi study merge studies/paper packs/*.safetensors",
            "gpi study report studies/paper",
        ),
        {"gpi-rl": "0.1.0", "jax": "0.10.2", "envpool": "1.2.5", "python": "3.11.7"},
    )


def claims() -> Section:
    rows = (
        ("1", "The best generalized arm beats the best on-policy arm on 19 of the 21 tasks where learning occurs.",
         "19 of 21", "17 of 22 [15, 19]", Verdict("does not hold")),
        ("2", "PPO: on-policy better on 3, generalized on 18, no learning on 7.", "3 / 18 / 7", "4 / 18 / 6",
         Verdict("undecided")),
        ("3", "The gain exceeds 50 % on 4 tasks.", "4", "5 [3, 7]", Verdict("holds")),
        ("4", "The gain exceeds 10 % on 13 tasks.", "13", "12 [10, 14]", Verdict("holds")),
        ("5", "At a sparsity of at least 99 %, the mean gain is more than twice the mean of all tasks.", "> 2",
         "3.1 [2.2, 4.0]", Verdict("holds")),
        ("6", "Effective sample size and total update size rise with kappa as figure 1 says.", "figure 1", None,
         Verdict("not judged: data missing")),
    )  # fmt: skip
    columns = ("#", "claim", "paper", "here", "verdict")
    note = "A claim holds if the whole interval lies on its side."
    text = "Each claim, the paper's number, ours with its interval, and the verdict; the rule is older than the data."
    return Section(
        "claims", "The paper's claims", (text,), (Table("claims", "Claims and verdicts", note, columns, rows),)
    )


def comparison(tasks: Sequence[str], finals: np.ndarray) -> Section:
    half = (finals.shape[1] + 1) // 4 or 1
    best = [
        np.stack([side[i, side[i].mean(axis=-1).argmax()] for i in range(len(tasks))], axis=1)  # [seeds, tasks]
        for side in (finals[:, :half], finals[:, half:])
    ]
    gain = best[1] - best[0]
    order, down = (np.argsort(-x.mean(axis=0)) for x in (best[0], gain))
    error = 2.8 * gain.std(axis=0, ddof=1) / np.sqrt(SEEDS)
    mean, place = gain.mean(axis=0), np.arange(len(tasks))
    lines = tuple(
        Line(name, place, *band(seeds[:, order]), seeds[:, order])
        for name, seeds in zip(("on-policy", "generalized"), best, strict=True)
    )
    difference = Line("difference", place, mean[down], (mean - error)[down], (mean + error)[down])
    values = np.array([61.0, 70.5, 83.0, 91.2, 120.4, 171.0])
    sparsity = Line("gain", np.arange(6), values, values - 30, values + 30)
    final = "Final performance: mean training return over the last 204,800 steps."
    return Section(
        "paper", "Figures 2 to 4 and Table I", ("As the paper defines them, on the tasks where learning occurs.",),
        (
            Chart("figure-2", "Figure 2: final performance", final, "task", "final performance", lines,
                  tuple(str(tasks[i]) for i in order)),
            Chart("figure-3", "Figure 3: difference", final, "task", "generalized less on-policy", (difference,),
                  tuple(str(tasks[i]) for i in down)),
            Chart("figure-4", "Figure 4: gain by sparsity", "Sparsity: share of random-policy samples with r ≤ 0.01.",
                  "sparsity at least", "mean difference", (sparsity,),
                  ("≥ 0 %", "≥ 50 %", "≥ 75 %", "≥ 90 %", "≥ 95 %", "≥ 99 %")),
            Table("table-1", "Table I", "No learning: the best arm is not above the random policy by the margin.",
                  ("row", "PPO", "TRPO", "VMPO", "Best"),
                  (("on-policy better", 3, 1, 3, 2), ("generalized better", 18, 19, 17, 19),
                   ("no learning", 7, 8, 8, 7))),
        ),
    )  # fmt: skip


def aggregates(rng: np.random.Generator, arms: Sequence[Tags], finals: np.ndarray) -> Section:
    scores = finals / 1000.0
    names, tau, place = tuple(map(label, arms)), np.linspace(0, 1, 101), np.arange(len(arms))
    ordered = np.sort(scores.transpose(1, 0, 2).reshape(len(arms), -1), axis=1)
    cut = ordered.shape[1] // 4
    iqm = ordered[:, cut : ordered.shape[1] - cut].mean(axis=1)
    better = np.clip(0.5 + rng.normal(0.1, 0.08, len(arms)), 0, 1)
    share = (scores[..., None] > tau).mean(axis=(0, 2))
    rows = tuple(
        (
            name,
            float(scores[:, i].mean()),
            float(np.median(scores[:, i])),
            float(iqm[i]),
            float(1 - scores[:, i].mean()),
        )
        for i, name in enumerate(names)
    )
    profiles = tuple(
        Line(name, tau, share[i], np.clip(share[i] - 0.03, 0, 1), np.clip(share[i] + 0.03, 0, 1), None, arms[i])
        for i, name in enumerate(names)
    )
    about = tuple(arms)
    return Section(
        "aggregates-section", "Aggregates", (),
        (
            Table("aggregates", "Aggregates over all tasks", "", ("arm", "mean", "median", "IQM", "optimality gap"),
                  rows, about, 3),
            Chart("iqm", "Interquartile mean", "Over all runs of all tasks.", "arm", "IQM of return / 1000",
                  (Line("IQM", place, iqm, iqm - 0.02, iqm + 0.02),), names),
            Chart("improvement", "Probability of improvement over PPO", "0.5: an even chance.", "arm", "probability",
                  (Line("p", place, better, better - 0.06, better + 0.06),), names, y_range=(0.0, 1.0)),
            Chart("profiles", "Performance profiles", "Share of runs above a score.", "score τ",
                  "share of runs above τ", profiles, y_range=(0.0, 1.0)),
        ),
    )  # fmt: skip


def details(rng: np.random.Generator, tasks: Sequence[str], arms: Sequence[Tags], finals: np.ndarray) -> Section:
    pairs = [(i, j) for i in range(len(tasks)) for j in range(1, len(arms))]
    differences = tuple(
        (tasks[i], label(arms[j]), float(finals[i, j].mean() - finals[i, 0].mean()), float(rng.uniform(0, 1)),
         float("nan") if j % 5 == 4 else float(rng.uniform(0, 1)), SEEDS)
        for i, j in pairs
    )  # fmt: skip
    return Section(
        "details", "Task by task", (),
        (
            Table("finals", "Final performance", "Mean over seeds.", ("task", *map(label, arms)),
                  tuple((task, *map(float, finals[i].mean(axis=-1))) for i, task in enumerate(tasks)),
                  tuple(Tags(task=task) for task in tasks)),
            Table("differences", "Differences from PPO", "Exact permutation test; q: Benjamini-Hochberg.",
                  ("task", "arm", "difference", "p", "q", "seeds"), differences,
                  tuple(arms[j]._replace(task=tasks[i]) for i, j in pairs)),
            Table("lost", "Seeds that lost what they had learned", "Last 200k below 80 % of the best 50k.",
                  ("task", "arm", "seed"), ()),
        ),
    )  # fmt: skip


def reuse(rng: np.random.Generator, tasks: Sequence[str]) -> Section:
    x = np.array([1, 2, 4, 8, 16])
    runs = [np.clip(rng.normal(300 + 200 * i + 60 * np.log2(x), 40, (10, 5)), 0, 1000) for i in range(3)]
    lines = tuple(
        Line(task, x, *band(seeds), seeds, Tags(task=task)) for task, seeds in zip(tasks[:3], runs, strict=False)
    )
    return Section(
        "reuse", "How much reuse",
        ("GePPO at kappa = 1 with a batch of 1,000 and B policies' worth of data.",),
        (
            Chart("reuse-curve", "Final performance by reuse", "10 seeds, 500k steps.", "B", "final performance",
                  lines),
        ),
    )  # fmt: skip


def hostile_report() -> Report:
    """A report whose every string is an attack, or at least a nuisance."""
    arms = [Tags(algorithm=name, kappa=kappa) for name, kappa in zip(HOSTILE[:4], ("", *HOSTILE[4:7]), strict=True)]
    made = made_up_report(HOSTILE, arms)
    every = "".join(HOSTILE[:9])
    table = Table(every, every, every, (every, every), ((every, every), (None, float("inf"))))
    section = Section(every, every, (every,), (table,))
    return made._replace(
        title=every, lead=HOSTILE, sections=(*made.sections, section), commands=HOSTILE, versions={every: every}
    )
