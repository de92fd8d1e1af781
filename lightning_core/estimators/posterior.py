"""A posterior over power laws with a shift and a floor: l(s) = a (s + s0)^-b + c."""

from __future__ import annotations

import numpy as np

from lightning_core.types import LEVELS, NORMAL, FloatArray, IntArray

FARTHEST = 40.0


class Posterior:
    def __init__(
        self,
        power: float = 4.0,
        evidence: float = 5.0,
        floor: float = 0.2,
        widening: float = 0.4,
        least: int = 3,
        bs=None,
        shifts=None,
    ) -> None:
        self.power, self.evidence, self.floor, self.widening, self.least = power, evidence, floor, widening, least
        bs = np.geomspace(0.05, 2.0, 9) if bs is None else np.asarray(bs)
        shifts = np.array([0.0, 2.0, 8.0, 32.0, 128.0]) if shifts is None else np.asarray(shifts)
        self._b = np.repeat(bs, len(shifts))
        self._shift = np.tile(shifts, len(bs))
        self._count = np.zeros(0, np.int64)
        J = len(self._b)
        self._unit, self._newest, self._v, self._v2, self._w, self._ml, self._sll, self._vll = np.zeros((8, 0))
        self._mx, self._sxx, self._sxl = np.zeros((3, 0, J))

    _M = ("_unit", "_newest", "_v", "_v2", "_w", "_ml", "_sll", "_mx", "_sxx", "_sxl", "_count")

    def grow(self, rows: int) -> None:
        extra = rows - len(self._count)
        if extra > 0:
            for name in self._M:
                c = getattr(self, name)
                setattr(self, name, np.concatenate([c, np.zeros((extra, *c.shape[1:]), c.dtype)]))

    def observe(self, rows: IntArray, position: FloatArray, loss: FloatArray) -> None:
        first = self._count[rows] == 0
        self._unit[rows] = np.where(first, position, self._unit[rows])
        keep = np.where(first, 0.0, (self._newest[rows] / position) ** self.power)
        u = position / self._unit[rows]
        x = np.exp(-self._b * np.log(u[:, None] + self._shift))
        w = 1.0 / (loss * loss)
        old = keep * self._w[rows]
        W = old + w
        gain = old * w / W
        dl = loss - self._ml[rows]
        dx = x - self._mx[rows]
        k = keep[:, None]
        g = gain[:, None]
        self._sxx[rows] = k * self._sxx[rows] + g * dx * dx
        self._sxl[rows] = k * self._sxl[rows] + g * dx * dl[:, None]
        self._sll[rows] = keep * self._sll[rows] + gain * dl * dl
        self._ml[rows] += w / W * dl
        self._mx[rows] += (w / W)[:, None] * dx
        self._w[rows] = W
        self._v[rows] = keep * self._v[rows] + 1.0
        self._v2[rows] = keep * keep * self._v2[rows] + 1.0
        self._newest[rows] = position
        self._count[rows] += 1

    def atoms(self, rows):
        W, ml, sll = self._w[rows, None], self._ml[rows, None], self._sll[rows, None]
        mx, sxx, sxl = self._mx[rows], self._sxx[rows], self._sxl[rows]
        v, v2 = self._v[rows, None], self._v2[rows, None]
        # without a floor
        ux, uxl, ul = sxx + W * mx * mx, sxl + W * mx * ml, sll + W * ml * ml
        a0 = uxl / ux
        r0 = ul - a0 * uxl
        # with
        a1 = np.where(sxx > 0, sxl / np.where(sxx > 0, sxx, 1.0), 0.0)
        c1 = ml - a1 * mx
        r1 = sll - a1 * sxl
        ok = (a1 > 0) & (c1 > 0)
        least = 1e-8 * v
        n_eff = np.minimum(v * v / v2, self.evidence)
        s0 = -0.5 * n_eff * np.log(np.maximum(r0, 0.0) / v + 1e-8) + np.log(1 - self.floor)
        v = np.maximum(v, 1.0)
        v2 = np.maximum(v2, 1.0)
        s1 = np.where(ok, -0.5 * n_eff * np.log(np.maximum(r1, 0.0) / v + 1e-8) + np.log(max(self.floor, 1e-300)), -np.inf)
        a = np.concatenate([a0, a1], 1)
        c = np.concatenate([np.zeros_like(a0), c1], 1)
        s = np.concatenate([s0, s1], 1)
        p = np.exp(s - s.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        return a, c, p

    def predict(self, rows, position):
        a, c, p = self.atoms(rows)
        b, s0 = np.tile(self._b, 2), np.tile(self._shift, 2)
        u = (position / self._unit[rows])[:, None]
        l = a * np.exp(-b * np.log(u + s0)) + c
        l = np.where(p > 0, l, 0)
        out = np.exp((p * np.log(np.maximum(l, 1e-300))).sum(1))
        return np.where(self._count[rows] >= self.least, out, np.nan)

    def first_passage(self, rows, threshold):
        a, c, p = self.atoms(rows)
        b, s0 = np.tile(self._b, 2), np.tile(self._shift, 2)
        above = threshold[:, None] - c
        ok = (above > 0) & (a > 0) & (p > 0)
        e = np.where(ok, np.log(np.where(ok, a, 1.0) / np.where(ok, above, 1.0)) / b, 0.0)
        n = self._newest[rows, None] / self._unit[rows, None]
        u = np.where(ok & (e < FARTHEST), np.exp(np.minimum(e, FARTHEST)) - s0, np.inf)
        left = np.maximum(u - n, 1.0)
        order = np.argsort(left, axis=1)
        left = np.take_along_axis(left, order, 1)
        p = np.take_along_axis(p, order, 1)
        cum = np.cumsum(p, 1) - 0.5 * p
        # quantiles of atoms
        out = np.empty((len(rows), 20))
        for i in range(len(rows)):
            fin = np.isfinite(left[i])
            m = p[i][fin].sum()
            k = np.searchsorted(np.cumsum(p[i]), LEVELS * 1.0)
            q = left[i][np.minimum(k, len(k) * 0 + left.shape[1] - 1)]
            if self.widening > 0:
                grid = (np.log(q)[:, None] + self.widening * NORMAL[2::5]).ravel()
                grid.sort()
                q = np.exp(np.minimum(grid.reshape(20, -1).mean(1), 300.0)) if np.isfinite(grid).all() else np.exp(np.median(grid.reshape(20, -1), axis=1))
            out[i] = q
        out = (np.maximum(out, 1.0) + n) * self._unit[rows, None]
        out[self._count[rows] < self.least] = np.nan
        return out
