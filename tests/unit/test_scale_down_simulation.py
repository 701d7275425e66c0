"""F25, O17: ten thousand random scale-downs against the controller's documented order; the busy pods are the newest."""

from poolkeeper_operator.simulation.leaving import scale_down

COUNT = 10_000


def test_no_busy_pod_goes_while_an_idle_one_stays():
    """F25: claims come between every two steps, pods begin and finish, readiness comes and goes."""
    courses = [scale_down(seed) for seed in range(COUNT)]
    assert [seed for seed, course in enumerate(courses) if course.killed_busy] == []
    assert sum(course.reached for course in courses) > 0.99 * COUNT, (
        "held only where a busy pod stays unready throughout"
    )
    assert sum(len(course.gone) for course in courses) > COUNT


def test_the_same_pools_lose_busy_pods_where_only_the_number_is_lowered():
    """The counter-check: what an HPA does, the controller answers by taking the newest."""
    courses = [scale_down(seed, careless=True) for seed in range(1000)]
    assert sum(bool(course.killed_busy) for course in courses) > 100
