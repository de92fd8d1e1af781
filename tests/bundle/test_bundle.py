"""Bundle files: reading, writing and comparing them. Wrong ones are tested in test_bad_input.py."""

from __future__ import annotations

import textwrap
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest
import yaml

from lightning_core.bundle import job_section as jobs
from lightning_core.bundle.job_spec import JobSpec
from lightning_core.bundle.pool_section import ExistingPool, read_pool
from lightning_core.bundle.problems import BundleError, Position, Problems
from lightning_core.cluster.bundle import Bundle
from lightning_core.core.jobs import Capability, Job, OnHold, OnMiss
from lightning_core.core.targets import BatchTarget, LossTarget
from lightning_core.parts.market.traces import read_intervals
from lightning_core.run.differences import differences
from lightning_core.simulation.recorded_curves import read_recording
from tests.builders import FOLD

MODEL = {"class_path": "tests.tiny.Line"}


def job(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "deadline": "90s", "target": {"loss": 0.1}, **more}


def bundle(**jobs: Any) -> dict[str, Any]:
    return {"jobs": jobs or {"a": job()}}


def again(read: Bundle, folder: Path) -> Bundle:
    """Return a bundle that was written to a file and read again."""
    (folder / "again.yaml").write_text(yaml.safe_dump(read.to_dict(), sort_keys=False))
    return Bundle.from_file(folder / "again.yaml")


def test_a_file_with_every_key_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("fit:\n  model: {class_path: tests.tiny.Line, init_args: {lr: 1e-3}}\n")
    (tmp_path / "b.yaml").write_text(
        textwrap.dedent("""
        policy: {name: lara, order: edf, explore: 5}
        estimator: {name: least_squares, gamma: 0.9}
        period: 2s
        pool: {devices: 4, kind: cpu, resident: 6, keep: all, keep_ended: 2 days}
        on_verdict: {command: "notify-send 'a job'", webhook: "https://example.org:8443/hook?a=b"}
        jobs:
          a: {config: a.yaml, deadline: 1h30m, target: {loss: 1e-3}, cell: 5, begin: 10m, work: 40m, weight: 2.5}
          b: {model: tests.tiny.Line, deadline: 90s, target: {batches: 20}, devices: 2, on_miss: hold, keep_best: true}
          c: {model: {class_path: tests.tiny.Line}, deadline: 0.5s, target: val_loss<=2, hang: 1h,
              parts: {tests: {fold: 3, of: night}}}
          d: {model: {class_path: tests.tiny.Line}, deadline: 9s, target: {metric: acc, at_least: 92, best: 100},
              min_devices: 1, max_devices: 8, on_miss: stop, hang: off}
          e: {model: {class_path: tests.tiny.Line}, deadline: 9s, min_devices: 3,
              target: {metric: acc, at_least: 0.9, for_evaluations: 2}}
        """)
    )
    read = Bundle.from_file(tmp_path / "b.yaml")
    assert [spec.keep_best for spec in read.jobs] == [False, True, False, False, False]
    assert [spec.keep_best for spec in again(read, tmp_path).jobs] == [False, True, False, False, False]
    assert [spec.hang for spec in read.jobs] == [300.0, 300.0, 3600.0, None, 300.0]
    assert [spec.hang for spec in again(read, tmp_path).jobs] == [300.0, 300.0, 3600.0, None, 300.0]
    assert [spec.job for spec in read.jobs] == [
        Job("a", 5400.0, LossTarget("loss", 0.001), begin=600.0, work=2400.0, weight=2.5),
        Job("b", 90.0, BatchTarget(20), min_devices=2, max_devices=2, on_miss=OnMiss.HOLD),
        Job("c", 0.5, LossTarget("val_loss", 2.0), parts=FOLD),
        Job(
            "d",
            9.0,
            LossTarget("acc", at_least=92.0, best=100.0),
            max_devices=8,
            on_miss=OnMiss.STOP,
            can=frozenset(Capability),
            sizes=(1, 2, 4, 8),
        ),
        Job("e", 9.0, LossTarget("acc", at_least=0.9, for_evaluations=2), min_devices=3, max_devices=3),
    ]
    assert [spec.cell for spec in read.jobs] == [5, 10, 10, 10, 10]
    assert read.jobs[1].config == {"model": MODEL}
    settings = read.settings
    assert (settings.policy, settings.policy_args) == ("lara", {"order": "edf", "explore": 5})
    assert (settings.estimator_args, settings.period) == ({"gamma": 0.9}, 2.0)
    assert (settings.devices, settings.resident, read.kind) == (4, 6, "cpu")
    assert settings.keep_all
    assert settings.keep_ended == 172800.0
    assert read.on_verdict == {"command": ["notify-send", "a job"], "webhook": "https://example.org:8443/hook?a=b"}
    assert again(read, tmp_path) == read
    read.check()


@pytest.mark.parametrize("deadline", [1e-5, 0.1, 1 / 3, 3e8, 123456.789])
def test_durations_round_trip_exactly(tmp_path: Path, deadline: float) -> None:
    read = Bundle((JobSpec(Job("a", deadline, BatchTarget(1), work=deadline / 7), {"model": MODEL}),), folder=tmp_path)
    assert again(read, tmp_path) == read


@pytest.mark.parametrize(("line", "name"), [("", "my-job"), ("name: other", "other")])
def test_a_file_of_one_job_is_read(tmp_path: Path, line: str, name: str) -> None:
    (tmp_path / "my-job.yaml").write_text(
        f"{line}\nmodel: tests.tiny.Line\ndeadline: 9m\ntarget: {{batches: 5}}\nweight: 3\n"
    )
    [spec] = Bundle.from_file(tmp_path / "my-job.yaml").jobs
    assert spec.job == Job(name, 540.0, BatchTarget(5), weight=3.0)


def test_a_job_for_a_running_pool_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("model: tests.tiny.Line\ndeadline: 9m\ntarget: {batches: 5}\ndevices: 3\n")
    with pytest.raises(BundleError, match=r"a.yaml:4:1: devices: must be at most the pool's 2"):
        Bundle.from_file(tmp_path / "a.yaml", ExistingPool(2))
    read = Bundle.from_file(tmp_path / "a.yaml", ExistingPool(4))
    assert (read.settings.devices, read.jobs[0].job.min_devices) == (4, 3)


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        ("{kind: gpu}", "pool.kind: the bundle wants devices of kind gpu, the pool at /p has cpu;"),
        ("{devices: 3}", "pool.devices: the bundle shares 3 devices, the pool at /p has 2; `lightning-core run --own`"),
        ("{devices: {harbour: 1, cloud: 1}}", "pool.devices: the bundle shares harbour, cloud, the pool at /p has no"),
    ],
)  # fmt: skip
def test_requests_beyond_the_running_pool_are_refused(tmp_path: Path, pool: str, words: str) -> None:
    job = "{model: tests.tiny.Line, deadline: 9m, target: {batches: 5}}"
    (tmp_path / "b.yaml").write_text(f"pool: {pool}\njobs: {{a: {job}}}\n")
    with pytest.raises(BundleError) as caught:
        Bundle.from_file(tmp_path / "b.yaml", ExistingPool(2, "cpu", "the pool at /p"))
    assert len(caught.value.problems) == 1
    assert words in caught.value.problems[0]


def test_a_bundle_is_read_for_the_locations_of_a_running_pool() -> None:
    there = ExistingPool(3, "cpu", "the pool at /p", ("edge", "cloud", "cloud"))
    found = Problems(Position("b"))
    assert read_pool({"devices": {"edge": 1, "cloud": 2}}, found, there).locations == there.locations
    assert not found.messages
    read_pool({"devices": {"edge": 2}}, found, there)
    [words] = found.messages
    assert "the bundle shares edge (2), the pool at /p has edge (1), cloud (2)" in words


@pytest.mark.parametrize(
    ("text", "seconds"), [("{}", 2592000.0), ("{keep_ended: forever}", None), ("{keep_ended: 1h}", 3600.0)]
)
def test_files_of_ended_jobs_are_kept_for_30_days_or_as_the_bundle_says(
    tmp_path: Path, text: str, seconds: float | None
) -> None:
    job = "{model: tests.tiny.Line, deadline: 9m, target: {batches: 5}}"
    (tmp_path / "b.yaml").write_text(f"pool: {text}\njobs: {{a: {job}}}\n")
    read = Bundle.from_file(tmp_path / "b.yaml")
    assert read.settings.keep_ended == seconds
    assert again(read, tmp_path).settings == read.settings


@pytest.mark.parametrize("pool", ["{}", "{devices: 1}", "{kind: gpu}", "{devices: 2, kind: gpu, resident: 5}"])
def test_a_bundle_takes_the_devices_of_the_running_pool(tmp_path: Path, pool: str) -> None:
    job = "{model: tests.tiny.Line, deadline: 9m, target: {batches: 5}}"
    (tmp_path / "b.yaml").write_text(f"pool: {pool}\njobs: {{a: {job}}}\n")
    read = Bundle.from_file(tmp_path / "b.yaml", ExistingPool(2, "gpu", "the pool at /p"))
    assert (read.settings.devices, read.kind) == (2, "gpu")


def test_common_keys_of_jobs_are_merged(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(
        textwrap.dedent("""
        jobs:
          a: &common {model: tests.tiny.Line, deadline: 9s, target: {loss: 1}}
          b: {<<: *common, deadline: 8s}
          c:
            <<: *common
            deadline: soon
        """)
    )
    with pytest.raises(BundleError, match=r"b.yaml:7:5: jobs.c.deadline: must be a duration .* got 'soon'") as caught:
        Bundle.from_file(tmp_path / "b.yaml")
    assert len(caught.value.problems) == 1


def test_a_checkpoint_path_is_relative_to_the_file(tmp_path: Path) -> None:
    def path(ckpt: str) -> Any:
        return Bundle.from_dict(bundle(a=job(ckpt_path=ckpt)), tmp_path).jobs[0].config["ckpt_path"]

    assert path("x/last.ckpt") == str(tmp_path / "x" / "last.ckpt")
    assert path("/x/last.ckpt") == "/x/last.ckpt"
    assert path("last") == "last"
    assert path("s3://bucket/last.ckpt") == "s3://bucket/last.ckpt"


def test_policies_are_read_by_name() -> None:
    read = Bundle.from_dict(bundle()).with_policy("lara:order=edf")
    assert read.settings.policy_args == {"order": "edf"}
    assert Bundle.from_dict(bundle() | {"policy": "lara:order=edf"}).settings == read.settings
    with pytest.raises(ValueError, match="NAME:KEY=VALUE"):
        read.with_policy("lara:order")
    with pytest.raises(ValueError, match="policy must be one of"):
        read.with_policy("best")


@pytest.mark.parametrize(
    ("said", "own", "under_edf"),
    [
        ({}, "weighted", "posterior"),
        ({"estimator": "weighted"}, "weighted", "weighted"),
        ({"estimator": {"name": "log_time", "power": 3}}, "log_time", "log_time"),
    ],
)
def test_each_policy_has_its_own_estimator_unless_the_bundle_names_one(
    said: dict[str, Any], own: str, under_edf: str, tmp_path: Path
) -> None:
    read = again(Bundle.from_dict({"policy": "lara", **said, **bundle()}), tmp_path)
    assert read.settings.estimator_used == own
    assert read.with_policy("edf").settings.estimator_used == under_edf
    assert read.with_policy("edf").settings.estimator_args == read.settings.estimator_args


def test_estimator_arguments_without_a_name_apply_to_the_policy_s_own() -> None:
    read = Bundle.from_dict({"policy": "lara", "estimator": {"gamma": 0.8}, **bundle()})
    assert (read.settings.estimator_used, read.settings.estimator_args) == ("weighted", {"gamma": 0.8})
    with pytest.raises(BundleError, match=r"bundle: estimator: estimator posterior: .*'gamma'"):
        Bundle.from_dict({"policy": "edf", "estimator": {"gamma": 0.8}, **bundle()})


def test_keys_for_simulations_do_not_affect_a_run(tmp_path: Path) -> None:
    read = Bundle.from_dict(bundle(a=job(curve="before.csv", throughput=12.5)), tmp_path)
    assert read.to_dict() == Bundle.from_dict(bundle(), tmp_path).to_dict()


def test_checkpoints_of_a_job_can_be_turned_off(tmp_path: Path) -> None:
    for enabled in (True, False):
        Bundle.from_dict(bundle(a=job(trainer={"enable_checkpointing": enabled})), tmp_path).check()


def test_checking_changes_neither_random_state_nor_config(tmp_path: Path) -> None:
    import torch

    callback = {"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": {"monitor": "loss"}}
    read = Bundle.from_dict(bundle(a=job(seed_everything=1, trainer={"callbacks": [callback]})), tmp_path)
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    read.check()
    assert torch.rand(1) == expected
    assert again(read, tmp_path) == read


@pytest.mark.parametrize(
    ("changed", "lines"),
    [
        (bundle(), []),
        (bundle(a=job(deadline="2m")), ["jobs.a.deadline: 90s -> 120s"]),
        (bundle(a=job(target={"batches": 9})), [
            "jobs.a.target.metric: loss -> not set",
            "jobs.a.target.at_most: 0.1 -> not set",
            "jobs.a.target.batches: not set -> 9",
        ]),
        (bundle(a=job(model={**MODEL, "init_args": {"lr": 0.2}})), ["jobs.a.model.init_args: not set -> {'lr': 0.2}"]),
        (bundle(a=job(), b=job()), ["jobs.b: new"]),
        (bundle(b=job()), ["jobs.a: removed", "jobs.b: new"]),
        ({**bundle(), "pool": {"devices": 2}}, ["pool.devices: 1 -> 2"]),
        ({**bundle(), "policy": "fifo"}, ["policy.name: edf -> fifo"]),
        ({**bundle(), "on_verdict": {"command": "ring"}}, ["on_verdict: not set -> {'command': ['ring']}"]),
    ],
)  # fmt: skip
def test_differences_between_bundles(changed: dict[str, Any], lines: list[str]) -> None:
    old = Bundle.from_dict({"policy": "edf", **bundle()})
    assert differences(old, Bundle.from_dict({"policy": "edf", **changed})) == lines


def test_differences_name_the_changed_value(tmp_path: Path) -> None:
    def read(lr: Any, patience: Any) -> Bundle:
        trainer = {"callbacks": [{"class_path": "x.Y", "init_args": {"patience": patience}}], "betas": (1, 2)}
        return Bundle.from_dict(bundle(a=job(model={**MODEL, "init_args": {"lr": lr}}, trainer=trainer)))

    assert differences(again(read(0.1, 1), tmp_path), read(0.2, True)) == [
        "jobs.a.model.init_args.lr: 0.1 -> 0.2",
        "jobs.a.trainer.callbacks[0].init_args.patience: 1 -> True",
    ]


# ---------------------------------------------------------------------------------------------------- points in time

TEN = datetime(2026, 11, 23, 10, 0)


def at_ten(monkeypatch: pytest.MonkeyPatch, now: datetime = TEN) -> None:
    """Set the clock that is used while a bundle is read."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return now

    monkeypatch.setattr(jobs, "datetime", Clock)


def test_a_point_in_time_is_resolved_at_submission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_ten(monkeypatch)
    read = Bundle.from_dict(bundle(a=job(deadline="18:00", begin="2026-11-23T12:00"), b=job()))
    assert [(spec.job.deadline, spec.job.begin) for spec in read.jobs] == [(28_800.0, 7200.0), (90.0, 0.0)]
    assert "submitted" not in str(read.to_dict())  # a run that was left before that asks the clock anew
    later = read.submit(TEN + timedelta(hours=1), except_for={"b"})
    assert [(spec.job.deadline, spec.job.begin) for spec in later.jobs] == [(25_200.0, 3600.0), (90.0, 0.0)]
    name, *words = later.moments(TEN)[0].split(" ")
    assert (name, words[:2], words[-2:]) == ("a:", ["deadline", "18:00"], ["in", "8h"])

    with pytest.raises(BundleError, match=r"jobs.a.begin: a time must be in the future, got '2026-11-23T12:00'"):
        read.submit(TEN + timedelta(hours=3))
    with pytest.raises(BundleError, match=r"bundle: jobs.a: begin must be before the deadline"):
        Bundle.from_dict(bundle(a=job(deadline="10:05", begin="4m"))).submit(TEN + timedelta(minutes=2))


def test_a_resumed_run_keeps_its_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_ten(monkeypatch)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(bundle(a=job(deadline="18:00", begin="2026-11-23T12:00"))))
    (tmp_path / "kept.yaml").write_text(yaml.safe_dump(Bundle.from_file(tmp_path / "mine.yaml").submit(TEN).to_dict()))
    at_ten(monkeypatch, TEN + timedelta(days=1, hours=10))  # 20:00, and 18:00 would be the day after tomorrow's
    before = Bundle.from_file(tmp_path / "kept.yaml")
    now = before.read_again(tmp_path / "mine.yaml")
    assert before.jobs[0].job == now.jobs[0].job == Job("a", 28_800.0, LossTarget("loss", 0.1), begin=7200.0)
    assert differences(before, now) == []
    assert now.submit(TEN, except_for={"a"}).jobs == now.jobs

    changed = bundle(a=job(deadline="2026-11-24T22:00"), b=job(deadline="22:00"))
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(changed))
    now = before.read_again(tmp_path / "mine.yaml")
    assert differences(before, now) == [
        "jobs.a.deadline: 18:00 -> 2026-11-24T22:00",
        "jobs.a.begin: 2026-11-23T12:00 -> not set",
        "jobs.b: new",
    ]
    assert [spec.job.deadline for spec in now.jobs] == [36 * 3600.0, 2 * 3600.0]  # from when each was submitted


SECRET = "SECRET"
FOREIGN = {
    "shadow": "root:$6$SECRET:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\n",
    "a key": "-----BEGIN KEY-----\nSECRET\nSECRET\n",
    "a word": "SECRET\n",
    "an ini file": "[default]\nsecret = SECRET\n",
    "a mapping": "PASSWORD: SECRET\nTOKEN: 12:30SECRET\n12:30: SECRET\n",
    "a list": "- SECRET\n- !SECRET x\n",
    "an alias": "*SECRET\n",
    "an anchor": "a: &SECRET 1\nb: &SECRET 2\n",
    "a tag": "%TAG !SECRET! tag:x\n--- !SECRET!y z\n",
    "a number": "0x_: SECRET\nSECRET: 012345670\nSECRET: 1\n",
    "a curly brace": "{SECRET\n",
    "JSON": '{"SECRET": "SECRET"}',
}


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("linked", [False, True])
def test_nothing_is_quoted_of_a_file_that_is_no_config(tmp_path: Path, kind: str, linked: bool) -> None:
    """A bundle may name any file that its reader can read, and its errors go into logs."""
    (tmp_path / "elsewhere").write_text(FOREIGN[kind])
    if linked:
        (tmp_path / "x.yaml").symlink_to(tmp_path / "elsewhere")
    name = "x.yaml" if linked else "elsewhere"
    (tmp_path / "bundle.yaml").write_text(
        f"jobs:\n  a:\n    config: {name}\n    deadline: 1m\n    target: {{batches: 3}}\n"
    )
    with pytest.raises(BundleError) as caught:
        Bundle.from_file(tmp_path / "bundle.yaml")
    [problem] = caught.value.problems
    assert "SECRET" not in problem
    assert "PASSWORD" not in problem
    assert problem.startswith(str(tmp_path / name))


def test_nothing_is_quoted_of_a_file_that_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere"
    path.write_text("root:$6$SECRET:19000:0:99999:7:::\nSECRET,SECRET\n")
    for read in (read_recording, read_intervals):
        with pytest.raises(ValueError, match=str(path)) as caught:
            read(path)
        assert "SECRET" not in str(caught.value)


def test_a_config_is_quoted_where_it_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("modle: mine.Cnn\ntrainer: {max_epochs: 12:30}\n")
    (tmp_path / "bundle.yaml").write_text(
        "jobs:\n  a:\n    config: x.yaml\n    deadline: 1m\n    target: {batches: 3}\n"
    )
    with pytest.raises(BundleError) as caught:
        Bundle.from_file(tmp_path / "bundle.yaml")
    said = str(caught.value)
    assert "x.yaml:1:1: modle: unknown key 'modle'; did you mean 'model'?" in said
    assert "x.yaml:2:23: YAML reads 12:30 as 750" in said


def test_a_config_in_place_of_a_bundle_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "cnn.yaml").write_text(
        "seed_everything: 1\ntrainer: {max_epochs: 3}\nmodel: {class_path: mine.Cnn}\ndata: {class_path: mine.Data}\n"
        "optimizer: {class_path: torch.optim.SGD}\n"
    )
    with pytest.raises(BundleError) as caught:
        Bundle.from_file(tmp_path / "cnn.yaml")
    assert caught.value.problems == [
        f"{tmp_path / 'cnn.yaml'}: this looks like a LightningCLI config (keys data, model, optimizer, "
        "seed_everything, trainer); a bundle names it, under jobs: {NAME: {config: cnn.yaml, deadline: 1h30m, "
        "target: loss<=0.35}}"
    ]


def test_memory_is_read_and_written() -> None:
    written = {"pool": {"devices": 2, "device_memory": "24GiB"},
               "jobs": {"a": job(memory="1.5 GB", on_hold="offload"), "b": job()}}  # fmt: skip
    read = Bundle.from_dict(written)
    a, b = (spec.job for spec in read.jobs)
    assert read.settings.device_memory == 24 * 2**30
    assert (a.memory, a.on_hold, b.memory, b.on_hold) == (1_500_000_000, OnHold.OFFLOAD, None, OnHold.KEEP)
    assert Bundle.from_dict(read.to_dict()) == read


def test_company_is_read_and_written() -> None:
    read = Bundle.from_dict({"pool": {"beside": "always"}, "jobs": {"a": job(beside="never"), "b": job()}})
    assert [read.settings.beside, *(spec.job.beside for spec in read.jobs)] == ["always", "never", "auto"]
    assert Bundle.from_dict(read.to_dict()) == read
    plain = Bundle.from_dict({"jobs": {"b": job()}}).to_dict()
    assert "beside" not in plain["pool"]
    assert "beside" not in plain["jobs"]["b"]


@pytest.mark.parametrize("at", ["pool", "jobs.a"])
def test_a_word_for_company_that_does_not_exist_is_refused(at: str) -> None:
    given: dict[str, Any] = {"pool": {}, "jobs": {"a": job()}}
    (given["pool"] if at == "pool" else given["jobs"]["a"])["beside"] = "alwais"
    with pytest.raises(BundleError, match=f"{at}.beside: 'alwais' is unknown; did you mean 'always'"):
        Bundle.from_dict(given)


@pytest.mark.parametrize(
    ("pool", "terms", "words"),
    [
        ("24 lots", {}, "pool.device_memory: memory must be such as '16GiB' or '800MB', got '24 lots'"),
        ("0", {}, "pool.device_memory: memory must be 1 byte to 1,024TiB, got '0'"),
        ("8GiB", {"memory": "9GiB"}, "jobs.a.memory: needs 9GiB of memory, but the pool's devices have 8GiB"),
        ("8GiB", {"memory": True}, "jobs.a.memory: memory must be such as '16GiB' or '800MB', got True"),
        ("8GiB", {"on_hold": "drop"}, "jobs.a.on_hold: "),
        ("8GiB", {"on_hold": "offload", "devices": 2}, "jobs.a.on_hold: offload is for a job of one device, got 2"),
        ("8GiB", {"on_hold": "suspend", "devices": 2}, "jobs.a.on_hold: suspend is for a job of one device, got 2"),
    ],
)
def test_memory_that_cannot_be_is_refused_before_anything_starts(pool: str, terms: dict[str, Any], words: str) -> None:
    with pytest.raises(BundleError) as error:
        Bundle.from_dict({"pool": {"device_memory": pool}, "jobs": {"a": job(**terms)}})
    assert words in str(error.value)


def test_a_webhook_s_secret_is_named_and_not_told(tmp_path: Path) -> None:
    secret = tmp_path / "hook.secret"
    secret.write_text("a secret of some length\n")
    secret.chmod(0o600)
    path = tmp_path / "bundle.yaml"
    job = "jobs: {a: {model: tests.tiny.Line, deadline: 60, target: {batches: 9}}}\n"
    hook = "on_verdict: {webhook: 'https://example.org', secret_file: %s}\n"
    path.write_text(job + hook % "hook.secret")
    read = Bundle.from_file(path)
    assert read.on_verdict == {"webhook": "https://example.org", "secret_file": str(secret)}
    assert again(read, tmp_path) == read
    secret.chmod(0o644)
    with pytest.raises(
        BundleError, match=r"bundle.yaml:2:\d+: on_verdict.secret_file: must be readable by its user alone"
    ):
        Bundle.from_file(path)
    path.write_text(job + hook % "none.secret")
    with pytest.raises(BundleError, match=r"on_verdict.secret_file: cannot be read: No such file or directory: /"):
        Bundle.from_file(path)
    secret.chmod(0o600)
    path.write_text(job + "on_verdict: {command: ring, secret_file: hook.secret}\n")
    with pytest.raises(BundleError, match=r"on_verdict.secret_file: signs what is posted to a webhook: say which"):
        Bundle.from_file(path)
