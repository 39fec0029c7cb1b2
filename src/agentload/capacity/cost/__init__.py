"""What a step costs, from observations of steps: two forms, a prior, a posterior."""
