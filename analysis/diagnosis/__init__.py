"""Named findings with their evidence."""

from __future__ import annotations

from analysis.diagnosis.between_tokens import RULES as BETWEEN_TOKENS
from analysis.diagnosis.cache import RULES as CACHE
from analysis.diagnosis.first_token import RULES as FIRST_TOKEN
from analysis.diagnosis.validity import RULES as VALIDITY
from analysis.finding import Finding
from analysis.results import Results

RULES = (*VALIDITY, *CACHE, *FIRST_TOKEN, *BETWEEN_TOKENS)


def diagnose(results: Results) -> list[Finding]:
    """Findings of every arm, what makes numbers unusable first, then problems before hints."""
    found = [f for arm in results.arms for rule in RULES if (f := rule(arm)) is not None]
    return sorted(found, key=lambda f: f.severity != "problem")
