# pyright: reportMissingImports=false
"""`python -m full_scale.probe CONFIG --model FOLDER`: is the policy displaced, and why? Per query, on a real model.

For each query with both correct and wrong rollouts, at one checkpoint:

    displacement   Eq. 3: restart from these weights, one GRPO update on this query alone, then the mean over its
                   correct rollouts of sum_t (ln pi_new - ln pi_before), in nats; below 0 = displaced
    likelihood     mean log-probability per token of first and second actions, correct and wrong; and by tool round
    similarity     cosine of mean last-layer states of correct and wrong responses, per action
    G              Theorem A.1 per correct response, from last-layer states: the unembedding's part of the change. On
                   a trained transformer it is a part only (the body of the network carries the rest): read its sign

Queries without both kinds are counted, not scored as 0. What this file does not do: change a checkpoint, or train.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from full_scale.config import FullConfig, load_config, parse_overrides
from full_scale.data import Row, load_rows, render
from full_scale.export import versions_full
from full_scale.protocol import Trajectory
from full_scale.retriever.client import Search
from full_scale.rewards import exact_match
from full_scale.rollout import rollout
from full_scale.sampling import Sampler, TransformersSampler, stream
from full_scale.tiny import load
from full_scale.train import invalid_text, make_search
from lldsim.advantages import group_advantages
from lldsim.config import ObjectiveConfig
from lldsim.objectives import total_loss


class Batch:
    """Tensors of one query's responses: ids (B, P+T), masks and numbers (B, T) of the completion."""

    def __init__(self, trajectories: Sequence[Trajectory], pad: int, device: Any) -> None:
        start = max(len(t.prompt_ids) for t in trajectories)
        width = max(len(t.completion_ids) for t in trajectories)

        def right(rows: list[list[int]], value: int) -> torch.Tensor:
            return torch.tensor([row + [value] * (width - len(row)) for row in rows], device=device)

        prompts = [[pad] * (start - len(t.prompt_ids)) + t.prompt_ids for t in trajectories]
        seen = [[0] * (start - len(t.prompt_ids)) + [1] * len(t.prompt_ids) for t in trajectories]
        self.width = width
        self.tokens = right([t.completion_ids for t in trajectories], pad)
        self.ids = torch.cat([torch.tensor(prompts, device=device), self.tokens], 1)
        ones = right([[1] * len(t.completion_ids) for t in trajectories], 0)
        self.attention = torch.cat([torch.tensor(seen, device=device), ones], 1)
        self.mask = right([t.action_mask for t in trajectories], 0).bool()
        self.action_id = right([t.action_id for t in trajectories], -1)


def forward(model: Any, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (hidden (B, T, D), logits (B, T, V), log-probabilities (B, T)) of the completion tokens."""
    hidden = model.get_decoder()(input_ids=batch.ids, attention_mask=batch.attention).last_hidden_state
    hidden = hidden[:, -batch.width - 1 : -1]
    logits = model.get_output_embeddings()(hidden).float()
    return hidden, logits, logits.log_softmax(-1).gather(-1, batch.tokens[..., None])[..., 0]


def gwhes_response(hidden: torch.Tensor, logits: torch.Tensor, batch: Batch, advantages: torch.Tensor) -> torch.Tensor:
    r"""Return G of Theorem A.1 per response (B,), from one V x D matrix (no token pairs are formed).

    M = sum_s A_s (e_{y_s} - pi_s) (x) h_s,     G_i = - sum_{t in i} (e_{y_t} - pi_t)^T M h_t
    """
    mask = batch.mask
    residual = -logits.softmax(-1)
    residual.scatter_add_(-1, batch.tokens[..., None], torch.ones_like(residual[..., :1]))
    left, right = residual[mask], hidden.float()[mask]
    weights = advantages.float()[:, None].expand(mask.shape)[mask]
    matrix = (left * weights[:, None]).T @ right
    per_token = -((right @ matrix.T) * left).sum(-1)
    rows = mask.nonzero()[:, 0]
    return torch.zeros(mask.shape[0], device=mask.device).index_add(0, rows, per_token)


def one_update(model: Any, batch: Batch, advantages: torch.Tensor, config: FullConfig) -> torch.Tensor:
    """Return the log-probabilities after one GRPO update from these weights, which are put back afterwards.

    Adam from zero moments at the configuration's learning rate, gradient clipped as in training, no KL and no entropy
    bonus, so that what moves is the policy gradient's doing.
    """
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.0)
    objective = ObjectiveConfig(
        surrogate=config.surrogate,
        aggregation="seq-mean-token-mean" if config.surrogate == "gspo" else config.aggregation,
        clip_eps=config.clip_eps,
        kl_coef=0.0,
        entropy_coef=0.0,
    )
    try:
        logps = forward(model, batch)[2]
        loss, _ = total_loss(logps, logps.detach(), advantages, batch.mask, config=objective, action_id=batch.action_id)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        optimizer.step()
        with torch.no_grad():
            return forward(model, batch)[2]
    finally:
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(before[name])
        optimizer.zero_grad()


def probe_query(
    model: Any, trajectories: Sequence[Trajectory], rewards: Sequence[float], config: FullConfig, pad: int
) -> dict[str, float]:
    """Return one row of the probe for a query with both correct and wrong responses; NaN where there is nothing."""
    device = next(model.parameters()).device
    batch = Batch(trajectories, pad, device)
    scores = torch.tensor(rewards, device=device)
    advantages = group_advantages(scores, torch.zeros(len(rewards), dtype=torch.int64, device=device))
    correct = scores > 0
    with torch.no_grad():
        hidden, logits, old = forward(model, batch)
        g = gwhes_response(hidden, logits, batch, advantages)[correct].mean().item()
    new = one_update(model, batch, advantages, config)
    change = torch.where(batch.mask, new - old, 0.0).sum(1)[correct]
    row = {
        "correct_share": correct.float().mean().item(),
        "displacement": change.mean().item(),
        "displacement_per_token": (change.sum() / batch.mask[correct].sum()).item(),
        "gwhes": g,
    }
    for name, rows in (("correct", correct), ("wrong", ~correct)):
        for k in (0, 1):
            where = batch.mask & (batch.action_id == k) & rows[:, None]
            row[f"logp_{name}_action{k + 1}"] = old[where].mean().item() if where.any() else math.nan
    for k in (0, 1):
        row[f"similarity_action{k + 1}"] = _similarity(hidden, batch.mask & (batch.action_id == k), correct)
    for k in range(int(batch.action_id.max()) + 1):
        row[f"nll_round{k}"] = -old[batch.mask & (batch.action_id == k)].mean().item()
    return row


def _similarity(hidden: torch.Tensor, where: torch.Tensor, correct: torch.Tensor) -> float:
    """Return the cosine of the mean states of correct and wrong responses on the tokens `where`."""
    means = []
    for rows in (correct, ~correct):
        chosen = where & rows[:, None]
        if not chosen.any():
            return math.nan
        means.append(hidden[chosen].float().mean(0))
    return torch.nn.functional.cosine_similarity(means[0], means[1], dim=0).item()


def probe(
    config: FullConfig,
    model: Any,
    tokenizer: Any,
    search: Search,
    *,
    queries: int = 50,
    group: int = 8,
    spread: bool = False,
    make_sampler: Callable[..., Sampler] = TransformersSampler,
    on_group: Callable[[Row, Sequence[Trajectory], Sequence[float]], None] | None = None,
) -> tuple[list[dict[str, float]], int]:
    """Return (rows, number of queries without both kinds) for the first `queries` training questions [P 5.3: 50, 8].

    With `spread` they are taken at even distances instead: FactWorld's neighbours are about one country.
    `on_group(question, trajectories, rewards)` sees every query's group, tied ones too.
    """
    rows = load_rows(config.train_data, split="train", hops=config.hops)
    rows = rows[:: max(len(rows) // queries, 1) if spread else 1][:queries]
    template = tokenizer if config.chat_template else None
    prompts = [render(row, style=config.prompt, tokenizer=template) for row in rows for _ in range(group)]
    with torch.no_grad():
        trajectories = rollout(
            prompts,
            tokenizer=tokenizer,
            sampler=make_sampler(model, tokenizer, batch_size=config.sampling_batch),
            search=search,
            limits=config.limits(),
            streams=[stream(config.seed, 2**31 + 1, k) for k in range(len(prompts))],
            prompt_tokens=config.prompt_tokens,
            invalid_text=invalid_text(config),
        )
    found, skipped = [], 0
    for k, row in enumerate(rows):
        members = trajectories[k * group : (k + 1) * group]
        rewards = [exact_match(t.answer, row.golds, rule=config.match) for t in members]
        if on_group:
            on_group(row, members, rewards)
        if 0 < sum(rewards) < group:
            found.append({"query": float(k)} | probe_query(model, members, rewards, config, tokenizer.pad_token_id))
        else:
            skipped += 1
    return found, skipped


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m full_scale.probe", description="Single-update probe of Eq. 3.")
    parser.add_argument("config")
    parser.add_argument("--model", help="checkpoint folder (default: the configuration's model)")
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--out", default="runs/full_scale/probe.csv")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    args = parser.parse_args(argv)
    config = load_config(args.config, parse_overrides(args.set))
    model, tokenizer = load(args.model or config.model)
    model = model if config.cpu else model.cuda()
    rows, skipped = probe(config, model, tokenizer, make_search(config), queries=args.queries, group=args.group)
    summary = write(Path(args.out), rows, skipped, config)
    print(json.dumps(summary["summary"]))


def write(out: Path, rows: list[dict[str, float]], skipped: int, config: FullConfig) -> dict[str, Any]:
    """Write rows as CSV and a summary as JSON beside it, and return the summary."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows({k: "" if math.isnan(v) else repr(v) for k, v in row.items()} for row in rows)
    summary: dict[str, float | int | None] = {"queries_scored": len(rows), "queries_without_both_kinds": skipped}
    for name in names[1:]:
        values = [row[name] for row in rows if name in row and not math.isnan(row[name])]
        summary[name] = sum(values) / len(values) if values else None
    if rows:
        summary["displaced_share"] = sum(row["displacement"] < 0 for row in rows) / len(rows)
    about = {
        "label": "measured",
        "config_hash": config.config_hash(),
        "seed": config.seed,
        "versions": versions_full(),
        "summary": summary,
    }
    out.with_suffix(".json").write_text(json.dumps(about, indent=1, sort_keys=True) + "\n")
    return about


if __name__ == "__main__":
    main()
