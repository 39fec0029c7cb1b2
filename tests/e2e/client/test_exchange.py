"""The client against a server that misbehaves: one class for each failure, nothing raised."""

import gzip
import itertools
import socket
import threading
from collections.abc import Callable

import pytest

from tests.e2e.client.driving import Driver, gaps_s, seconds
from tests.e2e.client.fake_server import (
    DONE,
    FINISH,
    SSE_HEAD,
    FakeServer,
    Request,
    Schedule,
    event,
    stream,
)

pytestmark = pytest.mark.slow

WHOLE = event("a") + event("b") + FINISH + DONE
Handler = Callable[[Request], None]


def raw(*parts: bytes, close: bool = True) -> Handler:
    """Sends these bytes for every request, each on its own."""

    def handle(request: Request) -> None:
        schedule = Schedule()
        for number, part in enumerate(parts, 1):
            request.wire.send(part)
            schedule.wait(number * 0.02)
        if close:
            request.wire.close()

    return handle


def answer(status: int, body: bytes, **headers: str) -> Handler:
    return lambda request: request.wire.answer(status, body, headers)


def reset_at_once(request: Request) -> None:
    request.wire.reset()


def reset_midway(request: Request) -> None:
    request.wire.send(SSE_HEAD)
    request.wire.chunk(event("a"))
    Schedule().wait(0.05)
    request.wire.reset()


def silent(request: Request) -> None:
    request.wire.sock.settimeout(5)
    request.wire.sock.recv(1)


def silent_after_a_token(request: Request) -> None:
    request.wire.send(SSE_HEAD)
    request.wire.chunk(event("a"))
    silent(request)


def comments_only(request: Request) -> None:
    request.wire.send(SSE_HEAD)
    schedule = Schedule()
    for number in range(40):
        schedule.wait(number * 0.05)
        request.wire.chunk(b": ping\n\n")


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (raw(HEAD + b"\r\n" + WHOLE), None),  # the close is the end
        (raw(HEAD + b"content-length: %d\r\n\r\n" % len(WHOLE) + WHOLE), None),
        (raw(HEAD + b"\r\n", event("a"), FINISH), None),  # no [DONE], a finish and a clean close
        (raw(HEAD + b"\r\n", event("a")), "stream_cut"),
        (raw(HEAD + b"content-length: 9999\r\n\r\n" + event("a") + FINISH), "stream_cut"),
        (raw(SSE_HEAD, b"5\r\ndata:\r\n"), "stream_cut"),
        (raw(SSE_HEAD, b"zz\r\n"), "stream_cut"),
        (raw(b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"\r\n" + WHOLE), None),
        (raw(b"SSH-2.0-OpenSSH_9.6\r\n"), "not_a_stream"),
        (raw(), "connection_reset"),
        (reset_at_once, "connection_reset"),
        (reset_midway, "connection_reset"),
        (silent, "timeout_first_token"),
        (comments_only, "timeout_first_token"),
        (silent_after_a_token, "timeout_read"),
        (answer(200, b'{"choices":[]}', **{"content-type": "application/json"}), "not_a_stream"),
        (answer(200, b"<html>", **{"content-type": "text/html"}), "not_a_stream"),
        (answer(200, WHOLE, **{"content-type": "text/plain"}), None),
        (answer(200, b"x", **{"content-encoding": "br"}), "not_a_stream"),
        (answer(200, b"data: {}\n\ndata: [DONE]\n\n"), "empty_response"),
        (answer(200, b"data: oops\n\ndata: [DONE]\n\n"), "bad_event"),
        (answer(401, b'{"error":"Unauthorized"}'), "auth"),
        (answer(403, b"no"), "auth"),
        (answer(404, b"<html>not here</html>"), "http_404"),
        (answer(400, b'{"error":{"message":"maximum context length is 9"}}'), "context_overflow"),
        (answer(500, b"\xff\xfe"), "http_500"),
        (answer(302, b"", location="http://127.0.0.1:1/"), "http_302"),
        (raw(b"HTTP/1.1 204 X\r\n\r\n"), "http_204"),
        (answer(206, b""), "http_206"),
        (answer(202, WHOLE, **{"content-type": "text/event-stream"}), None),
        (raw(b"HTTP/1.1 101 X\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n?"), "not_a_stream"),
        (raw(b"HTTP/1.1 200 X\r\nx: \0\r\n\r\n" + WHOLE), "not_a_stream"),
        (raw(b"HTTP/1.1 429 X\r\ncontent-length: 99\r\n\r\ncut"), "rate_limited"),
        (answer(503, b"x", **{"content-encoding": "br"}), "http_503"),
        (raw(HEAD + b"content-encoding: gzip\r\n\r\nnone at all"), "stream_cut"),
        (
            answer(400, gzip.compress(b"maximum context length"), **{"content-encoding": "gzip"}),
            "context_overflow",
        ),
        (answer(200, b'{"error":{"message":"slow down","code":429}}'), "rate_limited"),
        (answer(200, b"data: " + b"[" * 99_999 + b"\n\n" + WHOLE), "bad_event"),
    ],
)
def test_each_answer_has_one_class(driver: Driver, handler: Handler, expected: str | None) -> None:
    limits = {"first_token_timeout_s": 0.6, "between_chunks_timeout_s": 0.3}
    with FakeServer(handler) as server:
        [result] = driver.run(server.url, **limits)
        assert server.connections == 1
    assert result["error_class"] == expected
    assert result["status"] == ("error" if expected else "success")
    assert (result["error_text"] is None) is (expected is None)
    assert result["end_ns"] >= result["send_start_ns"]


def test_gzip_and_trailers(driver: Driver) -> None:
    packed = gzip.compress(WHOLE)

    def handle(request: Request) -> None:
        assert request.headers["accept-encoding"] == "identity"
        request.wire.send(SSE_HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n"))
        for start in range(0, len(packed), 9):
            request.wire.chunk(packed[start : start + 9])
        request.wire.send(b"0\r\nx-served-by: trailer\r\n\r\n")

    with FakeServer(handle) as server:
        [result] = driver.run(server.url)
    assert (result["status"], result["text"]) == ("success", "ab")
    assert result["replica"] is None


def test_a_body_left_open_after_done_ends_soon(driver: Driver) -> None:
    def handle(request: Request) -> None:
        request.wire.send(SSE_HEAD)
        for part in (event("a"), FINISH, DONE):
            request.wire.chunk(part)
        silent(request)

    with FakeServer(handle) as server:
        [result] = driver.run(server.url)
    assert result["status"] == "success"
    assert seconds(result, "end_ns") < 0.5


def test_an_address_of_ipv6(driver: Driver) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with FakeServer(lambda request: stream(request, 2), host="::1") as server:
        [result] = driver.run(server.url)
    assert (result["status"], result["stamp_source"]) == ("success", "kernel")
    assert server.requests[0].headers["host"] == f"[::1]:{server.port}"


def test_nothing_listens(driver: Driver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    [result] = driver.run(f"http://127.0.0.1:{port}")
    assert result["error_class"] == "connect_error"


def test_an_unknown_host(driver: Driver) -> None:
    [result] = driver.run("http://no-such-host.invalid", connect_timeout_s=5)
    assert result["error_class"] in ("dns_error", "timeout_connect")  # a resolver may never answer


def test_a_connection_that_never_opens(driver: Driver) -> None:
    """A full backlog drops the handshake, as a firewall would."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        [result] = driver.run(
            f"http://127.0.0.1:{listener.getsockname()[1]}", connect_timeout_s=0.3
        )
        for filler in fillers:
            filler.close()
    assert result["error_class"] == "timeout_connect"


def test_a_broken_reused_connection_has_its_own_class(driver: Driver) -> None:
    def handle(request: Request) -> None:
        if request.number == 1:
            stream(request, 1)
        else:
            request.wire.reset()

    with FakeServer(handle) as server:
        results = driver.run(server.url, [{}, {}])
    assert [r["error_class"] for r in results] == [None, "connection_reset_on_reuse"]
    assert server.connections == 1


def test_a_page_of_another_server_is_asked_there(driver: Driver) -> None:
    """The connection that is still open to the first server is not taken for the second."""
    with FakeServer(answer(200, b"[1]")) as first, FakeServer(answer(200, b"[2]")) as second:
        urls = [f"{server.url}/x" for server in (first, second, first)]
        assert driver.ask(first.url, "pages", urls=urls) == [[1], [2], [1]]
    assert (first.connections, second.connections) == (1, 1)


def test_a_server_that_refuses_before_it_read_the_body(driver: Driver) -> None:
    with FakeServer(answer(200, b"")) as server:
        early = socket.create_server(("127.0.0.1", 0))
        answered = threading.Event()

        def refuse() -> None:
            sock, _ = early.accept()
            sock.recv(1000)
            sock.sendall(b"HTTP/1.1 413 X\r\ncontent-length: 2\r\n\r\nno")
            answered.wait(10)
            sock.close()

        thread = threading.Thread(target=refuse)
        thread.start()
        url = f"http://127.0.0.1:{early.getsockname()[1]}"
        [result] = driver.run(url, [{"chars": 20_000_000}])
        answered.set()
        thread.join()
        early.close()
        assert server.requests == []
    assert result["error_class"] == "http_413"


@pytest.mark.parametrize("reader", ["tick", "watcher"])
def test_chunks_come_one_by_one(driver: Driver, reader: str) -> None:
    with FakeServer(lambda request: stream(request, 10, 0.1, 0.03)) as server:
        [result] = driver.run(server.url, reader=reader)
    assert len(result["chunk_ns"]) == 10
    assert all(gap >= 0.029 for gap in gaps_s(result))
    assert result["stamp_source"] == "kernel"
    assert not any(result["merged"])
    # On loopback the answer may be stamped before the client knows that it has sent.
    for order in (
        ["call_start_ns", "send_start_ns", "headers_ns", "first_output_ns", "end_ns"],
        ["send_start_ns", "send_end_ns", "first_output_ns"],
    ):
        instants = [result[name] for name in order]
        assert instants == sorted(instants)
    assert seconds(result, "headers_ns") < 0.09 < seconds(result, "first_output_ns")


@pytest.mark.parametrize("reader", ["tick", "watcher"])
def test_gaps_that_a_frozen_client_did_not_see_are_left_out(driver: Driver, reader: str) -> None:
    """The loop stands still for eight gaps; the gaps it calls usable are the true ones."""
    sent_s: list[float] = []

    def handle(request: Request) -> None:
        request.wire.send(SSE_HEAD)
        schedule = Schedule()
        for index in range(30):
            sent_s.append(schedule.wait(0.02 * (index + 1)))
            request.wire.chunk(event(f"t{index}"))
        for part in (FINISH, DONE):
            request.wire.chunk(part)
        request.wire.end()

    with FakeServer(handle) as server:
        turn = {"freeze_at_s": 0.25, "freeze_s": 0.17}
        [result] = driver.run(server.url, [turn], reader=reader)
    true_gaps = [b - a for a, b in itertools.pairwise(sent_s)]
    usable = [not merged for merged in result["merged"][1:]]
    for gap, truth, ok in zip(gaps_s(result), true_gaps, usable, strict=True):
        if ok:
            assert gap == pytest.approx(truth, abs=0.004)
    assert 5 <= usable.count(False) <= 12
    assert result["merged_reads"] >= 1
    assert result["stamp_source"] == "kernel"


def test_what_is_sent(driver: Driver) -> None:
    with FakeServer(lambda request: stream(request, 1)) as server:
        driver.run(
            server.url,
            [{"request_id": "turn-7", "chars": 300_000}],
            api_key="sk-demo-0001",
            extra_headers="X-Gateway: one",
        )
        driver.run(server.url)
    first, second = server.requests
    assert (first.method, first.path) == ("POST", "/v1/chat/completions")
    assert first.headers["x-request-id"] == "turn-7"
    assert first.headers["authorization"] == "Bearer sk-demo-0001"
    assert first.headers["x-gateway"] == "one"
    assert len(first.body) > 300_000
    assert "authorization" not in second.headers


def test_a_killed_turn_keeps_what_came(driver: Driver) -> None:
    with FakeServer(lambda request: stream(request, 50, 0.05, 0.05)) as server:
        [result] = driver.run(server.url, [{"kill_after_s": 0.3}])
    assert (result["status"], result["error_class"]) == ("aborted", "aborted_by_test_end")
    assert 1 <= len(result["chunk_ns"]) <= 6
    assert result["output_tokens"] == len(result["chunk_ns"])


def test_a_human_interrupts(driver: Driver) -> None:
    with FakeServer(lambda request: stream(request, 50, 0.2, 0.05)) as server:
        [result] = driver.run(server.url, [{"cancel_after_first_token_s": 0.18}])
    assert (result["status"], result["error_class"]) == ("aborted", "aborted_by_user")
    assert seconds(result, "end_ns") == pytest.approx(
        seconds(result, "first_output_ns") + 0.18, abs=0.01
    )
    assert 2 <= len(result["chunk_ns"]) <= 4


def test_the_replica_is_read_from_the_headers(driver: Driver) -> None:
    head = SSE_HEAD.replace(b"\r\n\r\n", b"\r\nX-Served-By: pod-3\r\n\r\n")
    with FakeServer(raw(head, b"%x\r\n%b\r\n" % (len(WHOLE), WHOLE), b"0\r\n\r\n")) as server:
        [result] = driver.run(server.url)
    assert result["replica"] == "pod-3"


def test_a_key_is_not_echoed(driver: Driver) -> None:
    def handle(request: Request) -> None:
        request.wire.answer(401, b"no such key: " + request.headers["authorization"].encode())

    with FakeServer(handle) as server:
        [result] = driver.run(server.url, api_key="gw_hush_hush")
    assert result["error_class"] == "auth"
    assert "hush" not in str(result)


def test_a_proxy_of_the_environment_is_used_for_far_hosts() -> None:
    """The proxy is the fake server itself; loopback would never go there."""

    def handle(request: Request) -> None:
        if "x-mute" in request.headers:
            silent(request)
        else:
            stream(request, 3, 0.05, 0.05)

    with FakeServer(handle) as server:
        env = {"http_proxy": f"http://127.0.0.1:{server.port}"}
        with Driver(env) as proxied:
            [result] = proxied.run("http://vllm.test:8000")
            [silent_one] = proxied.run("http://vllm.test:8000", first_token_timeout_s=0.02)
            mute = [{"headers": {"X-Mute": "1"}}]
            [no_head] = proxied.run("http://vllm.test:8000", mute, first_token_timeout_s=0.3)
            [direct] = proxied.run(server.url)
    assert server.requests[0].path == "http://vllm.test:8000/v1/chat/completions"
    assert (result["status"], result["stamp_source"]) == ("success", "user")
    assert len(result["chunk_ns"]) == 3
    assert silent_one["error_class"] == no_head["error_class"] == "timeout_first_token"
    assert (direct["status"], direct["stamp_source"]) == ("success", "kernel")
