"""Whatever the CRDs admit: judged in a sentence, no failure of ours, and nobody else's trouble (O2, O4, C41)."""

import os
import re
from typing import Any

import pytest

from fixtures.admitted import Admitted
from fixtures.api import Api
from fixtures.stage import TEMPLATE, until

pytestmark = [pytest.mark.timeout(400), pytest.mark.wide]
EACH = 40
KINDS = ["Database", "TaskQueue", "WorkerPool", "ProviderQuota"]


@pytest.fixture
def offered(stage, kubeconfig):
    """Objects by chance of a kind, as the API server took them; the words of its refusals."""
    api = Api(kubeconfig)

    def offer(kind, seed, count):
        source = Admitted(kind, seed)
        taken: list[Any] = []
        refused: list[str] = []
        for number in range(10 * count):
            if len(taken) == count:
                break
            spec = {**source.spec(), **kept(kind, source)}
            made = stage.ours(kind, f"n{number}", spec)
            while (why := api.create(kind.lower(), stage.namespace, made)) is not None and without(spec, why):
                refused.append(why)
            if why is None:
                taken.append(made)
        return taken, refused

    yield offer
    api.close()


def without(spec, why):
    """Take out of a spec what its refusal names; False if it names nothing that is there."""
    before = str(spec)
    for path in re.findall(r"spec((?:[.][A-Za-z]+)+)", why):
        *way, last = path.strip(".").split(".")
        part = spec
        for name in way:
            part = part.get(name) if isinstance(part, dict) else None
        if isinstance(part, dict):
            part.pop(last, None)
    return str(spec) != before


def kept(kind, source):
    """What is not left to chance, so that there is something to judge, and the API server has not a million pods to make."""
    if kind == "Database":
        return {"dsnSecretRef": {"name": "pk-main"}, "tickInterval": "1s"} if source.coin() else {}
    if kind == "TaskQueue":
        return {"databaseRef": {"name": "main" if source.coin() else "missing"}}
    if kind == "WorkerPool":
        scaling = source.spec().get("scaling") or {}
        return {
            "queues": [{"name": "good" if source.coin() else "missing"}],
            "template": {**source.spec().get("template", {}), **(TEMPLATE if source.coin() else {})},
            "scaling": {**scaling, "min": min(scaling.get("min", 0), 3)},
        }
    return {}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_admitted_is_judged_and_harms_nobody(stage, operator, offered, kind):
    """Every object gets Ready with a reason and a sentence; the operator logs no error; a pool beside them goes on."""
    stage.apply(stage.db(), stage.queue("good"), stage.queue("mail"), stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "SignalFresh", "True")
    seed = int(os.environ.get("POOLKEEPER_TEST_SEED", "1796083946"))  # the same ones in each run, others for who asks
    taken, refused = offered(kind, seed, EACH)
    assert len(taken) == EACH, refused[-3:]
    names = {each["metadata"]["name"] for each in taken}

    def unjudged():
        found = {
            each["metadata"]["name"]: each for each in stage.all(kind.lower()) if each["metadata"]["name"] in names
        }
        return [name for name in names if not judged(found[name])]

    until(lambda: not unjudged(), timeout=120, what=f"all are judged: {kind}, seed {seed}")
    stage.submit("mail", 3)
    until(lambda: stage.replicas("mail") == 3, timeout=60, what="the neighbour goes on")
    wrong = [line for line in operator.lines() if line.get("level") in {"error", "critical"} or "exception" in line]
    assert wrong == [], f"seed {seed}"


def judged(manifest):
    """Whether its present generation has a verdict in words."""
    status = manifest.get("status") or {}
    ready = next((each for each in status.get("conditions", []) if each["type"] == "Ready"), None)
    if ready is None or status.get("observedGeneration") != manifest["metadata"]["generation"]:
        return False
    return bool(ready["reason"]) and (ready["status"] == "True" or len(ready["message"].split()) > 3)
