"""The locustfile of the installed package, for whoever starts Locust from another folder."""

from agentload.swarm.entry import CodingAgent

__all__ = ["CodingAgent"]
