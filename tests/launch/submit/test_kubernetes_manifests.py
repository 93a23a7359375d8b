"""The manifests for Kubernetes: their text, what the API's schema says, and what bash makes of the script."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes_validate import ValidationError, latest_version, validate

from rankless import cli
from rankless.errors import LOST_PEER, STOPPED
from rankless.launch.submit import kubernetes
from rankless.launch.submit.request import Request
from support.waiting import until

GOLDEN = Path(__file__).parent / "golden"
WORDS = ["--nodes", "2", "--devices", "2", "--image", "me/rankless:1", "--claim", "work"]
OPTIONS = {"--image": "image", "--claim": "claim", "--gpu": "nvidia.com/gpu", "--runtime": "runtime"}
words = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=20)


def printed(capsys: pytest.CaptureFixture[str], *more: str, recipe: str = "digits") -> str:
    assert cli.main(["submit", "kubernetes", recipe, *WORDS, *more]) == 0, capsys.readouterr()
    return capsys.readouterr().out


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my boxes.yaml").write_text("# boxes: all of them\nmodel: {name: yolov4-tiny}\nepochs: 3\n")
    return "my boxes.yaml"


@pytest.mark.parametrize("name", ["plain.yaml", "train_job.yaml"])
def test_the_manifests_are_the_ones_that_were_read(name, recipe, capsys):
    more = ["--plain"] if name == "plain.yaml" else []
    options = ["epochs=9", "data.root=my boxes", "--namespace", "vision", "--memory", "64Gi", "--cpus", "4"]
    text = printed(capsys, *options, *more, recipe=recipe)
    if os.environ.get("UPDATE_GOLDEN"):
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text(), f"if that is meant: UPDATE_GOLDEN=1, and read {name}"


def documents(text: str) -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(text)}


def test_the_plain_manifests_are_valid(capsys):
    every = documents(printed(capsys, "--plain", "--memory", "1Gi"))
    for document in every.values():
        validate(document, latest_version(), strict=True)
    # What the schema does not know, but the API server refuses.
    job, service = every["Job"]["spec"], every["Service"]["spec"]
    pod = job["template"]["spec"]
    assert job["podFailurePolicy"]["rules"][1]["onExitCodes"]["values"] == [LOST_PEER, STOPPED]
    assert job["completionMode"] == "Indexed"
    assert job["completions"] == job["parallelism"] == 2
    assert pod["restartPolicy"] == "Never", "a podFailurePolicy needs it"
    assert pod["subdomain"] == every["Service"]["metadata"]["name"]
    assert service["clusterIP"] == "None"
    assert service["selector"] == job["template"]["metadata"]["labels"]
    mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    job["completion"] = 2
    with pytest.raises(ValidationError):
        validate(every["Job"], latest_version(), strict=True)


# The fields that Kubeflow Trainer's TrainJob has from release 2.2 on, as far as they are used.
POD = {"containers": [{"name": str, "volumeMounts": [dict]}], "volumes": [dict]}
REPLICATED_JOB = {"name": str, "template": {"spec": {"template": {"spec": POD}}}}
TRAIN_JOB: dict[str, Any] = {
    "runtimeRef": {"name": str},
    "trainer": {
        "image": str,
        "command": [str],
        "args": [str],
        "env": [{"name": str, "value": str, "valueFrom": {"fieldRef": {"fieldPath": str}}}],
        "numNodes": int,
        "numProcPerNode": int,
        "resourcesPerNode": {"limits": dict},
    },
    "runtimePatches": [
        {
            "manager": str,
            "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [REPLICATED_JOB]}}},
        }
    ],
}


def refuse_unknown(value: Any, known: Any, where: str) -> None:
    assert type(value) is (known if isinstance(known, type) else type(known)), where
    if isinstance(known, dict):
        assert set(value) <= set(known), where
        for key in value:
            refuse_unknown(value[key], known[key], f"{where}.{key}")
    elif isinstance(known, list):
        for one in value:
            refuse_unknown(one, known[0], where)


def test_the_train_job_has_the_fields_that_there_are(recipe, capsys):
    job = documents(printed(capsys))["TrainJob"]
    assert job["apiVersion"] == "trainer.kubeflow.org/v1alpha1"
    refuse_unknown(job["spec"], TRAIN_JOB, "spec")
    trainer = job["spec"]["trainer"]
    reserved = {name for name in (one["name"] for one in trainer["env"]) if name.startswith("PET_")}
    assert not reserved, "the webhook refuses them"
    assert max(map(len, trainer["args"] + trainer["command"])) < 65536
    # Volumes and their mounts are what a pod of the plain job has, which the schema has judged.
    plain = documents(printed(capsys, "--plain"))["Job"]["spec"]["template"]["spec"]
    patch = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    (replicated,) = patch["replicatedJobs"]
    pod = replicated["template"]["spec"]["template"]["spec"]
    assert pod["volumes"] == plain["volumes"]
    assert pod["containers"][0]["volumeMounts"] == plain["containers"][0]["volumeMounts"]


def expanded(text: str, variables: dict[str, str]) -> str:
    """What Kubernetes makes of a command's word: $(NAME) where it is known, $$ for a dollar sign."""
    pattern = re.compile(r"\$\$|\$\(([^)]*)\)")
    return pattern.sub(lambda m: "$" if m[0] == "$$" else variables.get(m[1], m[0]), text)


@settings(settings.get_profile("files"))
@given(st.lists(words | st.just("a$(POD_IP)$$(X)"), min_size=1, max_size=3), words)
def test_any_word_reaches_the_ranks_as_it_is(overrides, text):
    request = Request("my.yaml", tuple(overrides), 1, 1, None, (), "job", recipe_text=text)
    for plain in (True, False):
        made = kubernetes.manifests(request, "python", OPTIONS, plain=plain)
        read = list(yaml.safe_load_all(kubernetes.text(made)))
        assert read == made
        assert read[0]["data"]["my.yaml"] == text
        spec = read[-1]["spec"]
        container = spec["template"]["spec"]["containers"][0] if plain else spec["trainer"]
        variables = {"POD_IP": "10.0.0.1"}
        assert [expanded(word, variables) for word in container["args"]][6 : 6 + len(overrides)] == overrides
        assert expanded(container["command"][2], variables) == container["command"][2]


@pytest.mark.parametrize("value", ["1e3", "1:30", "yes", "y", "0x1f", ".5e3", "~", "null", "1_000", "-.inf"])
def test_words_that_look_like_numbers_stay_words(value):
    assert f'"{value}"' in kubernetes.text([{"a": value}]) or f"'{value}'" in kubernetes.text([{"a": value}])


def test_every_mistake_is_reported_at_once(capsys):
    options = "--image me/x --claim A_B --nodes 0 --name My.Job --memory big --namespace X --gpu N!"
    assert cli.main(["submit", "kubernetes", "nowhere.yaml", *options.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    found = {line.split()[1].strip("':") for line in err.splitlines()}
    assert found == {"nowhere.yaml", "--claim", "--nodes", "--name", "--memory", "--namespace", "--gpu"}, err


class Pod:
    """The script of one machine, with a command of the test's for its ranks."""

    def __init__(self, folder: Path, node: int, command: str, devices: int = 2) -> None:
        request = Request("digits", (), 2, devices, None, (), "job")
        job = kubernetes.manifests(request, "python", OPTIONS, plain=True)[-1]
        (container,) = job["spec"]["template"]["spec"]["containers"]
        shell, option, script = container["command"]
        variables = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        variables |= {"NODE": str(node), "POD_IP": "127.0.0.1", "MASTER_ADDR": "localhost"}
        script = script.replace("cd /workspace ", f"cd {folder} ")
        self.process = subprocess.Popen(
            [shell, option, script, "node", "/bin/bash", "-c", command],
            env={"PATH": os.environ["PATH"], **variables},
            stdout=subprocess.PIPE,
            text=True,
        )

    def end(self) -> tuple[int, list[str]]:
        out, _ = self.process.communicate(timeout=30)
        return self.process.returncode, sorted(out.split("\n")[:-1])


@pytest.mark.processes
@pytest.mark.parametrize(("node", "address"), [(0, "127.0.0.1"), (1, "localhost")])
def test_the_script_starts_a_rank_for_each_device(tmp_path, node, address):
    says = "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $PWD"
    code, lines = Pod(tmp_path, node, says).end()
    assert code == 0
    rank = 2 * node
    assert lines == [f"{rank + local} 4 {local} 2 {address} 29500 {tmp_path}" for local in (0, 1)]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("codes", "expected"), [("0 0", 0), ("75 137", 137), ("85 85", 85), ("75 75", 75), ("2 75", 2)]
)
def test_the_exit_code_is_the_one_that_says_most(tmp_path, codes, expected):
    code, _ = Pod(tmp_path, 0, f"codes=({codes}); exit ${{codes[$LOCAL_RANK]}}").end()
    assert code == expected


@pytest.mark.processes
def test_a_pod_that_is_evicted_lets_its_ranks_save(tmp_path):
    rank = "trap 'touch saved-$RANK; exit 85' TERM; touch up-$RANK; "
    rank += "for ((n = 0; n < 1200; n++)); do sleep 0.05; done"  # no $(…), in which Bash runs no trap
    pod = Pod(tmp_path, 1, rank)
    until(lambda: len(list(tmp_path.glob("up-*"))) == 2)
    pod.process.send_signal(signal.SIGTERM)
    assert pod.end()[0] == 85
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-2", "saved-3"]


@pytest.mark.processes
def test_kubectl_gets_the_manifests_and_its_refusal_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    command = ["submit", "kubernetes", "digits", *WORDS, "--apply"]
    fake = tmp_path / "kubectl"
    fake.write_text("#!/bin/bash\nexec >&2\necho forbidden\nexit 1\n")
    fake.chmod(0o755)
    assert cli.main(command) == 2
    assert "error: kubectl: refused the job (forbidden)" in capsys.readouterr().err
    fake.write_text('#!/bin/bash\nwhile IFS= read -r line; do echo "$line"; done > got; echo "$*"\n')
    assert cli.main(command) == 0
    out, err = capsys.readouterr()
    assert out == (tmp_path / "got").read_text()
    assert err == "apply -f -\n"
    (tmp_path / "got").unlink()
    assert cli.main([*command[:-1], "--dry-run"]) == 0  # as with the other clusters
    assert capsys.readouterr() == (out, "") and not (tmp_path / "got").exists()
    assert cli.main([*command, "--dry-run"]) == 2
    assert "error: --apply submits the job, but --dry-run only prints it" in capsys.readouterr().err
