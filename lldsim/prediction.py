"""Predict whether and when a run collapses, from its healthy twin alone, before it is simulated.

The reduction (theory.reduction: sharp and stale samplers in one context) has one number, the gap of the right word.
Here that number is the shift d of the log-odds of the canonical words. What the reduction takes as given is measured on
the null twin, where nothing falls: at its plateau its decisions are frozen, all words' log-odds are clamped to a shift
d', and rollouts say how an update would move the trainer's shift, with d' = d_{n-tau} the sampler's,

    d_{n+1} = d_n + lr * steps * V/(V-1) * sum over classes c of [ hit_c(d') - mass_c(d') s(x_c + d_n) ],

with x_c the base log-odds of class c (feedback, drift level), s the logistic function, w a token's weight in the loss
and g = <h, h'> its similarity to the words whose fall is followed: those after bad feedback or an error message, which
fall first, because wrong responses are there. In the world that is predicted,

    mass_c = sum of w g over the class's tokens,   hit_c = the same over those that are the canonical word.

Four forms, each with one thing more than the last. `constant`: mass as at d' = 0 and words independent of the reward,
the reduction as it stands. `together`: mass and hit follow d'. `apart`: every position's word has a shift of its own,
moved by hit = mass S + S (1-S) influence(d'), S the sampler's probability of that word, plus what is sampled.
`complete`: also the entropy bonus, which presses every likely word down, and the KL term, which lifts it.
What this file does not do: clipping, LLDS, decisions that go on learning, off-canon words that differ, or words that
fall elsewhere by another amount: clamping moves all.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit

from lldsim.config import RunConfig
from lldsim.diagnostics.collapse import collapse_step, smooth
from lldsim.diagnostics.thresholds import DEFAULT
from lldsim.draws import PROBE_STREAM, draw
from lldsim.engine import Run
from lldsim.errors import ConfigError
from lldsim.world import BAD, INVALID, SearchWorld, world_of

Floats = npt.NDArray[np.float64]
Words = Literal["constant", "together", "apart", "complete"]
SHIFTS = (0.5, 0.0, -0.5, -0.75, -1.0, -1.25, -1.5, -2.0, -2.5, -3.0, -4.0, -6.0)
_REFERENCE = -2  # class of a word after bad feedback, without drift: where wrong responses are


@dataclass(frozen=True)
class Response:
    """What an update does to words whose log-odds the sampler sees shifted: S shifts, N batches, C classes, K words.

    The axis of two is wrong, correct responses; values are per unit of learning rate and optimiser step.
    """

    shift: Floats  # (S,) of the sampler, ascending
    log_odds: Floats  # (C,) of the canonical word before training, ascending
    mass: Floats  # (S, N, 2, C, K) sum of w g
    hit: Floats  # (S, N, 2, C, K) its part from canonical words
    square: Floats  # (S, N, 2, C, K) sum of (w g)^2, what chance adds
    visits: Floats  # (S, N, 2, C, K) sum of g over all tokens as shares of the batch, for terms that every token has
    reward: Floats  # (S,)
    plateau: int  # update at which the twin's reward reached its plateau


@dataclass(frozen=True)
class Prediction:
    """Predicted mean shift and reward (updates,), and the collapse step, None = none within the run."""

    shift: Floats
    reward: Floats
    collapse: int | None


def null_twin(config: RunConfig) -> RunConfig:
    """Return `config` with similarity 0 and no LLDS: the same sampler and trainer, and nothing that falls."""
    none = dict.fromkeys(("position_similarity", "anisotropy", "feedback_similarity"), 0.0)
    return config.replace(**none, garbage_similarity=(0.0,) * len(config.world.garbage_similarity), llds_coef=0.0)


def plateau(config: RunConfig) -> tuple[int, Run]:
    """Run the null twin; return the first update with reward within 5 % of its peak, and a run with its weights."""
    twin = Run(null_twin(config))
    rewards, states = [], []
    for _ in range(config.trainer.updates):
        states.append(twin.weights.copy())
        rewards.append(twin.step()["reward"])
    smoothed = smooth(np.array(rewards), DEFAULT.reward_window)
    update = int(np.argmax(smoothed >= DEFAULT.plateau_share * smoothed.max()))
    twin.weights[:] = states[update]
    return update, twin


def measure_response(config: RunConfig, *, shifts: tuple[float, ...] = SHIFTS, batches: int = 40) -> Response:
    """Return the response of `config`'s words to a shift, from `batches` rollout batches per shift of its null twin.

    Needs neither the learning rate nor the staleness of `config` but for the twin's way to its plateau. Raises
    ConfigError for losses whose token weights it does not know.
    """
    if config.objective.aggregation != "token-mean" or config.objective.surrogate != "grpo":
        raise ConfigError(
            f"aggregation={config.objective.aggregation!r}, surrogate={config.objective.surrogate!r}: the prediction "
            "is written for token-mean GRPO"
        )
    update, twin = plateau(config)
    world = world_of(config)
    classes, log_odds = _classes(world)
    grid = np.sort(np.asarray(shifts, dtype=float))
    parts = np.zeros((4, len(grid), batches, 2, len(log_odds), len(world.canon)))
    reward = np.zeros(len(grid))
    for i, shift in enumerate(grid):
        clamped = Run(twin.config.replace(staleness=0), world=shift_words(twin.world, float(shift)))
        clamped.weights[:] = twin.weights
        parts[:, i], reward[i] = respond(clamped, world, classes, batches=batches)
    mass, hit, square, visits = parts
    return Response(grid, log_odds, mass, hit, square, visits, reward, update)


def respond(clamped: Run, world: SearchWorld, classes: npt.NDArray[np.int64], *, batches: int) -> tuple[Floats, float]:
    """Return mass, hit, square, visits (4, N, 2, C, K), and the reward, of clamped rollouts in `world`'s similarities.

    A word is moved by the tokens at its own position: other positions have other words in its place. Followed are the
    words after bad feedback; all tokens move them.
    """
    n_body = len(world.canon)
    out, rewards, seen = np.zeros((4, batches, 2, int(classes.max()) + 1, n_body)), [], []
    total, count = np.zeros((n_body, world.config.n_features)), np.zeros(n_body)
    for batch in range(batches):
        roll = clamped.sample(draw(clamped.config, 0, stream=PROBE_STREAM, batch=batch + 1))
        rewards.append(roll.reward.mean())
        response, turn = np.nonzero(np.arange(roll.tokens.shape[1]) < roll.turns[:, None])
        response, turn, k = np.repeat(response, n_body), np.repeat(turn, n_body), np.tile(range(n_body), len(turn))
        f, level = roll.feedback[response, turn], roll.level[response, turn, k]
        hidden = world.hidden(world.context(response // clamped.config.world.group_size, turn, k, f, level))
        moved = (f == BAD) | (f == INVALID)
        np.add.at(total, k[moved], hidden[moved])
        count += np.bincount(k[moved], minlength=n_body)
        weight = roll.advantage[response] / (len(response) * (1 + 1 / n_body))  # decisions share the denominator
        where = (batch, (weight > 0).astype(int), classes[f, level], k)
        seen.append((where, weight, roll.tokens[response, turn, k] == world.canon[k], hidden))
    received = total / np.maximum(count, 1)[:, None]  # mean hidden state of the words that are moved
    for where, weight, right, hidden in seen:
        alike = np.einsum("nd,nd->n", hidden, received[where[3]])
        push, visit = weight * alike, alike / (len(alike) * (1 + 1 / n_body))
        for part, value in enumerate((push, push * right, push**2, visit)):
            np.add.at(out[part], where, value)
    return out, float(np.mean(rewards))


def predict(
    config: RunConfig, response: Response, *, words: Words = "complete", seed: int | None = None, speed: float = 1.0
) -> Prediction:
    """Return the predicted course of `config`; `response` may come from another lr, staleness or negative weight.

    `seed` draws one batch per update and, for words apart, what is sampled; None moves by means, without chance.
    `speed` multiplies every move: 1 is the theory, another value asks how far off it is.
    """
    t, v = config.trainer, config.world.vocab_size
    scale = speed * t.learning_rate * t.updates_per_rollout * v / (v - 1)
    weight = np.array([config.objective.negative_weight, 1.0])
    mass, hit = (np.einsum("snbck,b->snck", x, weight) for x in (response.mass, response.hit))
    sampled = sampler_probability(response.log_odds + response.shift[:, None], t.temperature, v)[..., None]  # (S, C, 1)
    if words == "constant":
        mass = np.broadcast_to(mass[response.shift == 0], mass.shape)
        hit = mass * sampled[:, None]
    # What a word's own choice does to the advantage, per unit of its variance; 0 where the reward ignores it.
    influence = (hit - mass * sampled[:, None]).mean(1) / (sampled * (1 - sampled) + 1e-9)
    noise = np.einsum("snbck,b->sck", response.square, weight**2) / mass.shape[1]
    visits = response.visits.sum(2).mean(1)
    one_by_one = words in ("apart", "complete")
    rng = np.random.default_rng(seed)
    shift, common = np.zeros((t.updates, mass.shape[-1])), np.zeros(t.updates)
    for n in range(t.updates):
        seen = shift[max(0, n - t.staleness)]
        common[n] = _common(seen, response, sampled[:, _REFERENCE, 0], t.temperature, v)
        if n < response.plateau or n == t.updates - 1:
            continue
        batch = slice(None) if seed is None else slice(b := int(rng.integers(mass.shape[1])), b + 1)
        pull = _between(response.shift, mass[:, batch].mean(1), common[n])
        now = expit(response.log_odds[:, None] + shift[n])
        own = sampler_probability(response.log_odds[:, None] + seen, t.temperature, v)
        if one_by_one:
            spread = own * (1 - own)
            left = pull * own + spread * _between(response.shift, influence, common[n])
            if seed is not None:
                variance = spread * _between(response.shift, noise, common[n])
                left = left + np.sqrt(variance) * rng.standard_normal(variance.shape)
        else:
            left = _between(response.shift, hit[:, batch].mean(1), common[n])
        move = left - pull * now
        if words == "complete":
            push = _regularisers(config, now, own, expit(response.log_odds)[:, None])
            move = move + _between(response.shift, visits, common[n]) * push
        move = scale * move.sum(0)
        move = move if one_by_one else np.full_like(move, move.mean())
        shift[n + 1] = np.clip(shift[n] + move, response.shift[0], response.shift[-1])
    reward = np.interp(common, response.shift, response.reward)
    return Prediction(shift.mean(1), reward, collapse_step(reward))


def _regularisers(config: RunConfig, now: Floats, sampled: Floats, base: Floats) -> Floats:
    """Return how one visit moves a word's log-odds by the entropy bonus and the k3 KL term, over V/(V-1).

    Entropy: -p (ln p + H). KL, with r = base/now of the token sampled: (r - 1) S (1 - p) for the word itself, and
    (1 - r') (1 - S) p for the others.
    """
    v, objective = config.world.vocab_size, config.objective
    rest = np.maximum(1 - now, 1e-12)
    entropy = -now * np.log(now) - rest * np.log(rest / (v - 1))
    kl = (base / now - 1) * sampled * rest + (1 - (1 - base) / rest) * (1 - sampled) * now
    return -objective.entropy_coef * now * (np.log(now) + entropy) + objective.kl_coef * kl


def sampler_probability(log_odds: Floats, temperature: float, vocab_size: int) -> Floats:
    """Return the sampler's probability of a word with these log-odds at T = 1, s(x/T + ln(V-1) (1/T - 1)).

    All other words are alike. For V = 2 this is s(x/T) of theory.reduction.

    >>> sampler_probability(np.array([0.0]), 0.5, 2).tolist()
    [0.5]
    """
    return expit(log_odds / temperature + np.log(vocab_size - 1) * (1 / temperature - 1))


def shift_words(world: SearchWorld, shift: float) -> SearchWorld:
    """Return `world` with the log-odds of every canonical word moved by `shift` in the base policy."""
    base = world.base_logps.copy()
    for k, word in enumerate(world.canon):
        base[world.base_row[k].ravel(), word] += shift
    base -= np.logaddexp.reduce(base, axis=1, keepdims=True)
    return dataclasses.replace(world, base_logps=base)


def _classes(world: SearchWorld) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the class (F, L) of a word by what it follows and its drift level, and the classes' log-odds (C,)."""
    probability = np.exp(world.base_logps[world.base_row[0], world.canon[0]])  # (F, L); the same at every position
    values, index = np.unique(np.round(probability, 12), return_inverse=True)
    return index.reshape(probability.shape), logit(values)


def _common(seen: Floats, response: Response, sampled: Floats, temperature: float, vocab_size: int) -> float:
    """Return the shift at which words shifted alike would be canonical as often as words shifted by `seen` (K,)."""
    own = sampler_probability(response.log_odds[_REFERENCE] + seen, temperature, vocab_size)
    return float(np.interp(own.mean(), sampled, response.shift))


def _between(grid: Floats, values: Floats, at: float) -> Floats:
    """Return `values` (S, ...) linearly interpolated at one point of the ascending `grid` (S,)."""
    i = int(np.clip(np.searchsorted(grid, at) - 1, 0, len(grid) - 2))
    share = np.clip((at - grid[i]) / (grid[i + 1] - grid[i]), 0.0, 1.0)
    return (1 - share) * values[i] + share * values[i + 1]
