"""Trains four policies of reinforcement learning on one device, each until its return is high enough or its time over.

Run from the repository's root, after ``pip install -e '.[launch,view,examples]'``: ``python examples/cartpole.py``.

1. Each job plays Gymnasium's CartPole and learns from what it played, by proximal policy optimization (Schulman et al.
   2017, arXiv:1707.06347), at a learning rate of its own. It logs the mean return of the episodes that ended last: a
   number that jumps up and down while it rises.
2. A job is met once the mean over the newest returns reaches its target, such as 200. One learning rate is far too
   small: the longer it trains, the surer the forecast says so, and the device goes to the others.
3. The picture shows the returns, and below them how early or late each job would be by each forecast: a return that
   does not rise yet is not expected to, one that rises is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import gymnasium  # noqa: E402
import lightning.pytorch as pl  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributions import Categorical  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

from lightning_core.cluster.bundle import Bundle  # noqa: E402
from lightning_core.history.forecasts import fill_in  # noqa: E402
from lightning_core.history.history import History  # noqa: E402
from lightning_core.report.figure_file import save_figure  # noqa: E402
from lightning_core.report.gantt import colour  # noqa: E402
from lightning_core.storage.journals.journal import Journal  # noqa: E402
from lightning_core.view.progress import print_summary  # noqa: E402

GAMES, STEPS, PASSES = 8, 64, 4
DISCOUNT, CLIP, ENTROPY = 0.98, 0.2, 0.01
# Seconds late beyond which a forecast is drawn at the edge.
SHOWN = 40.0
# Learning rate, return to reach and seconds of each job.
JOBS = {"fast": (3e-3, 200, 10), "usual": (1e-3, 250, 15), "patient": (3e-4, 300, 20), "hopeless": (1e-6, 150, 20)}


class Played(IterableDataset[tuple[torch.Tensor, ...]]):
    """Minibatches of what the newest policy has just played.

    Yields:
        Observations ``(n, 4)``; pushes, their log-probabilities, advantages and discounted returns, each ``(n,)``; and
        the mean return of the episodes that ended last.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        games = gymnasium.make_vec("CartPole-v1", num_envs=GAMES, vectorization_mode="vector_entry_point")
        seen, over = torch.tensor(games.reset(seed=torch.initial_seed() % 2**31)[0]), torch.zeros(GAMES)
        score, mean = np.zeros(GAMES), 10.0
        while True:
            rows, ended = [], []
            for _ in range(STEPS):
                with torch.no_grad():
                    odds, worth = self.policy(seen)
                push = odds.sample()
                after, reward, fell, late, _ = games.step(push.numpy())
                done = fell | late
                # A game that is over is reset by the step that follows: nothing is learned from that one.
                rows.append((seen, push, odds.log_prob(push), worth, torch.tensor(reward), torch.tensor(done), over))
                score = np.where(over.numpy() > 0, 0.0, score + reward)
                ended += score[done].tolist()
                seen, over = torch.tensor(after), torch.tensor(done).float()
            mean = float(np.mean(ended)) if ended else mean
            yield from self._batches(rows, self.policy(seen)[1].detach(), mean)

    @staticmethod
    def _batches(rows: list[Any], worth_after: torch.Tensor, mean: float) -> Iterator[tuple[torch.Tensor, ...]]:
        seen, push, log_prob, worth, reward, done, over = (torch.stack(column) for column in zip(*rows, strict=True))
        returns, following = torch.empty_like(worth), worth_after
        for step in range(STEPS - 1, -1, -1):
            following = reward[step].float() + DISCOUNT * following * (1 - done[step].float())
            returns[step] = following
        used = over.flatten() == 0
        columns = [column.flatten(0, 1)[used] for column in (seen, push, log_prob, returns - worth, returns)]
        for _ in range(PASSES):
            for part in torch.randperm(int(used.sum())).chunk(2):
                yield (*(column[part] for column in columns), torch.tensor(mean))


class Policy(pl.LightningModule):
    """Chooses pushes and says what a state is worth; it plays for its own training data.

    Args:
        lr: Learning rate of Adam.
    """

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.actor, self.critic = (
            nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
            for outputs in (2, 1)
        )

    def forward(self, seen: torch.Tensor) -> tuple[Categorical, torch.Tensor]:
        return Categorical(logits=self.actor(seen)), self.critic(seen).squeeze(-1)

    def training_step(self, batch: tuple[torch.Tensor, ...], index: int) -> torch.Tensor:
        seen, push, log_prob, advantage, returns, mean = batch
        odds, worth = self(seen)
        ratio = (odds.log_prob(push) - log_prob).exp()
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        gain = torch.min(ratio * scaled, ratio.clamp(1 - CLIP, 1 + CLIP) * scaled).mean()
        self.log("return", mean)
        loss: torch.Tensor = nn.functional.smooth_l1_loss(worth, returns) - gain - ENTROPY * odds.entropy().mean()
        return loss

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Played(self), batch_size=None)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), self.lr)


def draw(journal: Journal, path: Path) -> None:
    """Draw the return of each job, and by how much it would have been in time by each of its forecasts."""
    history = History.read(journal)
    fill_in(journal, history, 40, always=True)
    figure = Figure(figsize=(8, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for number, job in enumerate(history.jobs):
        own, seen, curve = colour(number), job.seen(), job.curve()
        above.plot(seen[:, 0], seen[:, 1], ".", color=own, alpha=0.3, markersize=3)
        above.plot(curve[:, 0], curve[:, 1], color=own, linewidth=1.8, label=f"{job.name} ({job.verdict})")
        above.hlines(job.goal, 0, job.deadline, color=own, linestyle=":", linewidth=1)
        spare = [max(job.deadline - made.likely, -SHOWN) for made in job.forecasts]
        below.plot([made.time for made in job.forecasts], spare, ".-", color=own, linewidth=1.2)
    above.set(ylabel="return (line: mean that counts)", ylim=(0, 400))
    above.set_title("Dotted: the target of each job, until its deadline", fontsize=10)
    above.legend(loc="upper right")
    below.axhline(0, color="black", linewidth=0.8)
    below.set(xlabel="seconds", ylabel=f"seconds to spare\n(-{SHOWN:g}: later, or never)", ylim=(-SHOWN * 1.05, None))
    save_figure(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--picture", type=Path, default=Path("cartpole.png"), metavar="FILE",
                        help="the picture (default cartpole.png)")  # fmt: skip
    arguments = parser.parse_args()
    jobs = {
        name: {
            "seed_everything": 1,
            "model": {"class_path": "examples.cartpole.Policy", "init_args": {"lr": lr}},
            "trainer": {"logger": False},
            "target": {"metric": "return", "at_least": goal, "best": 500},
            "deadline": f"{seconds}s", "cell": 1, "on_miss": "stop",
        }
        for name, (lr, goal, seconds) in JOBS.items()
    }  # fmt: skip
    bundle = Bundle.from_dict({"period": "0.5s", "jobs": jobs}, ROOT)
    with tempfile.TemporaryDirectory(prefix="lc-") as folder:
        summary = bundle.run(run_dir=Path(folder) / "run")
        print_summary(summary, sys.stdout)
        busy = {job.name: job.busy for job in summary.jobs}
        print(f"hopeless had {busy['hopeless']:.0f} of {sum(busy.values()):.0f} s of the device")
        with Journal.open(summary.run_dir / "journal.db", read_only=True) as journal:
            draw(journal, arguments.picture)
    print(f"returns and forecasts: {arguments.picture}")


if __name__ == "__main__":
    main()
