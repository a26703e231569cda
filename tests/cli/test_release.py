"""The files around the package: citation, workflow, issue forms and Dockerfile fit what is here."""

from __future__ import annotations

import fnmatch
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from pprs import __version__

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PAPER = "Certified Adversarial Robustness via Partition-based Randomized Smoothing"


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, with what follows each, without comments."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [(line.split()[0], line.partition(" ")[2]) for line in text.splitlines() if line.strip()]


def test_the_citation_names_the_paper_and_this_version() -> None:
    citation = read_yaml(ROOT / "CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == __version__
    assert citation["license"] == PROJECT["license"]
    paper = citation["preferred-citation"]
    assert paper["title"] == PAPER
    assert PAPER in " ".join((ROOT / "README.md").read_text().split())
    assert [author["family-names"] for author in paper["authors"]] == ["Goli", "Farnia"]
    assert paper["url"] == PROJECT["urls"]["Paper"]


def test_the_workflow_calls_what_ci_runs_on_every_supported_python() -> None:
    jobs = read_yaml(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert commands == [".ci/run", "make dist"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert re.search(r"^dist:", (ROOT / "Makefile").read_text(), re.M)
    supported = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", c)]
    assert jobs["test"]["strategy"]["matrix"]["python"] == supported
    assert PROJECT["requires-python"] == f">={supported[0]}"


@pytest.mark.parametrize("path", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.stem)
def test_issue_forms_are_complete(path: Path) -> None:
    form = read_yaml(path)
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert {field["type"] for field in fields} <= {"textarea", "input", "dropdown", "checkboxes"}
    assert len({field["id"] for field in fields}) == len(fields) >= 3
    assert all(field["attributes"]["label"] for field in fields)


def test_the_dockerfile_copies_what_exists_and_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = [source for name, rest in instructions() if name == "COPY" and "--from" not in rest
              for source in rest.split()[:-1]]  # fmt: skip
    assert {"src", "pyproject.toml", "constraints.txt"} <= set(copied)
    for source in copied:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored, source
    assert not [line for line in ignored if fnmatch.fnmatch("src/pprs/py.typed", line) and line != "*"]


def test_the_dockerfile_installs_extras_that_exist_under_the_constraints() -> None:
    known = {"FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "USER"}
    assert {name for name, _ in instructions()} <= known
    installs = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    assert len(installs) == 2
    assert all("--constraint /tmp/constraints.txt" in line for line in installs)
    extras = re.findall(r"\[([\w,]+)\]", installs[-1])[0].split(",")
    assert {"ray", "onnx"} <= set(extras) <= PROJECT["optional-dependencies"].keys()
    bases = {rest.split()[0] for name, rest in instructions() if name == "FROM"}
    assert len(bases) == 1, "the wheel is built for the Python that it runs on"
    assert "YOUR/pprs" in (ROOT / "docs" / "clusters.md").read_text()
