"""Bad input: messages and exit codes, and that nothing starts; in the order in which users meet them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import ROOT

JOB = "model: tests.tiny.Line, deadline: 9s, target: {loss: 0.1}"


def jobs(**changed: str) -> str:
    """A file whose only job has other terms: line 3 on, one a line."""
    terms = {"model": "tests.tiny.Line", "deadline": "9s", "target": "{loss: 0.1}", **changed}
    return "jobs:\n  a:\n" + "".join(f"    {key}: {value}\n" for key, value in terms.items())


def top(line: str) -> str:
    """A file with another line at its top."""
    return f"{line}\njobs: {{a: {{{JOB}}}}}\n"


# A model whose arguments are of kinds for which the config's parser reads texts in ways of its own.
DEEP = """
import subprocess
from subprocess import Popen as Innocent
from collections.abc import Callable
from typing import Optional
import lightning.pytorch as pl
import torch
class Evil(torch.nn.Module):
    def __init__(self): open("built", "w")
def make() -> torch.nn.Module: return Evil()
class Model(pl.LightningModule):
    def __init__(self, inner: Optional[torch.nn.Module] = None, act: Optional[Callable] = None,
                 sizes: Optional[list[int]] = None, width: int = 1): super().__init__()
"""


class Row(NamedTuple):
    """A file ``b.yaml`` (None: no file), files beside it, and the expected problems, one regular expression each."""

    text: str | bytes | None
    words: list[str]
    beside: Mapping[str, str] = {}


# What can be told from the files alone: torch, Lightning and Ray are not imported.
FROM_FILES = {
    # ------------------------------------------------------------------------------ the file
    "missing": Row(None, ["b.yaml: not found"]),
    "empty": Row("", ["b.yaml: file is empty; expected a mapping with 'jobs', or one job"]),
    "only a comment": Row("# soon\n", ["b.yaml: file is empty"]),
    "not text": Row(b"jobs: \xff\n", [r"b.yaml: cannot be read: not UTF-8 text \(byte 6\)"]),
    "control characters": Row("jobs: \x07", ["b.yaml:1:7: special characters are not allowed, got '.x07'"]),
    **{
        f"syntax {text!r}": Row(text, [rf"b.yaml:{where}: not YAML: {rule}"])
        for text, where, rule in (
            ("a: b: c", "1:5", "write 'key: value', a line each, with a space; quote a text that holds ': '"),
            ("a:1\nb: 2", "2:2", "write 'key: value', a line each, with a space"),
            ("jobs:\n\ta: 1", "2:1", "indent with spaces, not with tabs"),
            ("jobs: {a: 1\nb: 2", "2:2", "a bracket is open: a comma or '}' is missing before this"),
            ("jobs: [", "1:8", "a value is missing before '<stream end>'"),
            ("a: 1\nb: 'x\nc: 2", "2:4", "a quote is not closed"),
            ("a:\n    b: 1\n  c: 2", "3:3", "begin the keys of a mapping, and the items of a list, in the same column"),
            ("a: *x", "1:4", r"no such alias; quote a text that begins with \*"),
            ("a: @x", "1:4", "no value begins with '@'; quote it"),
            ("a: 1\n---\nb: 2", "2:1", "a file holds one document; remove '---', '...' or what follows"),
            ("a: &x 1\nb: &x 2", "2:4", "an anchor, &name, is there twice"),
            ("? [a]\n: 1", "1:3", "a key must be a text or a number"),
        )
    },
    "code": Row(
        "jobs: !!python/object/apply:os.system [ls]",
        ["b.yaml:1:7: YAML tags are not allowed, got !!python/object/.*os.system"],
    ),
    "any tag": Row(
        "jobs:\n  a: !!str x\n  b: !mine {c: 1, c: 2}\n",
        [
            "b.yaml:2:6: YAML tags are not allowed, got !!str",
            "b.yaml:3:6: YAML tags are not allowed, got !mine",
            r"b.yaml:3:19: duplicate key 'c' \(first on line 3\)",
        ],
    ),
    "billions": Row(
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{key}: &{key} [{', '.join([f'*{of}'] * 9)}]\n" for of, key in pairwise("abcdefgh")),
        [r"b.yaml:5:12: too many values \(limit 20,000, with aliases expanded\)"],
    ),
    "101 aliases": Row(f"a: &a 1\nb: [{', '.join(['*a'] * 101)}]\n", [r"b.yaml:2:405: too many aliases \(limit 100\)"]),
    "its own part": Row("jobs: &a [*a]", ["b.yaml:1:11: alias .a refers to itself"]),
    "more than a megabyte": Row(f"# {'x' * 2**20}\n", ["b.yaml: .*larger than 1,048,576 bytes"]),
    "no number": Row(jobs(begin="1" * 5000), [r"b.yaml:6:12: cannot be read \(Exceeds the limit .*; quote it if"]),
    "too many jobs": Row(
        "jobs:\n" + "".join(f"  j{n}: {{}}\n" for n in range(1001)),
        ["b.yaml:1:1: jobs: must be at most 1000 jobs, got 1001"],
    ),
    "ten thousand jobs": Row(
        "jobs:\n" + "".join(f"  j{n}: {{{JOB}}}\n" for n in range(10_000)), [r"b.yaml:2001:57: too many values"]
    ),
    "a name of a megabyte": Row(f"jobs: {{{'x' * 2**20}: {{{JOB}}}}}", ["b.yaml: .*larger than 1,048,576 bytes"]),
    "bottomless": Row("[" * 3000, [r"b.yaml:1:51: nested too deeply \(limit 50\)"]),
    "a list": Row("- a", ["b.yaml:? ?expected a mapping with 'jobs', got list"]),
    "twice": Row(
        f"jobs:\n  a: {{{JOB}}}\n  a: {{{JOB}}}\n",
        [r"b.yaml:3:3: duplicate key 'a' \(first on line 2\)"],
    ),
    # ------------------------------------------------------------------------------ keys
    "unknown at the top": Row(top("polcy: edf"), ["b.yaml:1:1: polcy: unknown key 'polcy'; did you mean 'policy'?"]),
    "unknown in a job": Row(
        jobs(dealine="8s"), ["b.yaml:6:5: jobs.a.dealine: unknown key 'dealine'; did you mean 'deadline'?"]
    ),
    "unknown in the pool": Row(top("pool: {gpus: 2}"), ["b.yaml:1:8: pool.gpus: unknown key 'gpus'; expected one of"]),
    "unknown in a config": Row(
        "jobs: {a: {config: a.yaml, deadline: 9s, target: {loss: 1}}}",
        ["a.yaml:2:1: modle: unknown key 'modle'; did you mean 'model'?", "a.yaml: model is missing"],
        {"a.yaml": "seed_everything: 1\nmodle: tests.tiny.Line\n"},
    ),
    "unknown in a config with fit": Row(
        "jobs: {a: {config: a.yaml, deadline: 9s, target: {loss: 1}}}",
        ["a.yaml:3:3: fit.modle: unknown key 'modle'; did you mean 'model'?"],
        {"a.yaml": "fit:\n  model: tests.tiny.Line\n  modle: tests.tiny.Line\n"},
    ),
    "a policy in a file of one job": Row(
        "model: tests.tiny.Line\ndeadline: 9s\ntarget: {loss: 1}\npolicy: edf",
        ["b.yaml:4:1: policy: unknown key 'policy'; expected one of"],
    ),
    # ------------------------------------------------------------------------------ jobs that are none
    "no jobs": Row("policy: edf", ["b.yaml: jobs: expected a mapping of at least one job, got None"]),
    "jobs null": Row("jobs:", ["b.yaml:1:1: jobs: expected a mapping of at least one job, got None"]),
    "jobs empty": Row("jobs: {}", ["b.yaml:1:1: jobs: expected a mapping of at least one job, got {}"]),
    "jobs scalars": Row("jobs: [a, b]", [r"b.yaml:1:1: jobs: expected a mapping of .* one job, got \['a', 'b'\]"]),
    "job null": Row(
        "jobs:\n  a:\n", ["b.yaml:2:3: jobs.a: empty; expected a mapping with target, deadline and a config"]
    ),
    "job scalar": Row("jobs: {a: 1}", ["b.yaml:1:8: jobs.a: got 1; expected a mapping with target"]),
    "job without terms": Row(
        "jobs:\n  a: {seed_everything: 1}\n",
        [
            r"b.yaml:2:3: jobs.a: model is missing",
            r"b.yaml:2:3: jobs.a: target is missing; expected one such as loss<=0.35",
        ],
    ),
    # ------------------------------------------------------------------------------ deadlines
    "base 60": Row(
        jobs(deadline="12:30"),
        [r'b.yaml:4:15: YAML reads 12:30 as 750 \(base 60\); quote it, "12:30", or write a duration such as 1h30m'],
    ),
    "base 60 in a config": Row(
        "jobs: {a: {config: a.yaml, deadline: 9s, target: {loss: 1}}}",
        [r"a.yaml:2:10: YAML reads 1:30:00 as 5400 \(base 60\)"],
        {"a.yaml": "model: {class_path: tests.tiny.Line, init_args: {\n    lr:  1:30:00}}"},
    ),
    "a time of day": Row(
        jobs(deadline="18:00"), [r"b.yaml:4:15: YAML reads 18:00 as 1080 \(base 60\); quote it, \"18:00\", or write"]
    ),
    "a negative number": Row(
        jobs(deadline="-750"), ["b.yaml:4:5: jobs.a.deadline: duration must be positive, got -750"]
    ),
    "25 o'clock": Row(jobs(deadline="'25:00'"), ["jobs.a.deadline: a time of day is 00:00 to 23:59, got '25:00'"]),
    "a past time": Row(
        jobs(deadline="2020-01-01T00:00"), ["jobs.a.deadline: a time must be in the future, got '2020-01-01T00:00'"]
    ),
    "a work that ends at noon": Row(
        jobs(work="'12:00'"), ["jobs.a.work: duration must be .* got '12:00', which is a time of day"]
    ),
    "submitted some time": Row(jobs(submitted="soon"), ["jobs.a.submitted: is written by a run, .* got 'soon'"]),
    "zero": Row(jobs(deadline="0s"), ["b.yaml:4:5: jobs.a.deadline: duration must be positive, got '0s'"]),
    "negative": Row(jobs(deadline="-5s"), ["b.yaml:4:5: jobs.a.deadline: duration must be positive, got '-5s'"]),
    "nan": Row(jobs(deadline=".nan"), ["jobs.a.deadline: must be a duration .* got nan"]),
    "infinite": Row(jobs(deadline=".inf"), ["jobs.a.deadline: duration must be .* got inf"]),
    "a date": Row(jobs(deadline="2026-11-21"), ["jobs.a.deadline: a date needs a time of day .* got '2026-11-21'"]),
    "eleven years": Row(jobs(deadline="4018d"), ["jobs.a.deadline: duration must be at most 10 years, got '4018d'"]),
    "half a unit": Row(jobs(deadline="2h30"), ["jobs.a.deadline: must be a duration .* got '2h30'"]),
    "null": Row(jobs(deadline=""), ["b.yaml:4:5: jobs.a.deadline: is empty; expected one such as 1h30m, or no such"]),
    "begins too late": Row(jobs(begin="9s"), ["b.yaml:6:5: jobs.a.begin: must be before the deadline 9s, got '9s'"]),
    "begins no time": Row(jobs(begin="soon"), ["jobs.a.begin: must be a duration such .* got 'soon'"]),
    "works no time": Row(jobs(work="0s"), ["jobs.a.work: duration must be positive, got '0s'"]),
    "no period": Row(top("period: -1"), ["b.yaml:1:1: period: duration must be positive, got -1"]),
    # ------------------------------------------------------------------------------ numbers
    "yes devices": Row(
        top("pool: {devices: yes}"), ["b.yaml:1:8: pool.devices: must be a whole number from 1 to 1024, got True"]
    ),
    "negative devices": Row(top("pool: {devices: -1}"), ["must be a whole number from 1 to 1024, got -1"]),
    "no devices": Row(top("pool: {devices: 0}"), ["must be a whole number from 1 to 1024, got 0"]),
    "half devices": Row(top("pool: {devices: 1.5}"), ["must be a whole number from 1 to 1024, got 1.5"]),
    "a billion devices": Row(top("pool: {devices: 1e9}"), ["must be a whole number from 1 to 1024, got '1e9'"]),
    "octal devices": Row(top("pool: {devices: 010}"), [r"b.yaml:1:17: YAML reads 010 as 8 \(base 8\)"]),
    "resident": Row(top("pool: {resident: 0}"), ["pool.resident: must be a whole number from 1 to 100000, got 0"]),
    "keep": Row(
        top("pool:\n  keep: most"),
        ["b.yaml:2:3: pool.keep: must be all; without the key old events are thinned, got 'most'"],
    ),
    "keep_ended": Row(
        top("pool:\n  keep_ended: always"),
        ["b.yaml:2:3: pool.keep_ended: duration must be such as .*, got 'always'; or forever"],
    ),
    "keep_ended for too short": Row(
        top("pool: {keep_ended: 59m}"), ["pool.keep_ended: must be at least 1h, or forever, got '59m'"]
    ),
    "keep_ended without a value": Row(top("pool: {keep_ended: }"), ["pool.keep_ended: duration must .*got None"]),
    "too few resident": Row(
        top("pool: {devices: 4, resident: 3}"), [r"pool.resident: must be at least one job per device \(4\), got 3"]
    ),
    "kind": Row(top("pool: {kind: tpu}"), ["b.yaml:1:8: pool.kind: must be cpu or gpu, got 'tpu'"]),
    "pool": Row(top("pool: 2"), ["b.yaml:1:1: pool: expected a mapping of devices, kind, .*, got 2"]),
    "cell": Row(jobs(cell="0"), ["b.yaml:6:5: jobs.a.cell: must be a whole number from 1 to 1000000000000, got 0"]),
    "job's devices": Row(jobs(devices="true"), ["jobs.a.devices: must be a whole number from 1 to 1024, got True"]),
    "least over most": Row(
        "pool: {devices: 8}\n" + jobs(min_devices="4", max_devices="2"),
        ["b.yaml:7:5: jobs.a.min_devices: must be at most max_devices 2, got 4"],
    ),
    "least over pool": Row(
        "pool: {devices: 2}\n" + jobs(min_devices="4"),
        ["b.yaml:7:5: jobs.a.min_devices: must be at most the pool's 2, or the job can never be scheduled, got 4"],
    ),
    "devices over pool": Row(jobs(devices="2"), ["b.yaml:6:5: jobs.a.devices: must be at most the pool's 1, .* got 2"]),
    "devices and least": Row(
        "pool: {devices: 2}\n" + jobs(devices="2", min_devices="1"),
        ["b.yaml:7:5: jobs.a.devices: stands for min_devices and max_devices; remove it, or min_devices"],
    ),
    **{
        f"weight {weight}": Row(jobs(weight=weight), [f"b.yaml:6:5: jobs.a.weight: {words}"])
        for weight, words in {
            "-1": "must be positive and finite, got -1",
            "0": "must be positive and finite, got 0",
            ".nan": "must be positive and finite, got nan",
            ".inf": "must be positive and finite, got inf",
            "heavy": "must be a number, got 'heavy'",
            "yes": "must be a number, got True",
        }.items()
    },
    # ------------------------------------------------------------------------------ targets
    **{
        f"target {target}": Row(jobs(target=target), [f"b.yaml:5:5: jobs.a.target: {words}"])
        for target, words in {
            "5": "target must be like 'train_loss<=0.35', .* got 5; did you mean 'loss<=5'?",
            "{}": r"target must be like 'train_loss<=0.35', .*, or \{loss: E\}, .* got none of them",
            "{val_loss: 0.02}": "unknown key 'val_loss'; write 'val_loss<=0.02', or >= if more is better",
            "val_acc>0.9": "target must be like 'train_loss<=0.35', .* got 'val_acc>0.9'",
            "{loss: 1, at_most: 2}": ".* got the keys at_most, loss",
            "{loss: 1, for_evaluations: 2}": "target for_evaluations is for a metric that is logged at the end of a",
            "{batches: 9, for_evaluations: 2}": (
                "for_evaluations needs a metric, and this target counts batches; remove it"
            ),
            "{metric: acc, at_least: 0.9, for_evaluations: 0}": "must be a whole number of at least 1, got 0",
            "{metric: acc, at_least: 0.9, for_evaluations: 1.5}": "must be a whole number of at least 1, got 1.5",
            "{loss: -.inf}": "target loss must be finite, got -inf",
            "{loss: .nan}": "target loss must be finite, got nan",
            "{loss: low}": "must be a number, got 'low'",
            "{loss: yes}": "must be a number, got True",
            "{batches: 1.5}": "must be a whole number of at least 1, got 1.5",
            f"{{batches: {10**26}}}": "target batches must be a whole number from 1 to 1000000000000",
            "{batches: 0}": "must be a whole number of at least 1, got 0",
            "{lose: 1}": "unknown key 'lose'; did you mean 'loss'?",
            "{loss: 1, batches: 2}": ".* got the keys batches, loss",
            "{metric: acc}": ".* got the keys metric",
            "{metric: 3, at_most: 1}": "metric must be a name, got 3",
            "{metric: '', at_most: 1}": "target metric must have a name, got ''",
            "{metric: acc, at_least: 92}": "target at_least must be below the best there can be, 1, got 92",
            "{metric: acc, at_least: 0.9, at_most: 1}": ".* got the keys at_least, at_most, metric",
            "{metric: acc, at_most: 1, best: 2}": ".* got the keys at_most, best, metric",
        }.items()
    },
    "on_miss": Row(jobs(on_miss="stopp"), ["b.yaml:6:5: jobs.a.on_miss: 'stopp' is unknown; did you mean 'stop'?"]),
    "on_miss a list": Row(jobs(on_miss="[stop]"), [r"jobs.a.on_miss: \['stop'\] is unknown; "]),
    # ------------------------------------------------------------------------------ names
    **{
        f"name {name[:12]}": Row(
            f"jobs:\n  {name}: {{{JOB}}}\n",
            [r"b.yaml:2:3: jobs\..*: a name is 1 to 63 letters, .* as CON, got "],
        )
        for name in (
            "../x",
            "''",
            "x" * 300,
            "<script>",
            "'\N{PARTY POPPER}'",
            "-rf",
            '"a\\nb"',
            '"a\\e[31m"',
            "a b",
            ".hidden",
            "j\N{CYRILLIC SMALL LETTER O}b",
            "a/b",
            "a\\b",
            "c:",
            "CON",
            "nul.txt",
            "Com1",
            "a.",
            "..",
            '"a\\0"',
        )
    },
    "name a number": Row(f"jobs:\n  7: {{{JOB}}}\n", ["b.yaml:2:3: jobs.7: a name is .* got 7; quote it"]),
    "name yes": Row(f"jobs:\n  yes: {{{JOB}}}\n", ["b.yaml:1:1: jobs.True: a name is .* got True; quote it"]),
    "name of one job": Row(
        "name: [a]\nmodel: tests.tiny.Line\ndeadline: 9s\ntarget: {loss: 1}\n",
        [r"b.yaml: a name is 1 to 63 letters, .* got \['a'\]"],
    ),
    # ------------------------------------------------------------------------------ configs
    "config and model": Row(jobs(config="a.yaml"), ["b.yaml:6:5: jobs.a.config: either config or model, not both"]),
    "config missing": Row("jobs: {a: {config: no.yaml, deadline: 9s, target: {loss: 1}}}", ["no.yaml: not found"]),
    "config a list": Row(
        "jobs: {a: {config: [x], deadline: 9s, target: {loss: 1}}}", ["jobs.a.config: must be the path"]
    ),
    "config scalar": Row(
        "jobs: {a: {config: a.yaml, deadline: 9s, target: {loss: 1}}}",
        ["a.yaml: not a LightningCLI config: expected a mapping with model, found none of model, data, "],
        {"a.yaml": "x"},
    ),
    "config empty": Row(
        "jobs: {a: {config: a.yaml, deadline: 9s, target: {loss: 1}}}",
        ["a.yaml: file is empty; expected a LightningCLI config"],
        {"a.yaml": ""},
    ),
    "no class": Row(jobs(model="{init_args: {lr: 1}}"), ["b.yaml:3:5: jobs.a.model: class_path is missing; expected"]),
    "model null": Row(jobs(model=""), ["b.yaml:3:5: jobs.a.model: class_path is missing, got None; expected"]),
    "data a number": Row(jobs(data="3"), ["b.yaml:6:5: jobs.a.data: class_path is missing, got 3; expected"]),
    "class a number": Row(
        jobs(model="{class_path: 3}"),
        ["b.yaml:3:13: jobs.a.model.class_path: must be the dotted path of a class, .* got 3"],
    ),
    "class without dot": Row(
        jobs(model="Line"),
        ["b.yaml:3:5: jobs.a.model.class_path: must be the dotted path of a class, such as package.module.Line, "],
    ),
    "class with slash": Row(jobs(model="./tiny.py"), ["must be names joined by dots, got './tiny.py'"]),
    **{
        f"{where} {path}": Row(
            jobs(**{key: value.replace("CLASS", path)}),
            [rf"b.yaml:6:{column}: jobs.a.{where}.class_path: not allowed, and not imported: '{path}' {words}"],
        )
        for path, words in {
            "os.system": "belongs to the standard library; allow_import would allow it",
            "builtins.eval": "belongs to the standard library",
            "subprocess.Popen": "belongs to the standard library",
            "ctypes.CDLL": "belongs to the standard library",
            "jsonargparse.set_parsing_settings": "is no part of a training",
        }.items()
        for key, value, where, column in (
            ("data", "CLASS", "data", 5),
            ("trainer", "{callbacks: [{class_path: CLASS}]}", r"trainer.callbacks\[0\]", 28),
            (
                "optimizer",
                "{class_path: torch.optim.SGD, init_args: {x: {class_path: CLASS}}}",
                "optimizer.init_args.x",
                62,
            ),
        )
    },
    "not in allow_import": Row(
        "allow_import: [mine, torch.optim]\n"
        + jobs(data="tests.tiny.Points", optimizer="{class_path: torch.optim.SGD}", trainer="{logger: {class_path: X}}")
        + "    lr_scheduler: {class_path: torch.nn.Module}\n",
        [
            "b.yaml:4:5: .*not allowed, and not imported: 'tests.tiny.Line' is not in allow_import, mine, torch.optim$",
            "b.yaml:7:5: .*'tests.tiny.Points' is not in allow_import",
            "b.yaml:9:24: .*logger.class_path: must be the dotted path of a class",
            "b.yaml:10:20: .*'torch.nn.Module' is not in allow_import",
        ],
    ),
    "allow_import": Row(
        top("allow_import: [a b]"), ["b.yaml:1:1: allow_import: must be a list of modules, .* got 'a b'"]
    ),
    "allow_import reads": Row(top("allow_import: jsonargparse"), ["allow_import: jsonargparse cannot be allowed"]),
    "class of a script": Row(
        jobs(model="{class_path: __main__.Net}"),
        ["no worker can import; put it into a file, such as train.py, and write train.Net, got '__main__.Net'"],
    ),
    "private class": Row(
        jobs(model="tests.tiny._Line"),
        ["b.yaml:3:5: jobs.a.model.class_path: '_Line' is private, expected a public class, got 'tests.tiny._Line'"],
    ),
    "private module": Row(
        jobs(trainer="{callbacks: [{class_path: x.Y}, {class_path: x._y.Z}]}"),
        [r"b.yaml:6:47: jobs.a.trainer.callbacks\[1\].class_path: '_y' is private"],
    ),
    **{
        f"trainer {key}": Row(jobs(trainer=f"{{{key}: 1}}"), [f"b.yaml:6:15: jobs.a.trainer.{key}: {words}"])
        for key, words in {
            "devices": "is set by the launcher; remove it",
            "accelerator": "is set by the launcher; remove it",
            "num_nodes": "is set by the launcher; remove it",
            "strategy": "expected ddp, .* got 1",
            "max_time": "contradicts the job's deadline; remove it and use deadline",
        }.items()
    },
    "trainer a list": Row(
        jobs(trainer="[1]"), [r"jobs.a.trainer: must be a mapping of Trainer's arguments, got \[1\]"]
    ),
    "seed": Row(jobs(seed_everything="'yes'"), ["jobs.a.seed_everything: must be a whole number or a bool, got 'yes'"]),
    "checkpoint a number": Row(jobs(ckpt_path="3"), ["jobs.a.ckpt_path: must be the path of a checkpoint, got 3"]),
    # ------------------------------------------------------------------------------ policies, and who is told
    "policy unknown": Row(top("policy: best"), ["b.yaml:1:1: policy: policy must be one of .* got 'best'"]),
    "policy a list": Row(top("policy: [edf]"), ["b.yaml:1:1: policy: expected a name or a mapping with 'name'"]),
    "policy's argument": Row(top("policy: {name: edf, x: 1}"), ["b.yaml:1:1: policy: policy edf: "]),
    "estimator unknown": Row(top("estimator: best"), ["b.yaml:1:1: estimator: estimator must be one of .* got 'best'"]),
    "on_verdict": Row(top("on_verdict: ring"), ["b.yaml:1:1: on_verdict: expected a mapping with command or webhook"]),
    "on_verdict's key": Row(
        top("on_verdict: {comand: ring}"), ["on_verdict.comand: unknown key 'comand'; did you mean"]
    ),
    **{
        f"command {text}": Row(top(f"on_verdict: {{command: {text}}}"), [f"b.yaml:1:14: on_verdict.command: {words}"])
        for text, words in {
            "''": "must be a command, as one text or as a list of words, got ''",
            "[ring, 3]": r"must be a command, .* got \['ring', 3\]",
            "5": "must be a command, .* got 5",
            '"ring \'twice"': "cannot be split into words .No closing quotation., got ",
            "['', x]": "must begin with a program",
        }.items()
    },
    **{
        f"webhook {text}": Row(
            top(f"on_verdict: {{webhook: {text}}}"),
            ["b.yaml:1:14: on_verdict.webhook: must be an http or https address, got "],
        )
        for text in (
            "ftp://x.org",
            "x.org",
            "http://",
            "'http://x.org:port'",
            "'https://x y.org'",
            "3",
            "file:///etc/x",
        )
    },
    # ------------------------------------------------------------------------------ all at once
    "several": Row(
        "polcy: edf\njobs:\n  a: {model: x._Y, deadline: 0s, target: {loss: .inf}, weight: 010}\n  b: {}\n  b b: {}\n",
        [
            r"b.yaml:3:64: YAML reads 010 as 8",
            r"b.yaml:1:1: polcy: unknown key",
            r"b.yaml:3:7: jobs.a.model.class_path: '_Y' is private",
            r"b.yaml:3:20: jobs.a.deadline: duration must be positive",
            r"b.yaml:3:34: jobs.a.target: target loss must be finite",
            r"b.yaml:4:3: jobs.b: model is missing",
            r"b.yaml:4:3: jobs.b: target is missing",
            r"b.yaml:5:3: jobs.b b: a name is .* got 'b b'",
        ],
    ),
    "a megabyte": Row(
        jobs(deadline="x" * 1_000_000), [r"jobs.a.deadline: must be a duration .* got 'x{90,600}\.\.\.$"]
    ),
    # ------------------------------------------------------------------------------ this machine
    "no gpu": Row(
        "pool: {kind: gpu, devices: 2}\n" + jobs(),
        ["bundle: pool.kind: 2 wanted, but this machine has 0 GPUs; expected kind: cpu, or fewer devices"],
    ),
    "no checkpoint": Row(jobs(ckpt_path="no.ckpt"), ["b.yaml:6:5: jobs.a.ckpt_path: checkpoint .*/no.ckpt not found"]),
    "checkpoint a text": Row(
        jobs(ckpt_path="a.yaml"),
        [r"a.yaml is not a checkpoint: not in torch's zip format \(6 bytes\)"],
        {"a.yaml": "a: bcd"},
    ),
}

# What is known once the named classes have been imported.
FROM_CLASSES = {
    "no module": Row(
        jobs(model="no.such.Model"),
        ["b.yaml:3:5: jobs.a.model.class_path: 'no.such.Model' does not import: no module 'no'; it is not installed"],
    ),
    "no module inside": Row(
        jobs(model="mine.Model"),
        ["'mine.Model' does not import: ModuleNotFoundError: No module named 'theirs'"],
        {"mine.py": "import theirs"},
    ),
    "module raises": Row(
        jobs(model="raising.Model"),
        ["b.yaml:3:5: jobs.a.model.class_path: 'raising.Model' does not import: ZeroDivisionError: division by zero"],
        {"raising.py": "1 / 0"},
    ),
    "module leaves": Row(
        jobs(model="leaving.Model"),
        ["'leaving.Model' does not import: SystemExit: 3"],
        {"leaving.py": "import sys\nsys.exit(3)"},
    ),
    "no attribute": Row(
        jobs(model="tests.tiny.Lime"),
        ["jobs.a.model.class_path: module 'tests.tiny' has no 'Lime'; did you mean 'Line'?"],
    ),
    "no class at all": Row(
        jobs(model="nothing.Model"), ["module 'nothing' has no 'Model'; it has no class"], {"nothing.py": "x = 1"}
    ),
    "not a class": Row(
        jobs(model="tests.tiny.QUIET"), ["jobs.a.model.class_path: 'tests.tiny.QUIET' is not a class but a dict"]
    ),
    "wrong model": Row(
        jobs(model="tests.tiny.Points"),
        ["'tests.tiny.Points' is not a lightning.pytorch.LightningModule; its base is "],
    ),
    "wrong data": Row(
        jobs(data="tests.tiny.Line"),
        ["b.yaml:6:5: jobs.a.data.class_path: 'tests.tiny.Line' is not a lightning.pytorch.LightningDataModule"],
    ),
    "abstract": Row(
        jobs(model="half.Model"),
        ["jobs.a.model.class_path: 'half.Model' is abstract: forward, loss not implemented"],
        {
            "half.py": textwrap.dedent("""
            import abc
            import lightning.pytorch as pl
            class Model(pl.LightningModule, abc.ABC):
                @abc.abstractmethod
                def loss(self): ...
                @abc.abstractmethod
                def forward(self, x): ...
            """)
        },
    ),
    "argument unknown": Row(
        jobs(model="{class_path: tests.tiny.Line, init_args: {puase: 1}}"),
        [r"b.yaml:3:54: jobs.a.model.init_args.puase: unknown argument 'puase'; did you mean 'pause'\?; Line\(lr: "],
    ),
    "argument missing": Row(
        jobs(model="needy.Model"),
        [r"b.yaml:3:5: jobs.a.model.init_args.width: is missing; Model\(width: int, depth: int = 2\)"],
        {
            "needy.py": textwrap.dedent("""
            import lightning.pytorch as pl
            class Model(pl.LightningModule):
                def __init__(self, width: int, depth: int = 2): super().__init__()
            """)
        },
    ),
    "argument's type": Row(
        jobs(model="{class_path: tests.tiny.Line, init_args: {lr: fast}}"),
        ["b.yaml:3:54: jobs.a.model.init_args.lr: expected float, got 'fast'"],
    ),
    "arguments a list": Row(
        jobs(model="{class_path: tests.tiny.Line, init_args: [1]}"),
        [r"b.yaml:3:42: jobs.a.model.init_args: must be a mapping of arguments, got \[1\]"],
    ),
    "optimizer's type": Row(
        jobs(optimizer="{class_path: torch.optim.SGD, init_args: {lr: fast}}"),
        ["b.yaml:6:58: jobs.a.optimizer.init_args.lr: expected float, Tensor, got 'fast'"],
    ),
    "trainer's argument": Row(jobs(trainer="{max_epoch: 3}"), ["b.yaml:6:15: jobs.a.trainer.max_epoch: unknown key"]),
    "trainer's type": Row(
        jobs(trainer="{max_epochs: many}"), ["b.yaml:6:15: jobs.a.trainer.max_epochs: expected int, null, got 'many'"]
    ),
    "not a callback": Row(
        jobs(trainer="{callbacks: [{class_path: tests.tiny.Points}]}"),
        [r"b.yaml:6:28: .*callbacks\[0\].class_path: 'tests.tiny.Points' is not a lightning.pytorch.Callback; its"],
    ),
    **{
        f"no {kind}": Row(
            jobs(**{key: value}),
            [f"jobs.a.{re.escape(where)}.class_path: 'torch.nn.Linear' is not a {re.escape(kind)}"],
        )
        for key, value, where, kind in (
            ("optimizer", "{class_path: torch.nn.Linear}", "optimizer", "torch.optim.Optimizer"),
            (
                "lr_scheduler",
                "{class_path: torch.nn.Linear}",
                "lr_scheduler",
                "torch.optim.lr_scheduler.LRScheduler or torch.optim.lr_scheduler.ReduceLROnPlateau",
            ),
            (
                "trainer",
                "{logger: {class_path: torch.nn.Linear}}",
                "trainer.logger",
                "lightning.pytorch.loggers.Logger",
            ),
            (
                "trainer",
                "{profiler: {class_path: torch.nn.Linear}}",
                "trainer.profiler",
                "lightning.pytorch.profilers.Profiler",
            ),
            (
                "trainer",
                "{plugins: [{class_path: torch.nn.Linear}]}",
                "trainer.plugins[0]",
                "lightning.pytorch.plugins.Precision or",
            ),
        )
    },
    "a function": Row(
        jobs(trainer="{callbacks: [{class_path: torch.relu}]}"),
        [r"callbacks\[0\].class_path: 'torch.relu' is not a class but a builtin_function_or_method"],
    ),
    "a function of ours": Row(
        jobs(model="{class_path: deep.Model, init_args: {inner: {class_path: deep.make}}}"),
        ["jobs.a.model.init_args.inner.class_path: 'deep.make' is not a class but a function"],
        {"deep.py": DEEP},
    ),
    "another name": Row(
        jobs(model="{class_path: deep.Model, init_args: {inner: {class_path: deep.Innocent}}}"),
        ["init_args.inner.class_path: not allowed: 'deep.Innocent' is another name of .* 'subprocess.Popen' belongs"],
        {"deep.py": DEEP},
    ),
    "wrong inside": Row(
        jobs(model="{class_path: deep.Model, init_args: {inner: {class_path: tests.tiny.Points}}}"),
        ["b.yaml:3:.* jobs.a.model.init_args.inner: .*'tests.tiny.Points' is not a Module"],
        {"deep.py": DEEP},
    ),
    **{
        f"text {text}": Row(
            jobs(model=f"{{class_path: deep.Model, init_args: {{{name}: '{text}'}}}}"),
            [f"jobs.a.model.init_args.{name}: .*{words}"],
            {"deep.py": DEEP, "more.yaml": "[1, 2]"},
        )
        for name, text, words in (
            ("act", "os.system", "'os.system' is not allowed, and not imported"),
            ("act", "deep.subprocess.run", "'subprocess.run' is not allowed"),
            ("inner", "subprocess.Popen", "'subprocess.Popen' is not allowed, and not imported"),
            ("inner", "{class_path: deep.Evil}", "got '{class_path: deep.Evil}'"),
            ("sizes", "[1, 2]", r"expected list.int., null, got '\[1, 2\]'"),
            ("sizes", "more.yaml", "got 'more.yaml'"),
            ("width", "1:30", "expected int, got '1:30'"),
            ("width", "[&a [x, x], *a]", "expected int, got"),
        )
    },
    "callback missing": Row(
        jobs(trainer="{callbacks: [{class_path: no.Callback}]}"),
        [r"b.yaml:6:28: jobs.a.trainer.callbacks\[0\].class_path: 'no.Callback' does not import"],
    ),
    "two jobs": Row(
        f"jobs:\n  a: {{{JOB}, data: tests.tiny.Pints}}\n  b: {{{JOB}, trainer: {{max_epochs: x}}}}\n",
        [
            "b.yaml:2:66: jobs.a.data.class_path: module 'tests.tiny' has no 'Pints'",
            "b.yaml:3:76: jobs.b.trainer.max_epochs: ",
        ],
    ),
}

CHILD = """
import contextlib, io, json, os, sys
sys.modules["lightning_core.cluster.cluster"] = None  # code that gets as far as starting something fails
from lightning_core.cli.main import main
results = {}
for name in sorted(os.listdir(sys.argv[1])):
    os.chdir(os.path.join(sys.argv[1], name))
    before = sorted(os.listdir())
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(["run", "b.yaml"])
        except BaseException as error:
            code = repr(error)
    made = sorted(set(os.listdir()) - {"__pycache__", *before})
    results[name] = [code, errors.getvalue(), made, sorted({"torch", "lightning", "ray"} & set(sys.modules))]
print(json.dumps(results))
"""


def answers(rows: Mapping[str, Row], folder: Path) -> dict[str, list[Any]]:
    """Return exit code, messages, new files and imported modules of each row, all run in one process."""
    for number, row in enumerate(rows.values()):
        place = folder / f"{number:03}"
        place.mkdir()
        for name, text in row.beside.items():
            (place / name).write_text(text)
        if row.text is not None:
            (place / "b.yaml").write_bytes(row.text if isinstance(row.text, bytes) else row.text.encode())
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder)], capture_output=True, text=True, timeout=240, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(rows, json.loads(done.stdout.splitlines()[-1]).values(), strict=True))


@pytest.fixture(scope="module")
def of_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return answers(FROM_FILES, tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def of_classes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return answers(FROM_CLASSES, tmp_path_factory.mktemp("classes"))


def check_answer(row: Row, code: Any, errors: str, made: list[str]) -> None:
    lines = errors.splitlines()
    assert code == 2, errors
    assert all(line.startswith("error: ") for line in lines), errors
    for words in row.words:
        assert any(re.search(words, line) for line in lines), f"no {words!r} in:\n{errors}"
    assert not made


@pytest.mark.promise("F15", "F16", "F17", "S5", "S6", "S7", "S12")
@pytest.mark.parametrize("name", FROM_FILES)
def test_problems_of_files_are_reported_without_heavy_imports(of_files: dict[str, list[Any]], name: str) -> None:
    code, errors, made, imported = of_files[name]
    check_answer(FROM_FILES[name], code, errors, made)
    assert not imported


@pytest.mark.promise("S6", "F17")
@pytest.mark.parametrize("name", FROM_CLASSES)
def test_problems_of_classes_are_reported_before_anything_starts(of_classes: dict[str, list[Any]], name: str) -> None:
    code, errors, made, imported = of_classes[name]
    check_answer(FROM_CLASSES[name], code, errors, made)
    assert "ray" not in imported


@pytest.mark.parametrize("missing", ["yaml", "ray", "jsonargparse", "lightning"])
def test_a_missing_package_is_named_with_the_command_to_install_it(tmp_path: Path, missing: str) -> None:
    (tmp_path / "b.yaml").write_text(jobs())
    code = f"import sys; sys.modules[{missing!r}] = None; from lightning_core.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "run", "b.yaml"]
    env = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 2
    expected = f"error: {missing} is not installed; run pip install -c constraints.txt '.[launch]' in the clone\n"
    assert done.stderr == expected
