"""Coding-agent sessions against an OpenAI-compatible server.

    locust -f locustfiles/coding_agents.py --scenario scenarios/steady-append.yaml \
        --host http://127.0.0.1:8000/v1
"""

from agentload.swarm.entry import CodingAgent

__all__ = ["CodingAgent"]
