"""lldsim: see, verify and prevent lazy likelihood displacement in GRPO for tool-using language models."""

__version__ = "0.1.0"
