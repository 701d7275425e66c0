"""The acts of the story. Each does one thing to the system and says in plain words what there is to see.

Guarantees nothing about the outcome: an act that waits in vain says so and goes on, and `verify` finds what is missing.
`DEMO_BREAK` leaves out one cause, to show that it does.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from lab.errors import LabError
from poolkeeper import Client
from poolkeeper.store import connect

from . import kill
from .scene import HERE, NAMESPACE, OPERATOR_NAMESPACE, Scene
from .screen import Screen, chart
from .trace import COMPRESSION, Arrival, arrivals
from .verify import NAME, POISON, STEPS, promise
from .watch import Watch

QUEUE = f"{NAMESPACE}/{NAME}"
CAUSES = ("kill", "poison", "quota", "drain")
KINDS = ("database", "queue", "quota", "pool")


class Story:
    """One telling of it."""

    def __init__(self, scene: Scene, screen: Screen, broken: str | None) -> None:
        self._scene, self._screen, self._broken = scene, screen, broken
        self._promise = promise()
        self._submitted = 0
        self._feeding = threading.Event()

    def apply(self) -> None:
        """What a platform team and an application team apply, once."""
        scene, screen = self._scene, self._screen
        kubectl = scene.kubectl
        screen.say("A platform team has installed the chart. Now a team applies its database, queue, quota and pool.")
        kubectl.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
            _object("Secret", "database", stringData={"dsn": scene.dsn("platform", pods=True)}),
            _object("ConfigMap", "model-api", data={"MODEL_URL": scene.model_url}),
        )
        files = [f"examples/demo/{name}.yaml" for name in KINDS]
        said = kubectl.apply(*(self._manifest(name) for name in KINDS))
        screen.shows("kubectl apply -f " + " -f ".join(files), said)
        ready = ("wait", "--for=condition=Ready", "--timeout=60s")
        try:
            kubectl(*ready, "pkdb/main", f"tq/{NAME}", f"wp/{NAME}", "pq/model-api")
        except LabError:
            self._trouble(("get", "pkdb,tq,wp,pq", "-o", "wide"))
            operator = kubectl.within(OPERATOR_NAMESPACE)
            screen.shows(
                "kubectl logs deployment/poolkeeper-operator",
                operator("logs", "-l", "app.kubernetes.io/component=operator", "--tail=30", check=False),
            )
            raise

    def _manifest(self, name: str) -> dict[str, Any]:
        manifest: dict[str, Any] = yaml.safe_load((HERE / f"{name}.yaml").read_text())
        if name == "quota" and self._broken == "quota":
            manifest["spec"]["limits"]["concurrentCalls"] = 1000
        if name == "pool" and self._broken == "drain":
            manifest["spec"]["scaling"]["min"] = 1
        return manifest

    def tell(self) -> None:
        """From the burst to the empty pool."""
        with Watch(self._scene, self._screen, NAME, lambda: self._submitted) as watch:
            with self._screen.phase("burst"), self._burst():
                self._growth(watch)
                self._kill()
                self._poison()
                self._end_of_burst(watch)
            with self._screen.phase("drain"):
                self._drain(watch)
        self._screen.say("Pods over time (█ ready, ░ starting or leaving):")
        self._screen.lines(chart(watch.samples))

    @contextmanager
    def _burst(self) -> Iterator[None]:
        tasks = arrivals()
        self._screen.say(
            f"A burst: {len(tasks)} requests to a production LLM service, as they came within "
            f"{tasks[-1].at * COMPRESSION:.0f} s, played {COMPRESSION:g} times faster. The pool has no pod at all."
        )
        feeder = threading.Thread(target=self._feed, args=(tasks,), daemon=True)
        feeder.start()
        try:
            yield
        finally:
            self._feeding.set()
            feeder.join()

    def _feed(self, tasks: list[Arrival]) -> None:
        began = time.monotonic()
        with Client(dsn=self._scene.dsn("submitter")) as client:
            for task in tasks:
                if self._feeding.wait(max(0.0, began + task.at - time.monotonic())):
                    return
                client.submit(QUEUE, "agent.answer", task.payload, key=task.key)
                self._submitted += 1

    def _growth(self, watch: Watch) -> None:
        age, calls_at_once = self._promise.target_age, self._promise.concurrent_calls
        if watch.until(lambda now: now.ready >= 1, 30):
            self._screen.say(f"The first pod is ready: a task should start before it is {age:g} s old (targetAge).")
        else:
            self._screen.say("No pod is ready after 30 s. What the cluster says about it:")
            self._trouble(("get", "pods"), ("logs", f"deployment/{NAME}", "--tail=20"))
        if watch.until(lambda now: now.ready == now.wanted > 1, 20):
            self._screen.say(
                f"The pool has grown as far as the quota allows: {calls_at_once} calls at once, one per task, 2 tasks per pod."
            )
            self._screen.shows("poolkeeper queue list", self._poolkeeper("queue", "list"))
        self._views()

    def _trouble(self, *commands: tuple[str, ...]) -> None:
        for command in commands:
            self._screen.shows("kubectl " + " ".join(command), self._scene.kubectl(*command, check=False))

    def _views(self) -> None:
        shown = self._scene.kubectl("get", "tq,wp,pq")
        self._screen.shows(f"kubectl get tq,wp,pq -n {NAMESPACE}   # figures in a status are up to 30 s old", shown)

    def _kill(self) -> None:
        if self._broken == "kill":
            self._screen.say("(DEMO_BREAK=kill: no worker is killed.)")
            return
        victim = self._victim()
        if victim is None:
            self._screen.say("No worker was in the middle of a later step within 20 s, so none is killed.")
            return
        try:
            kill.kill(victim.pid)
        except PermissionError:
            self._screen.say(f"Process {victim.pid} of pod {victim.pod} may not be killed from here: that needs root.")
            return
        self._screen.say(
            f"Pod {victim.pod}, one of {victim.busy_pods} that work, was in the middle of step "
            f"{STEPS.index(victim.step) + 1} ({victim.step}) of task …{victim.task[-8:]}. Its process, pid {victim.pid} "
            "on this machine, got a SIGKILL from outside of the pod: no time to say goodbye."
        )

    def _victim(self) -> kill.Victim | None:
        """A worker that is in the middle of a step that is not the first, while another one works too."""
        end = time.monotonic() + 20
        cluster = str(self._scene.api("/api/v1/namespaces/kube-system")["metadata"]["uid"])
        with connect(self._scene.owner_dsn) as conn:
            while time.monotonic() < end:
                if victim := kill.in_the_middle(conn, cluster, self._scene.model_log, first=STEPS[0]):
                    return victim
                time.sleep(0.05)
        return None

    def _poison(self) -> None:
        if self._broken == "poison":
            self._screen.say("(DEMO_BREAK=poison: no poison task is submitted.)")
            return
        with Client(dsn=self._scene.dsn("submitter")) as client:
            client.submit(QUEUE, "agent.poison", {}, key=POISON, priority=9)
        self._submitted += 1
        self._screen.say(
            "And a poison task, of the highest priority, which ends any process that runs it. What it took down with it runs alone from now on, "
            f"in a process of its own, so that blame is exact; after {self._promise.max_deliveries} deliveries it is a dead letter."
        )

    def _end_of_burst(self, watch: Watch) -> None:
        if self._broken != "poison" and watch.until(lambda now: now.dead > 0, 60):
            self._screen.say("The poison task is a dead letter now; an Event tells its queue's owner:")
            self._screen.shows(f"kubectl get events -n {NAMESPACE} --field-selector reason=DeadLetters", self._events())
        if watch.until(lambda now: now.ended == now.submitted and not self._feeding.is_set() and now.waiting == 0, 90):
            self._screen.say("Everything has ended; the burst is over.")
        else:
            self._screen.say("Some tasks have not ended within 90 s.")

    def _events(self) -> str:
        wanted = (
            "get",
            "events",
            "--field-selector",
            "reason=DeadLetters",
            "-o",
            "custom-columns=OBJECT:.involvedObject.name,MESSAGE:.message",
        )
        end = time.monotonic() + 10
        while (shown := self._scene.kubectl(*wanted, check=False)).count("\n") < 2 and time.monotonic() < end:
            time.sleep(0.2)
        return shown

    def _drain(self, watch: Watch) -> None:
        self._screen.say("Nothing is left to do: idle pods go, after 5 s (toZeroAfter) the last one too.")
        if watch.until(lambda now: now.wanted == 0 and now.pods == 0, 20 if self._broken == "drain" else 40):
            self._screen.say("The pool is empty.")
        else:
            self._screen.say("The pool is not empty after all that time.")

    def explain(self) -> None:
        """Why each step happened, from the pool itself."""
        self._views()
        command = ("pool", "explain", NAME, "-n", NAMESPACE)
        self._screen.shows("poolkeeper " + " ".join(command), self._poolkeeper(*command))

    def _poolkeeper(self, *command: str) -> str:
        """What the program `poolkeeper` says to a user with a kubeconfig and the submitter's login."""
        env = os.environ | {
            "KUBECONFIG": str(self._scene.cluster.kubeconfig),
            "POOLKEEPER_DSN": self._scene.dsn("submitter"),
        }
        program = Path(sys.executable).with_name("poolkeeper")
        done = subprocess.run([program, *command], capture_output=True, text=True, check=False, timeout=30, env=env)
        return done.stdout + done.stderr

    def verified(self) -> bool:
        """What the second program says."""
        scene = self._scene
        self._screen.say(
            "Did all of that happen? A second program asks the database, the API server and the model's log:"
        )
        argv = [sys.executable, "-m", f"{__package__}.verify", "--dsn", scene.owner_dsn]
        argv += ["--kubeconfig", str(scene.cluster.kubeconfig), "--log", str(scene.model_log)]
        argv += ["--image", str(scene.agent_image)]
        argv += ["--audit", str(scene.cluster.audit_log)] if scene.cluster.audit_log else []
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
        self._screen.plain((done.stdout + done.stderr).rstrip())
        return done.returncode == 0


def _object(kind: str, name: str, **content: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": NAMESPACE}, **content}
