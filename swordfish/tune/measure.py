"""Measure configurations on a GPU: compiled by a process pool, run in a child process that may hang.

A child takes one weight shape with all its row buckets. It says what it starts and what came of it; a parent
that hears nothing for a while kills it, counts the configuration as hung and starts another child behind it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as BuildTimeout  # the built-in one from Python 3.11 on
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from typing import Any, Protocol

from swordfish.decode import choose
from swordfish.runtime.device import DeviceProps
from swordfish.scheme import Scheme
from swordfish.tune.candidates import candidates, pick
from swordfish.tune.table import Entry

__all__ = [
    "GAIN",
    "NOT_REACHED",
    "Outcome",
    "Patience",
    "Problem",
    "Row",
    "Trial",
    "measure",
    "problem_of",
    "run_child",
    "watch",
]

GAIN = 1.02
"""A configuration replaces the default if the default takes this many times as long: noise is about 1 %."""

FINALISTS = 3
"""Configurations that are timed again, in turns with the default, before one may replace it."""

NOT_REACHED = "not reached in the time given"
"""``error`` of an outcome for which no time was left."""

FINAL = -1
"""In place of a configuration's index: the second timing of the best."""


_REAPED_AFTER = 60.0
"""Seconds that the driver may take to end a killed process with work on the GPU."""


@dataclass(frozen=True)
class Patience:
    """Seconds without a message after which a child counts as hung: while it starts or makes operands, and
    while it runs a configuration."""

    start: float = 120.0
    run: float = 15.0


@dataclass(frozen=True)
class Problem:
    """``x[m, k] @ W[k, n]`` and the configurations to time, the default first; ``of`` is how many there
    were to choose from."""

    scheme: Scheme
    m: int
    k: int
    n: int
    configs: tuple[Any, ...]
    of: int = 0


def problem_of(scheme: Scheme, m: int, k: int, n: int, props: DeviceProps, *, most: int) -> Problem:
    """The default of ``m`` rows of a ``[k, n]`` weight and at most ``most`` others, see
    :func:`~swordfish.tune.candidates.pick`."""
    default = choose(m, n, k, scheme, props).config
    found = candidates(scheme, m, k, n, props)
    return Problem(scheme, m, k, n, (default, *pick(found, default, most)), len({default, *found}))


@dataclass(frozen=True)
class Row:
    """What came of a configuration: microseconds a launch and error over that of one rounding, or why not;
    ``ran`` is false for one that was not tried."""

    us: float | None = None
    rounding: float | None = None
    error: str = ""
    ran: bool = True


@dataclass
class Outcome:
    """Rows of a problem by the index of the configuration, and the second timing of the best, by index.

    ``error`` says why nothing could be measured; configurations that time did not allow have no row.
    """

    problem: Problem
    rows: dict[int, Row] = field(default_factory=dict)
    final: dict[int, float] | None = None
    error: str = ""

    @property
    def default_us(self) -> float | None:
        """Microseconds of the default, from the second timing if there was one; ``None`` if not measured."""
        if self.final:
            return self.final[0]
        return self.rows[0].us if 0 in self.rows else None

    @property
    def failed(self) -> str:
        """What is wrong, empty if nothing is; running out of time is not."""
        if self.error:
            return "" if self.error == NOT_REACHED else self.error
        return self.rows[0].error if 0 in self.rows else ""

    def finalists(self) -> list[int]:
        """The default and the best that are faster; empty without either."""
        times = {i: row.us for i, row in self.rows.items() if row.us is not None}
        if 0 not in times:
            return []
        better = sorted((i for i in times if times[i] < times[0]), key=lambda i: times[i])
        return [0, *better[:FINALISTS]] if better else []

    def entry(self) -> Entry | None:
        """The winner for the table; ``None`` if the default stays."""
        if not self.final or 0 not in self.final:
            return None
        best = min(self.final, key=lambda i: (self.final or {})[i])
        if self.final[best] * GAIN > self.final[0]:
            return None
        configs = self.problem.configs
        return Entry(configs[best], self.final[best], configs[0], self.final[0])


class Trial(Protocol):
    """A problem set up on a device; :class:`swordfish.tune.trial.CudaTrial`, or a simulation in tests."""

    def check(self, config: Any) -> tuple[str, float]:
        """What is wrong with the result (empty: nothing), and its error over that of one rounding."""
        ...

    def time(self, configs: Sequence[Any]) -> list[float]:
        """Microseconds a launch of each, in turns."""
        ...

    def alive(self) -> bool:
        """Whether the device still works: an illegal access ends a process's use of it."""
        ...


MakeTrial = Callable[[Problem], Trial]


def run_child(
    outcomes: Sequence[Outcome], make_trial: MakeTrial, send: Callable[[Any], None], deadline: float
) -> None:
    """Measure what has no row yet; time left until ``deadline`` (``time.monotonic``) is shared evenly.

    Messages: ``("start", p, c)``, ``("row", p, c, Row)``, ``("final", p, times)``, ``("error", p, text)``,
    ``("end",)``, with the indices of problem and configuration. Ends early when the device is lost.
    """
    for p, outcome in enumerate(outcomes):
        if outcome.final is not None or outcome.error:
            continue
        now = time.monotonic()
        if now > deadline:
            send(("error", p, NOT_REACHED))
            continue
        until = now + (deadline - now) / (len(outcomes) - p)
        try:
            trial = make_trial(outcome.problem)
        except Exception as error:
            send(("error", p, f"{type(error).__name__}: {error}"[:500]))
            continue
        for c, config in enumerate(outcome.problem.configs):
            if c in outcome.rows:
                continue
            if time.monotonic() > until and c > 0:
                break
            send(("start", p, c))
            outcome.rows[c] = _attempt(trial, config)
            send(("row", p, c, outcome.rows[c]))
            if not trial.alive():
                return
        best = outcome.finalists()
        send(("start", p, FINAL))
        times = trial.time([outcome.problem.configs[c] for c in best]) if best else []
        send(("final", p, dict(zip(best, times, strict=True))))
    send(("end",))


def _attempt(trial: Trial, config: Any) -> Row:
    try:
        wrong, rounding = trial.check(config)
        if wrong:
            return Row(rounding=rounding, error=wrong)
        return Row(us=trial.time([config])[0], rounding=rounding)
    except Exception as error:
        return Row(error=f"{type(error).__name__}: {error}"[:300])


def _child(outcomes: list[Outcome], make_trial: MakeTrial, pipe: Any, deadline: float) -> None:
    with contextlib.suppress(BrokenPipeError):
        run_child(outcomes, make_trial, pipe.send, deadline)


def watch(
    outcomes: list[Outcome], make_trial: MakeTrial, deadline: float, patience: Patience | None = None
) -> None:
    """Fill in the outcomes of one weight shape with children, as many as it takes."""
    context = multiprocessing.get_context("spawn")
    while True:
        receive, send = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(outcomes, make_trial, send, deadline), daemon=True)
        child.start()
        send.close()  # so that the child's end is the only one, and its death an end of file
        try:
            running, reason = _listen(outcomes, receive, patience or Patience())
        finally:
            child.kill()
            child.join(_REAPED_AFTER)
            receive.close()
        if reason == "end":
            return
        unfinished = [o for o in outcomes if o.final is None and not o.error]
        if running is None:
            # Not the doing of a configuration, so that the next child would fare no better.
            for outcome in unfinished:
                outcome.error = f"the measuring process {reason}"
            return
        p, c = running
        if c == FINAL:
            outcomes[p].final = {}
        else:
            outcomes[p].rows.setdefault(c, Row(error=reason))


def _listen(outcomes: list[Outcome], receive: Any, patience: Patience) -> tuple[tuple[int, int] | None, str]:
    """Record messages until the child ends, dies or falls silent; what it was running last, and which of the
    three."""
    running: tuple[int, int] | None = None
    wait = patience.start
    while True:
        if not receive.poll(wait):
            return running, "hangs"
        try:
            kind, *rest = receive.recv()
        except EOFError:
            return running, "died"
        wait = patience.start
        if kind == "end":
            return running, "end"
        outcome = outcomes[rest[0]]
        if kind == "start":
            running, wait = (rest[0], rest[1]), patience.run
        elif kind == "row":
            outcome.rows[rest[1]] = rest[2]
        elif kind == "final":
            running, outcome.final = None, rest[1]
        else:
            running, outcome.error = None, rest[1]


def compile_problem(request: tuple[Any, Scheme, int, int, str]) -> str:
    """Build one ``(config, scheme, k, n, arch)`` into the disk cache; why it should not be timed, or
    nothing. Runs in a worker process."""
    from swordfish.errors import SwordfishError
    from swordfish.runtime.registry import get_artifact

    config, scheme, k, n, arch = request
    try:
        artifact = get_artifact(config.source(scheme, k, n, bias=False), arch)
    except SwordfishError as error:
        return f"{type(error).__name__}: {error}"[:500]
    spilled = artifact.metadata.spill_bytes
    return f"spills {spilled} bytes of registers" if spilled else ""


def measure(
    shapes: Sequence[Sequence[Problem]],
    props: DeviceProps,
    make_trial: MakeTrial,
    *,
    seconds: float | None = None,
    workers: int | None = None,
    patience: Patience | None = None,
) -> Iterator[list[Outcome]]:
    """Outcomes of each weight shape's problems, as they are known.

    While one shape is timed, the kernels of the next ones compile. ``seconds`` bounds the whole: each shape
    gets an even share of what is left. ``make_trial`` is pickled and called in the child.
    """
    start = time.monotonic()
    deadline = start + seconds if seconds is not None else float("inf")
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers or os.cpu_count() or 1, mp_context=context)
    built: dict[Any, Future[str]] = {}
    try:
        for shape in shapes:
            for request in _requests(shape, props.arch):
                if request not in built:
                    built[request] = pool.submit(compile_problem, request)
        for number, shape in enumerate(shapes):
            now = time.monotonic()
            until = now + (deadline - now) / (len(shapes) - number)
            outcomes = [Outcome(problem) for problem in shape]
            if now >= deadline:
                for outcome in outcomes:
                    outcome.error = NOT_REACHED
            else:
                _await_builds(outcomes, built, props.arch, until)
                watch(outcomes, make_trial, until, patience)
            yield outcomes
    finally:
        pool.shutdown(cancel_futures=True)


def _requests(shape: Sequence[Problem], arch: str) -> list[tuple[Any, Scheme, int, int, str]]:
    """What the problems of a shape need built, in the order in which they are timed."""
    return [(c, problem.scheme, problem.k, problem.n, arch) for problem in shape for c in problem.configs]


def _await_builds(outcomes: list[Outcome], built: dict[Any, Future[str]], arch: str, until: float) -> None:
    """Note what does not compile or spills; builds may take half of the shape's time, and what is not built
    by then is not timed. The default is always waited for, and timed whatever it spills."""
    half = (time.monotonic() + until) / 2
    for outcome in outcomes:
        for c, request in enumerate(_requests([outcome.problem], arch)):
            future = built[request]
            left = half - time.monotonic()
            try:
                problem = future.result(None if c == 0 or left == float("inf") else max(0.0, left))
            except BuildTimeout:
                outcome.rows[c] = Row(error="not compiled in the time given", ran=False)
                continue
            except BrokenProcessPool:
                problem = "" if c == 0 else "the compiling process died"
            if problem and not (c == 0 and problem.startswith("spills")):
                outcome.rows[c] = Row(error=problem, ran=False)
