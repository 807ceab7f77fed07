"""`python -m lldsim.figures`: what the Makefile calls; the same as `lldsim figures`."""

from __future__ import annotations

import sys

from lldsim.figures.command import main

if __name__ == "__main__":
    sys.exit(main())
