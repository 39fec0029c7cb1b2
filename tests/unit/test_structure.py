"""The rules of the layout: who may import what, and who may read the time."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOAD_SIDE = {"locust", "gevent", "geventhttpclient", "openai", "httpx", "httpx2"}
PURE = [
    "src/agentload/scenario",
    "src/agentload/workload",
    "src/agentload/client/sse.py",
    "src/agentload/client/body.py",
    "src/agentload/client/result.py",
    "src/agentload/client/chunking.py",
    "src/agentload/recording/record.py",
    "src/agentload/recording/shard.py",
    "src/agentload/recording/merge.py",
    "src/agentload/recording/merge_command.py",
    "src/agentload/recording/merge_folder.py",
    "src/agentload/recording/merge_given.py",
    "src/agentload/recording/merge_manifest.py",
    "src/agentload/recording/merge_rows.py",
    "src/agentload/turn_metrics.py",
    "src/agentload/live",
    "src/agentload/sim",
    "src/agentload/experiment",
    "src/agentload/kubernetes",
    "src/agentload/capacity/cost",
    "src/agentload/capacity/fit",
    "src/agentload/capacity/plan",
    "src/agentload/capacity/validate",
    "src/agentload/capacity/paths.py",
    "src/agentload/capacity/calibrate/delays.py",
    *(
        f"src/agentload/capacity/calibrate/{name}.py"
        for name in ("probes", "chunk_probes", "step_probes", "gathered", "course", "held_out")
    ),
    "analysis",
]
STANDARD_LIBRARY_ONLY = "src/agentload/sim/core"


def modules(*places: str) -> list[Path]:
    found: list[Path] = []
    for place in places:
        path = ROOT / place
        assert path.exists(), f"{place} moved: mend this rule"
        found += [path] if path.suffix == ".py" else sorted(path.rglob("*.py"))
    return found


def imported_roots(path: Path) -> set[str]:
    roots: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            roots.add(node.module.split(".")[0])
    return roots


@pytest.mark.parametrize("path", modules(*PURE), ids=lambda p: str(p.relative_to(ROOT)))
def test_right_of_the_cut_nothing_imports_the_load_engine(path: Path) -> None:
    assert imported_roots(path) & LOAD_SIDE == set()


@pytest.mark.parametrize(
    "path", modules(STANDARD_LIBRARY_ONLY), ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_scheduler_model_needs_the_standard_library_only(path: Path) -> None:
    import sys

    assert imported_roots(path) - set(sys.stdlib_module_names) - {"agentload"} == set()


CLOCK_READS = {"time", "monotonic", "monotonic_ns", "time_ns", "perf_counter", "perf_counter_ns"}


def clock_reads(path: Path) -> list[str]:
    """Calls such as `time.monotonic()`, or names of the time module imported one by one."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Attribute)
            and node.attr in CLOCK_READS | {"clock_gettime_ns", "clock_gettime"}
            and isinstance(node.value, ast.Name)
            and node.value.id in {"time", "_time"}
        ):
            found.append(f"{path.relative_to(ROOT)}:{node.lineno} time.{node.attr}")
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            names = [alias.name for alias in node.names if alias.name in CLOCK_READS]
            found += [f"{path.relative_to(ROOT)}:{node.lineno} from time import {n}" for n in names]
    return found


def test_only_the_clock_reads_the_time() -> None:
    sources = [p for p in modules("src", "analysis") if p.name != "clock.py"]
    assert [read for path in sources for read in clock_reads(path)] == []


def test_the_clock_rule_sees_a_read() -> None:
    assert len(clock_reads(ROOT / "src/agentload/clock.py")) >= 4


def test_no_module_is_too_long() -> None:
    lengths = {p: len(p.read_text("utf-8").splitlines()) for p in modules("src", "analysis")}
    assert {p.name: n for p, n in lengths.items() if n > 400} == {}


def test_locustfiles_only_wire() -> None:
    for path in modules("locustfiles"):
        assert len(path.read_text("utf-8").splitlines()) <= 40
        own = {r for r in imported_roots(path) if r == "agentload"}
        assert own == {"agentload"}
