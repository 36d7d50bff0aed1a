"""Config: every setting of a run, with the paper's values as defaults. It is also the command line of `gpi train`."""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from gpi.core.plan import ALGORITHMS, TRUST_MODES, Plan, plan
from gpi.envs import dmc
from gpi.envs.seeds import MAX_ENVS
from gpi.envs.tasks import BACKENDS
from gpi.errors import UsageError
from gpi.setting import Rule, at_least, at_most, checked_type, one_of, positive, setting
from gpi.standalone import ACTIVATIONS, KINDS

MAX_STEPS = 10**12  # per agent: at 100,000 steps a second, four months
MAX_EPS, EPS_RULE = 2.0, "must be at most 2: TV distance is at most 1 and eps is twice its bound"
MAX_LAYERS, MAX_UNITS = 32, 1_000_000
MAX_RETURN = 1e30
UNITS = Rule(lambda x: all(units >= 1 for units in x), "must be positive numbers of units", "use 64,64")
LAYERS = Rule(
    lambda x: len(x) <= MAX_LAYERS and max(x, default=0) <= MAX_UNITS,
    f"must be at most {MAX_LAYERS} layers of {MAX_UNITS:,} units", "use 64,64", new=True,
)  # fmt: skip
NORMALISERS = ("auto", "paper", "still")
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "trust": "paper", "normaliser": "auto", "kappa": 1.0, "eps": 0.2, "B": 2, "n": 1024, "epochs": 10,
        "minibatches": 32, "gamma": 0.995, "gae_lambda": 0.97, "lr": 3e-4, "value_lr": 3e-4, "max_grad_norm": 0.5,
        "kl_slack": 1.5, "freeze_normaliser": 0, "hidden": (64, 64), "num_envs": 1, "reset_each_batch": None,
    },
}  # fmt: skip
"""Settings under one name. What a file or an option says beats them, and they beat the defaults."""
FIRST = ("task", "algorithm", "reuse", "run")  # the groups of settings to read first
GROUPS = (*FIRST, "environments", "optimisation", "machine")
SYNONYMS = {
    "learning_rate": "lr", "policy_lr": "lr", "actor_lr": "lr", "pi_lr": "lr",
    "critic_lr": "value_lr", "vf_lr": "value_lr", "value_learning_rate": "value_lr",
    "total_timesteps": "steps", "timesteps": "steps", "num_timesteps": "steps", "total_steps": "steps",
    "max_steps": "steps", "env_steps": "steps", "num_steps": "n", "n_steps": "n", "rollout_length": "n",
    "batch": "n", "batch_size": "minibatches", "minibatch_size": "minibatches", "num_minibatches": "minibatches",
    "n_minibatches": "minibatches", "nminibatches": "minibatches", "n_epochs": "epochs", "num_epochs": "epochs",
    "update_epochs": "epochs", "noptepochs": "epochs", "clip_range": "eps", "clip_coef": "eps", "clip": "eps",
    "clip_param": "eps", "cliprange": "eps", "epsilon": "eps", "clip_ratio": "eps", "net_arch": "hidden",
    "hidden_sizes": "hidden", "hidden_units": "hidden", "layers": "hidden", "num_seeds": "seeds", "n_seeds": "seeds",
    "random_seed": "seed", "n_envs": "num_envs", "nenvs": "num_envs", "discount": "gamma", "lam": "gae_lambda",
    "lambda": "gae_lambda", "lmbda": "gae_lambda", "gae": "gae_lambda", "max_gradient_norm": "max_grad_norm",
    "clip_grad": "max_grad_norm", "grad_clip": "max_grad_norm", "algo": "algorithm", "env": "task", "env_id": "task",
    "environment": "task", "target_kl": "kl_slack", "n_jobs": "threads", "workers": "threads",
    "num_workers": "threads", "save_freq": "checkpoint_every", "checkpoint_freq": "checkpoint_every",
    "timeout": "step_timeout",
}  # fmt: skip
"""What settings are called elsewhere."""


def is_range(ends: tuple[float, ...]) -> bool:
    """Return whether there are two finite ends, the smaller first, or none."""
    return not ends or (len(ends) == 2 and -math.inf < ends[0] < ends[1] < math.inf)


@dataclass(frozen=True)
class Config:
    """Settings of one run: a population of seeds on one task. Defaults are the paper's."""

    task: str = setting(
        dataclasses.MISSING, "cheetah-run, Pendulum-v1, my_module:MyEnv-v0, my_module:make_env; see `gpi tasks`", "task"
    )
    algorithm: str = setting(
        "geppo", "ppo, trpo, vmpo, or with sample reuse geppo, getrpo, gevmpo", "algorithm", choices=ALGORITHMS
    )
    seeds: int = setting(
        5, "agents trained side by side; they are the seeds --seed to --seed + seeds - 1", "run", at_least(1),
        compiled=True,
    )  # fmt: skip
    seed: int = setting(0, "first seed", "run")
    steps: int = setting(
        1_000_000, "environment steps per agent", "run", at_least(1),
        at_most(MAX_STEPS)._replace(remedy="use 1e6", new=False),
    )  # fmt: skip
    kappa: float = setting(
        1.0, "trade-off of the mixture, eq (12): 0 favours large updates, 1 a large sample", "reuse",
        Rule(lambda x: 0.0 <= x <= 1.0, "must be in [0, 1]", "use 0, 0.5 or 1 as the paper does"),
    )  # fmt: skip
    B: int = setting(
        2, "on-policy batch size N = B n, in units of n", "reuse", at_least(1),
        Rule(lambda x: x <= 10_000, "must be at most 10000", "use 2 as the paper does"),  # 3 B policies are kept
    )  # fmt: skip
    n: int = setting(
        1024, "samples per iteration of a generalized algorithm, the smallest batch", "reuse", at_least(1),
        at_most(10**9),
    )  # fmt: skip
    eps: float = setting(
        0.2, "trust region in TV distance, eq (2)", "algorithm", positive("use 0.2"),
        Rule(lambda x: x <= MAX_EPS, EPS_RULE, "use 0.2", new=True),
    )  # fmt: skip
    num_envs: int = setting(
        1, "environments per agent; they share the n samples", "task", at_least(1), at_most(MAX_ENVS), compiled=True
    )
    backend: str = setting(
        "auto", "envpool, gymnasium (in this process) or processes (workers); auto: EnvPool if it has the task", "task",
        choices=BACKENDS,
    )  # fmt: skip
    reset_each_batch: bool | None = setting(
        None, "start every batch with a reset, as the paper does; by default on DeepMind Control only", "environments",
        compiled=True,
    )  # fmt: skip
    gamma: float = setting(
        0.995, "discount", "algorithm", Rule(lambda x: 0.0 <= x < 1.0, "must be in [0, 1)", "use 0.995")
    )
    gae_lambda: float = setting(
        0.97, "lambda of GAE and V-trace", "algorithm",
        Rule(lambda x: 0.0 <= x <= 1.0, "must be in [0, 1]", "use 0.97"),
    )  # fmt: skip
    lr: float = setting(3e-4, "initial learning rate of PPO's policy step", "optimisation", positive(), at_most(1000))
    value_lr: float = setting(3e-4, "learning rate of the value function", "optimisation", positive(), at_most(1000))
    max_grad_norm: float = setting(
        0.5, "norm at which PPO's policy gradient is clipped", "optimisation", positive(), at_most(1e30), compiled=True
    )
    epochs: int = setting(
        10, "passes over the batch per update", "optimisation", at_least(1), at_most(10_000), compiled=True
    )
    minibatches: int = setting(32, "minibatches per pass", "optimisation", at_least(1), at_most(10**6), compiled=True)
    kl_slack: float = setting(
        1.5, "TRPO and VMPO accept steps with KL up to this multiple of delta", "optimisation",
        Rule(lambda x: 1.0 <= x < math.inf, "must be at least 1", "use 1 for no slack"), at_most(10**6), compiled=True,
    )  # fmt: skip
    trust: str = setting(
        "paper", "paper: fixed eps_gpi; adaptive: eq (8); strict: accepted updates keep eq (11); keep: strict, the "
        "normaliser moves no policy, and proven losses are undone", "algorithm",
        one_of(TRUST_MODES, "use paper"), choices=TRUST_MODES, compiled=True,
    )  # fmt: skip
    normaliser: str = setting(
        "auto", "paper: updating the statistics changes the policy; still: the networks are rescaled so that it does "
        "not; auto: still under strict and keep", "algorithm",
        one_of(NORMALISERS, "use auto"), choices=NORMALISERS, later=True, compiled=True,
    )  # fmt: skip
    return_range: tuple[float, ...] = setting(
        (), "least and largest return of an episode, for trust = keep; DeepMind Control: 0,1000", "algorithm",
        Rule(is_range, "must be two finite numbers, the smaller first", "use LOW,HIGH"),
        Rule(lambda x: all(abs(end) <= MAX_RETURN for end in x), f"must be within {MAX_RETURN:g} of 0", "use LOW,HIGH",
             new=True),
        later=True,
    )  # fmt: skip
    freeze_normaliser: int = setting(
        0, "steps, in whole batches, after which statistics stay fixed; 0: never", "optimisation", at_least(0),
        at_most(MAX_STEPS),
    )  # fmt: skip
    policy: str = setting(
        "auto", "gaussian or categorical; auto: gaussian where actions are continuous, categorical where discrete",
        "optimisation", one_of(KINDS, "leave it out", "auto"), choices=("auto", *KINDS), later=True, compiled=True,
    )  # fmt: skip
    hidden: tuple[int, ...] = setting(
        (64, 64), "units of the hidden layers, policy and value alike", "optimisation", UNITS._replace(holds=bool),
        UNITS, LAYERS, compiled=True,
    )  # fmt: skip
    value_hidden: tuple[int, ...] = setting(
        (), "units of the value function's hidden layers, where they are not those of --hidden", "optimisation",
        UNITS, LAYERS, later=True, compiled=True,
    )  # fmt: skip
    activation: str = setting(
        "tanh", "tanh, relu or silu, between the layers of all networks", "optimisation",
        one_of(ACTIVATIONS, "leave it out"), choices=ACTIVATIONS, later=True, compiled=True,
    )  # fmt: skip
    layer_norm: bool = setting(
        False, "normalise every hidden layer before its activation (LayerNorm without gain and bias)", "optimisation",
        later=True, compiled=True,
    )  # fmt: skip
    step_timeout: float = setting(
        60.0, "seconds that a reset or step may take in worker processes before the run is saved and ends; 0: no limit",
        "environments", Rule(lambda x: 0.0 <= x < 1e9, "must be 0 or more seconds", "use 60"),
    )  # fmt: skip
    allow_images: bool = setting(
        False, "train on image observations too, flattened, which seldom works", "environments"
    )
    threads: int = setting(
        0, "threads or worker processes of the simulation; 0: one per core", "machine", at_least(0), at_most(4096)
    )
    checkpoint_every: int = setting(
        50, "iterations between checkpoints, which `gpi resume` continues from", "run", at_least(1), at_most(MAX_STEPS)
    )
    eval_every: int = setting(
        0, "iterations between evaluations, by which each seed's best policy is kept; 0: never", "run", at_least(0),
        at_most(MAX_STEPS),
    )  # fmt: skip
    eval_episodes: int = setting(
        10, "episodes of each of these evaluations, per seed", "run", at_least(1), at_most(100_000)
    )
    keep_replay: bool = setting(
        False,
        "keep what a critic keeps beyond the M slots after the end, so that `gpi resume --steps` can go on",
        "run", later=True,
    )  # fmt: skip

    def __new__(cls, *_: Any, **settings: Any) -> Self:
        """Raise UsageError for a setting that does not exist, with the nearest that does."""
        require_known(settings, "gpi.Config")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Convert the settings to their types, 1e6 and NumPy's numbers to numbers; raise if one breaks its rule."""
        for name, kind in typing.get_type_hints(Config).items():
            object.__setattr__(self, name, checked_type(name, getattr(self, name), kind))
        validate(self)

    @property
    def seed_range(self) -> range:
        """The seeds."""
        return range(self.seed, self.seed + self.seeds)

    @property
    def reuses(self) -> bool:
        """Whether the algorithm reuses samples of prior policies."""
        return ALGORITHMS[self.algorithm].reuses

    @property
    def replayed(self) -> int:
        """The transitions of a seed that its critic keeps beyond the M slots."""
        return ALGORITHMS[self.algorithm].replay

    @property
    def short_task(self) -> str:
        """The task without the prefix of DeepMind Control."""
        return dmc.short_name(self.task)


def validate(config: Config) -> None:
    """Raise if a setting breaks a rule that holds for every task."""
    if config.algorithm not in ALGORITHMS:
        remedy = f"try {nearest(config.algorithm, ALGORITHMS) or 'geppo'!r}"
        raise UsageError(
            f"unknown algorithm {config.algorithm!r}: it must be one of {', '.join(ALGORITHMS)}; {remedy}", "algorithm"
        )
    check_rules(config, new=False)
    require(config, "seed", 0 <= config.seed <= 2**21 - config.seeds, f"must be in [0, {2**21} - seeds]", "use 0")


def check_rules(config: Config, *, new: bool) -> None:
    """Raise if a setting breaks one of its own rules, those of all runs or those of `new` ones."""
    for field in dataclasses.fields(Config):
        for rule in field.metadata["rules"]:
            broken = rule.new == new and not rule.holds(getattr(config, field.name))
            require(config, field.name, not broken, rule.words, rule.remedy)


def decided(config: Config) -> Config:
    """Return the settings of a new run, with `auto` decided where files of earlier versions mean something else."""
    if config.normaliser == "auto" and config.trust == "strict":
        return dataclasses.replace(config, normaliser="still")
    return config


def unpromised(config: Config) -> list[str]:
    """Return a line for each setting under which a mode cannot give its guarantee."""
    if config.trust != "strict" or config.normaliser != "paper":
        return []
    return ["normaliser = paper moves the policy after each update, which trust = strict does not see: eq (11) of the "
            "policies that act is measured, not promised; leave --normaliser out"]  # fmt: skip


def validate_new(config: Config, known_range: tuple[float, float] | None = None) -> None:
    """Raise if a setting breaks a rule that holds for new runs only: older ones may be resumed all the same.

    `known_range` are the least and the largest return of an episode, where the task says them.
    """
    if config.trust == "keep":
        rule = "lets statistics move the policy, which trust = keep rules out"
        require(config, "normaliser", config.normaliser != "paper", rule, "leave it out, or use --trust strict")
        low, high = known_range or (math.inf, -math.inf)
        covered = not config.return_range or (config.return_range[0] <= low and high <= config.return_range[1])
        rule = f"does not cover {low:g} to {high:g}, the returns of {config.short_task}; certificates would be false"
        require(config, "return_range", covered, rule, "leave it out")
    check_rules(config, new=True)


def without_effect(config: Config, typed: Iterable[str]) -> list[str]:
    """Return a line for each of the settings that the user has given although nothing reads it."""
    idle = idle_settings(config)
    return [f"{one} = {getattr(config, one)} has no effect with {idle[one]}" for one in typed if one in idle]


def idle_settings(config: Config) -> dict[str, str]:
    """Return the settings that nothing reads, each with the setting that makes it so."""
    name, rule = config.algorithm, ALGORITHMS[config.algorithm].facts
    natural = f"{name}, whose step has the length of its trust region"
    idle: dict[str, str] = {}
    if not config.replayed:
        idle |= {"keep_replay": f"{name}, whose critic keeps no replay"}
    if not config.reuses:
        idle |= {"kappa": f"{name}, which reuses no samples"}
    if not rule.uses_lr:
        idle |= {"lr": natural, "max_grad_norm": natural}
    if not rule.bounds_kl:
        idle |= {"kl_slack": f"{name}, which bounds no KL"}
    elif config.trust in ("strict", "keep"):
        idle |= {"kl_slack": f"trust = {config.trust}, which allows none"}
    if not config.reuses and config.trust == "adaptive":
        idle |= {"trust": f"{name}: eq (8) is about reuse"}
    if config.trust != "keep":
        idle |= {"return_range": f"trust = {config.trust}, which certifies nothing"}
    if not config.eval_every:
        idle |= {"eval_episodes": "eval_every = 0, which evaluates nothing"}
    if config.eval_every > -(-config.steps // plan_of(config).steps):
        idle |= {"eval_every": f"{config.steps:,} steps, which are fewer iterations"}
    return idle


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the name that is meant by one that does not exist: as another library calls it, or spelt alike."""
    plain = {other.lower().strip("-").replace("-", "_"): other for other in sorted(names)}
    typed = name.lower().strip("-").replace("-", "_")
    if SYNONYMS.get(typed, "").lower() in plain:
        return plain[SYNONYMS[typed].lower()]
    return next((plain[found] for found in difflib.get_close_matches(typed, plain, n=1, cutoff=0.6)), None)


def kinds() -> dict[str, Any]:
    """Return the type of all that may be set: the fields of Config, and `preset`."""
    return {**typing.get_type_hints(Config), "preset": str}


def expanded(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with those of their `preset` below them, and without that name: no run directory has it."""
    if "preset" not in settings:
        return dict(settings)
    name = settings["preset"]
    if name not in PRESETS:
        raise UsageError(
            f"preset = {ascii(name)[:80]} must be {' or '.join(PRESETS)}; leave it out for the defaults", "preset"
        )
    return {**PRESETS[name], **{key: value for key, value in settings.items() if key != "preset"}}


def require_known(settings: Iterable[str], where: str) -> None:
    """Raise UsageError for a setting that does not exist, with the nearest that does."""
    names = [field.name for field in dataclasses.fields(Config)]
    for name in settings:
        if name not in names:
            near = nearest(name, names)
            raise UsageError(f"{where} has no setting {name!r}; {f'try {near}' if near else 'see gpi.Config'}")


def validate_batch(config: Config, horizon: int | None) -> None:
    """Raise unless a batch divides among the environments, holds whole episodes and fills the minibatches."""
    if config.n % config.num_envs:
        more = -(-config.n // config.num_envs) * config.num_envs
        raise UsageError(f"n = {config.n} does not divide among {config.num_envs} environments; use --n {more}", "n")
    samples = plan_of(config).steps
    if horizon and config.reset_each_batch and samples // config.num_envs < horizon:
        raise UsageError(
            f"a batch of {samples} gives each of {config.num_envs} environments {samples // config.num_envs} steps, "
            f"below the horizon of {horizon}: no episode would ever end; use --n {horizon * config.num_envs} or more, "
            "or --no-reset-each-batch", "n",
        )  # fmt: skip
    if samples < config.minibatches:
        raise UsageError(
            f"minibatches = {config.minibatches} needs as many samples, a batch has {samples}; use fewer", "minibatches"
        )


def plan_of(config: Config) -> Plan:
    """Return the plan of a run: mixture, samples per iteration, one-step trust region."""
    return plan(config.algorithm, config.B, config.n, config.eps, config.kappa)


def require_positive(**settings: int) -> None:
    """Raise UsageError, naming the setting at fault, unless each is a whole number of at least 1."""
    for name, value in settings.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise UsageError(f"{name} = {ascii(value)[:80]} must be a whole number of at least 1; use 1 or more", name)


def require(config: Config, name: str, holds: bool, rule: str, remedy: str) -> None:
    """Raise UsageError, in one line, unless the rule of a setting holds."""
    if not holds:
        value = str(getattr(config, name))
        value = value if value.isprintable() else ascii(value)[1:-1]  # a file may say anything
        raise UsageError(f"{name} = {value if len(value) <= 80 else value[:77] + '...'} {rule}; {remedy}", name)


def as_first_saved(config: Config) -> dict[str, Any]:
    """Return settings as earlier versions wrote them, where they do what those did: hashes of old files stay valid."""
    later = {field.name: field.default for field in dataclasses.fields(Config) if field.metadata["later"]}
    settings = dataclasses.asdict(config)
    return {name: value for name, value in settings.items() if name not in later or value != later[name]}


def config_of(saved: Any) -> Config:
    """Return the settings of a run directory, checked one by one; a setting that an old file lacks has its default."""
    kinds = typing.get_type_hints(Config)
    if not isinstance(saved, dict) or saved.keys() - kinds.keys() or "task" not in saved:
        raise UsageError(f"settings must be some of {', '.join(kinds)}, found {str(saved)[:80]!r}")
    return Config(**saved)
