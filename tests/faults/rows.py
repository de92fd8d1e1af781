"""The promises, in words, and what is open: the rows of docs/reliability.md."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A promise, or a fault with what must hold under it."""

    words: str
    open: str = ""
    """What of it is not held, or why it does not apply; empty if its tests say all."""
    applies: bool = True


PROMISES = {
    "R1": Row("What was acknowledged is on the disk: over kills of the scheduler no event is lost or counted twice"),
    "R2": Row("A killed scheduler is back within 10 s as its journal says, without torch or Lightning"),
    "R3": Row("Training never waits for the scheduler: 30 s without it slow it by 2 % at most"),
    "R4": Row("No device has two owners, and none is oversold, in any prefix of any journal"),
    "R5": Row("One life of a job at a time: what an older one reports or saves is refused, and it leaves"),
    "R6": Row("The newest verified checkpoint always loads, whenever a save is killed or the disk is full"),
    "R7": Row(
        "A kill costs one interval between saves (fifty times a save's time, if that is longer) and a batch at most,"
        " a release nothing"
    ),
    "R8": Row("Released and back, a run goes on to the bit, where its loader can say where it is"),
    "R9": Row("No job stays in a passing state longer than its time-out"),
    "R10": Row("Each kind of fault has its own budget: lost, taken away, raised, unusable; others are not affected"),
    "R11": Row("A dead worker is known within 2 s, a hung or lost one within 10 s, whatever Ray believes"),
    "R12": Row("All ranks are ready in time, or the grant rolls back with the reason and nothing is left"),
    "R13": Row("Ranks act together; if they fall apart that is an error within the time-out, and the job comes back"),
    "R14": Row("Ctrl-C and SIGTERM: saved, journal closed, out in time, exit code 130 or 143, nothing left"),
    "R15": Row("Hostile numbers raise nowhere, and no NaN gets into a decision or into JSON"),
    "R16": Row("Reports in any order, twice or not at all, come to the same"),
    "R19": Row(
        "A full disk: nothing is acknowledged that is not written, others go on, and it heals when there is room"
    ),
    "R20": Row("The head is lost: a clear word, the journal whole, and the run can be taken up"),
    "R21": Row("A damaged journal is refused and named, and nobody starts empty over it"),
    "S1": Row("No Ray of ours is without a token"),
    "S2": Row("Token and state files are private, and the token is in no log, report or journal"),
    "S3": Row("No pickle, no evaluation of what comes from a disk"),
    "S4": Row("A checkpoint with code in it runs nothing, whatever the environment says"),
    "S5": Row("Bundles are read strictly: no double key, tag, bomb of aliases, depth or size"),
    "S6": Row("A class path names a class of the right kind, which is checked before anything is built"),
    "S7": Row("Names are names: no path, control or look-alike; what is written stays inside the run's folder"),
    "S8": Row("Nothing active in a report, no control in a terminal"),
    "S10": Row("What is installed is locked by its hashes, and the malicious uploads are excluded"),
    "S11": Row("Secrets are shown to nobody"),
    "S12": Row("Bundles of monstrous size are refused at once"),
}

LATER = "not built: a later version's"
FAULTS = {
    "F1": Row("scheduler killed: idle, deciding, committing, replaying; in every state of a job"),
    "F2": Row("scheduler killed 5 times in 20 s"),
    "F3": Row("scheduler stopped and continued"),
    "F4": Row("scheduler restarted while jobs are held or released"),
    "F5": Row("worker killed in a step; one rank of two"),
    "F6": Row("killed while it writes a checkpoint"),
    "F7": Row("disk full"),
    "F8": Row("read-only folder, error or long wait on writing"),
    "F9": Row("the wall clock jumps", "time is monotone everywhere but for the time while nobody was there"),
    "F10": Row("losses that are no numbers, or not finite"),
    "F11": Row("a loss that is never reported, a metric of a wrong name"),
    "F12": Row("reports twice, late, out of order, of an older life, going back"),
    "F13": Row("a flood of reports", "the soak is later; one call in flight a job bounds it"),
    "F14": Row("reports of an unknown or ended job"),
    "F15": Row("a deadline in the past, or that passes while the job waits"),
    "F16": Row("two jobs of one name"),
    "F17": Row("a malformed bundle"),
    "F18": Row("workers that can never be ready"),
    "F19": Row("two jobs of two devices on a pool of three"),
    "F20": Row("a node is taken away with notice"),
    "F21": Row("a node vanishes"),
    "F22": Row(
        "the node of the scheduler vanishes", "the pool comes up again where its folder is; nobody moves it elsewhere"
    ),
    "F23": Row("the line between scheduler and worker is cut"),
    "F24": Row("Ctrl-C, SIGTERM, SIGHUP, SIGKILL of the command; twice; while it starts or saves"),
    "F25": Row("Ray's head is killed", "with Ray's own fault tolerance switched on: not tried"),
    "F26": Row("ranks fall apart"),
    "F27": Row("a rank hangs", "a worker whose process answers while its step hangs is not given up"),
    "F28": Row("out of memory"),
    "F29": Row("a checkpoint is cut off, flipped, missing, or another job's"),
    "F30": Row("a journal that is damaged, locked, of another version, or wanted twice"),
    "F31": Row("user code raises, exits, crashes the process"),
    "F32": Row("a resize fails half-way"),
    "F33": Row("an order is lost or stale"),
    "F34": Row("workers that come and go"),
}
ROWS = PROMISES | FAULTS
