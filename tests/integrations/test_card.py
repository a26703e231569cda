"""Model cards: what they state, what they keep of an existing card, and pushing to a hub that is not there."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from greys import certify, grey_images
from helpers import pprs
from networks import save_network

from pprs import PprsError, Run, metrics
from pprs.integrations import card as card_module
from pprs.integrations.card import BEGIN, END, make_card, push_card
from pprs.runs import StoredRun, digest_run, export


def parse(content: str) -> Any:
    """The results of a card, as the hub's own package reads them."""
    return huggingface_hub.ModelCard(content).data.eval_results


@pytest.fixture
def stored(tmp_path: Path) -> Run:
    """A run of a model and of data in files, so that it can be verified."""
    np.savez(tmp_path / "greys.npz", x=grey_images(), y=np.array([0, 1, 2, 0]))
    model, data = str(save_network(tmp_path / "net.safetensors")), str(tmp_path / "greys.npz")
    return certify(tmp_path / "run", 0.1, model=model, data=data)


def test_a_card_states_the_numbers_and_what_they_depend_on(tmp_path: Path) -> None:
    run = certify(tmp_path / "run")
    card = make_card([run], radii=[0, 0.25])
    found = parse(card.add_to(""))
    accuracy = metrics.certified_accuracy(run, [0, 0.25])
    assert [r.metric_value for r in found] == [*accuracy.tolist(), metrics.average_certified_radius(run)]
    assert [r.metric_type for r in found] == ["certified_accuracy", "certified_accuracy", "average_certified_radius"]
    args = found[1].metric_args
    expected = {"radius": 0.25, "norm": "L2", "sigma": 0.5, "noise": "gaussian:sigma=0.5", "partition": "none",
                "n0": 20, "n": 200, "alpha": 0.001, "arithmetic": "exact, among 8-bit images", "images": 4,
                "run_digest": digest_run(run)}  # fmt: skip
    assert expected.items() <= args.items()
    assert args["verification"].startswith("not verified: no votes were drawn again")
    assert "not verified" in found[1].metric_name
    section = card.section
    for text in ("**not verified**", "gaussian:sigma=0.5", "| n | 200 |", "| alpha | 0.001 |", digest_run(run)):
        assert text in section
    assert all(r.verified is None for r in found)  # that field is for results that the hub itself has computed


def test_a_run_is_verified_only_if_votes_were_drawn_again(stored: Run, tmp_path: Path) -> None:
    card = make_card([stored], replay=2, seed=7)
    (result, *_) = parse(card.add_to(""))
    assert result.metric_args["verification"] == (
        "verified: the votes of 2 of 4 rows, chosen at random, were drawn again, and are the same"
    )
    assert result.metric_args["replay_seed"] == 7
    assert result.metric_args["forger"] == "a forger of 1 or 2 of the 4 rows passes with probability 0.5 or 0.17"
    assert "**not verified**" not in card.section
    assert "| 2 of 4 rows |" in card.section
    assert str(tmp_path) not in make_card([stored]).add_to("")  # no folders of this machine
    (tmp_path / "net.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (result, *_) = parse(make_card([stored], replay=2).add_to(""))
    assert result.metric_args["verification"].startswith("not verified: model, images and true labels: ")
    assert "**not verified**" in make_card([stored], replay=2).section


def test_a_run_that_fails_verification_has_no_card(stored: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "greys.npz", x=grey_images()[::-1], y=np.array([0, 1, 2, 0]))
    with pytest.raises(PprsError, match="cannot be verified, so there is no card: this is not the data of the run"):
        make_card([stored], replay=1)


def test_invented_rows_are_replayed_as_likely_as_others(stored: Run) -> None:
    """A forger who knew the rows that are replayed would invent the votes of all others."""
    assert isinstance(stored, StoredRun)
    replayed = {make_card([stored], replay=1).results[0]["metrics"][0]["args"]["replay_seed"] for _ in range(5)}
    assert len(replayed) == 5
    with closing(sqlite3.connect(stored.folder / "run.sqlite")) as db, db:
        db.execute("UPDATE rows SET counts = '[0, 0, 200]' WHERE idx = 1 AND counts != '[0, 0, 200]'")
        assert db.total_changes
    with pytest.raises(PprsError, match="does not follow from its own counts"):
        make_card([stored], replay=4)


def test_a_card_verifies_a_model_that_is_given(tmp_path: Path) -> None:
    """Code that a run names is not imported, so that its model has to be given."""
    data = tmp_path / "greys.npz"
    np.savez(data, x=grey_images(), y=np.array([0, 1, 0, 1]))
    run = certify(tmp_path / "run", 0.1, model="greys:Bright", data=str(data))
    refused = make_card([run], replay=2).results[0]["metrics"][0]["args"]["verification"]
    assert refused.startswith("not verified: model, images and true labels: the run names code")
    data = data.rename(tmp_path / "moved.npz")
    given = make_card([run], replay=2, model="greys:Bright", data=str(data))
    assert given.results[0]["metrics"][0]["args"]["verification"].startswith("verified: the votes of 2 of 4 rows")
    out = tmp_path / "card.md"
    options = ("--replay", "3", "--model", "greys:Bright", "--data", data, "--seed", "5", "--out", out)
    pprs("card", tmp_path / "run", *options)
    assert "3 of 4 rows" in out.read_text(encoding="utf-8")


def test_the_rest_of_a_card_is_kept(tmp_path: Path) -> None:
    run, other = certify(tmp_path / "run"), certify(tmp_path / "other", 0.25)
    model = make_card([run]).model
    before = (
        f"---\nlicense: mit\nmodel-index:\n- name: {model}\n  results:\n  - task:\n      type: image-classification\n"
        "    dataset:\n      name: d\n      type: d\n    metrics:\n    - type: accuracy\n      value: 0.9\n"
        "---\n# Model\n\nText.\n"
    )
    once = make_card([run]).add_to(before)
    assert once == make_card([run]).add_to(once)
    twice = make_card([run, other]).add_to(once + "\n## After\n")
    assert twice.count(BEGIN) == twice.count(END) == 1
    assert "# Model\n\nText.\n" in twice
    assert twice.index("## Certified robustness") < twice.index("## After")
    data = huggingface_hub.ModelCard(twice).data
    assert data.license == "mit"
    sigmas = [(result.metric_args or {}).get("sigma") for result in data.eval_results]
    assert sigmas[0] is None  # the accuracy of 0.9
    assert set(sigmas[1:]) == {0.5, 0.25}
    for wrong in ("---\n- a\n---\n", "---\na: [\n---\n", "---\nmodel-index: [1]\n---\n"):
        with pytest.raises(PprsError, match="the metadata of the model card are not valid"):
            make_card([run]).add_to(wrong)


def test_bad_input(tmp_path: Path, stored: Run) -> None:
    run = certify(tmp_path / "greys")
    export(run.outcomes(), run.settings, "tsv", tmp_path / "rows.tsv")
    with pytest.raises(PprsError, match="does not record its noise, partition, n and alpha"):
        make_card([tmp_path / "rows.tsv"])
    with pytest.raises(PprsError, match="have no true labels"):
        make_card([certify(tmp_path / "unlabelled", labels=None)])
    with pytest.raises(PprsError, match="are of different models. Write one card for each model."):
        make_card([run, stored])
    stopped = make_card([certify(tmp_path / "stopped", stop="radius:0.25")], radii=[0.25, 0.5])
    assert len(parse(stopped.add_to(""))) == 1  # nothing is stated at radii that were not decided


class FakeHub:
    """The part of `HfApi` that is used, with the files of a repository in a folder."""

    def __init__(self, folder: Path, error: Exception | None = None) -> None:
        self.folder, self.error = folder, error

    def file_exists(self, repo_id: str, filename: str) -> bool:
        return (self.folder / repo_id / filename).is_file()

    def hf_hub_download(self, repo_id: str, filename: str) -> str:
        return str(self.folder / repo_id / filename)

    def upload_file(self, *, path_or_fileobj: bytes, path_in_repo: str, repo_id: str, commit_message: str) -> str:
        if self.error is not None:
            raise self.error
        (self.folder / repo_id).mkdir(parents=True, exist_ok=True)
        (self.folder / repo_id / path_in_repo).write_bytes(path_or_fileobj)
        return f"https://huggingface.co/{repo_id}/commit/1"


def test_push(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = FakeHub(tmp_path / "hub")
    monkeypatch.setattr(card_module, "HfApi", lambda: hub)
    for method in ("file_exists", "hf_hub_download", "upload_file"):
        assert hasattr(huggingface_hub.HfApi, method)
    card = make_card([certify(tmp_path / "run")])
    assert push_card(card, "me/model") == "https://huggingface.co/me/model/commit/1"
    readme = tmp_path / "hub" / "me" / "model" / "README.md"
    assert readme.read_text() == card.add_to("")
    readme.write_text("# Mine\n")
    push_card(card, "me/model")
    assert "# Mine" in readme.read_text()
    assert len(parse(readme.read_text())) == len(card.results[0]["metrics"])


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certify(tmp_path / "run")
    hub = FakeHub(tmp_path / "hub", OSError("401 Client Error: no token"))
    monkeypatch.setattr(card_module, "HfApi", lambda: hub)
    refused = pprs("card", tmp_path / "run", "--radii", "0,0.5", "--push", "me/model", cwd=tmp_path, code=2)
    assert "the card was not pushed to me/model (401 Client Error: no token)" in refused.stderr
    assert "hf auth login" in refused.stderr
    assert {r.metric_args.get("radius") for r in parse((tmp_path / "card.md").read_text())} == {0, 0.5, None}
    hub.error = None
    output = pprs("card", tmp_path / "run", "--push", "me/model", cwd=tmp_path)
    assert "https://huggingface.co/me/model/commit/1" in output.stdout + output.stderr


def test_names_in_a_card_are_no_markup(tmp_path: Path) -> None:
    """A card is a page on a hub, and a run may come from somebody else."""
    hostile = "<img src=x onerror=alert(1)>![x](http://t) `"
    certify(tmp_path / "run")
    with closing(sqlite3.connect(tmp_path / "run" / "run.sqlite")) as db, db:
        db.execute("UPDATE settings SET value = ? WHERE key = 'data'", (json.dumps(hostile),))
    section = make_card([tmp_path / "run"]).section
    assert "<img" not in section
    assert "![x]" not in section
    assert "&lt;img src=x onerror=alert(1)&gt;!" in section
