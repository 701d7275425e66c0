"""How the process finds and trusts its API server: a kubeconfig if one is named, else the pod's service account.

Guarantees that kopf and our own client use the same server and identity, and that a rotated token is used at once.
"""

import os
from pathlib import Path

import kopf
import yaml
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration

from poolkeeper.codes import Code
from poolkeeper.errors import Misconfigured


async def load(kubeconfig: str | None) -> Configuration:
    """The client configuration: `kubeconfig`, else $KUBECONFIG, else the pod's service account, else ~/.kube/config."""
    found = kubeconfig or os.environ.get("KUBECONFIG")
    settings = Configuration()
    settings.retries = None  # the work queue retries, with back-off; 0 would be without end, in silence
    default = _home_config()
    if found and not _exists(found):
        raise _unusable(found, "there is no such file")
    try:
        if found:
            await kube_config.load_kube_config(found, client_configuration=settings, persist_config=False)
        elif "KUBERNETES_SERVICE_HOST" in os.environ:
            kube_config.load_incluster_config(client_configuration=settings)
        elif default:
            await kube_config.load_kube_config(str(default), client_configuration=settings, persist_config=False)
        else:
            raise Misconfigured(
                Code.SETTING_INVALID,
                "no Kubernetes API server: not in a pod, and neither --kubeconfig, $KUBECONFIG nor ~/.kube/config is there",
            )
    except (kube_config.ConfigException, OSError) as error:
        raise _unusable(found or default, str(error)) from error
    except (
        yaml.YAMLError,
        ValueError,
        TypeError,
        AttributeError,
        LookupError,
    ) as error:  # what is in it makes no sense
        raise _unusable(found or default, f"it is no kubeconfig ({type(error).__name__})") from error
    return settings


def _unusable(path: object, why: str) -> Misconfigured:
    text = (
        f"kubeconfig {path or 'of the pod'} cannot be used: {' '.join(why.split())[:300]}; correct it or name another"
    )
    return Misconfigured(Code.SETTING_INVALID, text)


def _exists(paths: str) -> bool:
    return any(Path(path).expanduser().exists() for path in paths.split(os.pathsep))


def _home_config() -> Path | None:
    path = Path("~/.kube/config").expanduser()
    return path if path.exists() else None


async def bearer(settings: Configuration) -> str:
    """What goes into the header Authorization, empty if the client certificate says it all; read anew, as files are rotated."""
    return await settings.get_api_key_with_prefix("BearerToken", alias="authorization") or ""


def connection(settings: Configuration) -> kopf.ConnectionInfo:
    """The same server and trust in kopf's terms; the token goes with each request, see `bearer`."""
    return kopf.ConnectionInfo(
        server=settings.host,
        ca_path=settings.ssl_ca_cert,
        ca_data=settings.ca_cert_data,
        insecure=not settings.verify_ssl,
        certificate_path=settings.cert_file,
        private_key_path=settings.key_file,
    )
