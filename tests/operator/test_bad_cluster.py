"""Contract 2, O31, O32: definitions missing or old, rights missing, names that are none, kubeconfigs of nonsense, a taken port."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fixtures.badinput import QUEUES
from fixtures.layers import cannot_run
from fixtures.stage import CRDS, until
from lab.errors import LabError
from poolkeeper.cli import run

pytestmark = pytest.mark.wide


def poolkeeper(*argv, timeout=60):
    command = [sys.executable, "-m", "poolkeeper", *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


def messages(operator):
    return [line.get("message", "") for line in operator.lines()]


@pytest.fixture
def restored(stage):
    """Whatever a test does to the definitions, they are whole again afterwards."""
    if os.environ.get("POOLKEEPER_TEST_KUBECONFIG"):
        cannot_run("the definitions of a cluster that is not ours are not taken away")
    yield
    stage.kubectl("apply", "--server-side", "--force-conflicts", "-f", CRDS)
    for path in sorted(CRDS.glob("*.yaml")):
        stage.kubectl("wait", "--for=condition=Established", f"crd/{path.stem}.poolkeeper.dev", "--timeout=30s")


def test_a_definition_that_is_missing_or_old_is_named_and_nothing_begins_without_it(stage, start_operator, restored):
    """O32: a limit that the schema drops would look like none; healed, the operator begins without a restart."""
    stage.kubectl("delete", "crd", "providerquotas.poolkeeper.dev")
    old = yaml.safe_load((CRDS / "workerpools.yaml").read_text())
    pool = old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del pool["maxRunning"], pool["scaling"]["properties"]["targetAge"]
    stage.kubectl("replace", "-f", "-", stdin=yaml.safe_dump(old))
    operator = start_operator("--namespace", stage.namespace)
    until(lambda: any("crd_missing" in line for line in messages(operator)), what="it says what is missing")
    said = [line for line in messages(operator) if "crd_missing" in line]
    assert any("providerquotas.poolkeeper.dev is not installed; `poolkeeper crds" in line for line in said)
    assert any(
        "workerpools.poolkeeper.dev has no field spec.maxRunning, spec.scaling.targetAge;" in line for line in said
    )
    assert not any("operator.ready" in line for line in messages(operator))
    assert operator.process.poll() is None
    stage.kubectl("apply", "--server-side", "--force-conflicts", "-f", CRDS)
    operator.wait_ready()
    assert len([line for line in messages(operator) if "crd_missing" in line]) < 20  # said once, not at every try


def test_a_namespace_that_is_not_there_is_named_and_kept_once_it_is(stage, start_operator):
    """Contract 2: its lists would be empty, as those of a namespace without resources; a name that is none is refused."""
    name = f"{stage.namespace}-later"
    operator = start_operator("--namespace", name)
    wanted = f'setting_invalid: there is no namespace "{name}"; create it, or correct --namespace'
    until(lambda: any(wanted in line for line in messages(operator)), what="it says so")
    stage.kubectl("create", "namespace", name)
    operator.wait_ready()
    stage.kubectl("delete", "namespace", name, "--wait=false")
    done = poolkeeper("operator", "--namespace", "../default")
    assert done.returncode == 2
    assert "is no name of a namespace" in done.stderr


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_while_it_waits_for_what_is_missing_it_ends_at_once(stage, start_operator, limited, how):
    """O31: also as the first process of a container, where the kernel's default would not end it."""
    operator = start_operator("--namespace", stage.namespace, kubeconfig=limited)
    until(lambda: any("right_missing" in line for line in messages(operator)), what="it waits")
    assert operator.stop(how) == (0 if how == signal.SIGTERM else 130)
    assert not any("Traceback" in line for line in messages(operator))


@pytest.fixture
def limited(stage, kubeconfig, tmp_path):
    """A kubeconfig of an account that may look at nothing."""
    stage.kubectl("create", "serviceaccount", "limited")
    config = yaml.safe_load(kubeconfig.read_text())
    token = stage.kubectl("create", "token", "limited").strip()
    config["users"] = [{"name": "limited", "user": {"token": token}}]
    config["contexts"] = [{"name": "limited", "context": {"cluster": config["clusters"][0]["name"], "user": "limited"}}]
    config["current-context"] = "limited"
    path = tmp_path / "limited.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


def test_pool_answers_with_the_codes_of_the_other_verbs(stage, kubeconfig, limited, restored, tmp_path, capsys):
    """Contract 2: what is not there, not allowed, not reachable, not installed, and what is no name."""
    there = ("-n", stage.namespace, "--kubeconfig", kubeconfig)
    config = yaml.safe_load(kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    (tmp_path / "away").write_text(yaml.safe_dump(config))
    config = yaml.safe_load(limited.read_text())
    config["users"][0]["user"]["token"] = "expired"
    (tmp_path / "expired").write_text(yaml.safe_dump(config))
    for verb in ("status", "explain"):
        for arguments, code, words in (
            (("nobody", *there), 3, f'error: unknown_pool: there is no pool "nobody" in namespace "{stage.namespace}"'),
            (("mail", "-n", "default", "--kubeconfig", limited), 2, "error: right_missing: "),
            (("mail", "--kubeconfig", tmp_path / "away"), 5, "error: cluster_unreachable: "),
            (("mail", "--kubeconfig", tmp_path / "expired"), 2, "error: setting_invalid: "),
            (("mail", "--kubeconfig", tmp_path / "nowhere"), 2, "error: setting_invalid: kubeconfig "),
            (("../../secrets/pk-main", *there), 2, "is no name of Kubernetes"),
            (("mail", "-n", "a/b", "--kubeconfig", kubeconfig), 2, "is no name of Kubernetes"),
        ):
            assert run(["pool", verb, *map(str, arguments)]) == code, arguments
            out, said = capsys.readouterr()
            assert words in said
            assert out == ""
            assert "Traceback" not in said
    stage.kubectl("delete", "crd", "workerpools.poolkeeper.dev")
    assert run(["pool", "status", "mail", *map(str, there)]) == 2
    assert capsys.readouterr().err.startswith("error: crd_missing: the cluster knows no workerpools.poolkeeper.dev; ")


def test_a_kubeconfig_of_nonsense_is_one_line(tmp_path, capsys):
    """Contract 2: setting_invalid with its path, for `pool` and for the operator."""
    path = tmp_path / "kubeconfig"
    for text in ("", "a: [", "just words", "[1, 2]", "clusters: 5", "\x00"):
        path.write_text(text)
        assert run(["pool", "status", "mail", "--kubeconfig", str(path)]) == 2, text
        said = capsys.readouterr().err
        assert said.startswith(f"error: setting_invalid: kubeconfig {path} cannot be used: "), text
        assert said.count("\n") == 1
    done = poolkeeper("operator", "--http-addr", "127.0.0.1:0", "--kubeconfig", path)
    assert done.returncode == 2
    assert f"error: setting_invalid: kubeconfig {path} cannot be used: " in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (None, "cannot be used: Address already in use; choose another port"),
        ("nonsense", 'is "nonsense"; expected host:port'),
        ("127.0.0.1:99999", "expected host:port"),
        ("127.0.0.1:" + "9" * 5000, "expected host:port"),
        ("a" * 70 + ":1", "cannot be used"),
    ],
)
def test_an_address_that_cannot_be_listened_on_is_named(address, words):
    """Contract 2: setting_invalid, exit 2; a second operator on one machine too."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = poolkeeper("operator", "--http-addr", address or f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.returncode == 2
    assert "error: setting_invalid: POOLKEEPER_HTTP_ADDR" in done.stderr
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("variable", ["POOLKEEPER_LOG_LEVEL", "POOLKEEPER_LOG_FORMAT"])
def test_a_log_setting_of_nonsense_is_named(monkeypatch, variable):
    """Contract 2."""
    monkeypatch.setenv(variable, "loud")
    done = poolkeeper("operator", "--http-addr", "127.0.0.1:0")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f'error: setting_invalid: {variable} is "loud"; expected' in done.stderr


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    """Contract 2: `crds --write` into a file's name, and onto a full disk."""
    (tmp_path / "file").write_text("")
    done = poolkeeper("crds", "--write", tmp_path / "file" / "below")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "poolkeeper", "crds"]
        told = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert told.returncode == 2
    assert "error: setting_invalid: an input or output cannot be used: No space left" in told.stderr


def test_no_resource_has_a_name_that_is_none(stage):
    """C54, O8: the API server refuses it, with the rule."""
    for name, (text, good) in QUEUES.items():
        if good or name == "new line":  # JSON cannot hide one from it, kubectl's own output can
            continue
        with pytest.raises(LabError, match=r"RFC 1123|DNS label of at most|invalid resource name"):
            stage.apply(stage.queue(text))


def test_an_image_that_does_not_exist_and_hostile_texts_of_a_pool_break_nothing(stage, operator):
    """C54: types, labels and values are texts; what children cannot carry is said in a condition and leaves the others alone."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail"))
    hostile = {"image": "no such image", "env": [{"name": "A", "value": "a'; drop table x;--\u202e{0}%s$(B)"}]}
    stage.apply(stage.pool("odd", "mail", template={**hostile, "metadata": {"labels": {"team": "a b"}}}))
    condition = stage.wait_condition("workerpool", "odd", "Ready", "False", "Refused", timeout=60)
    assert re.search(r"labels|image", condition["message"])
    stage.wait_condition("workerpool", "mail", "Ready", "True")
    stage.apply(stage.pool("odd", "mail"))
    stage.wait_condition("workerpool", "odd", "Ready", "True", timeout=90)
