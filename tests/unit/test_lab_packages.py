"""Packages of the distribution are named before they are installed, and only root installs them."""

import os
import subprocess
from pathlib import Path

import pytest

from lab import packages
from lab.errors import LabError


def test_what_is_here_needs_nothing() -> None:
    packages.need({"sh": "dash"}, purpose="a test", say=pytest.fail)


def test_without_root_the_error_names_the_packages_and_the_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    wanted = {"no-such-program": "package-b", "nor-this": "package-a", "sh": "dash"}
    with pytest.raises(
        LabError, match=r"a node needs the packages package-a package-b and a root user; .*apt-get install"
    ):
        packages.need(wanted, purpose="a node", say=pytest.fail)


def test_a_missing_program_names_its_package() -> None:
    with pytest.raises(LabError, match="no no-such-program here; install the package no-such-program"):
        packages.require("no-such-program")


def test_every_program_of_a_node_comes_from_a_named_package() -> None:
    assert packages.NODE["cni/bridge"] == "containernetworking-plugins"
    assert set(packages.CONTROL_PLANE) == {"openssl"}


def test_no_service_is_started_by_what_is_installed_and_a_policy_that_was_there_stands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(packages, "_POLICY", policy)
    with packages._no_service_starts():
        assert subprocess.run([policy], check=False).returncode == 101, "Debian's word for: do not"
    assert not policy.exists()
    policy.write_text("the owner's")
    with packages._no_service_starts():
        assert policy.read_text() == "the owner's"
    assert policy.exists()
