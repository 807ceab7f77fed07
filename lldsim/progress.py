"""Progress of a long job with the time that remains: a bar on a terminal, a line now and then elsewhere (cluster logs).

What the cache held is done before the clock starts, so that it does not make the rest look fast.
What this file does not do: print by itself off a terminal; the caller says how (`say`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any


class Progress:
    """A callback `(done, total)` to be used in a `with` statement; the first call tells what was there already."""

    def __init__(
        self,
        title: str,
        *,
        say: Callable[[str], object],
        unit: str = "run",
        every: float = 30.0,
        bar: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title, self.unit = title, unit
        self._say, self._every, self._clock = say, every, clock
        self._on_terminal = sys.stderr.isatty() if bar is None else bar
        self._bar: Any = None
        self._first: tuple[int, float] | None = None  # done at the first call, and when that was
        self._spoken = -float("inf")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def __call__(self, done: int, total: int) -> None:
        if self._on_terminal:
            self._move_bar(done, total)
            return
        now = self._clock()
        if self._first is None:
            self._first, self._spoken = (done, now), now
            if done:
                self._say(f"{self.title}: {done} of {total} {self.unit}s are in the cache")
        elif done == total or now - self._spoken >= self._every:
            self._spoken = now
            before, start = self._first
            self._say(
                f"{self.title}: {done} of {total} {self.unit}s, {self._rest(done - before, total - done, now - start)}"
            )

    def _rest(self, made: int, left: int, seconds: float) -> str:
        if left == 0:
            return f"{made} made in {duration(seconds)}"
        return f"about {duration(remaining(made, left, seconds))} left"

    def _move_bar(self, done: int, total: int) -> None:
        if self._bar is None:
            from tqdm import tqdm

            self._bar = tqdm(desc=self.title, unit=self.unit, initial=done, total=total)
        self._bar.update(done - self._bar.n)


def remaining(made: int, left: int, seconds: float) -> float:
    """Return the seconds that `left` units will take if `made` took `seconds`; NaN while none is made.

    >>> remaining(10, 30, 5.0)
    15.0
    """
    return seconds / made * left if made else float("nan")


def duration(seconds: float) -> str:
    """Return a duration in words, with the two largest units; NaN is unknown.

    >>> duration(42.4), duration(3725), duration(float("nan"))
    ('42 s', '1 h 2 min', 'an unknown time')
    """
    if seconds != seconds:
        return "an unknown time"
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
