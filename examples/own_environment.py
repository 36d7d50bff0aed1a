"""An environment in pure Python, trained with five seeds and evaluated: under two minutes on two cores.

python examples/own_environment.py [STEPS]
"""

import sys

import gymnasium
import numpy as np
from gymnasium import spaces

import gpi


class Park(gymnasium.Env):
    """Bring a cart to rest at the origin."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)  # position, speed
    action_space = spaces.Box(-3.0, 3.0, (1,), np.float32)  # force

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state, self.time = self.np_random.uniform(-1.0, 1.0, 2), 0
        return self.state.astype(np.float32), {}

    def step(self, action):
        position, speed = self.state
        self.state, self.time = np.array([position + 0.05 * speed, speed + 0.05 * action[0]]), self.time + 1
        reward = float(np.exp(-(position**2) - 0.1 * speed**2))
        return self.state.astype(np.float32), reward, bool(abs(position) > 3.0), self.time == 200, {}


if __name__ == "__main__":
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    run = gpi.train("geppo", Park, seeds=5, steps=steps)
    result = gpi.evaluate(run, Park, episodes=20)
    print(f"mean return of 200 at most: {result.mean:.1f}, 95 % interval {result.interval()}")
