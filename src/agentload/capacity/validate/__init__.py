"""The model against what was measured."""
