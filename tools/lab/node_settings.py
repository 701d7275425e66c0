"""The settings of a node's programs, as values: containerd, network plugin, kubelet and kube-proxy.

Guarantees nothing by itself; `node.py` writes them and `tests/cluster` shows that they work.
"""

from pathlib import Path
from typing import Any

from lab.controlplane import Ports
from lab.network import Network
from lab.pki import NODE

PAUSE = "localhost/poolkeeper-lab/pause:1"
_UNUSED = "snapshotter.v1.btrfs snapshotter.v1.zfs snapshotter.v1.aufs snapshotter.v1.devmapper tracing.processor.v1.otlp internal.v1.tracing"


def network_list(network: Network, addresses: Path) -> dict[str, Any]:
    """Pods on the bridge, without masquerade: nothing of theirs leaves the machine."""
    first, last = network.pod_range
    ranges = [[{"subnet": network.pods, "gateway": network.gateway, "rangeStart": first, "rangeEnd": last}]]
    return {
        "cniVersion": "0.4.0",
        "name": network.bridge,
        "plugins": [
            {
                "type": "bridge",
                "bridge": network.bridge,
                "isGateway": True,
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(addresses),
                    "ranges": ranges,
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


def containerd_toml(folder: Path, socket: Path, *, plugins: Path, runc: str, may_lower_oom_score: bool) -> str:
    """Everything below the folder; the sandbox image is the lab's own."""
    disabled = ", ".join(f'"io.containerd.{name}"' for name in _UNUSED.split())
    return f"""
version = 2
root = "{folder}/containerd"
state = "{folder}/run/containerd"
disabled_plugins = [{disabled}]
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  disable_apparmor = true
  restrict_oom_score_adj = {"false" if may_lower_oom_score else "true"}
  netns_mounts_under_state_dir = true
  enable_unprivileged_ports = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{folder}/cni"
    max_conf_num = 1
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        SystemdCgroup = false
        Root = "{folder}/run/runc"
"""


def kubelet_settings(
    folder: Path, socket: Path, pki: Path, *, address: str, ports: Ports, cgroup: str, cgroup_v1: bool
) -> dict[str, Any]:
    """A kubelet that trusts the API server only, keeps its images, and evicts late."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": address,
        "port": ports.kubelet,
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": ports.kubelet_health,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / f"{NODE}-serving.crt"),
        "tlsPrivateKeyFile": str(pki / f"{NODE}-serving.key"),
        "containerRuntimeEndpoint": f"unix://{socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{cgroup}",
        **({"failCgroupV1": False} if cgroup_v1 else {}),
        "failSwapOn": False,
        "podLogsDir": str(folder / "logs"),
        "resolvConf": str(folder / "resolv.conf"),
        "volumePluginDir": str(folder / "volumeplugins"),
        "makeIPTablesUtilChains": False,
        "enforceNodeAllocatable": ["pods"],
        "maxPods": 200,
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "imageMinimumGCAge": "24h",
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        "serializeImagePulls": False,
        "logging": {"verbosity": 2},
    }


def proxy_settings(network: Network, kubeconfig: Path, ports: Ports) -> dict[str, Any]:
    """Services by nftables; leaves the machine's connection tracking limits alone."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "hostnameOverride": NODE,
        "clusterCIDR": network.pods,
        "bindAddress": network.gateway,
        "healthzBindAddress": f"127.0.0.1:{ports.proxy_health}",
        "metricsBindAddress": f"127.0.0.1:{ports.proxy_metrics}",
        "nodePortAddresses": [f"{network.gateway}/32"],
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }
