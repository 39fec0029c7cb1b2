"""The model list of a target against the name that is configured."""

from __future__ import annotations

from dataclasses import dataclass

from agentload.client.chunk import count


@dataclass(frozen=True, slots=True)
class ServedModels:
    """The model list of a target against the configured name."""

    served: tuple[str, ...]
    model: str | None  # the name to send; None when the configured one is not served
    suggestion: str | None  # the name that was meant, as far as one can tell
    max_model_len: int | None  # of `model`, else of `suggestion`; None where the server is silent


def compare_models(configured: str | None, page: object) -> ServedModels:
    """Find the configured model in a `/v1/models` page; a page of another shape serves nothing.

    Without a configured name the only model served is meant.
    """
    data = page.get("data") if isinstance(page, dict) else None
    rows = [row for row in data if isinstance(row, dict)] if isinstance(data, list) else []
    lengths = {
        row["id"]: row.get("max_model_len") for row in rows if isinstance(row.get("id"), str)
    }
    served = tuple(lengths)
    suggestion = _suggestion(configured, served)
    model = configured if configured in lengths else None
    if configured is None and len(served) == 1:
        model = served[0]
    name = model or suggestion
    return ServedModels(served, model, suggestion, count(lengths[name]) if name else None)


def _suggestion(configured: str | None, served: tuple[str, ...]) -> str | None:
    if len(served) == 1:
        return served[0]
    wanted = _bare(configured or "")
    alike = [name for name in served if _bare(name) == wanted]
    return alike[0] if len(alike) == 1 else None


def _bare(name: str) -> str:
    return name.rstrip("/").rpartition("/")[2].lower()
