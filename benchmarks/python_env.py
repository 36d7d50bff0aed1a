"""A small environment in Python for benchmarks/same_bits.py: episodes end by termination and by truncation."""

from typing import Any

import gymnasium
import numpy as np

EDGE = 2.0  # an episode terminates where the position leaves [-EDGE, EDGE]
LIMIT = 50  # steps after which it is truncated


class Walk(gymnasium.Env[np.ndarray, np.ndarray]):
    """A point in the plane, pushed by noise and by actions whose bounds are not symmetric, is paid to stay central."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = gymnasium.spaces.Box(np.array([-1.0, -0.5]), np.array([1.0, 2.0]), dtype=np.float64)
        self.position, self.velocity, self.steps = np.zeros(2), np.zeros(2), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-1.0, 1.0, 2)
        self.velocity, self.steps = np.zeros(2), 0
        return self.observation(), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.velocity = 0.9 * self.velocity + 0.1 * action + 0.05 * self.np_random.standard_normal(2)
        self.position = self.position + 0.2 * self.velocity
        self.steps += 1
        reward = 1.0 - float(np.abs(self.position).sum()) / (2 * EDGE)
        terminated = bool((np.abs(self.position) > EDGE).any())
        return self.observation(), reward, terminated, not terminated and self.steps >= LIMIT, {}

    def observation(self) -> np.ndarray:
        return np.concatenate([self.position, self.velocity])
