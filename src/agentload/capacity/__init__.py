"""Capacity planning: what steps cost, what to run, and how far a prediction can be trusted."""
