"""Runs on Kubernetes: what a load pod starts, what starts the pods."""
