"""A cloud for the real SkyPilot, whose machines are processes of this one; and an API server that has it.

The server, the client, the optimizer, the failover over zones and the record of clusters are SkyPilot's own. The seam
is ``sky.provision.register_provisioner``, by which its plug-ins bring clouds: the functions below stand in place of the
module ``sky.provision.runpod``. A task is baked into its machine, as SkyPilot calls it: so neither SSH nor SkyPilot's
own Ray and daemon (skylet) run on it, and in place of its autodown a machine is gone once its command has ended. Two
calls to RunPod are left out besides: the check of credentials, and the upload of the SSH key.

The API server imports this file; it may import nothing of the tests or of the library.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# Variable with the folder of the cloud. There are a file for each machine, and files by which a test makes it fail.
FOLDER = "LC_TEST_SKY_CLOUD"
CATALOG = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Region,SpotPrice,Price,AvailabilityZone,GpuInfo
small,RTX4090,1,8,32,home,0.3,0.7,zone-a,
small,RTX4090,1,8,32,home,0.3,0.7,zone-b,
large,RTX4090,1,16,64,home,0.6,1.4,zone-b,
double,RTX4090,2,16,64,home,0.6,1.4,zone-b,
"""
TEMPLATE = """\
cluster_name: {{cluster_name_on_cloud}}
provider: {type: external, module: sky.provision.runpod, region: "{{region}}", zone: "{{availability_zone}}"}
auth: {ssh_user: "{{docker_username_for_runpod}}", ssh_private_key: "{{ssh_private_key}}"}
available_node_types:
  ray_head_default:
    resources: {}
    node_config: {task: "{{task_file}}", type: "{{instance_type}}", spot: {{use_spot}}}
head_node_type: ray_head_default
"""


def machines(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the machines that run, by the names of their clusters in the cloud."""
    found = {}
    for path in sorted(folder.glob("*.machine")):
        with suppress(FileNotFoundError):  # it has just ended
            machine = json.loads(path.read_text())
            if Path(f"/proc/{machine['pid']}/stat").exists() and not _is_zombie(machine["pid"]):
                found[path.stem] = machine
    return found


def switch_off(folder: Path, name: str) -> None:
    """End a machine as a cloud that preempts it, with all its processes."""
    if (machine := machines(folder).get(name)) is not None:
        doomed = [machine["pid"]]
        for pid in doomed:
            with suppress(OSError):
                os.kill(pid, signal.SIGSTOP)
                doomed += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        for pid in doomed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    (folder / f"{name}.machine").unlink(missing_ok=True)


def _is_zombie(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


@contextmanager
def api_server(folder: Path, port: int) -> Iterator[dict[str, str]]:
    """Start an API server of SkyPilot with this cloud; yield the environment of its clients.

    Args:
        folder: Empty folder, its home.
        port: Its port.
    """
    cloud, home = folder / "cloud", folder / "home"
    for file, text in {
        home / ".sky/catalogs/v8/runpod/vms.csv": CATALOG,
        home / ".sky/catalogs/v8/common/accelerators.csv": "AcceleratorName,Clouds\nRTX4090,\"['RunPod']\"\n",
        cloud / "machine.yml.j2": TEMPLATE,
        folder / "plugins.yaml": "plugins: [{class: sky_cloud.Plugin}]\n",
        # SkyPilot wants it on its server's machine; without SSH nothing is copied.
        folder / "bin/rsync": "#!/bin/sh\nexit 0\n",
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (folder / "bin/rsync").chmod(0o755)
    environment = {
        "HOME": str(home), "PATH": f"{folder}/bin:{os.environ['PATH']}", FOLDER: str(cloud),
        "PYTHONPATH": ":".join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "SKYPILOT_API_SERVER_LOCAL_PORT": str(port), "SKYPILOT_SERVER_PLUGINS_CONFIG": str(folder / "plugins.yaml"),
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
    }  # fmt: skip
    server = start_server(folder, environment)
    try:
        yield environment
    finally:
        end_servers(environment)
        server.wait()
        for name in machines(cloud):
            switch_off(cloud, name)
        shutil.rmtree(home, ignore_errors=True)


def start_server(folder: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start an API server, and wait until it answers."""
    port = environment["SKYPILOT_API_SERVER_LOCAL_PORT"]
    words = [sys.executable, "-m", "sky.server.server", "--host=127.0.0.1", f"--port={port}"]
    with (folder / "server.log").open("ab") as log:
        server = subprocess.Popen(
            words, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            env=os.environ | environment | {"IS_SKYPILOT_SERVER": "true"},
        )  # fmt: skip
    until = time.monotonic() + 180
    while True:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/api/health", timeout=10):
            return server
        assert server.poll() is None, (folder / "server.log").read_text()
        assert time.monotonic() < until
        time.sleep(0.5)


def end_servers(environment: dict[str, str]) -> None:
    """Kill the API server of clients, which they may have started themselves, with all its processes, a group."""
    port = f"--port={environment['SKYPILOT_API_SERVER_LOCAL_PORT']}"
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (path / "cmdline").read_text().split("\0")
            if "sky.server.server" in words and port in words:
                os.killpg(int(path.name), signal.SIGKILL)


# ------------------------------------------------------------------------------------------------ within the server

if os.environ.get("IS_SKYPILOT_SERVER"):
    from sky import authentication, clouds, provision
    from sky.provision import common
    from sky.server import plugins
    from sky.task import get_plaintext_envs_and_secrets
    from sky.utils import status_lib

    HERE = Path(os.environ[FOLDER])

    class Runpod:
        """In place of the module ``sky.provision.runpod``."""

        @staticmethod
        def bootstrap_instances(region: str, name: str, config: Any) -> Any:
            return config

        @staticmethod
        def run_instances(region: str, cluster: str, name: str, config: Any) -> Any:
            zone, node = config.provider_config["zone"], config.node_config
            with (HERE / "attempts").open("a") as file:
                file.write(f"{cluster} {zone}\n")
            if (HERE / f"{zone}.full").exists():
                raise RuntimeError(f"no machine is left in {zone}")
            while (HERE / "slow").exists():
                time.sleep(0.1)
            task = json.loads(Path(node["task"]).read_text())
            # No child of the server's, which ends those of a request with it.
            detach = 'setsid "$@" >> "$LOG" 2>&1 < /dev/null & echo $!'
            pid = subprocess.run(
                ["bash", "-c", detach, "machine", "bash", "-c", task["run"]], stdout=subprocess.PIPE, check=True,
                env={**os.environ, **task["envs"], "LOG": str(HERE / f"{name}.log")},
            )  # fmt: skip
            labels = dict(one.split("=") for one in task["envs"]["LIGHTNING_CORE_NODE_LABELS"].split(","))
            machine = {"pid": int(pid.stdout), "cluster": cluster, "zone": zone, "type": node["type"],
                       "spot": bool(node["spot"]), "autostop": task["autostop"],
                       "labels": labels}  # fmt: skip
            (HERE / f"{name}.new").write_text(json.dumps(machine))
            (HERE / f"{name}.new").rename(HERE / f"{name}.machine")
            baked = common.ProvisionRuntimeMetadata(
                has_ray=False, has_skylet=False, has_job_queue=False, ssh_available=False, runtime_setup_done=True,
                setup_done=True, run_started=True,
            )  # fmt: skip
            return common.ProvisionRecord("runpod", region, zone, name, f"{name}-0", [], [f"{name}-0"], baked)

        @staticmethod
        def wait_instances(region: str, name: str, state: Any) -> None:
            pass

        @staticmethod
        def query_instances(cluster: str, name: str, *_: Any, **__: Any) -> Any:
            return {f"{name}-0": (status_lib.ClusterStatus.UP, None)} if name in machines(HERE) else {}

        @staticmethod
        def terminate_instances(name: str, *_: Any, **__: Any) -> None:
            if (HERE / "stubborn").exists():
                raise RuntimeError("the cloud does not end machines today")
            switch_off(HERE, name)

        @staticmethod
        def get_cluster_info(region: str, name: str, provider_config: Any = None) -> Any:
            here = common.InstanceInfo(f"{name}-0", "127.0.0.1", "127.0.0.1", {})
            return common.ClusterInfo({f"{name}-0": [here]}, f"{name}-0", "runpod", provider_config)

        @staticmethod
        def cleanup_ports(*_: Any, **__: Any) -> None:
            pass

    def bake(task: Any, to_provision: Any, **_: Any) -> Any:
        """Hand a task to the machine that is about to be launched."""
        file = HERE / f"{uuid.uuid4().hex}.task"
        autostop = to_provision.autostop_config
        content = {
            "run": task.run, "envs": get_plaintext_envs_and_secrets(task.envs_and_secrets),
            "autostop": None if autostop is None else autostop.to_yaml_config(),
        }  # fmt: skip
        file.write_text(json.dumps(content))
        return provision.TemplateSpec(str(HERE / "machine.yml.j2"), {"task_file": str(file)})

    class Plugin(plugins.BasePlugin):  # type: ignore[misc]  # SkyPilot has types only where it is installed
        """Brings the cloud into each process of the server."""

        def install(self, extension_context: Any) -> None:
            clouds.RunPod.check_credentials = classmethod(lambda cls, capability: (True, None))
            authentication.setup_runpod_authentication = authentication.configure_ssh_info
            provision.register_provisioner("runpod", Runpod, template_override=bake)
