"""Reading a Job template: what is filled in, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube.resources.batch_v1 import Job

from services.contracts.errors import InvalidRequestError
from services.controller.platform.kubernetes.job_template import (
    checked_job,
    read_template,
    refuse_unknown_fields,
)


def _job(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    pod = {"containers": [{"name": "builder", "image": "compiler"} | (container or {})]}
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": pod}} | spec}


def test_what_the_template_leaves_out_is_filled_in() -> None:
    spec = checked_job(_job())["spec"]
    assert spec["backoffLimit"] == 0
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["ttlSecondsAfterFinished"] > 0
    assert spec["activeDeadlineSeconds"] > 0
    container = spec["template"]["spec"]["containers"][0]
    assert container["command"] == ["python", "-m", "compiler_worker"]
    assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_what_the_template_says_stays() -> None:
    given = _job({"command": ["tini", "--", "python"]}, ttlSecondsAfterFinished=60)
    spec = checked_job(given)["spec"]
    assert spec["ttlSecondsAfterFinished"] == 60
    assert spec["template"]["spec"]["containers"][0]["command"] == ["tini", "--", "python"]
    assert "activeDeadlineSeconds" not in given["spec"], "the caller's document changed"


def test_a_job_that_tries_again_by_itself_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="backoffLimit is 3, expected 0"):
        checked_job(_job(backoffLimit=3))
    restarting = _job()
    restarting["spec"]["template"]["spec"]["restartPolicy"] = "OnFailure"
    with pytest.raises(InvalidRequestError, match="restartPolicy is 'OnFailure'"):
        checked_job(restarting)


@pytest.mark.parametrize("document", [None, [], "text", {"kind": "Deployment"}])
def test_what_is_no_job_is_refused(document: Any) -> None:
    with pytest.raises(InvalidRequestError, match="expected one batch/v1 Job"):
        checked_job(document)


def test_the_compiler_is_the_container_of_that_name_or_the_only_one() -> None:
    two = _job()
    two["spec"]["template"]["spec"]["containers"].insert(0, {"name": "sidecar", "image": "s"})
    sidecar, builder = checked_job(two)["spec"]["template"]["spec"]["containers"]
    assert "command" not in sidecar
    assert builder["command"]
    assert checked_job(_job({"name": "other"}))["spec"]["template"]["spec"]["containers"]


@pytest.mark.parametrize("containers", [[], [{"name": "a"}, {"name": "b"}]])
def test_without_a_compiler_the_template_is_refused(containers: list[dict[str, str]]) -> None:
    job = _job()
    job["spec"]["template"]["spec"]["containers"] = containers
    with pytest.raises(InvalidRequestError, match="expected one named 'builder'"):
        checked_job(job)


def test_a_field_that_no_job_has_is_named() -> None:
    refuse_unknown_fields(Job, checked_job(_job()), "")
    wrong = checked_job(_job({"imge": "x"}))
    wrong["spec"]["template"]["spec"]["nodeselector"] = {"a": "b"}
    with pytest.raises(InvalidRequestError) as refused:
        refuse_unknown_fields(Job, wrong, "build job template")
    assert ".spec.template.spec.nodeselector" in str(refused.value)
    assert ".spec.template.spec.containers[0].imge" in str(refused.value)


def test_a_folder_of_template_and_placements_is_read(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(_job()))
    placement = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    (tmp_path / "cuda-sm90.yaml").write_text(yaml.safe_dump(placement))
    template = read_template(tmp_path / "job.yaml")
    assert template.job["spec"]["backoffLimit"] == 0
    assert template.placements == {"cuda-sm90": placement}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("job.yaml", "a: [", "job.yaml"),
        ("job.yaml", "kind: Pod", "expected one batch/v1 Job"),
        ("cuda-sm90.yaml", "affinity: {}", "cuda-sm90.yaml: expected a mapping of nodeSelector"),
        ("cuda-sm90.yaml", "- 1", "cuda-sm90.yaml: expected a mapping of nodeSelector"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(_job()))
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidRequestError, match=message):
        read_template(tmp_path / "job.yaml")


def test_a_template_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"template .*absent\.yaml"):
        read_template(tmp_path / "absent.yaml")
