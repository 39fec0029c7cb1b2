"""Experiments: arms of one scenario, run in interleaved order against servers this package starts."""
