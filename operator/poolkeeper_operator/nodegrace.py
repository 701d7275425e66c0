"""The option `--node-grace`: how much grace nodes allow, as whoever runs them says it (O22)."""

import re
from datetime import timedelta
from typing import Any

import click

from poolkeeper.durations import parse_duration
from poolkeeper_operator.decide.allowance import Allowance

_NAME = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_SAID = re.compile(rf"(?:(?P<label>(?:[a-z0-9.-]{{1,253}}/)?{_NAME})=(?P<value>{_NAME}):)?(?P<most>[^:=]+)")


class NodeGrace(click.ParamType):  # type: ignore[type-arg]  # generic in newer versions only
    """`10m` for all nodes, `karpenter.sh/nodepool=batch:5m` for those with a label."""

    name = "[label=value:]duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Allowance:
        """Read one; a wrong one is named, with the form."""
        if isinstance(value, Allowance):
            return value
        match = _SAID.fullmatch(str(value))
        try:
            most = parse_duration(match["most"]) if match else timedelta(0)
        except ValueError:
            most = timedelta(0)
        if match is None or not most:
            form = "write 10m, or karpenter.sh/nodepool=batch:5m for the nodes with a label"
            self.fail(f"{ascii(str(value))[:200]} is not how much grace nodes allow; {form}", param, ctx)
        return Allowance(most, match["label"] or "", match["value"] or "")
