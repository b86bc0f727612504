"""The nodes of a fleet: their ranks, started, lost and drained, and how long each was there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from kvsim.cache.manager import KVCache
from kvsim.engine.clock import Clock
from kvsim.engine.replica import Replica
from kvsim.engine.simulation import Engine, make_engine
from kvsim.engine.stepper import Stepper
from kvsim.engine.tiers import SharedTiers, Tiers
from kvsim.fleet.balancing import Clients, Counting
from kvsim.fleet.caches import LOG_ENTRIES_A_BLOCK, FleetCaches
from kvsim.fleet.lockstep import GRAPH_TOKENS_MAX, Lockstep
from kvsim.metrics.records import RequestLog
from kvsim.offload.mooncake_store import MooncakeStore
from kvsim.scenario import Scenario
from kvsim.scenario.keys import derive_blocks
from kvsim.times.step_time import StepTimeParams
from kvsim.workload.streams import stream


@dataclass(frozen=True, slots=True)
class Life:
    """One rank from its start to its end.

    Attributes:
        replica: its number: of a node that was lost and came back the same one again.
        engine: the replica.
        start_s: when its node was started.
        ready_s: when it could take its first request.
    """

    replica: int
    engine: Engine
    start_s: float
    ready_s: float


class Node:
    """A node that is there.

    Attributes:
        number: which.
        lives: its ranks.
        clients: its API servers; None where nobody chooses among ranks.
        is_draining: it is given nothing more.
        start_s: when it was started.
        end_s: when it was lost or had left; None before.
    """

    def __init__(self, number: int, lives: list[Life], clients: Clients | None) -> None:
        """With idle ranks."""
        self.number = number
        self.lives = lives
        self.clients = clients
        self.is_draining = False
        self.start_s = lives[0].start_s
        self.end_s: float | None = None

    @property
    def num_requests(self) -> int:
        """Requests it has."""
        return sum(life.engine.replica.num_requests for life in self.lives)


class EngineGroup:
    """Ranks of one engine: what they share, be they on one node or on several.

    Attributes:
        counting: its coordinator; None where nobody needs the counts.
        pace: where its ranks step together; None where each runs on its own.
    """

    def __init__(
        self, clock: Clock, scenario: Scenario, step_time: StepTimeParams, num_ranks: int
    ) -> None:
        """Without ranks."""
        self.counting: Counting | None = None
        self.pace: Lockstep | None = None
        if num_ranks == 1:
            return
        if scenario.has_experts:
            drafts = scenario.engine.speculative
            sequence_tokens = 1 if drafts is None else 1 + drafts.tokens
            graph_tokens = min(GRAPH_TOKENS_MAX, 2 * scenario.max_num_seqs * sequence_tokens)
            self.pace = Lockstep(clock, step_time, graph_tokens, self._note_wave)
        if scenario.balancing != "external":
            self.counting = Counting(clock, num_ranks, self.pace)

    def _note_wave(self, begins: bool) -> None:
        if self.counting is not None:
            self.counting.note_wave(begins)


class Nodes:
    """All nodes there ever were, and an observer of their replicas.

    Attributes:
        caches: what they hold.
        all: every node that was ever started, those that are gone too.
        there: nodes by number that are there, draining ones too.
        groups: every engine there ever was.
        ranks: of a node.
    """

    def __init__(
        self,
        clock: Clock,
        scenario: Scenario,
        step_time: StepTimeParams,
        requests: RequestLog,
        caches: FleetCaches,
        *,
        one_by_one: bool,
        connect: Callable[[int, KVCache, Tiers | None], Tiers] | None = None,
        coarse_tokens: int | None = None,
    ) -> None:
        """Without nodes.

        Args:
            clock: the simulation's.
            scenario: what they are like.
            step_time: of a rank.
            requests: where ended requests are entered.
            caches: told of every replica.
            one_by_one: an event for every step.
            connect: makes what a replica's connector goes to, of its cache and the scenario's
                tiers.
            coarse_tokens: that an id of the trace stands for; None where content is exact.
        """
        self.caches = caches
        self.all: list[Node] = []
        self.there: dict[int, Node] = {}
        self.groups: list[EngineGroup] = []
        self.on_counts: Callable[[int], None] | None = None
        self._clock = clock
        self._scenario = scenario
        self._step_time = step_time
        self._requests = requests
        self._one_by_one = one_by_one
        self._connect = connect
        self._coarse_tokens = coarse_tokens
        self._log_entries = 0
        if caches.reads_logs:
            self._log_entries = LOG_ENTRIES_A_BLOCK * derive_blocks(scenario).num_blocks
        self._store: MooncakeStore | None = None
        self.ranks = scenario.node.data_parallel
        self._stepper = Stepper.of(clock)
        self._is_hybrid = scenario.balancing == "hybrid"
        self._group_of: dict[int, tuple[EngineGroup, int]] = {}  # and the number in it, by replica
        self._is_external = scenario.balancing == "external"
        if self._is_hybrid:
            num_nodes = scenario.num_nodes
            self.groups.append(EngineGroup(clock, scenario, step_time, self.ranks * num_nodes))

    def follow_tokens(self, *, follow: bool) -> None:
        """Whether requests may be sent at a first token or an end of another one."""
        self._stepper.stop_at_firsts(stop=follow)

    def target(self, replica: int) -> int:
        """What the fleet's routers call a replica: itself, or its node."""
        return replica if self._is_external else replica // self.ranks

    def targets(self, node: int) -> list[int]:
        """What they can choose on a node."""
        if not self._is_external:
            return [node]
        return list(range(node * self.ranks, (node + 1) * self.ranks))

    def node_of(self, target: int) -> int:
        """The number of a target's node."""
        return target // self.ranks if self._is_external else target

    def replica_number(self, node: Node, rank: int) -> int:
        """The number of one of a node's replicas."""
        return node.number * self.ranks + rank

    def has_target(self, target: int) -> bool:
        """Whether a target is there."""
        return self.node_of(target) in self.there

    def replicas_of(self, target: int) -> list[Replica]:
        """The replicas behind a target."""
        lives = self.there[self.node_of(target)].lives
        if self._is_external:
            lives = [lives[target % self.ranks]]
        return [life.engine.replica for life in lives]

    def add(self, number: int, start_s: float) -> Node:
        """A node takes requests from now on; it was started at ``start_s``."""
        scenario, ranks = self._scenario, self.ranks
        if self._is_hybrid:
            (group,) = self.groups
            first = number * ranks
        else:
            group = EngineGroup(self._clock, scenario, self._step_time, ranks)
            self.groups.append(group)
            first = 0
        shared = SharedTiers(self._store)
        lives = []
        for rank in range(ranks):
            replica = number * ranks + rank
            self._group_of[replica] = (group, first + rank)
            engine = make_engine(
                scenario,
                self._clock,
                self._step_time,
                self._requests,
                log_entries=self._log_entries,
                one_by_one=self._one_by_one,
                number=replica,
                pace=group.pace,
                observer=self,
                connect=None if self._connect is None else partial(self._connect, replica),
                shared=shared,
                coarse_tokens=self._coarse_tokens,
                stepper=self._stepper,
            )
            self._store = shared.store  # one for the fleet; it outlives its nodes
            if group.pace is not None:
                group.pace.join(engine.replica)
            if group.counting is not None:
                group.counting.reset(first + rank)
            self.caches.add(replica, engine.replica.cache)
            lives.append(Life(replica, engine, start_s, self._clock.now))
        clients = None
        if ranks > 1 and not self._is_external:
            num_clients = ranks if (fleet := scenario.fleet) is None else fleet.clients or ranks
            seed = int(stream(scenario.seed, "clients", number).integers(2**62))
            clients = Clients(ranks, num_clients, seed)
            if group.counting is not None:
                group.counting.serve(first, clients.deciders)
        node = Node(number, lives, clients)
        self.all.append(node)
        self.there[number] = node
        return node

    def remove(self, node: Node) -> None:
        """A node is not there any more."""
        node.end_s = self._clock.now
        del self.there[node.number]
        for life in node.lives:
            self.caches.remove(life.replica)
            group, _ = self._group_of[life.replica]
            if group.pace is not None:
                group.pace.leave(life.engine.replica)

    def replica(self, number: int) -> Replica:
        """A replica that is there."""
        node = self.there[number // self.ranks]
        return node.lives[number % self.ranks].engine.replica

    @property
    def counts_steps(self) -> bool:
        """Whether somebody goes by counts that every step may change."""
        return self.on_counts is not None or any(
            group.counting is not None for group in self.groups
        )

    def before_step(self, replica: Replica) -> None:
        """Whoever has arrived is known to the engine's coordinator."""
        assert replica.number is not None
        group, rank = self._group_of[replica.number]
        if group.counting is not None:
            group.counting.look(rank, replica)

    def after_steps(self, replica: Replica) -> None:
        """What steps have changed is told on, each with its time."""
        number = replica.number
        assert number is not None
        self.caches.look(number, self.target(number), None)

    def after_step(self, replica: Replica) -> None:
        """What a step has changed is told on."""
        number = replica.number
        assert number is not None
        self.caches.look(number, self.target(number), self._clock.now)
        group, rank = self._group_of[number]
        if group.counting is not None:
            group.counting.look(rank, replica)
        if self.on_counts is not None:
            self.on_counts(self.target(number))
