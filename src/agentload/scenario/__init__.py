"""Scenario files: strict models with one loader."""

from agentload.scenario.document import Fault, ScenarioError
from agentload.scenario.load import load, parse_override
from agentload.scenario.model import Scenario

__all__ = ["Fault", "Scenario", "ScenarioError", "load", "parse_override"]
