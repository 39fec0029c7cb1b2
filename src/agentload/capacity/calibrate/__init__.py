"""Probes of a server that show what its steps cost."""
