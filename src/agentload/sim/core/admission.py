"""Requests that an engine can never run are refused before they are queued."""

from agentload.sim.core.blocks import UNLIMITED
from agentload.sim.core.config import EngineConfig
from agentload.sim.core.request import Request, State


def prepare(request: Request, config: EngineConfig) -> None:
    """Check a new request and express its path in blocks; output beyond `max_model_len` is cut.

    Raises ValueError with the request's id, the value and what is allowed.
    """
    fault = _fault(request, config)
    if fault:
        raise ValueError(f"request {request.request_id}: {fault}")
    request.capacities = [tokens // config.block_size for tokens in request.capacities]
    request.capacities[-1] = UNLIMITED
    room = config.max_model_len - request.prompt_tokens
    request.output_tokens = min(request.output_tokens, room)


def _fault(request: Request, config: EngineConfig) -> str:
    if request.state is not State.NEW or request in request.nodes[0].users:
        return "already added"
    size = config.block_size
    for tokens in request.capacities[:-1]:
        if tokens % size:
            return f"a path entry of {tokens} tokens does not cover whole blocks of {size}"
    if request.prompt_tokens >= config.max_model_len:
        return (
            f"{request.prompt_tokens} prompt tokens leave no room for output below "
            f"max_model_len={config.max_model_len}"
        )
    longest = min(request.prompt_tokens + request.output_tokens, config.max_model_len)
    if longest > config.usable_blocks * size:
        return f"{longest} tokens never fit in {config.usable_blocks} blocks of {size}"
    return ""
