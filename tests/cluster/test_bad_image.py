"""An image that does not exist, and one without our program, on a real node: the cause is quoted and growth stops (O16)."""

import psycopg
import pytest

from fixtures.stage import Operator, Stage, crds, operator, stage, start_operator, until
from lab.handle import Cluster
from lab.node_settings import PAUSE

__all__ = ["crds", "operator", "stage", "start_operator"]
SMALL = {"requests": {"cpu": "10m", "memory": "16Mi"}}


@pytest.mark.parametrize(
    ("image", "causes"),
    [
        ("localhost/no-such-image:1", ("ErrImagePull", "ImagePullBackOff")),
        pytest.param("localhost/No Image", ("InvalidImageName",), marks=pytest.mark.wide),
        pytest.param(PAUSE, ("CreateContainerError", "RunContainerError", "CrashLoopBackOff"), marks=pytest.mark.wide),
    ],
    ids=["missing", "no name", "without our program"],
)
def test_a_pool_whose_image_cannot_run_says_why_and_grows_no_further(
    node_cluster: Cluster, stage: Stage, operator: Operator, image: str, causes: tuple[str, ...]
) -> None:
    """O16: in one line that a person can act on; the tasks wait, and nothing of them is lost."""
    template = {"image": image, "imagePullPolicy": "IfNotPresent", "resources": SMALL}
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail", template=template))
    stage.wait_condition("taskqueue", "mail", "Ready", "True")
    stage.submit("mail")

    def cause() -> str:
        told = stage.condition("workerpool", "mail", "Ready") or {}
        return told["message"] if told.get("reason") == "PodsCannotStart" else ""

    said = until(lambda: next((cause() for name in causes if name in cause()), ""), timeout=90, what=f"{causes}")
    assert 'pool "mail": 1 of 1 pods cannot start: ' in said
    stage.submit("mail", 20)
    until(lambda: operator.metric("poolkeeper_pool_wanted_pods", pool="mail") > 1, what="more is wanted")
    assert stage.replicas("mail") == 1
    with psycopg.connect(stage.database.dsn) as conn:
        assert conn.execute("SELECT count(*) FROM poolkeeper.tasks WHERE state = 'ready'").fetchone() == (21,)
