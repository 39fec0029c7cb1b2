"""What to run for so many sessions within limits, and how sure that is."""
