"""Sessions on a virtual clock: API server, engine, pauses, routing."""

from collections.abc import Iterator

from agentload.sim.core import EngineConfig, Frontend, Offline, Replica, StepCost, Turn

SECOND = StepCost(1.0, 0.0, 0.0, 0.0, 0.0)


def replica(frontend: Frontend) -> Replica:
    config = EngineConfig(
        max_num_seqs=4, max_num_batched_tokens=2048, num_blocks=1000, async_scheduling=False
    )
    return Replica(config, SECOND, frontend)


def session(name: str, turns: int, think_s: float = 2.0) -> Iterator[Turn]:
    own = 100
    for _ in range(turns):
        yield Turn((("shared", 160), (name, own)), 3, think_s)
        own += 3 + 40


def test_a_turn_waits_for_tokenizer_engine_and_pause() -> None:
    offline = Offline([replica(Frontend(0.5, 0.0))])
    offline.add_session(session("a", 2), 10.0)
    first, second = offline.run()
    assert (first.sent_s, first.engine_s) == (10.0, 10.5)
    assert first.ttft_s == 1.5
    assert first.e2e_s == 3.5
    assert (second.session, second.turn_index, second.sent_s) == (0, 1, 15.5)
    assert second.request.cached_tokens == 256  # 262 tokens were computed: 16 whole blocks


def test_sessions_share_what_they_name_alike() -> None:
    offline = Offline([replica(Frontend(0.0, 0.0))])
    offline.add_session(session("a", 1), 0.0)
    offline.add_session(session("b", 1), 20.0)
    hits = {result.session: result.request.cached_tokens for result in offline.run()}
    assert hits == {0: 0, 1: 160}


def test_tokenization_queues_before_the_engine() -> None:
    offline = Offline([replica(Frontend(0.0, 0.01))])
    for name in ("a", "b"):
        offline.add_session(session(name, 1), 0.0)
    by_session = {result.session: result for result in offline.run()}
    assert by_session[0].engine_s == 2.6
    assert by_session[1].engine_s == 5.2


def test_sessions_stay_on_their_replica_unless_routed() -> None:
    offline = Offline([replica(Frontend(0.0, 0.0)) for _ in range(2)])
    for name in ("a", "b", "c"):
        offline.add_session(session(name, 2), 0.0)
    assert {(r.session, r.replica) for r in offline.run()} == {(0, 0), (1, 1), (2, 0)}

    def warmest(number: int, turn: Turn, replicas: object) -> int:
        del number, replicas
        return max((0, 1), key=lambda i: routed.replicas[i].cached_tokens(turn))

    routed = Offline([replica(Frontend(0.0, 0.0)) for _ in range(2)], warmest)
    routed.add_session(session("a", 3), 0.0)
    routed.add_session(session("b", 3), 30.0)
    assert {r.replica for r in routed.run()} == {0}


def test_run_can_be_taken_up_again() -> None:
    whole, parts = (Offline([replica(Frontend(0.1, 0.001))]) for _ in range(2))
    for offline in (whole, parts):
        for number in range(6):
            offline.add_session(session(f"s{number}", 4, 0.3), 0.7 * number)
    whole.run()
    for until_s in range(0, 100, 3):
        parts.run(float(until_s))
    assert [(r.session, r.ttft_s, r.e2e_s) for r in parts.results] == [
        (r.session, r.ttft_s, r.e2e_s) for r in whole.results
    ]
    assert len(whole.results) == 24
