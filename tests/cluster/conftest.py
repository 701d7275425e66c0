"""Fixtures of this layer: the stage of tests/fixtures/stage.py with a database that pods reach, so that its pools run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.calls import FOLDER, Calls, model_server
from fixtures.images import Images, bring
from fixtures.postgres import Database
from fixtures.stage import Stage, crds, operator, start_operator
from lab import image
from lab.handle import Cluster
from lab.kubectl import Kubectl

__all__ = ["crds", "operator", "start_operator"]

STEPPER = "localhost/stepper:test"


@pytest.fixture(scope="session")
def stepper(node_cluster: Cluster, images: Images) -> str:
    """The image of the application that calls the model server, on the node."""
    del images  # the worker's image is what it is built on
    bring(node_cluster, image.build_app_image(FOLDER, STEPPER))
    return STEPPER


@pytest.fixture
def model(node_cluster: Cluster, tmp_path: Path) -> Iterator[Calls]:
    """A model server where pods reach it."""
    assert node_cluster.host_address is not None
    with model_server(tmp_path / "model.log", node_cluster.host_address) as served:
        yield served


@pytest.fixture
def stage(crds: None, kubectl: Kubectl, namespace: str, database_for_pods: Database) -> Iterator[Stage]:
    """A namespace, a database and its Secret, as a platform team would have it: one login for workers and operator."""
    login = database_for_pods.login("worker")
    with database_for_pods.connect() as conn:
        conn.execute(f'GRANT poolkeeper_operator TO "{login}"'.encode())
        conn.execute("INSERT INTO poolkeeper.access (role) VALUES (%s)", [login])
    made = Stage(kubectl, namespace, database_for_pods)
    made.apply(made.secret(dsn=database_for_pods.dsn_for_pods("worker")))
    yield made
    made.close()
