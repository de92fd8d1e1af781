"""The promises, in words, and what is open: the rows of docs/reliability.md."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A promise, or a fault with what must hold under it."""

    words: str
    open: str = ""
    """The part that does not hold, or why it does not apply; empty if the tests cover the row."""
    applies: bool = True


PROMISES = {
    "R1": Row("An acknowledged event is on the disk: when the scheduler is killed, no event is lost or counted twice"),
    "R2": Row(
        "A killed scheduler is back within 10 s in the state of its journal, without importing torch or Lightning"
    ),
    "R3": Row("Training never waits for the scheduler: 30 s without it slow training by at most 2 %"),
    "R4": Row("No device has two owners, and none is oversold, in any prefix of any journal"),
    "R5": Row("One incarnation of a job at a time: reports and checkpoints of an older one are refused, and it leaves"),
    "R6": Row("The newest valid checkpoint always loads, whenever a save is killed or the disk is full"),
    "R7": Row(
        "A kill costs at most one interval between checkpoints (fifty times a save, if that is longer) and a batch;"
        " a release costs nothing"
    ),
    "R8": Row("A job that was released and comes back goes on bit for bit, if its loader has a state"),
    "R9": Row("No job stays in a transitional state longer than its time-out"),
    "R10": Row("Each kind of fault has its own retry budget: worker lost, node preempted, exception, unusable config"),
    "R11": Row("A dead worker is detected within 2 s, a hung or lost one within 10 s, whatever Ray reports"),
    "R12": Row("All ranks are ready in time, or the grant is rolled back with the reason and nothing is left behind"),
    "R13": Row("Ranks act together; if they part, that is an error within the time-out, and the job comes back"),
    "R14": Row(
        "Ctrl-C and SIGTERM: jobs saved, journal closed, ended in time, exit code 130 or 143, nothing left behind"
    ),
    "R15": Row("Hostile numbers raise no exception, and no NaN reaches a decision or JSON"),
    "R16": Row("Reports that are reordered, repeated or lost lead to the same state"),
    "R17": Row("A flood of reports: one call in flight, then the newest report; no other client waits for long"),
    "R18": Row(
        "The clock on the wall jumps: no deadline, lease or duration moves, for they are on the monotonic clock"
    ),
    "R19": Row(
        "A full disk: no event is acknowledged before it is written, and writing resumes when there is room again"
    ),
    "R20": Row("The head is lost: a clear message, the journal is complete, and the run can be resumed"),
    "R21": Row("A damaged journal is refused and named, and no scheduler starts empty over it"),
    "R22": Row(
        "Hours of jobs that come and go under faults: memory, descriptors and threads of a pool do not grow",
        "two hours run every night; recorded are ten minutes",
    ),
    "R23": Row("The events of a journal lead to the same decisions again"),
    "R24": Row(
        "On a market, the command, the scheduler, the provisioner and the pool manager may be killed at any moment,"
        " alone or together: what is wanted is there again within 75 s, each node is billed once, none is left behind"
    ),
    "R25": Row(
        "Nodes of a market are held under a lease: a scheduler that does not answer for longer has them given back, and"
        " wants them anew; nodes that cannot reach the head end by themselves"
    ),
    "R26": Row(
        "A job on a market ends in time if on-demand nodes could complete it, whatever is preempted, with notice or"
        " without"
    ),
    "R27": Row(
        "No more is spent on a market than its budget, over all jobs and all time, if nodes that are given back end as"
        " soon as they should and prices do not rise before that"
    ),
    "R28": Row(
        "A backtest, virtual time and a live pool rent the same nodes for the same money, given the same market and"
        " progress, and a journal with a market replays"
    ),
    "R29": Row(
        "The ledger of a market is what a cloud bills: each node by the second, from its launch to its end as far as"
        " the pool is told of both, at the price of each second, and for the minimum at least"
    ),
    "R30": Row(
        "A training ends as it would without the callback, on one rank and on several: the same weights to the bit, the"
        " same logs but for ours, the same exit code, no thread and no process left"
    ),
    "R31": Row("No rank does alone what is a collective, whatever happens on one of them"),
    "R32": Row("With one variable, and without any, nothing of ours runs in a Trainer, broken or not"),
    "S1": Row("No Ray is started without a token"),
    "S2": Row("Token and state files are private, and the token is in no log, report or journal"),
    "S3": Row("Nothing from a disk is unpickled or evaluated"),
    "S4": Row("A checkpoint that holds code runs nothing, whatever the environment says"),
    "S5": Row("Bundles are read strictly: no key twice, no tags, no alias bombs, limited depth and size"),
    "S6": Row("A class path names a class of the right kind; it is checked before anything is built"),
    "S7": Row("Names are plain names: no path, control character or look-alike; files stay inside the run's folder"),
    "S8": Row("No active content in a report, no control characters in a terminal"),
    "S10": Row("Packages are locked by their hashes, and the malicious uploads are excluded"),
    "S11": Row("Secrets are never shown"),
    "S12": Row("Oversized bundles are refused at once"),
    "S13": Row("What another user has made or can change does not steer: folders, notes, specs, journals"),
    "S14": Row("`down` ends and removes only what its own pool has started and made"),
    "S15": Row("Only regular files of bounded size are read; none is written under a name that can be foreseen"),
    "S16": Row("No client of the pool's server makes another wait for long, or takes more memory than its budget"),
}

LATER = "not built yet"
FAULTS = {
    "F1": Row("scheduler killed: idle, deciding, committing, replaying; in every state of a job"),
    "F2": Row("scheduler killed 5 times in 20 s"),
    "F3": Row("scheduler stopped and continued"),
    "F4": Row("scheduler restarted while jobs are held or released"),
    "F5": Row("worker killed in a step; one rank of two"),
    "F6": Row("killed while it writes a checkpoint"),
    "F7": Row("disk full"),
    "F8": Row("read-only folder, error or long wait on writing"),
    "F9": Row("the clock on the wall jumps, from which only how long a machine was off is read"),
    "F10": Row("losses that are not numbers, or not finite"),
    "F11": Row("a loss that is never reported, a metric with a wrong name"),
    "F12": Row("reports that are repeated, late, out of order, of an older incarnation, or going back"),
    "F13": Row("a flood of reports"),
    "F14": Row("reports of an unknown or ended job"),
    "F15": Row("a deadline in the past, or that passes while the job waits"),
    "F16": Row("two jobs with one name"),
    "F17": Row("a malformed bundle"),
    "F18": Row("workers that can never be ready"),
    "F19": Row("two jobs on two devices each, in a pool of three"),
    "F20": Row("a node is preempted with notice"),
    "F21": Row("a node vanishes"),
    "F22": Row(
        "the node of the scheduler vanishes",
        "the pool comes up again where its folder is; it is not moved elsewhere, [with Redis neither]"
        "(decisions.md#faults-and-storage)",
    ),
    "F23": Row("the connection between scheduler and worker is cut"),
    "F24": Row("Ctrl-C, SIGTERM, SIGHUP, SIGKILL of the command; twice; while it starts or saves"),
    "F25": Row(
        "Ray's head is killed ([Ray's own fault tolerance](decisions.md#faults-and-storage) saves no part of it)"
    ),
    "F26": Row("ranks part"),
    "F27": Row("a rank hangs, or a step does while its process answers"),
    "F28": Row("out of memory"),
    "F29": Row("a checkpoint is truncated, corrupted, missing, or another job's"),
    "F30": Row("a journal that is damaged, locked, of another version, or opened twice"),
    "F31": Row("user code raises, exits, crashes the process"),
    "F32": Row("a resize fails half-way"),
    "F33": Row("a grant is lost or stale"),
    "F34": Row("workers that come and go"),
    "F35": Row("the device arbiter is gone, or stopped while the scheduler is well"),
    "F36": Row("modules, loggers, loaders and callbacks that raise, have a memory, or mean something else by a name"),
    "F37": Row("a terminal that is closed, full, foreign or ASCII"),
    "F38": Row("a training within another one, or beside it in the same process"),
    "F39": Row("odd machines: files, folders, accounts, limits and clocks"),
}
ROWS = PROMISES | FAULTS
