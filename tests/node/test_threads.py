"""A worker has as many threads as its device has cores, unless its user has set another number."""

from __future__ import annotations

import pytest

from lightning_core.worker.worker import _threads_of_user


@pytest.mark.parametrize(
    ("environment", "threads"),
    [
        (b"HOME=/\0OMP_NUM_THREADS=3\0", 3),
        (b"MKL_NUM_THREADS=5\0OMP_NUM_THREADS=3\0", 3),
        (b"MKL_NUM_THREADS=5\0", 5),
        (b"OMP_NUM_THREADS=4,2\0", 4),
        (b"OMP_NUM_THREADS=\0MKL_NUM_THREADS=2", 2),
        (b"OMP_NUM_THREADS=0\0", None),
        (b"OMP_NUM_THREADS=many\0", None),
        (b"HOME=/\0LANG\0", None),
        (b"", None),
    ],
)
def test_what_the_user_has_set(environment: bytes, threads: int | None) -> None:
    assert _threads_of_user(environment) == threads
