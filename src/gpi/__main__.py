"""`python -m gpi`: the command line."""

import sys

from gpi.cli import main

sys.exit(main())
