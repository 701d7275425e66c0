"""The demo's other pure parts: the trace, the screen, finding a pod's process; and what its files say."""

import io
from pathlib import Path

import pytest
import yaml
from examples.demo import kill, trace, verify
from examples.demo.scene import Scene
from examples.demo.screen import Sample, Screen, chart, state
from pydantic import BaseModel
from rich.console import Console

from lab.errors import LabError
from poolkeeper_operator.resources import DatabaseSpec, ProviderQuotaSpec, TaskQueueSpec, WorkerPoolSpec

DEMO = Path(verify.__file__).parent


def test_the_trace_is_real_and_long_enough() -> None:
    """At least 300 rows, in the order of their coming, with the notice that its licence asks for."""
    found = trace.arrivals()
    assert len(found) >= 300
    assert [each.at for each in found] == sorted(each.at for each in found)
    assert "CC-BY 4.0" in trace.FILE.read_text().splitlines()[2]


def test_everybody_sees_the_same_tasks() -> None:
    """The story submits them, the verdict looks for them: same keys, same payloads."""
    assert trace.arrivals() == trace.arrivals()
    assert verify.promise().keys == {each.key for each in trace.arrivals()}


def test_compression_shortens_arrivals_and_service_alike() -> None:
    slow, fast = trace.arrivals(compression=1.0)[-1], trace.arrivals(compression=2.0)[-1]
    assert fast.at == pytest.approx(slow.at / 2)
    assert sum(fast.payload["seconds"]) == pytest.approx(sum(slow.payload["seconds"]) / 2, abs=0.01)


@pytest.mark.parametrize(
    ("name", "spec"),
    [("database", DatabaseSpec), ("queue", TaskQueueSpec), ("quota", ProviderQuotaSpec), ("pool", WorkerPoolSpec)],
)
def test_what_the_demo_applies_is_valid(name: str, spec: type[BaseModel]) -> None:
    spec.model_validate(yaml.safe_load((DEMO / f"{name}.yaml").read_text())["spec"])


def test_without_the_quota_the_pool_could_pass_it() -> None:
    """Otherwise leaving out the quota would break nothing, and the demo would prove nothing by keeping it."""
    pool = yaml.safe_load((DEMO / "pool.yaml").read_text())["spec"]
    assert pool["scaling"]["max"] * pool["concurrency"] > verify.promise().concurrent_calls


def sample(at: float, ready: int, pods: int) -> Sample:
    return Sample(at, pods, ready, pods, waiting=12, running=4, alone=1, dead=1, ended=30, submitted=48)


def test_the_chart_shows_ready_and_other_pods_over_time() -> None:
    assert chart([sample(0, 0, 0), sample(1, 0, 2), sample(2, 1, 2), sample(3, 2, 2), sample(4, 0, 0)], width=10) == [
        " 2 |  ░░░░██",
        " 1 |  ░░████",
        " 0 +----------",
        "     0:00 0:04",
    ]


def test_the_line_of_state_says_it_in_words() -> None:
    assert state(sample(1, 1, 3)) == (
        "pods ■□□      1 of 3   waiting  12  running  4  ended 30 of 48  to run alone 1  dead 1"
    )


def test_without_a_terminal_lines_are_whole_and_plain() -> None:
    """CI logs: no cursor movement, no colour codes."""
    screen = Screen()
    screen._console = Console(file=(out := io.StringIO()), highlight=False, soft_wrap=True)
    screen.say("a pod is ready")
    screen.shows("kubectl get wp", "NAME\nagents\n")
    assert out.getvalue() == " 0:00  a pod is ready\n       $ kubectl get wp\n         NAME\n         agents\n"


def test_the_worker_is_found_by_its_pods_uid_and_nothing_else_is(tmp_path: Path) -> None:
    """Of a pod's processes only the first one of the worker's container: not `pause`, not a child, not another pod's."""
    uid = "0f3d9b1e-0000-4000-8000-000000000001"
    others = "0f3d9b1e-0000-4000-8000-000000000002"
    processes = {
        "100": (uid, "1", "pause"),
        "101": (uid, "1", "poolkeeper"),
        "102": (uid, "7", "poolkeeper"),
        "103": (others, "1", "poolkeeper"),
        "104": (uid.replace("-", "_"), "9", "python3"),
    }
    for pid, (pod, inside, name) in processes.items():
        folder = tmp_path / pid
        folder.mkdir()
        (folder / "cgroup").write_text(f"4:memory:/lab/kubepods/burstable/pod{pod}/c0ffee\n")
        (folder / "status").write_text(f"Name:\t{name}\nNSpid:\t{pid}\t{inside}\n")
        (folder / "comm").write_text(f"{name}\n")
    (tmp_path / "self").mkdir()
    assert kill.worker_process(uid, tmp_path) == 101
    with pytest.raises(LookupError, match="0 worker processes"):
        kill.worker_process("0f3d9b1e-0000-4000-8000-000000000003", tmp_path)


def test_without_root_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no half a demo: pods are what it shows."""
    monkeypatch.delenv("POOLKEEPER_TEST_KUBECONFIG", raising=False)
    monkeypatch.setenv("POOLKEEPER_TEST_NO_KIND", "1")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(LabError, match=r"real pods, and none can run here.*Run it as root.*POOLKEEPER_TEST_KUBECONFIG"):
        Scene(lambda _: None).__enter__()


def test_calls_in_flight_are_those_without_an_end() -> None:
    lines = [
        '{"at": 1, "call": 1, "what": "began", "task": "a", "step": "plan", "seconds": 1}',
        '{"at": 1, "call": 2, "what": "began", "task": "b", "step": "plan", "seconds": 2}',
        '{"at": 1, "call": 3, "what": "began", "task": "c", "step": "plan", "seconds": 3}',
        '{"at": 1, "what": "refused", "task": "d", "step": "plan", "seconds": 3}',
        '{"at": 2, "call": 1, "what": "answered"}',
    ]
    assert [call["task"] for call in kill.in_flight(lines)] == ["c", "b"]
