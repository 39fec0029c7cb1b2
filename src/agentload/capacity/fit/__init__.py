"""What steps cost, from finished runs."""
