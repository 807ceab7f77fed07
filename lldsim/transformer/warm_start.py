"""`python -m lldsim.transformer.warm_start --seed N --out FILE`: train a network on scripted episodes, in two minutes.

Two stages of next-token loss on the script's own tokens (feedback and prompt are masked): first on a script that is
often right, so that copying from a document forms, then on a weaker one. Weights are stored in half precision, without
pickle, and are already rounded to it when the report measures them; the same seed gives the same bytes on one machine.
What this file does not do: search for a recipe; the three packaged networks are the first three that this one made.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from lldsim.errors import ConfigError, MissingDataError
from lldsim.record import versions
from lldsim.transformer.arrays import read_arrays
from lldsim.transformer.config import TokenWorldConfig
from lldsim.transformer.model import ModelShape, initial, logits
from lldsim.transformer.script import COPYING, WEAK, Habits, script_episode
from lldsim.transformer.world import PAD, WORDS, TokenWorld

PACKAGED = Path(__file__).parent / "checkpoints"


@dataclass(frozen=True)
class Stage:
    """One stage of the warm start: cosine from `rate` down to `rate * floor`."""

    habits: Habits
    steps: int
    rate: float
    floor: float = 0.1


@dataclass(frozen=True)
class Recipe:
    """How a warm start is made; sizes of the defaults are ours."""

    stages: tuple[Stage, ...] = (Stage(COPYING, 520, 3e-3), Stage(WEAK, 230, 1e-3, 1.0))
    batch: int = 40
    search_noise: float = 0.3
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0


@dataclass(frozen=True)
class WarmStart:
    """Weights (n,) float32, the world's canonical words and the network's shape; `about` is the report."""

    flat: torch.Tensor
    canon: tuple[int, ...]
    shape: ModelShape
    about: dict[str, Any]

    def world(self, config: TokenWorldConfig) -> TokenWorld:
        """Return the world that these weights know; ConfigError if it has another body length."""
        if config.body_tokens != len(self.canon):
            raise ConfigError(
                f"body_tokens={config.body_tokens}, but this warm start learned {len(self.canon)} canonical words; "
                "make another with `python -m lldsim.transformer.warm_start`"
            )
        return TokenWorld(config, self.canon)


def make_warm_start(
    seed: int,
    *,
    recipe: Recipe | None = None,
    shape: ModelShape | None = None,
    config: TokenWorldConfig | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> WarmStart:
    """Train a network from scratch by `recipe`; `seed` draws the canonical words, the weights and the episodes."""
    recipe, shape, config = recipe or Recipe(), shape or ModelShape(), config or TokenWorldConfig()
    rng = random.Random(seed)
    canon = tuple(rng.sample(list(WORDS), config.body_tokens))
    world = TokenWorld(replace(config, search_noise=recipe.search_noise), canon)
    flat = initial(shape, torch.Generator().manual_seed(seed)).requires_grad_()
    total, done = sum(stage.steps for stage in recipe.stages), 0
    for stage in recipe.stages:
        optimizer = torch.optim.Adam([flat], lr=stage.rate, betas=recipe.betas)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, stage.steps, stage.rate * stage.floor)
        for _ in range(stage.steps):
            optimizer.zero_grad()
            loss = imitation_loss(flat, [script_episode(world, stage.habits, rng) for _ in range(recipe.batch)], shape)
            loss.backward()
            torch.nn.utils.clip_grad_norm_([flat], recipe.clip)
            optimizer.step()
            schedule.step()
            done += 1
            if on_step:
                on_step(done, total)
    about = {"seed": seed, "recipe": asdict(recipe), "shape": asdict(shape), "versions": versions()}
    return WarmStart(flat.detach().half().float(), canon, shape, about)


def imitation_loss(
    flat: torch.Tensor, episodes: Sequence[tuple[list[int], list[bool]]], shape: ModelShape
) -> torch.Tensor:
    """Return the mean next-token loss, nats, over the tokens that the script wrote."""
    width = max(len(ids) for ids, _ in episodes)
    ids = torch.full((len(episodes), width), PAD)
    written = torch.zeros(len(episodes), width, dtype=torch.bool)
    for row, (tokens, mask) in enumerate(episodes):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        written[row, : len(mask)] = torch.tensor(mask)
    target = torch.where(written, ids, -100)[:, 1:]
    return F.cross_entropy(logits(flat, ids[:, :-1], shape).flatten(0, 1), target.flatten())


def save_warm_start(start: WarmStart, path: Path | str) -> None:
    """Write the weights to `path` (.npz, half precision, no pickle) and the report beside it (.json)."""
    path = Path(path).with_suffix(".npz")
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = np.array(list(asdict(start.shape).values()))
    np.savez_compressed(path, flat=start.flat.half().numpy(), canon=np.array(start.canon), shape=shape)
    path.with_suffix(".json").write_text(json.dumps(start.about, indent=1, sort_keys=True) + "\n")


def load_warm_start(path: Path | str) -> WarmStart:
    """Read what `save_warm_start` wrote; MissingDataError says what is absent or does not fit."""
    path = Path(path).with_suffix(".npz")
    if not path.is_file():
        raise MissingDataError(f"{path} does not exist; `python -m lldsim.transformer.warm_start --out FILE` makes one")
    again = "`python -m lldsim.transformer.warm_start` makes one"
    arrays = read_arrays(path, what="warm start", remedy=again)
    if not {"flat", "canon", "shape"} <= arrays.keys():
        raise MissingDataError(f"{path} holds {sorted(arrays)} instead of flat, canon and shape; {again}")
    flat, canon, sizes = (arrays[name] for name in ("flat", "canon", "shape"))
    shape = ModelShape(*(int(x) for x in sizes))
    if flat.shape != (shape.size(),):
        raise MissingDataError(f"{path} holds {flat.shape} weights, its shape {shape} has {shape.size()}")
    about = path.with_suffix(".json")
    return WarmStart(
        torch.from_numpy(flat.astype(np.float32)),
        tuple(int(x) for x in canon),
        shape,
        json.loads(about.read_text()) if about.is_file() else {},
    )


@cache
def packaged(number: int) -> WarmStart:
    """Return packaged warm start `number`, or raise ConfigError listing those that there are."""
    known = sorted(int(path.stem.removeprefix("seed")) for path in PACKAGED.glob("seed*.npz"))
    if number not in known:
        raise ConfigError(f"warm_start={number}: packaged are {', '.join(map(str, known))}")
    return load_warm_start(PACKAGED / f"seed{number}")


def main(argv: Sequence[str] | None = None) -> int:
    """Make, measure and write a warm start."""
    import time

    from tqdm import tqdm

    from lldsim.transformer.train import measure_start

    parser = argparse.ArgumentParser(prog="python -m lldsim.transformer.warm_start", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="FILE.npz and FILE.json")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    begin = time.monotonic()
    with tqdm(unit="step", disable=None) as bar:

        def advance(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        start = make_warm_start(args.seed, on_step=advance)
    print(f"trained in {time.monotonic() - begin:.0f} s")
    start = replace(start, about=start.about | {"measured": measure_start(start)})
    save_warm_start(start, args.out)
    for temperature, found in start.about["measured"].items():
        print(temperature, {name: round(value, 3) for name, value in found.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
