"""What the API server added to the first token of each probe."""

from __future__ import annotations

import math

from agentload.capacity.calibrate.gathered import Gathered
from agentload.capacity.calibrate.step_probes import chunks_of
from agentload.capacity.cost.estimate import delays
from agentload.capacity.cost.fit import Fit
from agentload.capacity.cost.form import Observations, cost_of

ENGINE_ERROR = 0.03  # relative, of the engine's part of a TTFT that is taken off


def frontend_delays(found: Gathered, fit: Fit, *, async_scheduling: bool) -> Observations | None:
    """Delays of requests that were alone, and of prompts beside the metronome.

    Alone, the engine starts at once and its steps are taken off. Beside it, a prompt waits for the
    step under way (and with asynchronous scheduling for the one already formed), half a step on
    average; the start of its first step is seen.
    """
    step = cost_of(fit.theta, fit.form).step_s
    chunk = (found.chunking.chunk if found.chunking else None) or 1 << 30
    tokens, seconds, spreads = [], [], []
    for heard, uncached in found.idle:
        done, engine_s = heard.prompt_tokens - uncached, 0.0
        for size in chunks_of(uncached, chunk):
            engine_s += step(size, 0, 0, size * (done + size / 2))
            done += size
        tokens.append(heard.prompt_tokens)
        seconds.append(heard.ttft_s - engine_s)
        spreads.append(math.hypot(2 * found.jitter, ENGINE_ERROR * engine_s))
    for heard, start_s, usual_s in found.beside:
        waited_s = (1.5 if async_scheduling else 0.5) * usual_s
        tokens.append(heard.prompt_tokens)
        seconds.append(start_s - heard.sent_s - waited_s)
        spreads.append(math.hypot(2 * found.jitter, usual_s / math.sqrt(12)))
    return delays(tokens, seconds, spreads) if tokens else None
