"""https with kernel stamps: the hub reads the raw socket, TLS is undone in memory."""

import ssl
from pathlib import Path

import pytest
import trustme

from tests.e2e.client.driving import Driver, gaps_s
from tests.e2e.client.fake_server import DONE, FINISH, SSE_HEAD, FakeServer, Request, event, stream

pytestmark = pytest.mark.slow

Made = tuple[ssl.SSLContext, Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A server's context for 127.0.0.1, and the authority it is signed by."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    file = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    return context, file


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_stream_over_tls_has_kernel_stamps(
    driver: Driver, made: Made, version: ssl.TLSVersion
) -> None:
    context, authority = made
    context.minimum_version = context.maximum_version = version
    with FakeServer(lambda request: stream(request, 8, 0.1, 0.03), tls=context) as server:
        results = driver.run(server.url, [{"chars": 400_000}, {}], ca_file=authority)
    for result in results:
        assert (result["error_class"], result["stamp_source"]) == (None, "kernel")
        assert len(result["chunk_ns"]) == 8
        assert all(gap >= 0.029 for gap in gaps_s(result))
        assert not any(result["merged"])
    assert len(server.requests[0].body) > 400_000
    assert server.connections == 1
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_3


def test_a_certificate_nobody_trusts(driver: Driver, made: Made) -> None:
    with FakeServer(lambda request: stream(request, 1), tls=made[0]) as server:
        [result] = driver.run(server.url)
    assert result["error_class"] == "tls_error"
    assert "certificate" in result["error_text"] or "verify" in result["error_text"].lower()


def test_another_hosts_certificate(driver: Driver, made: Made) -> None:
    with FakeServer(lambda request: stream(request, 1), tls=made[0]) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        [result] = driver.run(url, ca_file=made[1])
    assert result["error_class"] == "tls_error"


def test_http_spoken_to_a_tls_port_and_the_other_way_round(driver: Driver, made: Made) -> None:
    with FakeServer(lambda request: stream(request, 1), tls=made[0]) as server:
        [plain] = driver.run(server.url.replace("https", "http"))
    with FakeServer(lambda request: stream(request, 1)) as server:
        [secure] = driver.run(server.url.replace("http", "https"), connect_timeout_s=2)
    assert plain["error_class"] in ("connection_reset", "not_a_stream")
    assert secure["error_class"] in ("tls_error", "timeout_connect")


def test_a_ca_file_that_is_none(driver: Driver, tmp_path: Path) -> None:
    [result] = driver.run("https://127.0.0.1:9", ca_file=tmp_path / "none.pem")
    assert result["error_class"] == "tls_error"
    assert "none.pem" in result["error_text"]


def test_a_cut_without_close_notify(driver: Driver, made: Made) -> None:
    def handle(request: Request) -> None:
        request.wire.send(SSE_HEAD)
        request.wire.chunk(event("a"))
        request.wire.reset()

    with FakeServer(handle, tls=made[0]) as server:
        [result] = driver.run(server.url, ca_file=made[1])
    assert result["error_class"] in ("connection_reset", "stream_cut")


def test_a_close_notify_ends_a_body_without_length(driver: Driver, made: Made) -> None:
    def handle(request: Request) -> None:
        request.wire.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
        request.wire.send(event("a") + FINISH + DONE)
        request.wire.sock.unwrap()  # type: ignore[attr-defined]
        request.wire.close()

    with FakeServer(handle, tls=made[0]) as server:
        [result] = driver.run(server.url, ca_file=made[1])
    assert result["error_class"] is None
