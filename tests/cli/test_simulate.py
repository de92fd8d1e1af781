"""``lightning-core simulate``: recordings of jobs, output, files, and refused input."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lightning_core.cli.main import main
from lightning_core.cli.simulate import parse_delays, parse_policies
from lightning_core.server.discovery import home
from lightning_core.simulation.bundle_curves import PlayedBundle, read_bundle
from lightning_core.simulation.recorded_curves import SHIPPED
from lightning_core.simulation.scenario import Delays
from lightning_core.storage.journals.journal import Journal
from lightning_core.storage.private_files import private_folder
from lightning_core.storage.runs.run_store import FILE, RunStore
from tests.storage.test_run_store import run

# A loss of 10 / s after s batches, and the same a hundred times as high and ten times as slow, with its speed.
ROWS = "step,loss\n" + "".join(f"{s},{10 / s}\n" for s in range(1, 201))
OTHER = "step,loss\n" + "".join(f"{10 * s},{1000 / s}\n" for s in range(1, 201))
BUNDLE = """
policy: edf
period: 1s
jobs:
  late: {deadline: 60s, target: {loss: 0.5}, curve: fast.csv, throughput: 2, model: mine.Cnn, trainer: {max_epochs: 3}}
  soon: {deadline: 20s, target: {batches: 100}, curve: fast.csv, throughput: 10, weight: 2}
  never: {deadline: 5s, target: {loss: 0.001}, curve: fast.csv, throughput: 10, on_miss: stop}
"""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "curves").mkdir()
    (tmp_path / "curves" / "slow.csv").write_text(OTHER)
    (tmp_path / "curves" / "fast.csv").write_text(ROWS)
    (tmp_path / "curves" / "index.csv").write_text("file,sec_per_step\nfast.csv,0.125\nslow.csv,0.01\n")


def read(text: str, *, curves: bool = True, seed: int = 0, devices: int | None = None) -> PlayedBundle:
    Path("bundle.yaml").write_text(text)
    return read_bundle(Path("bundle.yaml"), Path("curves") if curves else None, seed, devices)


def job(terms: str, seed: int = 0) -> tuple[str, float, float]:
    """Return recording, throughput and seconds of work of a bundle's only job."""
    [played] = read(f"jobs: {{a: {{deadline: 100s, {terms}}}}}", seed=seed).jobs
    return played.recording, round(played.given.throughput, 6), round(played.needs, 6)


# ---------------------------------------------------------------------------------------------------- recordings


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        # The mean over five cells comes down to 0.5 with cells 18 to 22: 2.5 / (1 / 18 + ... + 1 / 22) is over 20.
        ("target: {loss: 0.5}, curve: fast.csv, throughput: 2", ("fast.csv", 2.0, 23 / 2)),
        ("target: {loss: 0.5}, curve: fast.csv", ("fast.csv", 8.0, 23 / 8)),
        ("target: {loss: 50}, curve: slow.csv", ("slow.csv", 100.0, 230 / 100)),
        ("target: {batches: 40}, curve: fast.csv, throughput: 2", ("fast.csv", 2.0, 20.0)),
        ("target: {loss: 0.01}, curve: fast.csv, throughput: 2", ("fast.csv", 2.0, float("inf"))),
        ("target: {loss: 0.5}, curve: beside.csv, work: 46s", ("beside.csv", 0.5, 46.0)),
        # 0.8 of the time there is, for one job on one device.
        ("target: {loss: 0.5}, curve: beside.csv", ("beside.csv", round(23 / 80, 6), 80.0)),
        ("target: {loss: 0.01}, curve: beside.csv", ("beside.csv", 200 / 80, float("inf"))),
    ],
)
def test_a_recording_that_is_named_is_played_as_it_is(terms: str, expected: tuple[str, float, float]) -> None:
    Path("beside.csv").write_text(ROWS)
    assert job(terms) == expected
    [played] = read(f"jobs: {{a: {{deadline: 100s, {terms}}}}}").jobs
    assert not played.drawn
    assert played.given.loss[:2].tolist() == ([1000.0, 500.0] if "slow" in terms else [10.0, 5.0])  # type: ignore[union-attr]


def test_a_metric_that_grows_is_read_as_it_was_logged() -> None:
    Path("accuracy.csv").write_text("step,loss\n" + "".join(f"{s},{s / 100}\n" for s in range(101)))
    [played] = read("jobs: {a: {deadline: 9s, target: {metric: acc, at_least: 0.9}, curve: accuracy.csv}}").jobs
    assert list(played.given.loss[:2]) == pytest.approx([1.0, 0.99])
    assert played.needs * played.given.throughput == 93.0  # the mean over 88, ... 92 is 90; a log from 0 is moved up


def test_a_loss_that_crosses_zero_is_played_as_it_is() -> None:
    Path("nll.csv").write_text("step,loss\n" + "".join(f"{s},{(500 - 10 * s) / 100}\n" for s in range(1, 101)))
    [played] = read("jobs: {a: {deadline: 9s, target: nll<=-2, curve: nll.csv}}").jobs
    assert [played.given.loss[k] for k in (0, 49, 99)] == pytest.approx([4.9, 0.0, -5.0])
    assert played.needs * played.given.throughput == 72.0  # the mean over 68, ... 72


@pytest.mark.parametrize(
    ("terms", "speed", "needs"),
    [
        ("target: {loss: 0.35}, work: 40s", None, 40.0),
        ("target: {metric: acc, at_least: 0.9}, work: 40s", None, 40.0),
        ("target: {batches: 1000}, work: 40s", 25.0, 40.0),
        ("target: {batches: 1000}, throughput: 50", 50.0, 20.0),
        ("target: {loss: 0.35}, work: 40s, throughput: 50", 50.0, 40.0),
        ("target: {loss: 0.35}", None, 80.0),
        ("target: {loss: 0.35}, begin: 50s", None, 40.0),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_a_recording_that_is_drawn_lends_its_shape(terms: str, speed: float | None, needs: float, seed: int) -> None:
    [played] = read(f"jobs: {{a: {{deadline: 100s, {terms}}}}}", seed=seed).jobs
    assert played.drawn
    assert played.needs == pytest.approx(needs, abs=0.51 / played.given.throughput)  # batches are whole
    if speed is not None:
        assert played.given.throughput == pytest.approx(speed)
    assert played.given.loss[0] / played.given.loss[-1] == pytest.approx(200.0)


@pytest.mark.parametrize("target", ["nll<=-3", "elbo<=0"])
def test_a_recording_drawn_for_a_negative_target_is_moved_down(target: str) -> None:
    [played] = read(f"jobs: {{a: {{deadline: 100s, target: {target}, work: 40s}}}}").jobs
    assert played.needs == pytest.approx(40.0)
    assert min(played.given.loss) < 0.0 or target == "elbo<=0"


def test_the_draw_of_a_job_does_not_depend_on_other_jobs() -> None:
    (Path("curves") / "index.csv").unlink()
    for number in range(20):
        (Path("curves") / f"more{number}.csv").write_text(ROWS)
    one = "{deadline: 100s, target: {loss: 0.35}, work: 40s}"
    both = read(f"jobs: {{a: {one}, b: {one}}}").jobs
    alone = read(f"jobs: {{b: {one}}}").jobs
    assert both[1].recording == alone[0].recording
    assert list(both[1].given.loss) == list(alone[0].given.loss)
    assert len({read(f"jobs: {{b: {one}}}", seed=seed).jobs[0].recording for seed in range(20)}) > 5


def test_only_falling_recordings_are_drawn() -> None:
    rising = "step,loss\n" + "".join(f"{s},{s}\n" for s in range(1, 201))
    for name in ("up", "again"):
        (Path("curves") / f"{name}.csv").write_text(rising if name == "up" else ROWS)
    (Path("curves") / "index.csv").write_text("file,jumps_back\nup.csv,0\nagain.csv,2\nfast.csv,0\n")
    assert {job("target: {loss: 0.35}", seed=seed)[0] for seed in range(20)} == {"fast"}
    (Path("curves") / "index.csv").write_text("file,jumps_back\nup.csv,0\nagain.csv,2\n")
    with pytest.raises(
        ValueError, match=r"bundle.yaml:1:\d+: jobs.a: curves: no recording there is of one run and comes down"
    ):
        job("target: {loss: 0.35}")


def test_a_file_of_one_job_and_other_devices() -> None:
    Path("alone.yaml").write_text("name: x\ndeadline: 100s\ntarget: {batches: 5}\nwork: 50s\nconfig: missing.yaml\n")
    bundle = read_bundle(Path("alone.yaml"), Path("curves"), devices=3)
    assert ([played.given.job.name for played in bundle.jobs], bundle.settings.devices) == (["x"], 3)


# ---------------------------------------------------------------------------------------------------- the command


def test_a_job_without_a_deadline_waits_for_those_that_have_one(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bundle.yaml").write_text(BUNDLE.replace("deadline: 60s, ", ""))
    assert main(["simulate", "bundle.yaml", "--curves", "curves", "--run-dir", "out"]) == 3
    told = capsys.readouterr().out
    jobs = json.loads(Path("out/summary.json").read_text())["jobs"]
    assert (jobs["late"]["deadline"], jobs["late"]["verdict"], jobs["late"]["reason"]) == (None, "met", "target met")
    assert jobs["soon"]["finished_at"] < jobs["late"]["finished_at"]
    assert "∞" in told
    assert main(["report", "out"]) == 0
    page = Path("out/report.html").read_text()
    assert "3 training jobs shared 1 device; each had a target, and 2 of them a deadline." in page
    assert main(["replay", "out"]) == 0


def test_one_policy_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bundle.yaml").write_text(BUNDLE)
    assert main(["simulate", "bundle.yaml", "--curves", "curves", "--run-dir", "out"]) == 3
    printed = capsys.readouterr().out.splitlines()
    assert printed[:5] == [
        "job    recording  batches/s  needs  has",
        "late   fast.csv   2          11.5s  60.0s",
        "soon   fast.csv   10         10.0s  20.0s",
        "never  fast.csv   10         ∞      5.0s",
        "at most 2 of 3 could be met if the curves were known in advance",
    ]
    # never has the device for 5 s, then soon for 10.
    assert [line.split()[:3] for line in printed[6:9]] == [
        ["late", "met", "26.5s"], ["soon", "met", "15.0s"], ["never", "missed", "5.0s"],
    ]  # fmt: skip
    assert printed[-3:] == [
        "edf: 2 of 3 met in 26.5s; the device was busy 100 % of it",
        "switches: 2",
        f"journal, summary and report.html: {Path('out').resolve()}",
    ]
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "journal.db", "journal.db-anchor", "report.html", "summary.json",
    ]  # fmt: skip


def test_the_folder_of_a_simulation_is_like_that_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bundle.yaml").write_text(BUNDLE)
    main(["simulate", "bundle.yaml", "--curves", "curves", "--run-dir", "out"])
    capsys.readouterr()
    assert main(["replay", "out"]) == 0
    assert json.loads(capsys.readouterr().out)["identical"]
    Path("out/report.html").unlink()
    assert main(["report", "out"]) == 0
    assert "2 of 3 targets met in time" in Path("out/report.html").read_text()
    assert main(["why", "out", "soon"]) == 0
    story = capsys.readouterr().out
    assert "queued behind 1 job" in story
    assert "target met with 5.0s to spare" in story
    assert main(["why", "out", "sono"]) == 2
    assert capsys.readouterr().err == "error: no job 'sono'; did you mean 'soon'?\n"
    assert main(["why", "curves", "soon"]) == 2
    assert "curves/journal.db: no journal here" in capsys.readouterr().err
    assert json.loads(Path("out/summary.json").read_text())["jobs"]["soon"]["finished_at"] == 15.0


def test_policies_are_compared_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bundle.yaml").write_text(BUNDLE)
    code = main(["simulate", "bundle.yaml", "--curves", "curves", "--run-dir", "out", "--policy", "fifo,edf",
                 "--policy", "rr:quantum=2", "--json", "all.json"])  # fmt: skip
    assert code == 3
    printed = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in printed[5:-2]] == [
        "job deadline fifo edf rr:quantum=2",
        "late 60.0s ✓ 11.5s ✓ 26.5s ✓ 21.5s",
        "soon 20.0s ✕ missed ✓ 15.0s ✕ missed",
        "never 5.0s ✕ missed ✕ missed ✕ missed",
        "",
        "met, by weight 1 3 1",
        "met 1 of 3 2 of 3 1 of 3",
        "switches 1 2 12",
        "all ended after 21.5s 26.5s 22.5s",
    ]
    written = json.loads(Path("all.json").read_text())
    assert {name: (one["met"], one["switches"]) for name, one in written["policies"].items()} == {
        "fifo": (1, 1), "edf": (2, 2), "rr:quantum=2": (1, 12),
    }  # fmt: skip
    assert written["jobs"]["never"]["needs_s"] is None
    assert main(["replay", "out/rr-quantum-2"]) == 0


def test_delays_and_devices_change_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bundle.yaml").write_text(BUNDLE)
    words = ["simulate", "bundle.yaml", "--curves", "curves"]
    main([*words, "--run-dir", "slow", "--delays", "switch=0.5"])
    main([*words, "--run-dir", "wide", "--devices", "3"])
    ends = {
        folder: [one["finished_at"] for one in json.loads(Path(f"{folder}/summary.json").read_text())["jobs"].values()]
        for folder in ("slow", "wide")
    }
    assert ends == {"slow": [27.5, 15.5, 5.0], "wide": [11.5, 10.0, 5.0]}


def test_each_policy_has_its_own_estimator_unless_the_bundle_names_one() -> None:
    for extra, estimators in (("", ["posterior", "weighted"]), ("estimator: log_time\n", ["log_time", "log_time"])):
        Path("bundle.yaml").write_text(extra + BUNDLE)
        folder = f"out{len(extra)}"
        main(["simulate", "bundle.yaml", "--curves", "curves", "--policy", "edf,lrf", "--run-dir", folder])
        found = []
        for policy in ("edf", "lrf"):
            with Journal.open(Path(folder) / policy / "journal.db", read_only=True) as journal:
                found.append(journal.settings().estimator)
        assert found == estimators


def test_the_exit_code_is_0_if_all_jobs_met() -> None:
    Path("bundle.yaml").write_text("jobs: {a: {deadline: 100s, target: {batches: 5}}}")
    assert main(["simulate", "bundle.yaml", "--curves", "curves"]) == 0
    [folder] = Path("simulations").iterdir()
    assert (folder / "report.html").exists()


def test_nothing_that_trains_is_imported() -> None:
    Path("bundle.yaml").write_text(BUNDLE)
    program = (
        "import sys; from lightning_core.cli.main import main\n"
        "main(['simulate', 'bundle.yaml', '--curves', 'curves', '--policy', 'edf,triage'])\n"
        "sys.exit(' '.join({'ray', 'torch', 'lightning', 'jsonargparse'} & set(sys.modules)) or None)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert (done.stderr.strip(), done.returncode) == ("", 0)


# ---------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ("curve: fast.csv, throughput: 2", "curve: fats.csv"),
            "jobs.late.curve: fats.csv: no such recording in . or curves",
        ),
        (("curve: fast.csv, throughput: 2", "curve: 3"), "jobs.late.curve: must be the path of a recording, got 3"),
        (("throughput: 2", "throughput: 0"), "late.throughput: must be positive and finite batches a second, got 0"),
        (("throughput: 2", "throughput: fast"), "jobs.late.throughput: must be a number, got 'fast'"),
        (("throughput: 2", "thruput: 2"), "unknown key 'thruput'; did you mean 'throughput'?"),
        (("deadline: 60s, ", "deadline: , "), "jobs.late.deadline: is empty; expected one such as 1h30m"),
        (("policy: edf", "policy: edt"), "policy: policy must be one of"),
        (("period: 1s", "preiod: 1s"), "unknown key 'preiod'; did you mean 'period'?"),
        (("late: {", "late: 3 #"), "jobs.late: got 3; expected a mapping"),
    ],
)
def test_a_wrong_bundle_is_refused(change: tuple[str, str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = BUNDLE.replace(*change)
    assert text != BUNDLE
    Path("bundle.yaml").write_text(text)
    assert main(["simulate", "bundle.yaml", "--curves", "curves", "--run-dir", "out"]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert "Traceback" not in told.err
    assert (told.out, Path("out").exists()) == ("", False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--policy", "nothing"], "policy must be one of"),
        (["--policy", "lara:order"], "policy must be NAME or NAME:KEY=VALUE,..., got 'lara:order'"),
        (["--policy", "edf,edf"], "--policy: 'edf' is named twice"),
        (["--devices", "0"], "--devices must be 1 to 1024, got 0"),
        (["--seed", "-1"], "--seed must be at least 0, got -1"),
        (["--delays", "swich=1"], "--delays: unknown delay 'swich'; did you mean 'switch'?"),
        (["--delays", "switch=soon"], "--delays: switch must be seconds, such as switch=0.2, got 'soon'"),
        (["--delays", "switch"], "--delays: switch must be seconds, such as switch=0.2, got ''"),
        (["--delays", "switch=-1"], "delay switch must be at least 0 seconds and finite, got -1.0"),
        (["--curves", "nowhere"], "nowhere: is not a folder of recordings"),
        (["--run-dir", "curves"], "curves: is not an empty folder; name another one for this simulation"),
        (["--run-dir", "bundle.yaml"], "bundle.yaml: is not an empty folder; name another one for this simulation"),
    ],
)
def test_a_wrong_option_is_refused(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bundle.yaml").write_text(BUNDLE)
    assert main(["simulate", "bundle.yaml", "--curves", "curves", *options]) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert (told.out, Path("simulations").exists()) == ("", False)


def test_a_job_that_ran_before_is_simulated_as_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LIGHTNING_CORE_HOME", str(tmp_path / "home"))
    folder = private_folder(home())
    with closing(RunStore(folder / FILE)) as store:
        batches, losses = tuple(range(100, 1001, 100)), tuple(1.0 - k / 10 for k in range(10))
        store.add([run("vit", batches=batches, losses=losses, throughputs=((1, "cpu", 20.0),))])
    vit = "vit: {deadline: 60s, target: {metric: val_loss, at_most: %s}}"
    jobs = f"{{{vit}, late: {{like: vit, deadline: 60s, target: {{batches: 400}}}}}}"
    Path("bundle.yaml").write_text(f"jobs: {jobs % 0.35}")
    assert main(["simulate", "bundle.yaml", "--run-dir", "one"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"vit +vit \(earlier run\) +20 +37\.\ds +60\.0s", said[1])  # the line is 0.35 at 750 batches
    assert re.fullmatch(r"late +\S+ +20 +20\.0s +60\.0s +curve", said[2])
    assert said[3].startswith("made up: curve: ")
    # A target that it never reached says nothing; neither does it where recordings are named.
    Path("bundle.yaml").write_text(f"jobs: {jobs % 0.01}")
    main(["simulate", "bundle.yaml", "--run-dir", "two"])
    assert "earlier run" not in capsys.readouterr().out
    Path("bundle.yaml").write_text(f"jobs: {jobs % 0.35}")
    main(["simulate", "bundle.yaml", "--run-dir", "three", "--curves", "curves"])
    assert "earlier run" not in capsys.readouterr().out


# Ten seconds of work on the fast kind, of which only one can have it first; on the slow one it is 40 s.
JOB = "target: {batches: 100}, curve: curves/fast.csv, throughput: 10, model: mine"
KINDS = f"""
pool: {{devices: {{a100: 1, t4: 1}}}}
policy: edf
jobs:
  soon: {{deadline: 12s, {JOB}.Cnn%(paces)s}}
  late: {{deadline: 60s, {JOB}.Cnn, kinds: [a100]%(paces)s}}
  old: {{deadline: 300s, {JOB}.Vit, kinds: [t4]%(paces)s}}
"""


def on_kinds(paces: str, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Return the lines about kinds of a simulated bundle, and its jobs as they ended."""
    Path("bundle.yaml").write_text(KINDS % {"paces": paces})
    main(["simulate", "bundle.yaml", "--run-dir", (folder := f"run{len(list(Path().glob('run*')))}")])
    said = capsys.readouterr().out.splitlines()
    jobs: dict[str, dict[str, Any]] = json.loads(Path(folder, "summary.json").read_text())["jobs"]
    return said[4 : next(at for at, line in enumerate(said) if not line or (line.startswith("job  ") and at > 4))], jobs


def test_a_job_is_as_fast_on_each_kind_of_devices_as_its_paces_say(capsys: pytest.CaptureFixture[str]) -> None:
    said, jobs = on_kinds(", paces: {a100: 1, t4: 0.25}", capsys)
    assert said == [f"{name}: 1 on a100, 0.25 on t4 times as fast (as its paces say)" for name in jobs]
    assert {name: one["kind"] for name, one in jobs.items()} == {"soon": "a100", "late": "a100", "old": "t4"}
    assert jobs["soon"]["finished_at"] == pytest.approx(10.0)
    assert jobs["late"]["finished_at"] == pytest.approx(20.0, abs=0.5)
    assert jobs["old"]["finished_at"] == pytest.approx(40.0, abs=0.5)


def test_where_nothing_tells_kinds_apart_they_are_played_as_alike_and_it_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said, jobs = on_kinds("", capsys)
    assert said == [
        "soon, late, old: all kinds of devices as alike: neither paces nor earlier runs say how fast they are"
    ]
    assert jobs["old"]["finished_at"] == pytest.approx(10.0, abs=0.5)


def test_rates_of_earlier_runs_are_played_and_known_to_the_scheduler(capsys: pytest.CaptureFixture[str]) -> None:
    private_folder(home())
    with closing(RunStore(home() / FILE)) as store:
        rates, losses = ((1, "cpu:a100", 40.0), (1, "cpu:t4", 8.0)), tuple(1.0 - k / 10 for k in range(10))
        more = {"batches": tuple(range(100, 1001, 100)), "losses": losses, "batch_size": None}
        store.add([run("cnn-1", model="mine.Cnn", throughputs=rates, **more)])
    said, jobs = on_kinds("", capsys)
    assert said[:2] == [f"{name}: 1 on a100, 0.2 on t4 times as fast (from earlier runs)" for name in ("soon", "late")]
    # Of another model, the kinds compare as they did for the one that was seen.
    assert re.fullmatch(r"old: [2-4][.]?\d* on a100, 1 on t4 times as fast \(from earlier runs\)", said[2])
    assert {name: one["kind"] for name, one in jobs.items()} == {"soon": "a100", "late": "a100", "old": "t4"}
    assert [jobs[name]["verdict"] for name in jobs] == ["met"] * 3
    Path("bundle.yaml").write_text(
        'pool: {devices: {a100: 1, t4: 1}}\njobs: {a: {deadline: 60s, target: "val_loss<=0.3", model: mine.Cnn}}'
    )
    [again] = read_bundle(Path("bundle.yaml"), None, kept=home() / FILE).jobs
    assert again.recording == "cnn-1 (earlier run)"
    assert again.given.throughput == pytest.approx(40.0)
    assert again.given.paces == {"a100": 1.0, "t4": pytest.approx(0.2)}
    assert {kind: round(rate) for kind, _, rate in again.given.earlier[0].on_kinds} == {"a100": 40, "t4": 8}


@pytest.mark.parametrize(
    ("paces", "words"),
    [
        ("3", "jobs.soon.paces: must be a factor for each kind of devices, such as {a100: 1, t4: 0.25}, got 3"),
        ("{h100: 1}", "jobs.soon.paces: there is no kind 'h100'; the pool has a100, t4"),
        ("{a100: 0}", "jobs.soon.paces.a100: must be a positive, finite factor, got 0"),
    ],
)
def test_paces_that_are_wrong_are_refused(paces: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("bundle.yaml").write_text(KINDS % {"paces": f", paces: {paces}"})
    assert main(["simulate", "bundle.yaml"]) == 2
    assert words in capsys.readouterr().err


def test_a_number_of_devices_in_place_of_kinds_is_of_devices_that_are_alike(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bundle.yaml").write_text(KINDS % {"paces": ", paces: {a100: 1, t4: 0.25}"})
    assert main(["simulate", "bundle.yaml", "--devices", "3"]) == 0
    assert "times as fast" not in capsys.readouterr().out


def test_a_job_without_a_recording_borrows_one_that_ships(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bundle.yaml").write_text("jobs: {a: {deadline: 100s, target: {batches: 5}}}")
    assert main(["simulate", "bundle.yaml"]) == 0
    row = capsys.readouterr().out.splitlines()[1].split()
    assert (row[0], row[-2:]) == ("a", ["curve,", "time"])
    assert (SHIPPED / f"{row[1]}.csv").is_file()
    with pytest.raises(ValueError, match=r"jobs\.a: names no recording; give it a curve: FILE, or name a folder"):
        read_bundle(Path("bundle.yaml"), None)


@pytest.mark.parametrize("rows", ["1,nan\n2,1\n", "2,1\n1,1\n", "0.5,2\n0.7,1\n"])
def test_an_unusable_recording_is_refused(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("odd.csv").write_text("step,loss\n" + rows)
    Path("bundle.yaml").write_text("jobs: {a: {deadline: 9s, target: {batches: 5}, curve: odd.csv}}")
    assert main(["simulate", "bundle.yaml"]) == 2
    assert "jobs.a.curve: " in capsys.readouterr().err


def test_policies_and_delays_as_they_are_written() -> None:
    assert parse_policies(["lara:order=edf,explore=5,edf", "rr:quantum=2"]) == [
        "lara:order=edf,explore=5", "edf", "rr:quantum=2",
    ]  # fmt: skip
    assert parse_delays("switch=0.2,release=1m30s,report=.5")[0] == Delays(switch=0.2, release=90.0, report=0.5)
    assert parse_delays("")[0] == Delays()


# ---------------------------------------------------------------------------------------------------- losses


def test_workers_die_at_the_given_times_and_jobs_resume_from_checkpoints(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bundle.yaml").write_text(
        "jobs: {a: {deadline: 100s, target: {batches: 100}, curve: fast.csv, throughput: 10, restarts: 2}}"
    )

    def lost(every: str, lose: str, folder: str) -> tuple[int, dict[str, object]]:
        words = ["simulate", "bundle.yaml", "--curves", "curves", "--lose", lose, "--save-every", every]
        code = main([*words, "--run-dir", folder])
        body: dict[str, object] = json.loads((Path(folder) / "summary.json").read_text())["jobs"]["a"]
        return code, body

    code, often = lost("20", "a=5s,a=9s", "often")
    assert (code, often["verdict"], often["restarts"]) == (0, "met", 2)
    assert 0 < int(str(often["lost_batches"])) < 40
    assert "restarted 2 times" in capsys.readouterr().out
    code, never = lost("0", "a=5s,a=9s", "never")
    assert int(str(never["lost_batches"])) > int(str(often["lost_batches"]))
    code, over = lost("20", "a=3s,a=6s,a=10s", "over")
    assert (code, over["verdict"]) == (3, "crashed")
    assert "retry limit reached" in str(over["reason"])
    assert "Faults" in (Path("over") / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--lose", "b=5s"], "--lose: no job 'b'"),
        (["--lose", "a=-5"], "--lose: 'a=-5': duration must be positive"),
        (["--lose", "a"], "--lose: 'a': duration must be"),
        (["--save-every", "-1"], "--save-every must be at least 0, got -1"),
    ],
)
def test_wrong_times_of_lost_workers_are_refused(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bundle.yaml").write_text("jobs: {a: {deadline: 9s, target: {batches: 9}, curve: fast.csv, throughput: 9}}")
    assert main(["simulate", "bundle.yaml", "--curves", "curves", "--run-dir", "out", *words]) == 2
    assert problem in capsys.readouterr().err
    assert not Path("out").exists()


# --------------------------------------------------------------------------------------------------------- a market

ON_MARKET = """
policy: edf
period: 30s
jobs:
  wide: {deadline: 3h, target: {batches: 2000}, curve: fast.csv, throughput: 0.4, max_devices: 4}
  one: {deadline: 2h, target: {batches: 200}, curve: fast.csv, throughput: 0.1}
  loss: {deadline: 2h, target: {loss: 0.1}, curve: fast.csv, throughput: 0.02}
"""
TRACE = "available,price\n" + "".join(f"{n},0.4\n" for n in (3, 3, 0, 4, 5, 2, 4, 4))
MARKET = "market: {trace: m.csv, interval: 20m}\n"


@pytest.mark.nightly
def test_a_bundle_is_simulated_on_a_market(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bundle.yaml").write_text(ON_MARKET + "market: {trace: m.csv, interval: 20m, policies: [max-spot]}")
    Path("m.csv").write_text(TRACE)
    words = ["simulate", "bundle.yaml", "--curves", "curves"]
    assert main([*words, "--run-dir", "out", "--json", "out.json"]) == 0
    told = capsys.readouterr().out
    assert "paid: " in told
    assert "at the measured throughput: on-demand only " in told
    [ledger] = json.loads(Path("out.json").read_text())["policies"].values()
    assert ledger["cost"] == pytest.approx(sum(row["cost"] for row in ledger["intervals"]))
    assert ledger["on_demand_cost"] >= ledger["optimum"] > 0
    assert main(["replay", "out"]) == 0
    with Journal.open(Path("out/journal.db"), read_only=True) as journal:
        assert journal.settings().controllers["market"] == {
            "interval": 1200.0,
            "policy": "",
            "kept_fraction": 0.9,
            "save_every": 120.0,
            "forecaster": "last",
            "minimum_charge": 0.0,
        }
        assert journal.settings().devices == 12
    capsys.readouterr()
    nodes = ["--delays", "start_up=2m,notice=30", "--policy", "edf,fifo"]
    assert main([*words, *nodes, "--run-dir", "several"]) == 0
    rows = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()]
    assert {"paid", "on-demand only", "offline optimum"} <= set(rows)


@pytest.mark.parametrize(
    ("market", "given", "words"),
    [
        (MARKET, ["--seeds", "3"], "--seeds does not go with a bundle that says where nodes come from"),
        (MARKET, ["--delays", "stat_up=1"], "--delays: unknown delay 'stat_up'; did you mean 'start_up'?"),
        ("market: {trace: m.csv, policies: [chian]}", [], "got 'chian'; did you mean 'chain'?"),
        ("market: no.csv", [], "market: trace"),
        ("market: {quotes: ./now.sh}", [], "market.quotes: what a command quotes cannot be simulated"),
    ],
)
def test_what_does_not_fit_a_market_is_refused(
    market: str, given: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("m.csv").write_text(TRACE)
    Path("bundle.yaml").write_text(f"{BUNDLE}\n{market}")
    assert main(["simulate", "bundle.yaml", "--curves", "curves", *given]) == 2
    assert words in capsys.readouterr().err
    assert not Path("simulations").exists()


def test_a_job_that_can_be_resized_has_a_part_of_its_throughput_on_fewer_devices() -> None:
    terms = "target: {batches: 100}, curve: fast.csv, throughput: 8, max_devices: 4"
    [played] = read(f"pool: {{devices: 4}}\njobs: {{a: {{deadline: 100s, {terms}}}}}").jobs
    assert (played.given.job.sizes, played.given.throughputs) == ((1, 2, 4), [2.0, 4.0, 8.0])
