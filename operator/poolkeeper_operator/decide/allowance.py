"""How much grace nodes really allow, as far as that is known (O22).

Guarantees: a pod's own grace is compared with what whoever runs the nodes has said (the operator's option `--node-grace`), and with what
clouds document of the notice before they take a spot machine back; said by label wins over documented. What is not known is
compared with nothing. Nothing follows from it but a condition: leases and tokens are what keeps the tasks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from poolkeeper_operator.decide.grace import Grace
from poolkeeper_operator.decide.reasons import GraceReason

UNMEASURED = {GraceReason.NO_SAMPLES, GraceReason.FEW_SAMPLES}
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Allowance:
    """The most grace that nodes with a label give a pod, or that all do (no label)."""

    most: timedelta
    label: str = ""
    value: str = ""

    def of(self, labels: Labels) -> bool:
        """Whether it is about a node with these labels."""
        return not self.label or labels.get(self.label) == self.value

    @property
    def sentence(self) -> str:
        """Whose it is, in a few words."""
        who = f"nodes with {self.label}={self.value}" if self.label else "nodes"
        return f"{who} allow {self.most.total_seconds():.0f} s"


DOCUMENTED = (
    Allowance(
        timedelta(seconds=15), "cloud.google.com/gke-spot", "true"
    ),  # https://cloud.google.com/kubernetes-engine/docs/concepts/spot-vms
    Allowance(timedelta(seconds=15), "cloud.google.com/gke-preemptible", "true"),
    Allowance(
        timedelta(seconds=30), "kubernetes.azure.com/scalesetpriority", "spot"
    ),  # https://learn.microsoft.com/azure/aks/spot-node-pool
    Allowance(
        timedelta(seconds=120), "eks.amazonaws.com/capacityType", "SPOT"
    ),  # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
    Allowance(
        timedelta(seconds=120), "karpenter.sh/capacity-type", "spot"
    ),  # as on AWS; say another one for other clouds
)


def tightest(nodes: Iterable[Labels], said: Sequence[Allowance]) -> Allowance | None:
    """The least grace on any of these nodes; without a node, what holds for all; None where nothing is known."""
    found = [allowance for labels in nodes for allowance in _of(labels, said)]
    found += [each for each in said if not each.label]
    return min(found, key=lambda each: (each.most, each.label, each.value), default=None)


def _of(labels: Labels, said: Sequence[Allowance]) -> list[Allowance]:
    told = [each for each in said if each.label and each.of(labels)]
    overruled = {each.label for each in told}
    return told + [each for each in DOCUMENTED if each.of(labels) and each.label not in overruled]


def exceeded(drains: Grace, allowed: Allowance | None) -> bool:
    """Whether drains, as measured, need more than the nodes allow."""
    return allowed is not None and drains.reason not in UNMEASURED and drains.needed > allowed.most
