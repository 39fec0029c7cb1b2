"""Load-tests LLM servers the way coding agents use them."""
