"""The network of a cluster's pods overlaps nothing in use, and only this machine's addresses are sent to."""

import ipaddress
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.errors import LabError
from lab.network import plan, require_local

ROOT = Path(__file__).resolve().parents[2]
WHOLE = ipaddress.IPv4Network("10.64.0.0/10")
SOME = st.builds(
    lambda address, length: ipaddress.IPv4Network((address, length), strict=False),
    st.integers(int(WHOLE[0]), int(WHOLE[-1])),
    st.integers(12, 32),
)


@given(st.text("0123456789abcdef", min_size=8, max_size=8), st.lists(SOME, max_size=20))
def test_a_plan_overlaps_nothing_in_use(ident: str, used: list[ipaddress.IPv4Network]) -> None:
    try:
        made = plan(ident, used)
    except LabError:
        pairs = [ipaddress.IPv4Network(f"10.{second}.0.0/15") for second in range(64, 128, 2)]
        assert all(any(each.overlaps(pair) for each in used) for pair in pairs)
        return
    pods, services = ipaddress.IPv4Network(made.pods), ipaddress.IPv4Network(made.services)
    assert not pods.overlaps(services)
    assert not any(each.overlaps(pods) or each.overlaps(services) for each in used)
    assert ipaddress.ip_address(made.gateway) in pods
    assert all(ipaddress.ip_address(end) in pods for end in made.pod_range)
    assert len(made.bridge) <= 15  # the kernel's limit


def test_when_everything_is_in_use_the_error_says_how_to_look() -> None:
    with pytest.raises(LabError, match="ip route show table all"):
        plan("00000000", [WHOLE])


def test_an_address_elsewhere_is_refused_before_anything_is_sent_to_it() -> None:
    require_local("127.0.0.1")
    with pytest.raises(LabError, match=r"192\.0\.2\.1 is not an address of this machine"):
        require_local("192.0.2.1")


def test_a_command_goes_on_where_loopback_is_all_there_is_or_says_what_it_lacks() -> None:
    """What listens on every address listens to nobody else."""
    code = "import socket, sys; from lab.network import go_apart; go_apart(); socket.create_server(('', 0)); print(sys.argv[1:], socket.if_nameindex())"
    done = subprocess.run(
        [sys.executable, "-c", code, "a b"], env={**os.environ, "PYTHONPATH": "tools"}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if os.geteuid() == 0 and not done.returncode:
        assert done.stdout == "['a b'] [(1, 'lo')]\n"
    else:
        assert "no network namespace of its own" in done.stderr
