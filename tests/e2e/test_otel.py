"""Locust's `--otel` with the suite's users: the spans that a receiver of OTLP over HTTP gets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.e2e.locust_process import Bench, RunFolder
from tests.e2e.sim_process import MODEL, Sim

pytestmark = pytest.mark.slow
STAGES = "stages=[{name: high, duration_s: 3, users: 4}]"
KEY = "canary-otel-5d1e"


class Receiver:
    """Keeps what is posted to /v1/traces."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        kept = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                kept.append(self.rfile.read(int(self.headers["Content-Length"])))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def spans(self) -> list[Any]:
        return [
            span
            for body in self.bodies
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()


@dataclass(frozen=True)
class Traced:
    folder: RunFolder
    spans: dict[str, Any]  # by request id
    bodies: bytes
    port: int  # of the target

    def pairs(self) -> Iterator[tuple[dict[str, str], Any, dict[str, Any]]]:
        """Row, span, attributes of each turn."""
        for row in self.folder.rows():
            span = self.spans[row["request_id"]]
            yield row, span, attributes(span)


def attributes(span: Any) -> dict[str, Any]:
    found = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = [v.string_value for v in value.values] if kind == "array_value" else value
    return found


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    """A run of two worker processes, with now and then a failed turn."""
    folder, receiver = tmp_path_factory.mktemp("otel"), Receiver()
    fault = ("--fault", "status:code=500,every=9")
    with Sim("--enable-prompt-tokens-details", *fault, log=folder / "requests.jsonl") as sim:
        bench = Bench(folder, f"http://127.0.0.1:{sim.port}")
        env = {
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{receiver.port}",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_LOGS_EXPORTER": "none",
            "NO_PROXY": "127.0.0.1",
            "OPENAI_API_KEY": KEY,
        }
        try:
            run = ("--headless", "--otel", "--processes", "2", "--stop-timeout", "10")
            locust = bench.owner(*run, "--set", STAGES, env=env)
            locust.wait()
            assert "OpenTelemetry enabled" in locust.output
            spans = [s for s in receiver.spans() if "agentload.request_id" in attributes(s)]
            found = {attributes(s)["agentload.request_id"]: s for s in spans}
            assert len(found) == len(spans)
            yield Traced(bench.folder(), found, b"".join(receiver.bodies), sim.port)
        finally:
            bench.close()
            receiver.close()


def test_every_recorded_turn_has_its_span(traced: Traced) -> None:
    rows = traced.folder.rows()
    assert len(rows) > 20
    assert set(traced.spans) == {row["request_id"] for row in rows}
    assert {row["worker_id"] for row in rows} == {"w0", "w1"}
    assert len({span.trace_id for span in traced.spans.values()}) == len(rows)


def test_a_span_says_what_the_row_says_under_the_names_of_the_conventions(traced: Traced) -> None:
    for row, span, given in traced.pairs():
        assert span.name == f"chat {MODEL}"
        assert given["gen_ai.operation.name"] == "chat"
        assert given["gen_ai.request.model"] == MODEL
        assert given["server.address"] == "127.0.0.1"
        assert given["server.port"] == traced.port
        assert given["agentload.session_id"] == row["session_id"]
        assert given["agentload.turn_index"] == int(row["turn_index"])
        assert given["agentload.turn_class"] == row["turn_class"]
        for name, column in (
            ("gen_ai.usage.input_tokens", "prompt_tokens"),
            ("gen_ai.usage.cache_read.input_tokens", "cached_tokens"),
            ("gen_ai.usage.output_tokens", "output_tokens"),
            ("gen_ai.response.time_to_first_chunk", "ttft_s"),
        ):
            if row[column] == "":
                assert name not in given
            else:
                assert given[name] == pytest.approx(float(row[column]), abs=1e-6)


def test_a_span_has_the_instants_of_the_turn(traced: Traced) -> None:
    wall_s = traced.folder.manifest["wall_start_unix_s"]
    for row, span, _ in traced.pairs():
        assert span.start_time_unix_nano / 1e9 - wall_s == pytest.approx(
            float(row["send_start_s"]), abs=1e-5
        )
        assert span.end_time_unix_nano / 1e9 - wall_s == pytest.approx(
            float(row["end_s"]), abs=1e-5
        )
        if row["first_chunk_s"]:
            (event,) = span.events
            assert event.time_unix_nano / 1e9 - wall_s == pytest.approx(
                float(row["first_chunk_s"]), abs=1e-5
            )


def test_a_failed_turn_is_an_error_with_its_class(traced: Traced) -> None:
    failed = [(row, span, given) for row, span, given in traced.pairs() if row["status"] == "error"]
    assert failed
    for row, span, given in failed:
        assert given["error.type"] == row["error_class"] == "http_500"
        assert given["http.response.status_code"] == 500
        assert span.status.code == 2


def test_no_key_leaves_with_the_spans(traced: Traced) -> None:
    assert KEY.encode() not in traced.bodies
