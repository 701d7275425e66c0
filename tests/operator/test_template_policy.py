"""What tenants may write into a WorkerPool's template: refused at apply, and by the operator where nothing refuses (O7)."""

import json

import pytest
import yaml

from cluster.test_chart import helm
from fixtures.stage import TEMPLATE, until
from lab.errors import LabError
from poolkeeper_operator.resources.templatepolicy import TemplatePolicy

STRICT = {
    "images": ["registry.example.com/team/", "localhost/demo", "short"],
    "volumes": ["emptyDir", "secret", "projected", "configMap"],
    "secrets": ["app", "app-*"],
    "serviceAccounts": ["billing", "svc-*"],
    "refusedKeys": ["sidecar.istio.io/", "apparmor.example.com/"],
    "noNetworkPolicy": False,
    "egress": False,
    "runtimeClasses": ["gvisor", "kata-*"],
    "placement": False,
}


def policy_objects(values):
    """The chart's policy about templates with its binding, rendered from these values."""
    argv = ["template", "p", "charts/poolkeeper", "--show-only", "templates/templatepolicy.yaml"]
    status, said = helm(*argv, "--set-json", f"policies.templates={json.dumps(values)}")
    assert status == 0, said
    return list(yaml.safe_load_all(said))


@pytest.fixture
def enforce(kubectl, stage):
    """Install the policy with these values; taken away at the end."""
    made = []

    def install(values):
        made.extend(policy_objects(values))
        kubectl.apply(*made)

    yield install
    for each in made:
        kubectl("delete", each["kind"], each["metadata"]["name"], "--ignore-not-found")


def with_(**fields):
    """A template of the stage's with these fields more."""
    return {"template": {**TEMPLATE, **fields}}


def volume(**source):
    return with_(volumes=[{"name": "v", **source}])


def token(source):
    return with_(env=[{"name": "A", "valueFrom": source}])


CASES = {
    "plain": {},
    "image of the team": with_(image="registry.example.com/team/worker:1"),
    "image by digest": with_(image="localhost/demo@sha256:" + "0" * 64),
    "image of another": with_(image="registry.example.com/team2/worker:1"),
    "image whose name goes on": with_(image="localhost/demo-evil:1"),
    "image whose host goes on": with_(image="registry.example.com.evil.org/team/worker:1"),
    "image of a short name": with_(image="short:1"),
    "image of a registry with that name": with_(image="short:5000/evil"),
    "label": with_(metadata={"labels": {"cost-centre": "7"}}),
    "label refused": with_(metadata={"labels": {"sidecar.istio.io/inject": "false"}}),
    "annotation": with_(metadata={"annotations": {"example.com/sidecar.istio.io": "x"}}),
    "annotation refused": with_(metadata={"annotations": {"apparmor.example.com/worker": "unconfined"}}),
    "empty directory": volume(emptyDir={"sizeLimit": "1Gi"}),
    "volume without a kind": volume(),
    "path of the node": volume(hostPath={"path": "/"}),
    "two kinds": with_(volumes=[{"name": "v", "emptyDir": {}}, {"name": "w", "nfs": {"server": "s", "path": "/"}}]),
    "kind that is nothing": volume(hostPath=None),
    "secret": volume(secret={"secretName": "app"}),
    "secret of another": volume(secret={"secretName": "apps"}),
    "secret without a name": volume(secret={"optional": True}),
    "secret of a pool": volume(secret={"secretName": "poolkeeper-role-mail"}),
    "projected secret": volume(projected={"sources": [{"configMap": {"name": "x"}}, {"secret": {"name": "app-1"}}]}),
    "projected secret of another": volume(projected={"sources": [{"secret": {"name": "db-admin"}}]}),
    "projected secret of a pool": volume(projected={"sources": [{"secret": {"name": "poolkeeper-role-x"}}]}),
    "projected nothing": volume(projected={}),
    "token": volume(projected={"sources": [{"serviceAccountToken": {"path": "t"}}]}),
    "variable": token({"secretKeyRef": {"name": "app-x", "key": "k"}}),
    "variable of the node": token({"fieldRef": {"fieldPath": "spec.nodeName"}}),
    "variable of another's secret": token({"secretKeyRef": {"name": "other", "key": "k"}}),
    "variables": with_(envFrom=[{"secretRef": {"name": "app"}}, {"configMapRef": {"name": "any"}}]),
    "variables of another's secret": with_(envFrom=[{"secretRef": {"name": "other"}}]),
    "own account": {"isolation": {"serviceAccountName": "billing"}},
    "account by its beginning": {"isolation": {"serviceAccountName": "svc-a"}},
    "account of another": {"isolation": {"serviceAccountName": "default"}},
    "account of its own name": {"isolation": {"serviceAccountName": "mail"}},
    "policy": {"isolation": {"networkPolicy": "Enforced", "egress": []}},
    "no policy": {"isolation": {"networkPolicy": "None"}},
    "egress": {"isolation": {"egress": [{"cidr": "0.0.0.0/0"}]}},
    "sandbox": {"isolation": {"runtimeClassName": "gvisor"}},
    "sandbox by its beginning": {"isolation": {"runtimeClassName": "kata-qemu"}},
    "sandbox that is none": {"isolation": {"runtimeClassName": "runc"}},
    "spread": {"isolation": {"placement": {"topologySpread": "Required", "nodeSelector": {}, "tolerations": []}}},
    "nodes": {"isolation": {"placement": {"nodeSelector": {"node-role.kubernetes.io/control-plane": ""}}}},
    "every taint": {"isolation": {"placement": {"tolerations": [{"operator": "Exists"}]}}},
}


def told(stage, name, spec, verb="apply"):
    """What the API server says to such a pool, "" if it takes it; "create": with its nulls, which apply leaves out."""
    manifest = json.dumps(stage.pool(name, **spec))
    try:
        stage.kubectl(verb, "--dry-run=server", "-f", "-", stdin=manifest)
    except LabError as error:
        return str(error)
    return ""


def in_force(stage, bad):
    """Wait until the policy is in use: the API server takes it up some time after it was installed."""
    until(lambda: told(stage, "probe", bad), timeout=60)


# what the policy cannot judge is refused without its words: the operator leaves that to the Deployment's own rules
UNJUDGED = {"secret without a name"}


@pytest.mark.wide
@pytest.mark.parametrize("values", [{}, STRICT], ids=["defaults", "strict"])
def test_what_is_refused_at_apply_is_what_the_operator_refuses_in_the_same_words(stage, enforce, values):
    """O7: one list of values, two judges, each template."""
    enforce(values)
    in_force(stage, volume(hostPath={"path": "/"}))
    judge = TemplatePolicy.model_validate(values)
    refused = set()
    for what, spec in CASES.items():
        said = told(stage, "mail", spec, "create")
        pool = stage.pool("mail", **spec)
        pool["metadata"]["namespace"] = stage.namespace
        words = judge.refusals(pool)
        if what in UNJUDGED:
            assert (bool(said), words) == (True, [])
            continue
        assert bool(said) == bool(words), (what, said, words)
        assert not words or any(each in said for each in words), (what, said, words)
        refused |= {what} if words else set()
    assert {"path of the node", "token", "secret of a pool", "account of another"} <= refused
    assert not refused & {"plain", "empty directory", "secret", "variable", "policy"}
    assert ("image of a registry with that name" in refused) == (values is STRICT)
    assert ("egress" in refused) == (values is STRICT)


def test_fields_that_a_template_does_not_have_are_refused_by_name(stage):
    """O7: curated means that there is no place for them, whatever the policy says."""
    for field in ("hostNetwork", "hostPID", "securityContext", "command", "nodeSelector", "initContainers"):
        said = told(stage, "mail", with_(**{field: {}}))
        assert f'unknown field "spec.template.{field}"' in said


@pytest.mark.wide
def test_where_no_policy_is_installed_the_operator_refuses_and_says_so(stage, operator):
    """O7: TemplateRefused, no pods; allowed, it heals by itself; refused later, it keeps the template it has and its size."""
    stage.apply(stage.db(), stage.queue("mail"), stage.pool("mail", **volume(hostPath={"path": "/"})))
    said = stage.wait_condition("workerpool", "mail", "TemplateRefused", "True", "NotAllowed")["message"]
    assert said.startswith('pool "mail": template.volumes may be of the kinds configMap, ')
    stage.wait_condition("workerpool", "mail", "Stalled", "True", "TemplateRefused")
    assert stage.get("deployment", "mail") is None
    stage.apply(stage.pool("mail"))
    stage.wait_condition("workerpool", "mail", "TemplateRefused", "False", "Allowed")
    stage.wait_condition("workerpool", "mail", "Ready", "True")
    before = stage.get("deployment", "mail")["spec"]["template"]
    stage.apply(stage.pool("mail", isolation={"serviceAccountName": "default"}))
    said = stage.wait_condition("workerpool", "mail", "Ready", "False", "TemplateRefused")["message"]
    assert "isolation.serviceAccountName may be none: each pool has its own" in said
    stage.submit("mail", 3)
    until(lambda: stage.replicas("mail") == 3, timeout=60)
    assert stage.get("deployment", "mail")["spec"]["template"] == before


@pytest.mark.wide
def test_no_pod_reads_the_secret_of_the_owner(stage, operator):
    """O7, Q51: whoever may write a pool would own the installation; any other Secret is the platform's to allow."""
    stage.apply(stage.secret("pk-admin"), stage.db(adminSecretRef={"name": "pk-admin"}, migrations="Manual"))
    stage.apply(stage.queue("mail"), stage.pool("mail", **volume(secret={"secretName": "pk-admin"})))
    said = stage.wait_condition("workerpool", "mail", "TemplateRefused", "True")["message"]
    assert said == 'pool "mail": secret "pk-admin" is for the operator alone; no pod may read it'
    stage.apply(stage.pool("mail", **volume(secret={"secretName": "pk-app"})))
    stage.wait_condition("workerpool", "mail", "TemplateRefused", "False")


@pytest.mark.wide
def test_no_pod_reads_the_operators_login_where_pools_have_their_own(stage, operator):
    """O5, O7, Q51: with PerPool the Database's Secrets are the operator's alone; whoever read them would be any pool."""
    stage.apply(stage.secret(), stage.secret("pk-direct"), stage.queue("mail"))
    direct = {"directSecretRef": {"name": "pk-direct", "key": "dsn"}}
    for name in ("pk-main", "pk-direct"):
        stage.apply(stage.db(**direct))
        stage.apply(stage.pool("mail", **token({"secretKeyRef": {"name": name, "key": "dsn"}})))
        stage.wait_condition("workerpool", "mail", "TemplateRefused", "False")
        stage.apply(stage.db(roles="PerPool", **direct))
        said = stage.wait_condition("workerpool", "mail", "TemplateRefused", "True")["message"]
        assert said == f'pool "mail": secret "{name}" is for the operator alone; no pod may read it'


@pytest.mark.wide
def test_a_pool_that_was_there_before_can_be_changed_elsewhere_and_others_are_exempt(stage, enforce, kubectl):
    """O7: a policy that comes later blocks no other field, no namespace that it does not mean, and any change for the worse."""
    bad = volume(hostPath={"path": "/"})
    stage.apply(stage.pool("mail", **bad), stage.pool("fine"))
    other = f"{stage.namespace}-x"
    kubectl("create", "namespace", other)
    try:
        enforce({"exemptNamespaces": [other]})
        in_force(stage, bad)
        stage.kubectl("patch", "workerpool", "mail", "--type=merge", "-p", '{"spec": {"scaling": {"max": 7}}}')
        stage.kubectl("label", "workerpool", "mail", "team=red")
        worse = {"template": {**bad["template"], "image": "localhost/demo:2"}}
        assert "template.volumes may be of the kinds" in told(stage, "mail", worse)
        assert "template.volumes may be of the kinds" in told(stage, "fine", bad)
        stage.apply(stage.pool("mail"))
        elsewhere = kubectl.within(other)
        elsewhere.apply(stage.pool("mail", **bad))
    finally:
        kubectl("delete", "namespace", other, "--wait=false")
