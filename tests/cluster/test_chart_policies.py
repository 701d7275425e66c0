"""The admission policies of the chart, as rendered (O9, contract 11); what they do is in tests/operator/test_deletion_policies.py."""

import pytest

from cluster.test_chart import of_kind, template
from poolkeeper_operator.runtime.kinds import DELETION_POLICY


def test_each_policy_has_a_binding_of_its_name_that_denies_and_the_operator_knows_the_one_that_it_looks_for() -> None:
    objects = template()
    policies = {each["metadata"]["name"]: each for each in of_kind("ValidatingAdmissionPolicy", objects)}
    bindings = {each["metadata"]["name"]: each["spec"] for each in of_kind("ValidatingAdmissionPolicyBinding", objects)}
    assert policies.keys() == bindings.keys() == {DELETION_POLICY, "taskqueue-adoption.poolkeeper.dev"}
    for name, binding in bindings.items():
        assert binding == {"policyName": name, "validationActions": ["Deny"]}
        assert policies[name]["spec"]["failurePolicy"] == "Fail"


@pytest.mark.parametrize("kind", ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"])
def test_a_second_release_leaves_them_out(kind: str) -> None:
    assert of_kind(kind, template("policies.install=false")) == []
