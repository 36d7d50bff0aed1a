"""Seeds of environments: hashed, and distinct by construction."""

import hashlib

from gpi.errors import UsageError

MAX_ENVS = 2**10
"""Most environments one agent can have."""
MAX_SEED = 2**21
"""Seeds of agents lie below this: MAX_SEED * MAX_ENVS is exactly the number of 31-bit values."""
_ROUNDS = 8


def env_seeds(task: str, algorithm: str, seed: int, num_envs: int) -> list[int]:
    """Return the seeds of one agent's environments, in [0, 2^31): different from each other and from any other agent's.

    Seed `seed` owns the numbers seed·1024 … seed·1024 + 1023, and a permutation of the 31-bit numbers keyed by task
    and algorithm scrambles them. A permutation cannot collide, so within one task and algorithm no two agents share an
    environment, as those of consecutive seeds would if environment e simply got seed + e.

    Args:
        task: The canonical id, as in `Spec.id`.
        algorithm: The name of the algorithm.
        seed: The agent's seed.
        num_envs: How many environments the agent acts in; the first seeds do not depend on it.
    """
    if not 0 <= seed < MAX_SEED:
        raise UsageError(f"seed must be in [0, {MAX_SEED - 1}], got {seed}; use a smaller number")
    if not 1 <= num_envs <= MAX_ENVS:
        raise UsageError(f"environments per agent must be in [1, {MAX_ENVS}], got {num_envs}; use more seeds instead")
    key = hashlib.sha256(f"{task}/{algorithm}".encode()).digest()
    first = seed * MAX_ENVS
    return [_permute(index, key) for index in range(first, first + num_envs)]


def reset_seed(env_seed: int, reset: int) -> int:
    """Return the seed of an environment's reset number `reset`, in [0, 2^31), regardless of earlier events."""
    digest = hashlib.sha256(f"{env_seed}/{reset}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1


def _permute(index: int, key: bytes) -> int:
    """Apply a keyed permutation of [0, 2^31): a Feistel network on 32 bits, followed until it is back in the range."""
    value = _feistel(index, key)
    while value >= 2**31:
        value = _feistel(value, key)
    return value


def _feistel(value: int, key: bytes) -> int:
    """Apply a keyed permutation of [0, 2^32): each round can be undone, for any round function."""
    left, right = value >> 16, value & 0xFFFF
    for i in range(_ROUNDS):
        digest = hashlib.sha256(key + bytes([i]) + right.to_bytes(2, "little")).digest()
        left, right = right, left ^ int.from_bytes(digest[:2], "little")
    return left << 16 | right
