"""`python -m full_scale.warmstart CONFIG`: a tiny Qwen2 learns the protocol from scripted traces.

Only for configurations like cpu_tiny, whose `model` is a folder that this command fills. Traces search for the gold
titles, copy the sentence that answers the question and answer. In half of them the last fact is replaced by another
value, in the document and the answer alike: the model must learn to read, it cannot remember. A share 1 - warm_right
has a bad habit: it answers with the first fact of the document that was not asked for. With warm_right below a half the
greedy policy has that habit too, which leaves reinforcement something to learn that exact match can show.
What this file does not do: distil a real model, or use a test question.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from full_scale.config import FullConfig, load_config, parse_overrides
from full_scale.factworld import FactWorld, Question, build_factworld
from full_scale.protocol import INFORMATION, SHORT_PROMPT, encode, format_documents
from full_scale.tiny import make_model, train_tokenizer
from lldsim.errors import ConfigError

FEEDBACK_WEIGHT = 0.1  # loss weight of prompt and document tokens: a little language modelling helps copying


def scripted_trace(
    question: Question, texts: dict[str, str], values: Sequence[str], rng: random.Random, *, right: float
) -> list[tuple[str, float]]:
    """Return the trace of one question as (text, loss weight) segments; `texts` maps a title to its document."""
    documents = [texts[title] for title in question.gold_titles]
    *bridges, sentence = question.steps
    answer = question.answers[0]
    if rng.random() < 0.5:
        stem, other = sentence.rsplit(" is ", 1)[0], rng.choice(list(values))
        documents[-1] = documents[-1].replace(sentence, f"{stem} is {other}.")
        sentence, answer = f"{stem} is {other}.", other
    if rng.random() >= right:
        others = [s for s in documents[-1].removesuffix(".").split(". ") if " is " in s and f"{s}." != sentence]
        if others:
            sentence = others[0]
            answer = sentence.rsplit(" is ", 1)[1]
            sentence += "."
    segments = [(SHORT_PROMPT.format(question=question.question), FEEDBACK_WEIGHT)]
    for number, (title, document) in enumerate(zip(question.gold_titles, documents, strict=True)):
        thought = f"<think> {bridges[number - 1]} </think>" if number else ""
        segments.append((f"{thought}<search> {title} </search>", 1.0))
        body = format_documents([f"{title}\n{document}"]).strip()
        segments.append((INFORMATION[0] + body + INFORMATION[1], FEEDBACK_WEIGHT))
    segments.append((f"<think> {sentence} </think><answer> {answer} </answer>", 1.0))
    return segments


def warm_start(config: FullConfig, *, world: FactWorld | None = None) -> tuple[Any, Any, list[float]]:
    """Return (model, tokenizer, losses) of the tiny Qwen2 after `teach`."""
    if config.prompt != "short":
        raise ConfigError(f"prompt={config.prompt!r}: scripted traces are written for prompt: short")
    world = world or build_factworld()
    tokenizer = train_tokenizer(world, vocab_size=config.tiny_vocab)
    model = make_model(tokenizer, hidden_size=config.tiny_hidden, layers=config.tiny_layers, seed=config.seed)
    return model, tokenizer, teach(config, model, tokenizer, world)


def teach(config: FullConfig, model: Any, tokenizer: Any, world: FactWorld) -> list[float]:
    """Train `model` on scripted traces for `warm_steps` steps of AdamW, cosine schedule; return the losses."""
    import torch

    questions = world.select("train", config.hops)
    texts = {document.title: document.text for document in world.documents}
    values = sorted({question.answers[0] for question in world.questions})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.0)
    rng, losses = random.Random(config.seed), []
    for step in range(config.warm_steps):
        rate = config.warm_learning_rate * min(1.0, (step + 1) / 30)
        # The second phase teaches the weaker policy: copying must have formed before wrong facts are mixed in.
        right = 1.0 if step < 0.7 * config.warm_steps else config.warm_right
        optimizer.param_groups[0]["lr"] = rate * (0.51 + 0.49 * math.cos(math.pi * step / config.warm_steps))
        traces = [
            scripted_trace(rng.choice(questions), texts, values, rng, right=right) for _ in range(config.warm_batch)
        ]
        loss = _loss(model, tokenizer, traces)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def _loss(model: Any, tokenizer: Any, traces: list[list[tuple[str, float]]]) -> Any:
    import torch

    rows = []
    for trace in traces:
        parts = [(encode(tokenizer, text), weight) for text, weight in trace]
        rows.append(([i for ids, _ in parts for i in ids], [w for ids, w in parts for _ in ids]))
    width = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), width), tokenizer.pad_token_id)
    weights, mask = torch.zeros(len(rows), width), torch.zeros(len(rows), width, dtype=torch.long)
    for k, (row, weight) in enumerate(rows):
        ids[k, : len(row)], weights[k, : len(row)], mask[k, : len(row)] = torch.tensor(row), torch.tensor(weight), 1
    logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    weights = weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m full_scale.warmstart", description="Make and warm-start a model.")
    parser.add_argument("config")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE")
    args = parser.parse_args(argv)
    config = load_config(args.config, parse_overrides(args.set))
    model, tokenizer, losses = warm_start(config)
    folder = Path(config.model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    n = sum(p.numel() for p in model.parameters())
    print(f"{folder}: {n} parameters, loss {losses[0]:.2f} -> {sum(losses[-20:]) / len(losses[-20:]):.2f}")


if __name__ == "__main__":
    main()
