"""The admission policies of the chart, as rendered (O9, contract 11); what they do is in tests/operator/test_deletion_policies.py."""

import pytest

from cluster.test_chart import container, of_kind, template
from poolkeeper_operator.resources.templatepolicy import TemplatePolicy
from poolkeeper_operator.runtime.kinds import DELETION_POLICY


def test_each_policy_has_a_binding_of_its_name_that_denies_and_the_operator_knows_the_one_that_it_looks_for() -> None:
    objects = template()
    policies = {each["metadata"]["name"]: each for each in of_kind("ValidatingAdmissionPolicy", objects)}
    bindings = {each["metadata"]["name"]: each["spec"] for each in of_kind("ValidatingAdmissionPolicyBinding", objects)}
    assert (
        policies.keys()
        == bindings.keys()
        == {
            DELETION_POLICY,
            "taskqueue-adoption.poolkeeper.dev",
            "workerpool-templates.poolkeeper.dev",
        }
    )
    for name, binding in bindings.items():
        assert binding == {"policyName": name, "validationActions": ["Deny"]}
        assert policies[name]["spec"]["failurePolicy"] == "Fail"


@pytest.mark.parametrize("kind", ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"])
def test_a_second_release_leaves_them_out(kind: str) -> None:
    assert of_kind(kind, template("policies.install=false")) == []


def test_the_operator_is_given_the_values_that_the_policy_is_made_of_and_has_the_same_by_itself() -> None:
    """O7: one source; what is not set there is the same in the chart and in an operator without it."""

    def given(*settings: str) -> TemplatePolicy:
        env = {each["name"]: each.get("value") for each in container(template(*settings))["env"]}
        return TemplatePolicy.model_validate_json(env["POOLKEEPER_TEMPLATE_POLICY"])

    assert given() == TemplatePolicy()
    assert given("policies.templates.images={a/,b}", "policies.install=false").images == ("a/", "b")
