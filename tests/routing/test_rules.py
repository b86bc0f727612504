"""Each router's rule, by cases small enough to work out by hand."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from kvsim.routing import Decider, prefix_key
from kvsim.routing.dynamo import DynamoKv
from kvsim.routing.llm_d import LlmD
from tests.routing.fleets import decider, request


def events(fleet: Decider, replica: int, uid: int, tokens: int, tier: str = "device") -> None:
    """A replica stored the blocks of a span that begins a prompt."""
    keys = [prefix_key(uid, end) for end in range(16, tokens + 1, 16)]
    fleet.events(replica, keys, [], 0.0, tier)  # type: ignore[arg-type]


def many(
    fleet: Decider, count: int, *spans: tuple[int, int], session: str | None = None
) -> Counter:  # type: ignore[type-arg]
    number = fleet.num_on_the_way
    return Counter(
        fleet.route(request(f"q{number + n}", *spans, session_id=session), 0.0)
        for n in range(count)
    )


def busy(fleet: Decider, replica: int, count: int, tokens: int = 100) -> None:
    """A replica has requests of this router that it did not choose."""
    for number in range(count):
        uid = 10_000 + 100 * fleet.num_on_the_way + number
        fleet.route(request(f"busy{uid}", (uid, tokens), pinned=replica), 0.0)


def test_round_robin_goes_in_turn_and_goes_on_when_one_leaves() -> None:
    fleet = decider("round-robin", 3)
    assert [fleet.route(request(f"r{n}"), 0.0) for n in range(4)] == [0, 1, 2, 0]
    fleet.remove_replica(1, 0.0)
    assert [fleet.route(request(f"s{n}"), 0.0) for n in range(4)] == [0, 2, 0, 2]


def test_random_is_uniform() -> None:
    counts = many(decider("random", 4), 4000)
    assert all(abs(counts[replica] - 1000) < 150 for replica in range(4))


def test_least_requests_takes_the_first_of_equals_or_any() -> None:
    fleet = decider("least-requests", 3)
    busy(fleet, 0, 1)
    assert fleet.route(request("r1"), 0.0) == 1
    anyone = decider("least-requests", 3, {"ties": "random"})
    assert {next(iter(many(anyone, 1))) for _ in range(1)} <= {0, 1, 2}
    chosen = {decider("least-requests", 3, {"ties": "random"}, seed=n).route(request("r"), 0.0)
              for n in range(20)}  # fmt: skip
    assert chosen == {0, 1, 2}


def test_scraped_load_is_waiting_and_running_as_last_seen() -> None:
    fleet = decider("least-requests", 2, {"sees": {"scraped": 1.0}})
    fleet.counts(0, (2, 3, 0.1), 0.0)
    fleet.counts(1, (0, 4, 0.9), 0.0)
    assert many(fleet, 5) == {1: 5}  # between two scrapes all go to the same


def test_power_of_two_takes_the_less_loaded_of_two_different_ones() -> None:
    fleet = decider("power-of-two", 2)
    busy(fleet, 0, 3)
    assert many(fleet, 3) == {1: 3}
    reported = decider("power-of-two", 2, {"sees": {"scraped": 1.0}})
    busy(reported, 1, 3)
    reported.counts(0, (0, 1, 0.8), 0.0)
    assert reported.route(request("r1"), 0.0) == 0  # only one reports: in flight
    reported.counts(1, (0, 1, 0.2), 0.0)
    assert reported.route(request("r2"), 0.0) == 1


def test_sessions_stay_and_few_move_when_a_replica_leaves() -> None:
    fleet = decider("session", 5)
    names = [f"s{n}" for n in range(200)]
    before = [fleet.route(request(f"a{n}", session_id=name), 0.0) for n, name in enumerate(names)]
    fleet.remove_replica(3, 0.0)
    after = [fleet.route(request(f"b{n}", session_id=name), 0.0) for n, name in enumerate(names)]
    assert all(a == b for a, b in zip(before, after, strict=True) if a != 3)
    assert 3 not in after
    assert min(Counter(before).values()) > 15


def test_without_a_session_the_one_with_the_fewest_arrivals_of_the_last_minute() -> None:
    fleet = decider("session", 3)
    assert [fleet.route(request(f"r{n}"), n) for n in range(3)] == [0, 1, 2]  # never seen first
    assert [fleet.route(request(f"s{n}"), 3.0) for n in range(2)] == [0, 1]
    assert fleet.route(request("t"), 62.5) == 2  # those of the first three are a minute ago


def test_a_sticky_session_begins_where_there_is_least() -> None:
    fleet = decider("session", 3, {"method": "sticky"})
    busy(fleet, 0, 2)
    assert many(fleet, 6, session="s") == {1: 6}
    assert fleet.route(request("new", session_id="t"), 0.0) == 2
    fleet.remove_replica(1, 0.0)
    assert many(fleet, 2, session="s") == {2: 2}  # one in flight there, two at replica 0


def test_loads_stay_within_their_bound() -> None:
    fleet = decider("session", 4, {"method": "bounded", "load_factor": 1.25})
    counts = many(fleet, 100, session="hot")
    assert max(counts.values()) <= 1.25 * 100 / 4 + 1
    assert len(many(decider("session", 4), 100, session="hot")) == 1


def test_sglang_prefix_hash_goes_by_the_first_tokens_until_that_is_too_much() -> None:
    fleet = decider("sglang-prefix-hash", 4)
    homes = {fleet.route(request(f"r{n}", (1, 256), (2 + n, 50)), 0.0) for n in range(1)}
    fleet.finished(request("r0"), 0.0)
    again = {
        decider("sglang-prefix-hash", 4).route(request("x", (1, 300), (9, 9)), 0.0)
        for _ in range(3)
    }
    assert again == homes
    assert max(many(fleet, 80, (1, 256)).values()) <= 1.25 * 80 / 4 + 2


def test_sglang_matches_the_text_it_sent_unless_loads_are_far_apart() -> None:
    fleet = decider(
        "sglang-cache-aware", 3, {"balance_abs_threshold": 2, "balance_rel_threshold": 1.5}
    )
    assert fleet.route(request("a", (1, 100)), 0.0) == 0
    assert fleet.route(request("b", (2, 100)), 0.0) == 1  # nothing known: least loaded
    assert fleet.route(request("c", (1, 100), (3, 200)), 0.0) == 0  # 100 of 300 > 0.3
    assert fleet.route(request("d", (1, 60), (4, 200)), 0.0) == 2  # 60 of 260 is not
    assert fleet.route(request("e", (1, 100)), 0.0) == 0
    assert fleet.route(request("f", (1, 100)), 0.0) == 0  # now 4 against 1: out of balance
    assert fleet.route(request("g", (1, 100)), 0.0) == 1


def test_sglang_answers_with_the_creator_and_forgets_who_leaves() -> None:
    fleet = decider("sglang-cache-aware", 2, {"cache_threshold": 0.5})
    fleet.route(request("a", (1, 100)), 0.0)  # replica 0 creates it
    fleet.route(request("b", (1, 100), pinned=1), 0.0)  # a pinned one is not entered
    assert fleet.route(request("c", (1, 100)), 0.0) == 0
    fleet.remove_replica(0, 0.0)
    assert fleet.route(request("d", (1, 100)), 0.0) == 1


def test_sglang_trims_its_tree_to_a_size() -> None:
    setting = {"eviction_interval": 10.0, "max_tree_size": 400, "cache_threshold": 0.5}
    fleet = decider("sglang-cache-aware", 2, setting)
    fleet.route(request("a", (1, 80)), 0.0)
    fleet.finished(request("a"), 0.0)
    for number in range(2, 6):
        name = f"r{number}"
        fleet.route(request(name, (number, 80)), 1.0)
        fleet.finished(request(name), 1.0)
    busy(fleet, 0, 1)
    assert fleet.route(request("b", (1, 80)), 9.0) == 0
    fleet.route(request("c", (6, 80)), 20.0)  # trimmed to 100 tokens: one prompt is left
    busy(fleet, 0, 3)
    assert fleet.route(request("d", (3, 80)), 20.0) == 1


def test_dynamo_adds_prefill_that_is_left_to_decode_blocks() -> None:
    fleet = decider("dynamo-kv", 2)
    router = fleet.router
    assert isinstance(router, DynamoKv)
    events(fleet, 1, 1, 160)
    arriving = request("a", (1, 160), (2, 40))
    view = router.look(arriving, fleet.views, 0.0)
    assert view.costs.tolist() == [12.5 + 12, 2.5 + 12]
    assert fleet.route(arriving, 0.0) == 1
    # There: 40 tokens to prefill and 12 blocks held; a second one shares ten of these.
    second = request("b", (1, 160), (3, 40))
    view = router.look(second, fleet.views, 0.0)
    assert view.prefill_tokens.tolist() == [0, 40]
    assert view.decode_blocks.tolist() == [12, 14]
    assert view.costs.tolist() == [12.5 + 12, 2.5 + 2.5 + 14]
    fleet.first_token(arriving, 1.0)
    assert router.look(second, fleet.views, 1.0).prefill_tokens.tolist() == [0, 0]
    fleet.finished(arriving, 2.0)
    assert router.look(second, fleet.views, 2.0).decode_blocks.tolist() == [12, 12]


def test_dynamo_credits_lower_tiers_less_and_decays_with_what_is_queued() -> None:
    setting = {"overlap_credit_decay": 1.0, "request_weight": 8.0}
    fleet = decider("dynamo-kv", 2, setting)
    router = fleet.router
    assert isinstance(router, DynamoKv)
    events(fleet, 0, 1, 64)
    events(fleet, 0, 1, 160, tier="host")
    busy(fleet, 0, 1, tokens=160)
    arriving = request("a", (1, 160))
    costs = router.look(arriving, fleet.views, 0.0).costs
    device = 4 / (1 + 1.0 * 10 / 10)
    assert costs.tolist() == [20 - device - 0.75 * 6 + 20 + 8, 10 + 10]


def test_dynamo_temperature_spreads_by_softmax() -> None:
    fleet = decider("dynamo-kv", 2, {"temperature": 1.0})
    events(fleet, 1, 1, 1600)
    chosen = Counter()  # type: ignore[var-annotated]
    for number in range(2000):
        arriving = request(f"r{number}", (1, 1600))
        chosen[fleet.route(arriving, 0.0)] += 1
        fleet.finished(arriving, 0.0)
    assert chosen[0] / 2000 == pytest.approx(np.exp(-1) / (1 + np.exp(-1)), abs=0.03)


def test_dynamo_predicts_what_it_sent_for_a_while() -> None:
    for setting, again in (({}, {0, 1}), ({"predicted_ttl": 5.0}, {0})):
        second = set()
        for seed in range(12):
            fleet = decider("dynamo-kv", 2, {**setting, "request_weight": 0.0}, seed=seed)
            first = request("a", (1, 320), pinned=0)
            fleet.route(first, 0.0)
            fleet.finished(first, 0.0)  # done, and no event has come yet
            second.add(fleet.route(request("b", (1, 320)), 1.0))
        assert second == again


def test_dynamo_holds_requests_back_while_all_have_too_much_to_prefill() -> None:
    setting = {"queue_threshold": 0.5, "queue_policy": "wspt"}
    fleet = decider("dynamo-kv", 1, setting, max_num_batched_tokens=100)
    first = request("a", (1, 100))
    assert fleet.route(first, 0.0) == 0
    assert fleet.route(request("b", (2, 90)), 0.1) is None
    assert fleet.route(request("c", (3, 70)), 0.2) is None
    assert fleet.release(0.3) == []
    fleet.first_token(first, 1.0)
    assert [(which.request_id, replica) for which, replica in fleet.release(1.0)] == [("c", 0)]
    assert [which.request_id for which in fleet.held] == ["b"]


def test_dynamo_in_split_fleets() -> None:
    prefill = decider("dynamo-kv", 2, {"role": "prefill"}).router
    decode = decider("dynamo-kv", 2, {"role": "decode"}).router
    fleet = decider("dynamo-kv", 2)
    arriving = request("a", (1, 160))
    assert isinstance(prefill, DynamoKv)
    assert isinstance(decode, DynamoKv)
    for router in (prefill, decode):
        assert router.look(arriving, fleet.views, 0.0).costs.tolist() == [10.0, 10.0]


def test_production_stack_takes_any_of_the_longest_match() -> None:
    fleet = decider("production-stack", 4, {"logic": "prefix-aware"})
    home = fleet.route(request("a", (1, 320)), 0.0)
    assert many(fleet, 20, (1, 320), (2, 64)) == {home: 20}
    assert len(many(fleet, 40, (3, 31))) > 1  # shorter than a chunk: no match is a match of 0
    aware = decider("production-stack", 2, {"logic": "load-aware"})
    busy(aware, 0, 4)
    assert aware.route(request("b", (1, 320)), 0.0) == 1
    assert aware.route(request("c", (1, 320)), 0.0) == 1  # all of it matched, 1 against 4


@pytest.mark.parametrize(
    ("weights", "counts", "chosen"),
    [
        ({"queue": 1}, [(3, 0, 0.0), (2, 9, 0.9), (5, 0, 0.0)], 1),
        ({"kv-utilization": 1}, [(0, 0, 0.5), (9, 9, 0.2), (0, 0, 0.3)], 1),
        ({"load-aware": 1}, [(200, 0, 0.0), (100, 0, 0.9), (128, 0, 0.0)], 1),
        # One waiting request is worth the whole weight of the queue: 2 against 2 * 0.9.
        ({"queue": 2, "kv-utilization": 2}, [(1, 0, 0.0), (0, 0, 0.9), (1, 0, 0.0)], 1),
        ({"queue": 1, "kv-utilization": 2}, [(1, 0, 0.0), (0, 0, 0.9), (1, 0, 0.4)], 0),
    ],
)
def test_llm_d_scores_what_was_scraped(
    weights: dict[str, float], counts: list[tuple[int, int, float]], chosen: int
) -> None:
    fleet = decider("llm-d", 3, {"weights": weights})
    for replica, values in enumerate(counts):
        fleet.counts(replica, values, 0.0)
    assert fleet.route(request("a"), 0.0) == chosen


def test_llm_d_scores_its_own_load() -> None:
    fleet = decider("llm-d", 2, {"weights": {"active-request": 1}})
    busy(fleet, 0, 2)
    assert many(fleet, 2) == {1: 2}
    tokens = decider("llm-d", 2, {"weights": {"token-load": 1}})
    busy(tokens, 0, 1, tokens=5000)
    busy(tokens, 1, 3, tokens=100)
    assert many(tokens, 4, (9, 500))[1] == 4
    cold = decider("llm-d", 3, {"weights": {"no-hit-lru": 1}})
    assert [cold.route(request(f"r{n}", (n + 1, 640)), 0.0) for n in range(6)] == [0, 1, 2] * 2


def test_llm_d_knows_prefixes_by_decision_or_by_events() -> None:
    approximate = decider("llm-d", 4, {"weights": {"prefix": 1}})
    home = approximate.route(request("a", (1, 640)), 0.0)
    assert many(approximate, 10, (1, 640), (2, 64)) == {home: 10}
    precise = decider("llm-d", 4, {"weights": {"prefix": 1}, "sees": {"events": 0.0}})
    assert len(many(precise, 40, (1, 640))) == 4  # what was sent there counts for nothing
    events(precise, 3, 1, 320)
    events(precise, 2, 1, 480, tier="host")  # 30 blocks at 0.8 against 20
    assert many(precise, 5, (1, 640)) == {2: 5}


def test_llm_d_forgets_blocks_beyond_the_pool_of_a_replica() -> None:
    fleet = decider("llm-d", 2, {"weights": {"prefix": 1}}, num_blocks=10)
    fleet.route(request("a", (1, 640), pinned=0), 0.0)
    fleet.route(request("b", (2, 320), pinned=0), 0.0)
    router = fleet.router
    assert isinstance(router, LlmD)
    shares = [router.index.share(request("c", (uid, 640)), fleet.views, 0.0) for uid in (1, 2)]
    assert [share.tolist() for share in shares] == [[0.5, 0.0], [0.5, 0.0]]


def test_sticky_stays_until_another_is_much_sooner_done() -> None:
    fleet = decider("sticky-until-saturated", 2, {"slack": 1.0, "tokens_per_s": 1000.0})
    home = fleet.route(request("a", (1, 640)), 0.0)
    assert home is not None
    fleet.first_token(request("a"), 0.0)
    busy(fleet, home, 1, tokens=900)
    assert fleet.route(request("b", (1, 640)), 0.0) == home  # 0.9 s behind
    busy(fleet, home, 1, tokens=900)
    assert fleet.route(request("c", (1, 640)), 0.0) != home  # 1.8 s


def test_aibrix_goes_by_the_match_unless_the_load_stands_out() -> None:
    fleet = decider("aibrix-prefix", 3)
    home = fleet.route(request("a", (1, 100)), 0.0)
    assert home is not None
    fleet.finished(request("a"), 0.0)
    assert fleet.route(request("b", (1, 100)), 0.0) == home
    assert fleet.route(request("c", (1, 100)), 0.0) != home  # over the mean by one deviation
    for other in {0, 1, 2} - {home}:
        busy(fleet, other, 10)
    assert fleet.route(request("d", (7, 100)), 0.0) == home  # more than eight apart


def test_the_oracle_takes_the_longest_hit_then_the_fewest_requests() -> None:
    held = {0: 10, 1: 50, 2: 50}
    fleet = decider("oracle", 3, cached_tokens=lambda request, replica: held[replica])
    busy(fleet, 1, 1)
    assert fleet.route(request("a"), 0.0) == 2
    weighing = decider(
        "oracle", 3, {"prefill_weight": 1.0}, cached_tokens=lambda request, replica: held[replica]
    )
    busy(weighing, 1, 1)
    busy(weighing, 2, 1)
    assert weighing.route(request("b"), 0.0) == 0  # 10 against 50 - 100
