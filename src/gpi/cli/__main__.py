"""`python -m gpi.cli`: the command line."""

import sys

from gpi.cli import main

sys.exit(main())
