"""What every router keeps, without being named here."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from kvsim.errors import Problems
from kvsim.routing import (
    Decider,
    NoReplicaError,
    RoutedRequest,
    Router,
    RouterError,
    Sees,
    Surroundings,
    Views,
    check_router,
    description,
    make_router,
    router_class,
    router_names,
)
from tests.routing.fleets import decider, history, request, settings


def _label(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


every_router = pytest.mark.parametrize(("kind", "parameters"), settings(), ids=_label)


@every_router
def test_requests_go_to_replicas_that_take_them_and_all_counts_return_to_nothing(
    kind: str, parameters: dict[str, Any]
) -> None:
    fleet = decider(kind, 4, parameters)
    sent = history(fleet, seed=3)
    assert len({name for name, _ in sent}) == len(sent) > 100
    assert fleet.num_on_the_way == 0
    assert not fleet.views.in_flight.any()
    assert not fleet.views.prefill_tokens.any()


@every_router
def test_same_calls_and_seed_same_answers(kind: str, parameters: dict[str, Any]) -> None:
    first, again = (history(decider(kind, 5, parameters), seed=4) for _ in range(2))
    assert first == again


@every_router
def test_one_replica_works(kind: str, parameters: dict[str, Any]) -> None:
    sent = history(decider(kind, 1, parameters), seed=5, steps=80, changing=False)
    assert {replica for _, replica in sent} == {0}


@every_router
def test_without_any_news_there_is_an_answer_to_every_request(
    kind: str, parameters: dict[str, Any]
) -> None:
    fleet = decider(kind, 3, parameters, cached_tokens=lambda request, replica: 0)
    for number in range(30):
        arriving = request(f"r{number}", (number + 1, 300), session_id=f"s{number}")
        replica = fleet.route(arriving, number * 0.01)
        assert replica in (0, 1, 2) or fleet.held
    assert fleet.num_on_the_way + len(fleet.held) == 30


@every_router
def test_several_processes_decide_by_themselves(kind: str, parameters: dict[str, Any]) -> None:
    alone = history(decider(kind, 3, parameters, seed=1), seed=6, steps=120)
    one, two = (decider(kind, 3, parameters, seed=seed) for seed in (1, 2))
    both = history(one, seed=6, steps=120), history(two, seed=9, steps=120)
    assert both[0] == alone  # whatever the other one does


@every_router
def test_what_it_is_not_shown_changes_nothing(kind: str, parameters: dict[str, Any]) -> None:
    fleet = decider(kind, 4, parameters)
    blind = decider(kind, 4, parameters)
    if not fleet.router.sees.nothing:
        return
    blind.first_token = blind.finished = lambda *_: None  # type: ignore[method-assign]
    blind.counts = blind.events = lambda *_: None  # type: ignore[method-assign,assignment]
    assert history(fleet, seed=7) == history(blind, seed=7)


@pytest.mark.parametrize("kind", router_names())
def test_a_router_says_what_it_is_and_where_it_comes_from(kind: str) -> None:
    router = router_class(kind)
    assert 20 <= len(description(router)) <= 100
    assert len(router.source) > 15
    for name, field in router.Parameters.model_fields.items():
        assert field.description, name


@pytest.mark.parametrize("kind", router_names())
def test_an_unknown_parameter_is_refused_with_the_nearest(kind: str) -> None:
    known = list(router_class(kind).Parameters.model_fields)
    written = f"{known[0]}x" if known else "weight"
    _, problems = check_router(kind, {written: 1})
    advice = f"Did you mean '{known[0]}'?" if known else "This router has none."
    assert problems == [(written, f"unknown parameter '{written}'. {advice}")]
    with pytest.raises(Problems, match=f"router {kind}: 1 problem"):
        make_router(kind, {written: 1}, Surroundings(2))


@pytest.mark.parametrize("kind", router_names())
def test_parameters_are_written_as_they_are_read(kind: str) -> None:
    parameters = make_router(
        kind, {}, Surroundings(2, cached_tokens=lambda request, replica: 0)
    ).parameters
    again, problems = check_router(kind, parameters.model_dump(mode="json"))
    assert (again, problems) == (parameters, [])


# ---------------------------------------------------------------- who holds them to it


class _Wrong(Router[Any]):
    """Answers what it is told to."""

    answer: Any = None

    def choose(self, request: RoutedRequest, views: Views, now_s: float, rng: random.Random) -> int:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


@pytest.mark.parametrize("answer", [2, -1, "0", 1.0])
def test_a_router_that_names_no_replica_is_stopped(answer: object) -> None:
    router = _Wrong(Router.Parameters(), Surroundings(2))
    router.answer = answer
    with pytest.raises(RouterError, match=r"router mine: choose\(\) answered .* for request r7"):
        Decider(router, random.Random(1), "mine").route(request("r7"), 0.0)


def test_a_router_that_raises_is_stopped_with_its_name() -> None:
    router = _Wrong(Router.Parameters(), Surroundings(2))
    router.answer = ZeroDivisionError("division by zero")
    with pytest.raises(RouterError) as caught:
        Decider(router, random.Random(1), "mine").route(request("r7"), 0.0)
    assert str(caught.value) == (
        "router mine: choose() failed for request r7: ZeroDivisionError: division by zero"
    )


def test_with_no_replica_left_there_is_no_choice() -> None:
    fleet = decider("round-robin", 1)
    fleet.remove_replica(0, 0.0)
    with pytest.raises(NoReplicaError):
        fleet.route(request("r1"), 1.0)
    fleet.add_replica(1, 2.0)
    assert fleet.route(request("r2"), 2.0) == 1


def test_a_pinned_request_goes_where_it_asks_as_long_as_that_is_there() -> None:
    fleet = decider("round-robin", 3)
    assert [fleet.route(request(f"a{n}", pinned=2), 0.0) for n in range(2)] == [2, 2]
    assert fleet.views.in_flight.tolist() == [0, 0, 2]
    fleet.remove_replica(2, 0.0)
    assert fleet.route(request("b", pinned=2), 0.0) == 0


def test_views_keep_an_age_and_replicas_that_come_back_are_new() -> None:
    views = Views(2)
    assert views.of(views.counted_at_s).tolist() == [float("-inf")] * 2
    views.take(1, (3, 4, 0.5), 2.0)
    views.remove(0)
    assert (views.replicas, views.of(views.waiting).tolist()) == ([1], [3])
    views.add(5)
    views.remove(1)
    views.add(1)
    assert views.replicas == [1, 5]
    assert views.of(views.waiting).tolist() == [0, 0]
    assert views.of(views.counted_at_s).tolist() == [float("-inf")] * 2
    assert not views.is_available(0)
    assert not views.is_available(99)


def test_keys_are_equal_as_far_as_prompts_are() -> None:
    one = request("a", (1, 20), (2, 30)).keys(8)
    two = request("b", (1, 20), (3, 30)).keys(8)
    assert len(one) == 50 // 8
    assert [a == b for a, b in zip(one, two, strict=True)] == [True, True, *[False] * 4]
    assert request("c", (1, 7)).keys(8) == ()
    assert request("d", (1, 20), (2, 3), (4, 9)).runs(16) == [(1, 16, 16), (4, 32, 32)]


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("own", Sees(own=True)),
        ("published", Sees(own=True, published=True)),
        ({"scraped": "50 ms"}, Sees(own=True, scraped_every_s=0.05)),
        ({"scraped": 1, "events": 0}, Sees(own=True, scraped_every_s=1.0, events_after_s=0.0)),
    ],
)
def test_what_is_seen(written: object, seen: Sees) -> None:
    parameters, problems = check_router("llm-d" if written != "published" else "least-requests",
                                        {"sees": written})  # fmt: skip
    assert problems == []
    assert parameters is not None
    assert parameters.model_dump()["sees"] is not None
    assert getattr(parameters, "sees") == seen  # noqa: B009


@pytest.mark.parametrize(
    ("kind", "written", "problem"),
    [
        ("dynamo-kv", {"sees": "pubished"}, "sees: unknown view 'pubished'. Did you mean"),
        ("dynamo-kv", {"sees": "published"}, "sees: 'published' is of no use here. Choices: own,"),
        ("dynamo-kv", {"sees": {"events": "5 parsecs"}}, "sees: '5 parsecs' has an unknown unit."),
        ("dynamo-kv", {"sees": 3}, "sees: 3 is no view. Write own, published, {scraped: 50 ms}"),
        ("dynamo-kv", {"temperature": -1.0}, "temperature: -1.0 is below 0. Use 0 or more."),
        ("dynamo-kv", {"temperature": "hot"}, "temperature: 'hot' is not a number."),
        ("dynamo-kv", {"role": "prefil"}, "role: unknown role 'prefil'. Did you mean 'prefill'?"),
        ("llm-d", {"weights": {"que": 1}}, "weights: unknown scorer 'que'. Did you mean 'queue'?"),
        ("llm-d", {"weights": {"queue": -1}}, "weights: queue: -1.0 is below 0. Use 0 or more."),
        ("llm-d", {"weights": {}}, "weights: no scorer has a weight."),
        ("llm-d", {"sees": "published"}, "sees: 'published' is of no use here."),
        ("least-requests", {"sees": {"scraped": 0}}, "sees: scraped: 0 is not above 0."),
        ("aibrix-prefix", {"imbalance": 1.5}, "imbalance: 1.5 is not a whole number."),
        ("dynamo", {}, "kind: unknown router 'dynamo'."),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_place_value_rule_and_remedy(
    kind: str, written: dict[str, Any], problem: str
) -> None:
    parameters, problems = check_router(kind, written)
    assert parameters is None
    [(place, text)] = problems
    assert f"{place}: {text}".startswith(problem)


def test_all_that_is_wrong_is_said_at_once() -> None:
    _, problems = check_router("dynamo-kv", {"temperature": -1.0, "overlap": 1, "role": "x"})
    assert {place for place, _ in problems} == {"temperature", "overlap", "role"}
