"""Whether sessions get to their last turn within a run.

Where they do not, late turns with long contexts come from the fastest sessions only, and the
figures are those of shorter contexts than were planned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from agentload.scenario import Scenario
from agentload.workload.plan import SessionPlan, plan_session
from agentload.workload.session import Session

SESSIONS = 5
MOST_TURNS = 500
TTFT_S = 1.0
TOKENS_PER_S = 40.0


def sessions_end(scenario: Scenario) -> bool:
    """Whether sessions have a last turn of their own; else they go on until the window is full."""
    return scenario.turns.user_turns_per_session is not None or scenario.trace is not None


def length_warning(plans: Sequence[SessionPlan], run_s: float, pace: float = 1.0) -> str | None:
    """A sentence when the median session takes longer than the run; None when it does not.

    Assumes a TTFT of 1 s and 40 tokens/s, at `pace` times real time. A plan that was cut short
    counts with the turns it has.
    """
    session_s = median(plan.duration_s(TTFT_S / pace, TOKENS_PER_S * pace) for plan in plans)
    return too_short(session_s, run_s)


def too_short(session_s: float, run_s: float) -> str | None:
    """The same, with the seconds known."""
    if session_s <= run_s:
        return None
    return (
        f"the run is shorter ({run_s:.0f} s) than a session is likely to be ({session_s:.0f} s):"
        " most sessions will not reach their last turn"
    )


def planned_warning(
    scenario: Scenario, make: Callable[[int], Session], run_s: float | None, pace: float = 1.0
) -> str | None:
    """`length_warning` of the run's first sessions; None for sessions or runs without an end."""
    if run_s is None or not sessions_end(scenario):
        return None
    after_s = scenario.stop.after_s
    run_s = run_s if after_s is None else min(run_s, after_s)
    plans = [plan_session(make(index), MOST_TURNS) for index in range(SESSIONS)]
    return length_warning(plans, run_s, pace)
