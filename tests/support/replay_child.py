"""The command line of gpi with a critic from outside that has a replay: `replay_child.py train|resume ...`."""

import sys

from extensions import QCritic
from gpi import cli
from gpi.core.critic import CRITICS
from gpi.core.plan import ALGORITHMS, Algorithm

CRITICS["q"] = QCritic.init
ALGORITHMS["ppo-q"] = Algorithm("ppo", "reuse", critic="q", replay=300)

if __name__ == "__main__":
    sys.exit(cli.main(sys.argv[1:]))
