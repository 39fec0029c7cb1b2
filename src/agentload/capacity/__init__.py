"""How many sessions a deployment carries: measured, modelled, planned."""
