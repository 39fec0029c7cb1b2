"""The search for the engine settings that carry the most sessions within the limits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from agentload.capacity.plan.demand import Demand
from agentload.capacity.plan.draws import CostDraw, central, drawn
from agentload.capacity.plan.fleet import Load, Played, play
from agentload.capacity.plan.routing import Routing
from agentload.capacity.plan.slo import Target
from agentload.sim.core import EngineConfig
from agentload.sim.profiles.coefficients import CostFile

GROUP = 4  # replicas simulated together where turns move between them
MOST_USERS = 1024  # of one replica
BEYOND_THE_CLIFF = 4  # times the sessions that fit are looked at, for contexts cheap to recompute
_THRESHOLDS = (0, 512, 1024, 2048, 4096)
_BUDGETS = (2048, 4096, 8192, 16384)
_STEP_DOWN = 0.75  # when too few draws meet the limits


@dataclass(frozen=True, slots=True, eq=False)
class Hardware:
    """One kind of replica: its engine at the defaults, what its steps cost, its price.

    `gpu_price` is money per GPU and hour in whatever currency the user counts in; None: not given.
    """

    name: str
    gpus: int
    config: EngineConfig
    cost_file: CostFile
    gpu_price: float | None = None

    @property
    def kv_tokens(self) -> int:
        return self.config.usable_blocks * self.config.block_size

    def sessions_that_fit(self, demand: Demand) -> float:
        """Sessions whose contexts fit in the KV cache at their mean size: where the cliff is."""
        return max(0.0, (self.kv_tokens - demand.shared_tokens) / demand.held_tokens)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a plan chooses for a replica of a hardware, and how turns reach it."""

    hardware: Hardware
    max_num_seqs: int
    max_num_batched_tokens: int
    long_prefill_token_threshold: int
    routing: Routing

    @classmethod
    def default(cls, hardware: Hardware, routing: Routing) -> Setting:
        config = hardware.config
        return cls(
            hardware,
            config.max_num_seqs,
            config.max_num_batched_tokens,
            config.long_prefill_token_threshold,
            routing,
        )

    def config(self) -> EngineConfig:
        return replace(
            self.hardware.config,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
        )


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting with `users` sessions a replica, under several draws of the costs."""

    setting: Setting
    users: int
    played: tuple[Played, ...]
    met: tuple[bool, ...]
    good_shares: tuple[dict[str, float], ...]  # of each draw, by turn class

    @property
    def p_meets(self) -> float:
        return sum(self.met) / len(self.met)


Progress = Callable[[str], None]


@dataclass(slots=True)
class Bench:
    """Tries settings; remembers what it has tried."""

    demand: Demand
    target: Target
    seed: int
    least_turns: int
    progress: Progress
    simulations: int = 0
    _seen: dict[tuple[Setting, int, int], tuple[Played, bool]] = field(default_factory=dict)
    _draws: dict[str, list[CostDraw]] = field(default_factory=dict)

    def meets(self, setting: Setting, users: int) -> bool:
        """Whether the central values meet the target."""
        return self._one(setting, users, 0)[1]

    def tried(self, setting: Setting, users: int, draws: int) -> Tried:
        """Under the first `draws` draws: every setting sees the same draws and the same users."""
        found = [self._one(setting, users, number) for number in range(1, draws + 1)]
        played = tuple(p for p, _ in found)
        shares = tuple(self.target.good_shares(p) for p in played)
        return Tried(setting, users, played, tuple(m for _, m in found), shares)

    def confident(self, setting: Setting, users: int, draws: int, wanted: float) -> Tried | None:
        """As `tried`; None once so many draws failed that a share `wanted` is out of reach."""
        needed = math.ceil(wanted * draws - 1e-9)  # 0.9 of 10 draws are 9, whatever floats say
        failed = 0
        for number in range(1, draws + 1):
            failed += not self._one(setting, users, number)[1]
            if failed > draws - needed:
                return None
        return self.tried(setting, users, draws)

    def _one(self, setting: Setting, users: int, number: int) -> tuple[Played, bool]:
        key = (setting, users, number)
        if key not in self._seen:
            group = 1 if setting.routing == "sticky" else GROUP
            load = Load(
                users=users * group,
                replicas=group,
                routing=setting.routing,
                seed=self.seed + number,
                least_turns=self.least_turns,
            )
            draw = self._draw(setting.hardware, number)
            played = play(setting.config(), draw, self.demand, load)
            self.simulations += 1
            self._seen[key] = (played, self.target.met(played))
        return self._seen[key]

    def _draw(self, hardware: Hardware, number: int) -> CostDraw:
        if hardware.name not in self._draws:
            draws = drawn(hardware.cost_file, 400, self.seed)
            self._draws[hardware.name] = [central(hardware.cost_file), *draws]
        return self._draws[hardware.name][number]


def most_users(bench: Bench, setting: Setting) -> int:
    """The most sessions a replica carries at the central values; 0 when not even one does.

    Bisection: more sessions are taken to be never easier.
    """
    fit = max(1, int(setting.hardware.sessions_that_fit(bench.demand)))
    most = min(MOST_USERS, max(32, BEYOND_THE_CLIFF * fit))
    low, high = 0, min(fit, most)
    while high <= most and bench.meets(setting, high):
        low, high = high, high * 2
    high = min(high, most + 1)
    while high - low > max(1, low // 32):
        middle = (low + high) // 2
        low, high = (middle, high) if bench.meets(setting, middle) else (low, middle)
    return low


@dataclass(frozen=True, slots=True)
class Found:
    """The best setting of a hardware, and all that were looked at: (setting, most sessions)."""

    best: Setting
    users: int
    looked_at: tuple[tuple[Setting, int], ...]


def best_setting(bench: Bench, hardware: Hardware, routing: Routing) -> Found:
    """One knob after the other, each with the others at their best so far.

    First the threshold, which decides who waits for whom; then the budget; then the number of
    sequences, of which the smallest is taken that costs no capacity.
    """
    start = Setting.default(hardware, routing)
    looked: dict[Setting, int] = {}

    def look(setting: Setting) -> int:
        if setting not in looked:
            looked[setting] = most_users(bench, setting)
            bench.progress(f"{describe(setting)}: {looked[setting]} sessions a replica")
        return looked[setting]

    def choose(settings: Iterator[Setting], best: Setting) -> Setting:
        for setting in settings:
            if look(setting) > look(best):
                best = setting
        return best

    best = choose(_thresholds(start), start)
    best = choose(_budgets(best), best)
    best = _fewest_sequences(look, best)
    return Found(best, look(best), tuple(looked.items()))


def _thresholds(setting: Setting) -> Iterator[Setting]:
    budget = setting.max_num_batched_tokens
    for threshold in _THRESHOLDS:
        if threshold < budget and setting.hardware.config.chunks_prefills:
            yield replace(setting, long_prefill_token_threshold=threshold)


def _budgets(setting: Setting) -> Iterator[Setting]:
    config = setting.hardware.config
    least = max(setting.max_num_seqs, setting.long_prefill_token_threshold)
    for budget in _BUDGETS:
        if budget >= least and (config.chunks_prefills or budget >= config.max_model_len):
            yield replace(setting, max_num_batched_tokens=budget)


def _fewest_sequences(look: Callable[[Setting], int], best: Setting) -> Setting:
    """Room for all sessions a replica carries, rounded up to a power of two, if that is less."""
    users = look(best)
    enough = 1 << max(0, math.ceil(math.log2(max(1, users))))
    if enough >= best.max_num_seqs:
        return best
    fewer = replace(best, max_num_seqs=enough)
    return fewer if look(fewer) >= users else best


def with_confidence(bench: Bench, found: Found, draws: int, wanted: float) -> list[Tried]:
    """The most sessions a replica carries in a share `wanted` of the draws, by bisection from the
    most at the central values down.

    All that was tried with every draw, fewest sessions first; empty when not even one session is
    carried. A number of sessions is given up as soon as the draws left cannot make it.
    """
    tried: dict[int, Tried] = {}
    low, high = 0, max(1, found.users) + 1
    while high - low > max(1, low // 20):
        users = (
            min(high - 1, max(low + 1, round(high * _STEP_DOWN)))
            if not low
            else ((low + high) // 2)
        )
        whole = bench.confident(found.best, users, draws, wanted)
        said = "not enough"
        if whole is not None:
            tried[users] = whole
            said = f"{whole.p_meets:.2f}"
        bench.progress(f"{describe(found.best)}: {users} sessions a replica, P(meets) {said}")
        if whole is not None and whole.p_meets >= wanted:
            low = users
        else:
            high = users
    return [tried[users] for users in sorted(tried)]


def replicas_for(sessions: int, users: int) -> int:
    return math.ceil(sessions / users)


def describe(setting: Setting) -> str:
    """A setting in a line."""
    return (
        f"{setting.hardware.name} seqs {setting.max_num_seqs} budget"
        f" {setting.max_num_batched_tokens} threshold {setting.long_prefill_token_threshold}"
        f" {setting.routing}"
    )


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, and the middle 90 % of the draws."""
    median, low, high = np.quantile(values, [0.5, 0.05, 0.95]).tolist()
    return median, low, high
