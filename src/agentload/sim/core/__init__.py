"""vLLM V1's scheduler as a deterministic model: no clock, no I/O, standard library only."""

from agentload.sim.core.blocks import Node
from agentload.sim.core.config import ConfigError, EngineConfig
from agentload.sim.core.cost import StepCost
from agentload.sim.core.engine import Engine
from agentload.sim.core.frontend import Frontend
from agentload.sim.core.histogram import Histogram
from agentload.sim.core.offline import Offline, Replica, Turn, TurnResult
from agentload.sim.core.request import Request
from agentload.sim.core.step import Counters

__all__ = [
    "ConfigError",
    "Counters",
    "Engine",
    "EngineConfig",
    "Frontend",
    "Histogram",
    "Node",
    "Offline",
    "Replica",
    "Request",
    "StepCost",
    "Turn",
    "TurnResult",
]
