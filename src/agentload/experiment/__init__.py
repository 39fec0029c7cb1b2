"""Experiments: the arms of one scenario, each cell against a server started for it."""
