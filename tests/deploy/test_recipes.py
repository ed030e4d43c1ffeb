"""The recipes of deploy/, read by the schema, linters and shell that know them; nothing is started."""

import copy
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SCRIPTS = sorted([*DEPLOY.glob("*.sh"), *DEPLOY.glob("*.sbatch")])
PORT, HOME = 2222, "/home/synk"


def lint(tool, *arguments):
    """Return what a linter of the development environment complains about."""
    command = Path(sys.executable).with_name(tool)
    if not command.exists() and platform.machine() != "x86_64":
        pytest.skip(f"there is no wheel of {tool} for {platform.machine()}")
    done = subprocess.run([command, *arguments], capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


# --- Kubernetes ------------------------------------------------------------------------------------


def strict(schema):
    """Return a structural schema of Kubernetes that forbids fields that it does not know."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(part) for name, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


MPIJOB = json.loads((Path(__file__).parent / "mpi_operator" / "mpijob_v2beta1.json").read_text())
# Which the API server knows for every kind.
MPIJOB["properties"]["metadata"] = {"properties": {"name": {"type": "string"}}}
MPIJOB = strict(MPIJOB)
SPECS = MPIJOB["properties"]["spec"]["properties"]["mpiReplicaSpecs"]
POD = SPECS["additionalProperties"]["properties"]["template"]


def load(name):
    return yaml.safe_load((DEPLOY / name).read_text())


def pods(resource):
    """Return the specifications of all pods, by what they are."""
    if resource["kind"] == "Job":
        return {"Job": resource["spec"]["template"]["spec"]}
    return {role: one["template"]["spec"] for role, one in resource["spec"]["mpiReplicaSpecs"].items()}


def complaints(resource, schema=MPIJOB):
    return [error.message for error in jsonschema.Draft7Validator(schema).iter_errors(resource)]


def test_the_mpijob_is_one_of_the_operators_schema():
    job = load("mpijob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    assert complaints(job) == []


WORKER = ("spec", "mpiReplicaSpecs", "Worker")
CONTAINER = (*WORKER, "template", "spec", "containers", 0)
MISTAKES = [
    (("spec", "slotPerWorker"), 1, "'slotPerWorker' was unexpected"),
    (("spec", "slotsPerWorker"), "1", "'1' is not of type 'integer'"),
    (("spec", "mpiImplementation"), "Open MPI", "'Open MPI' is not one of"),
    (("spec", "runPolicy", "backOffLimit"), 3, "'backOffLimit' was unexpected"),
    (("specs",), {}, "'specs' was unexpected"),
    ((*WORKER, "replicas"), "2", "'2' is not of type 'integer'"),
    ((*WORKER, "template", "spec", "volumes", 0, "emptyDir", "mediums"), "", "'mediums' was unexpected"),
    ((*CONTAINER, "volumeMount"), [], "'volumeMount' was unexpected"),
    ((*CONTAINER, "command"), "/usr/sbin/sshd", "'/usr/sbin/sshd' is not of type 'array'"),
    ((*CONTAINER, "readinessProbe", "tcpSocket"), {}, "'port' is a required property"),
    ((*CONTAINER, "resources", "limits", "cpu"), [8], "[8]"),
]


@pytest.mark.parametrize(("path", "value", "complaint"), MISTAKES, ids=lambda case: str(case)[-30:])
def test_a_mistake_in_the_mpijob_is_found(path, value, complaint):
    job = copy.deepcopy(load("mpijob.yaml"))
    *before, last = path
    part = job
    for key in before:
        part = part[key]
    part[last] = value
    assert any(complaint in said for said in complaints(job)), complaints(job)


def test_an_mpijob_without_replicas_is_none():
    job = load("mpijob.yaml")
    del job["spec"]["mpiReplicaSpecs"]
    assert complaints(job) == ["'mpiReplicaSpecs' is a required property"]


def test_the_pod_of_the_plain_job_is_one_of_the_same_schema():
    job = load("job.yaml")
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    assert complaints(job["spec"]["template"], POD) == []
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"
    job["spec"]["template"]["spec"]["container"] = []
    assert len(complaints(job["spec"]["template"], POD)) == 1


@pytest.mark.parametrize("name", ["mpijob.yaml", "job.yaml"])
def test_every_pod_has_room_for_shared_memory_and_cpus_of_its_own(name):
    for pod in pods(load(name)).values():
        (container,), (volume,) = pod["containers"], pod["volumes"]
        assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/dev/shm"}]
        assert volume["emptyDir"]["medium"] == "Memory"
        # What is the same has the guaranteed quality of service: whole CPUs, and evicted last.
        assert container["resources"]["requests"] == container["resources"]["limits"]


def test_the_operator_starts_a_leader_on_each_machine_once_all_are_there():
    spec = load("mpijob.yaml")["spec"]
    assert (spec["slotsPerWorker"], spec["runLauncherAsWorker"]) == (1, True)
    assert spec["launcherCreationPolicy"] == "WaitForWorkersReady"
    assert spec["sshAuthMountPath"] == f"{HOME}/.ssh"


def test_ssh_is_where_its_clients_call():
    (worker,) = pods(load("mpijob.yaml"))["Worker"]["containers"]
    assert worker["command"] == ["/usr/sbin/sshd", "-D", "-e", "-f", f"{HOME}/sshd_config"]
    assert worker["readinessProbe"]["tcpSocket"]["port"] == PORT
    for name in ("ssh_config", "sshd_config"):
        assert f"Port {PORT}" in map(str.strip, (DEPLOY / name).read_text().splitlines())
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert f"COPY deploy/sshd_config {HOME}/sshd_config" in dockerfile
    assert f"--uid {worker['securityContext']['runAsUser']} synk" in dockerfile


# --- the image -------------------------------------------------------------------------------------


def test_hadolint_has_nothing_to_say():
    assert lint("hadolint", "--no-color", DEPLOY / "Dockerfile") == ""


@pytest.mark.parametrize(
    ("right", "wrong", "rule"),
    [
        ("python:3.13-slim-trixie", "python", "DL3006"),
        (" --yes", "", "DL3014"),
        (" --no-cache-dir", "", "DL3042"),
        ("USER 1000", "USER root", "DL3002"),
        ('CMD ["python", "train.py"]', "CMD python train.py", "DL3025"),
        ("WORKDIR", "WORKDIRECTORY", "missing whitespace"),
    ],
)
def test_a_mistake_in_the_dockerfile_is_found(tmp_path, right, wrong, rule):
    text = (DEPLOY / "Dockerfile").read_text()
    assert right in text
    (tmp_path / "Dockerfile").write_text(text.replace(right, wrong))
    assert rule in lint("hadolint", "--no-color", tmp_path / "Dockerfile")


def copied():
    """Return the paths in the build's context that the Dockerfile copies."""
    lines = re.findall(r"^COPY (.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    return {path for line in lines for path in line.split()} - {"train.py"}  # of the user


def test_the_image_has_the_sources_that_a_wheel_is_built_from():
    assert {"setup.cfg", "pyproject.toml", "LICENSE", "README.rst", "synk", "extensions"} <= copied()
    assert [path for path in copied() if not (ROOT / path).exists()] == []


def test_the_context_holds_what_is_copied_and_no_more():
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in lines if line.startswith("!")} == copied() | {"train.py"}


def test_the_image_asks_for_extras_that_exist():
    setup = (ROOT / "setup.cfg").read_text()
    asked = re.search(r"/source\[(.*)\]", (DEPLOY / "Dockerfile").read_text())[1]
    assert [name for name in asked.split(",") if f"\n{name} =\n" not in setup] == []


# --- scripts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_bash_and_shellcheck_accept_the_script(script):
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert lint("shellcheck", "--color=never", script) == ""


def test_shellcheck_finds_a_mistake(tmp_path):
    wrong = (
        (DEPLOY / "slurm_srun.sbatch").read_text().replace('"$SLURM_CPUS_PER_TASK"', "$SLURM_CPUS_PER_TASK")
    )
    (tmp_path / "wrong.sh").write_text(wrong)
    assert "SC2086" in lint("shellcheck", "--color=never", tmp_path / "wrong.sh")


@pytest.mark.parametrize("script", sorted(DEPLOY.glob("*.sbatch")), ids=lambda path: path.name)
def test_sbatch_reads_its_options_before_the_first_command(script):
    lines = script.read_text().splitlines()
    first = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    options = [line.removeprefix("#SBATCH ") for line in lines[:first] if line.startswith("#SBATCH ")]
    assert not [line for line in lines[first:] if line.startswith("#SBATCH")]
    assert {"--nodes=3", "--ntasks-per-node=1", "--cpus-per-task=8"} <= set(options)


SRUN = """
case "$*" in
*train.py*) exit {script} ;;
*--overlap*true*) exit {machines} ;;
esac
"""


@pytest.mark.parametrize(
    ("script", "machines", "said"),
    [(0, 0, ""), (0, 1, ""), (3, 0, ""), (3, 1, "requeue 7\n")],
    ids=["well", "no machine any more", "a mistake", "a machine lost"],
)
def test_a_job_is_queued_again_if_a_machine_is_lost_not_if_the_script_fails(tmp_path, script, machines, said):
    fakes = {"srun": SRUN.format(script=script, machines=machines), "scontrol": 'echo "$@"'}
    for name, text in fakes.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o700)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "2", "SLURM_SUBMIT_DIR": str(tmp_path)}
    done = subprocess.run(
        ["bash", DEPLOY / "slurm_srun.sbatch", "train.py"],
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", **slurm},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (script, said, "")


def test_the_readme_names_every_recipe():
    readme = (DEPLOY / "README.rst").read_text()
    named = set(re.findall(r"``([\w.]+)``", readme))
    assert {path.name for path in DEPLOY.iterdir()} - {"README.rst"} <= named
