"""A Ray cluster of several nodes on this machine, in a process of its own: JAX and Ray's forks do not go together.

Its first line of output is the address of the head. It then obeys lines: `remove N` ends a node, `silence N` lets it
answer no more; and it ends when there are no more lines.
"""

import os
import signal
import sys
from typing import Any


def main(nodes: int) -> None:
    from ray.cluster_utils import Cluster

    small: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **small})
    others = [cluster.add_node(**small) for _ in range(nodes - 1)]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        word, number = line.split()
        node = others[int(number)]
        if word == "remove":
            cluster.remove_node(node, allow_graceful=False)
        else:
            os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGSTOP)
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
