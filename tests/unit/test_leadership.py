"""Who may act: the protocol of the Lease, for any interleaving and any clocks that run equally fast (O29)."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poolkeeper_operator.decide import leadership as protocol
from poolkeeper_operator.decide.leadership import HASTE, HOLD, LOOK, MARGIN, NEVER, RENEW, Candidate, Record, Step, Wish
from poolkeeper_operator.runtime import leadership as runtime


@dataclass
class Lease:
    """What the API server does: compare-and-set by version, and 404 or 409."""

    record: Record | None = None
    version: int = 0

    def put(self, record: Record, version: int | None) -> bool:
        if version != (None if self.record is None else self.version):
            return False
        self.record, self.version = record, self.version + 1
        return True


@dataclass
class Request:
    """On its way: what was asked, when it was begun, and what the server answered, if it did yet."""

    step: Step
    begun: float
    record: Record | None = None
    version: int | None = None
    answer: tuple[bool, Record | None, int | None] | None = None


@dataclass
class Process:
    """One operator with a clock of its own."""

    me: Candidate
    offset: float
    version: int | None = None
    request: Request | None = None
    stamps: int = 0
    over: bool = False
    given_up: bool = False

    def now(self, time: float) -> float:
        return time + self.offset

    def trusts(self, time: float) -> bool:
        return not self.given_up and protocol.trusts(self.me, self.now(time))


@dataclass
class World:
    """Processes, one Lease, and real time, which none of them can read."""

    processes: list[Process]
    lease: Lease = field(default_factory=Lease)
    late: list[Request] = field(default_factory=list)  # given up by their senders, and still on their way
    time: float = 0.0

    def act(self, who: int, what: str, amount: float) -> None:
        process = self.processes[who % len(self.processes)]
        {
            "wait": lambda: self.wait(amount),
            "begin": lambda: self.begin(process),
            "serve": lambda: self.serve(process),
            "answer": lambda: self.answer(process),
            "lose": lambda: self.lose(process),
            "arrive": self.arrive,
            "annotate": self.annotate,
            "delete": self.delete,
            "release": lambda: self.release(process),
            "restart": lambda: self.restart(process, who),
            "run": lambda: self.run(process),
            "live": lambda: self.live(process, amount),
            "freeze asking": lambda: self.freeze(process, amount, served=False),
            "freeze served": lambda: self.freeze(process, amount, served=True),
        }[what]()
        self.check()

    def wait(self, amount: float) -> None:
        self.time += amount

    def begin(self, process: Process) -> None:
        if process.request is not None or process.over or process.given_up:
            return
        now = process.now(self.time)
        step = protocol.next_step(process.me, now)
        if step.wish is Wish.END:
            process.over = True
        elif step.at <= now:
            process.stamps += 1
            record = Record(process.me.me, step.transitions, f"{process.me.me} {process.stamps}")
            process.request = Request(step, now, record, process.version)

    def serve(self, process: Process) -> None:
        request = process.request
        if request is None or request.answer is not None:
            return
        well = True
        if request.step.wish is Wish.WRITE:
            assert request.record is not None
            well = self.lease.put(request.record, request.version)
        request.answer = (well, self.lease.record, None if self.lease.record is None else self.lease.version)

    def answer(self, process: Process) -> None:
        request = process.request
        if request is None or request.answer is None:
            return
        process.request = None
        well, record, version = request.answer
        now = process.now(self.time)
        if request.step.wish is Wish.WRITE and well:
            assert request.record is not None
            process.version = version
            process.me = protocol.wrote(process.me, request.record, request.begun, now)
        elif request.step.wish is Wish.LOOK:
            process.version = version
            process.me = protocol.looked(process.me, record, now)
        else:  # lost the race: it looks, as the program does
            process.request = Request(Step(Wish.LOOK, now), now)

    def lose(self, process: Process) -> None:
        """No answer: the request may have been served, or may still be later, which nobody learns."""
        if process.request is not None:
            if process.request.answer is None:
                self.late.append(process.request)
            process.request = None
            process.me = protocol.failed(process.me, process.now(self.time))

    def arrive(self) -> None:
        """A write that was given up reaches the server after all."""
        if self.late:
            request = self.late.pop()
            if request.step.wish is Wish.WRITE and request.record is not None:
                self.lease.put(request.record, request.version)

    def annotate(self) -> None:
        if self.lease.record is not None:
            self.lease.version += 1

    def delete(self) -> None:
        """Somebody deletes the Lease: nothing is promised to who has not seen it before, so there is nobody new."""
        if all(p.me.transitions for p in self.processes):
            self.lease.record = None

    def release(self, process: Process) -> None:
        """Told to end: from now on it writes nothing, and the Lease is given up."""
        if process.trusts(self.time) and process.request is None:
            process.given_up = True
            self.lease.put(Record("", process.me.transitions, "released"), process.version)

    def restart(self, process: Process, who: int) -> None:
        """Killed, and another one begins in its place, which knows nothing."""
        if self.lease.record is not None:
            fresh = Candidate(f"{process.me.me.partition('.')[0]}.{self.time:.3f}.{who}")
            self.processes[self.processes.index(process)] = Process(fresh, process.offset + 1000)

    def live(self, frozen: Process, amount: float) -> None:
        """All but one go on as they should for a while."""
        end = self.time + amount
        while self.time < end:
            for process in self.processes:
                if process is not frozen:
                    self.run(process)
                    self.check()
            self.time += 0.45

    def freeze(self, process: Process, amount: float, *, served: bool) -> None:
        """One stops in the middle of its next request, before or after the server has done it, and goes on later."""
        for _ in range(20):
            if process.request is not None:
                break
            self.live(process, 0.45)
            self.begin(process)
        if served:
            self.serve(process)
        self.live(process, amount)
        self.serve(process)
        self.answer(process)

    def check(self) -> None:
        trusting = [p.me.me for p in self.processes if p.trusts(self.time)]
        assert len(trusting) <= 1, trusting

    def run(self, process: Process) -> None:
        """Several moves at once, so that long runs get somewhere."""
        self.begin(process)
        self.serve(process)
        self.answer(process)


MOVES = st.tuples(
    st.integers(0, 2),
    st.sampled_from(
        [
            "live",
            "freeze asking",
            "freeze served",
            "wait",
            "run",
            "begin",
            "serve",
            "answer",
            "lose",
            "arrive",
            "annotate",
            "delete",
            "release",
            "restart",
        ]
    ),
    st.sampled_from([0.1, LOOK, MARGIN, RENEW, HOLD - MARGIN, HOLD, HOLD + RENEW, 3 * HOLD]) | st.floats(0, 20),
)


@settings(max_examples=1000)
@given(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), st.lists(MOVES, max_size=25))
def test_never_two_that_trust_themselves(offsets: list[float], moves: list[tuple[int, str, float]]) -> None:
    """O29: whatever is delayed, lost, frozen, killed, annotated or deleted, and whatever the clocks show."""
    world = World([Process(Candidate(f"p{n}"), offset) for n, offset in enumerate(offsets)])
    for who, what, amount in moves:
        world.act(who, what, amount)


@settings(max_examples=200)
@given(st.floats(-1e6, 1e6), st.floats(0, RENEW), st.floats(0, LOOK))
def test_a_standby_takes_over_in_time(offset: float, died: float, phase: float) -> None:
    """O29, F24: whenever the leader dies, another trusts itself within 20 s, and takes it as soon as it is free."""
    world = World([Process(Candidate("a"), 0.0), Process(Candidate("b"), offset)])
    leader, standby = world.processes
    for _ in range(2):
        world.run(leader)
    assert leader.trusts(world.time)
    world.time += phase
    world.run(standby)
    end = world.time + died
    while world.time < end + 20 and not standby.trusts(world.time):
        world.time += 0.05
        if world.time < end:
            world.run(leader)
        world.run(standby)
    assert standby.trusts(world.time)
    assert world.time - end <= HOLD + LOOK + 0.2


def leading(now: float = 100.0) -> Candidate:
    me = protocol.looked(Candidate("a"), None, now)
    return protocol.wrote(me, Record("a", 1, "1"), now, now + 2)


def test_trust_begins_with_the_renewal_not_with_its_answer() -> None:
    """O29: an answer that comes late leaves less time."""
    me = leading(100.0)
    assert protocol.trusts(me, 100 + HOLD - MARGIN - 0.01)
    assert not protocol.trusts(me, 100 + HOLD - MARGIN)
    assert me.trusted_until == 100 + HOLD - MARGIN


def test_the_first_of_all_waits_for_nobody() -> None:
    """O29: no Lease and none ever seen: it is taken at once, with the first transition."""
    assert protocol.next_step(Candidate("a"), 5.0) == Step(Wish.LOOK, 5.0)
    step = protocol.next_step(protocol.looked(Candidate("a"), None, 5.0), 5.0)
    assert step == Step(Wish.WRITE, 5.0, transitions=1)


def test_a_lease_that_was_given_up_is_taken_at_once() -> None:
    """O29: an orderly end costs a second, not the hold."""
    me = protocol.looked(Candidate("b"), Record("", 7, "x"), 50.0)
    assert protocol.next_step(me, 50.0) == Step(Wish.WRITE, 50.0, transitions=8)


def test_a_standby_counts_from_the_change_that_it_saw() -> None:
    """O29: a record that stays the same is free after the hold; each change begins it anew."""
    held = Record("a", 3, "1")
    me = protocol.looked(Candidate("b"), held, 50.0)
    assert protocol.next_step(me, 50.0) == Step(Wish.LOOK, 50.0 + LOOK)
    me = protocol.looked(me, held, 60.0)
    assert me.seen_at == 50.0
    assert protocol.next_step(me, 60.5) == Step(Wish.LOOK, 60.0 + LOOK)
    assert protocol.next_step(protocol.looked(me, held, 64.5), 64.5) == Step(Wish.LOOK, 65.0), (
        "not later than it is free"
    )
    assert protocol.next_step(protocol.failed(me, 61.5), 61.5) == Step(Wish.LOOK, 61.5 + LOOK), (
        "not at once after a failure"
    )
    assert protocol.next_step(me, 65.0) == Step(Wish.WRITE, 65.0, transitions=4)
    me = protocol.looked(me, replace(held, stamp="2"), 64.9)
    assert protocol.next_step(me, 65.0).wish is Wish.LOOK


@pytest.mark.parametrize(("told", "waits"), [(0.0, HOLD), (1.0, HOLD), (HOLD, HOLD), (60.0, 60.0)])
def test_a_holder_of_another_version_keeps_its_own_hold(told: float, waits: float) -> None:
    """O29: the longer of both holds counts; nonsense counts as ours."""
    me = protocol.looked(Candidate("b"), Record("a", 1, "1", hold=told), 0.0)
    assert protocol.next_step(me, waits - 0.1).wish is Wish.LOOK
    assert protocol.next_step(me, waits).wish is Wish.WRITE


def test_a_deleted_lease_is_not_free_yet() -> None:
    """O29: its holder may not know; whoever has seen it waits for the hold, and counts on from it."""
    me = protocol.looked(Candidate("b"), Record("a", 3, "1"), 50.0)
    me = protocol.looked(me, None, 51.0)
    assert protocol.next_step(me, 65.9).wish is Wish.LOOK
    assert protocol.next_step(me, 66.0) == Step(Wish.WRITE, 66.0, transitions=4)


def test_the_holder_renews_and_makes_a_deleted_lease_again() -> None:
    """O29: with the transitions that it had; a failed request is repeated soon, but not at once."""
    me = leading(100.0)
    assert protocol.next_step(me, 102.0) == Step(Wish.WRITE, 100.0 + RENEW, transitions=1)
    assert protocol.next_step(protocol.failed(me, 107.0), 107.0) == Step(Wish.WRITE, 107.0 + HASTE, transitions=1)
    gone = protocol.looked(me, None, 103.0)
    assert protocol.next_step(gone, 103.0) == Step(Wish.WRITE, 103.0, transitions=1)
    assert protocol.next_step(protocol.failed(gone, 103.0), 103.0).at == 103.0 + HASTE


def test_the_holder_ends_when_another_has_it_or_its_time_is_over() -> None:
    """O29: and says why."""
    me = leading(100.0)
    taken = protocol.looked(me, Record("b", 2, "1"), 103.0)
    assert protocol.next_step(taken, 103.0) == Step(Wish.END, 103.0, why='the Lease is held by "b"')
    assert not protocol.trusts(taken, 103.0)
    late = protocol.next_step(me, me.trusted_until)
    assert (late.wish, late.why) == (Wish.END, "the Lease could not be renewed in time")
    almost = protocol.next_step(protocol.failed(me, 111.9), 111.9)
    assert almost.at == me.trusted_until, "nothing is begun later"


def test_a_take_over_whose_answer_was_lost_is_taken_up() -> None:
    """O29: the Lease says that it is ours, and we do not trust it yet: it is written again at once."""
    me = protocol.looked(Candidate("b"), Record("b", 2, "1"), 10.0)
    assert protocol.next_step(me, 10.0) == Step(Wish.WRITE, 10.0, transitions=3)


def test_who_never_led_trusts_nothing() -> None:
    """O29."""
    assert Candidate("a").trusted_until == NEVER
    assert not protocol.trusts(Candidate("a"), NEVER)
    with_renewal = replace(Candidate("a"), renewed=5.0)
    assert not protocol.trusts(with_renewal, 5.0)


class TestTheLeaseOfAnInstallation:
    """One for each scope, in a namespace of its own (O29)."""

    @pytest.fixture(autouse=True)
    def outside(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("POOLKEEPER_POD_NAMESPACE", "POOLKEEPER_POD_NAME"):
            monkeypatch.delenv(name, raising=False)

    def test_outside_of_a_pod(self) -> None:
        assert runtime.post(()).lease == "default/poolkeeper-operator"
        assert runtime.post(("team-a",)).lease == "team-a/poolkeeper-operator"
        several = runtime.post(("team-b", "team-a"))
        assert several.lease.startswith("team-a/poolkeeper-operator-")
        assert several.lease == runtime.post(("team-a", "team-b", "team-a")).lease
        assert several.name != runtime.post(("team-a", "team-c")).name

    def test_in_a_pod(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("POOLKEEPER_POD_NAMESPACE", "pk-system")
        monkeypatch.setenv("POOLKEEPER_POD_NAME", "op-1")
        assert runtime.post(()).lease == "pk-system/poolkeeper-operator"
        assert runtime.post(("team-a",)).lease.startswith("pk-system/poolkeeper-operator-")
        assert runtime.post(("team-a",), "mine").lease == "pk-system/mine"
        assert runtime.post((), "mine", "elsewhere").lease == "elsewhere/mine"
        assert runtime.post(()).holder.startswith("op-1_")
        assert runtime.post(()).holder != runtime.post(()).holder, "no process is taken for its predecessor"
