"""GPU memory and use, from what DCGM exporters showed."""

import json
from pathlib import Path

import planted
import pytest

from agentload.recording.record import ScrapeSample
from analysis.gpu import gpu, memory_share, utilisation
from analysis.report.command import main
from analysis.server import Scrape, scrape_of


def sample(time_s: float, metric: str, value: float, which: int = 0) -> ScrapeSample:
    return ScrapeSample(time_s, "http://g:9400/metrics", metric, f'{{"gpu":"{which}"}}', value)


def two_gpus() -> list[ScrapeSample]:
    rows = []
    for time_s, used, busy in ((10.0, 40_960, 50), (11.0, 61_440, 100), (12.0, 61_440, 90)):
        rows += [
            sample(time_s, "DCGM_FI_DEV_FB_USED", used),
            sample(time_s, "DCGM_FI_DEV_FB_USED", 20_480, 1),
            sample(time_s, "DCGM_FI_DEV_FB_FREE", 81_920 - used),
            sample(time_s, "DCGM_FI_DEV_FB_FREE", 61_440, 1),
            sample(time_s, "DCGM_FI_DEV_GPU_UTIL", busy),
            sample(time_s, "DCGM_FI_DEV_GPU_UTIL", 10, 1),
        ]
    return rows


def test_memory_is_added_and_use_is_averaged_over_gpus() -> None:
    found = gpu(scrape_of(two_gpus()))
    assert found is not None
    assert found.gpus == 2
    # 60 GiB, then 80, 80 of the 160 that both have
    assert found.memory_used_mib_max == 81_920
    assert found.memory_used_mib_mean == pytest.approx((61_440 + 2 * 81_920) / 3)
    assert found.memory_share_max == 0.5
    # means over both: 0.30, 0.55, 0.50
    assert found.utilisation_mean == pytest.approx(0.45)
    assert found.utilisation_max == pytest.approx(0.55)
    assert found.utilisation_least == pytest.approx(0.10)


def test_what_is_not_exported_is_not_measured() -> None:
    assert gpu(Scrape()) is None
    only_used = scrape_of([sample(1.0, "DCGM_FI_DEV_FB_USED", 100.0)])
    found = gpu(only_used)
    assert found is not None
    assert (found.memory_used_mib_max, found.memory_share_max) == (100.0, None)
    assert (found.utilisation_mean, found.utilisation_least) == (None, None)
    assert memory_share(only_used) is None
    assert utilisation(only_used) is None


def test_a_part_of_a_gpu_tells_its_use_as_a_share() -> None:
    found = gpu(scrape_of([sample(1.0, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", 0.4)]))
    assert found is not None
    assert (found.gpus, found.utilisation_mean) == (1, 0.4)


def test_a_gpu_that_is_missing_from_a_page_holds_its_last_value() -> None:
    rows = [r for r in two_gpus() if not (r.time_s == 11.0 and '"1"' in r.labels)]
    found = gpu(scrape_of(rows))
    assert found is not None
    assert found.memory_used_mib_max == 81_920


@pytest.mark.slow
def test_the_report_shows_the_gpus(tmp_path: Path) -> None:
    rows = [planted.turn("s0", i, start=10.0 + i / 2) for i in range(5)]
    folder = planted.write_run(tmp_path / "run", rows, scrape=two_gpus())
    assert main([str(folder)]) == 0
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    (found,) = summary["arms"][0]["gpu"]
    assert found["memory_used_mib_max"] == 81_920
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "80.0 GiB" in page
    assert "least busy" in page
