"""A Ray cluster of several nodes on this machine, in a process of its own: JAX and Ray's forks do not go together.

Its first line of output is the address of the head. It then obeys lines: `remove N`, and ends when there are no more.
"""

import sys
from typing import Any


def main(nodes: int) -> None:
    from ray.cluster_utils import Cluster

    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **small})
    others = [cluster.add_node(**small) for _ in range(nodes - 1)]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        cluster.remove_node(others[int(line.split()[1])], allow_graceful=False)
        print("removed", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
