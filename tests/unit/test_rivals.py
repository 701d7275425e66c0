"""The rival of the simulation keeps the rules that were measured on a real control plane with KEDA 2.21 and its HPA (F26)."""

from itertools import pairwise

from benchmarks.rivals import Keda

from poolkeeper_operator.simulation.world import World


def sizes(rival, arrivals, until):
    outcome = World(rival, concurrency=1, start_up=0.0).run(arrivals, until)
    return outcome, outcome.sizes


def test_five_hundred_tasks_at_once_are_answered_by_doubling_every_fifteen_seconds():
    """Measured: 1, 4, 8, 16, 32, 64, 100, ninety seconds from the first to the last, however often KEDA looks; none was taken away."""
    for poll in (1.0, 30.0):
        _, found = sizes(Keda(target=5, maximum=100, counts_running=True, poll=poll), [(0.0, 10_000.0)] * 500, 120)
        steps = [found[0], *(b for a, b in pairwise(found) if a != b)]
        assert steps == [1, 4, 8, 16, 32, 64, 100]
        assert [at for at, (a, b) in enumerate(pairwise(found), 1) if a != b] == [7, 22, 37, 52, 67, 82]


def test_a_steady_load_is_answered_by_the_most_then_by_next_to_nothing():
    """Measured: where 20 pods are needed and the most is 60, the mean of 450 s is 44 to 45, and from 60 it goes to one or none."""
    arrivals = [(n / 20, 1.0) for n in range(450 * 20)]
    for poll in (1.0, 30.0):
        outcome, found = sizes(Keda(target=5, maximum=60, poll=poll), arrivals, 450)
        assert max(found) == 60
        assert min(found[found.index(60) :]) <= 1
        assert 38 <= outcome.pod_seconds / 450 <= 50


def test_a_tenth_more_or_less_changes_nothing():
    """The HPA's tolerance: ten pods for 52 tasks of five each are enough, for 56 they are not."""
    rival = Keda(target=5, maximum=100)
    assert rival._hpa(52, 10, 0.0) == 10
    assert rival._hpa(56, 10, 15.0) == 12
