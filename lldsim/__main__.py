"""`python -m lldsim` is the command `lldsim`."""

import sys

from lldsim.cli import main

sys.exit(main())
