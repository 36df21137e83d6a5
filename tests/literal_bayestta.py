"""BayesTTA written out twice, sample by sample: the released code, and the paper's equations.

Slow on purpose, and without a line of the package: what the two presets are held against.
"""

from __future__ import annotations

import copy
import math

import torch
from scipy.stats import f as f_distribution
from sklearn.decomposition import PCA

COMPONENTS = 10


def sketch(visual, text, x, scale):
    z = visual(x)
    z = z / z.norm(dim=1, keepdim=True)
    return z, scale * z @ text.T


def outer(v):
    return v[:, None] @ v[None, :]


class Released:
    """The column "code mode", with its algorithm of eight steps; two forwards per batch."""

    def __init__(self, visual, text, *, scale, rtol, structure=None, alpha=1.0, lr=1e-3, beta=0.99):
        self.visual, self.text, self.scale, self.rtol = copy.deepcopy(visual), text, scale, rtol
        self.alpha, self.beta = alpha, beta
        self.visual.requires_grad_(False)
        named = self.visual.named_parameters()
        self.tuned = {name: p for name, p in named if "ln" in name or "bn" in name}
        for p in self.tuned.values():
            p.requires_grad_(True)
        self.adam = torch.optim.Adam(self.tuned.values(), lr=lr, betas=(0.9, 0.999), eps=1e-8)
        self.ema = {name: p.detach().clone() for name, p in self.tuned.items()}
        K, D = text.shape
        self.structure, self.test = structure, None
        self.c, self.mean = text.new_ones(K), text.clone()
        self.S, self.count = text.new_zeros(D, D), 0.0
        self.S_k, self.count_k = text.new_zeros(K, D, D), text.new_zeros(K)

    def homogeneous(self, z, P):
        """The test as released: every way out of it says homogeneous."""
        N, K = P.shape
        d = COMPONENTS
        if d > N:
            return True  # PCA raises in the released code; defined so
        low = torch.from_numpy(PCA(d, svd_solver="full").fit_transform(z.double().numpy()))
        P, n, covs = P.double(), P.double().sum(0), []
        if N - K <= K - 1:
            return True
        for k in range(K):
            m = sum(P[i, k] * low[i] for i in range(N)) / n[k]
            S = sum(P[i, k] * outer(low[i] - m) for i in range(N))
            covs.append((S + 1e-6 * torch.eye(d)) / n[k])
        pooled = sum((n[k] - 1) * covs[k] for k in range(K)) / (N - K + 1e-8)
        sign, log_pooled = torch.linalg.slogdet(pooled)
        if sign <= 0:
            return True
        M = 0.0
        for k in range(K):
            sign, log_k = torch.linalg.slogdet(covs[k])
            if sign <= 0:
                return True
            M += float((n[k] - 1) * (log_pooled - log_k))
        if N - 2 * K <= 0:
            return True
        inverse = sum(1 / (float(n_k) - 1 + 1e-8) for n_k in n if n_k >= 11)
        a = 1 - (2 * d * d + 3 * d - 1) / (6 * (d + 1) * (K - 1)) * (inverse - 1 / (N - K))
        d1 = d * (d + 1) * (K - 1) / 2
        lam = d * (d + 1) * (K - 1) * (K + 1) / (6 * (N - 2 * K))
        d2 = (d1 + 2) / lam + 1e-8
        F = M * a / (d1 * (1 - a + M * a / d2))
        critical = f_distribution.ppf(0.95, d1, d2)
        self.test = {"statistic": F, "critical": critical, "df1": d1, "df2": d2}
        return critical >= F

    def step(self, x):
        text, (K, D) = self.text, self.text.shape
        with torch.no_grad():
            z, l_zs = sketch(self.visual, text, x, self.scale)  # 1
            P, N = l_zs.softmax(1), len(z)
            if self.structure is None:  # 0
                self.structure = "shared" if self.homogeneous(z, P) else "per-class"
            n, new = P.sum(0), []
            for k in range(K):  # 2
                total = sum(P[i, k] * z[i] for i in range(N))
                new.append((self.c[k] * self.mean[k] + total) / (self.c[k] + n[k] + 1e-8))
            for i in range(N):  # 3: about the old means
                for k in range(K):
                    part = P[i, k] * outer(z[i] - self.mean[k])
                    if self.structure == "shared":
                        self.S += part
                    else:
                        self.S_k[k] += part
            self.count, self.count_k = self.count + N, self.count_k + n
            self.c, self.mean = self.c + n, torch.stack(new)
            l_adapt = torch.empty_like(l_zs)
            for k in range(K):
                if self.structure == "shared":
                    sigma = self.S / self.count
                else:
                    sigma = self.S_k[k] / (self.count_k[k] + 1e-8)
                used = (1 - 1e-4) * sigma + 1e-4 * 0.1**2 * torch.eye(D, dtype=z.dtype)  # 4
                if k == 0 or self.structure == "per-class":
                    inverse, logdet = torch.linalg.pinv(used, rtol=self.rtol), log_det(used)
                for i in range(N):  # 5, 6
                    v = z[i] - self.mean[k]
                    score = -0.5 * v @ inverse @ v - 0.5 * logdet - math.log(K)
                    l_adapt[i, k] = l_zs[i, k] + self.alpha * score
        _, again = sketch(self.visual, text, x, self.scale)  # 7
        loss = -(l_adapt.softmax(1) * again.log_softmax(1)).sum(1).mean()
        self.adam.zero_grad()
        loss.backward()
        self.adam.step()  # 8
        with torch.no_grad():
            for name, p in self.tuned.items():
                p.copy_(self.beta * self.ema[name] + (1 - self.beta) * p)
                self.ema[name] = p.clone()
        return l_adapt


def log_det(matrix):
    try:
        return 2 * torch.linalg.cholesky(matrix).diagonal().log().sum()
    except torch.linalg.LinAlgError:
        return torch.logdet(matrix)


class Paper:
    """The column "paper mode", equation by equation, with the choices made where it is silent."""

    def __init__(self, visual, text, *, scale, rtol, structure=None, alpha=1.0, lr=5e-3, beta=0.99):
        self.visual, self.text, self.scale, self.rtol = copy.deepcopy(visual), text, scale, rtol
        self.alpha, self.lr, self.beta = alpha, lr, beta
        self.visual.requires_grad_(False)
        norms = (torch.nn.LayerNorm, torch.nn.BatchNorm1d)
        modules = [m for m in self.visual.modules() if isinstance(m, norms)]
        self.tuned = [p for m in modules for p in m.parameters()]
        for p in self.tuned:
            p.requires_grad_(True)
        self.first = [torch.zeros_like(p) for p in self.tuned]
        self.second = [torch.zeros_like(p) for p in self.tuned]
        self.t = 0
        K, D = text.shape
        self.structure, self.test = structure, None
        self.s, self.pi = text.new_ones(K), text.new_full((K,), 1 / K)  # (19), pi^0 = 1/K
        self.mean = [w.clone() for w in text]  # (17)
        self.sigma = [torch.eye(D, dtype=text.dtype) for _ in range(K)]

    def homogeneous(self, z, P):
        """(8) to (14); a test that cannot be carried says homogeneous."""
        N, K = P.shape
        d = COMPONENTS
        if d > N:
            return True
        low = torch.from_numpy(PCA(d, svd_solver="full").fit_transform(z.double().numpy()))
        P, n = P.double(), P.double().sum(0)
        if n.min() <= 1 or N - K - (K - 1) <= 0:
            return True
        covs = []
        for k in range(K):
            m = sum(P[i, k] * low[i] for i in range(N)) / n[k]
            covs.append(sum(P[i, k] * outer(low[i] - m) for i in range(N)) / n[k])
        pooled = sum((n[k] - 1) * covs[k] for k in range(K)) / (n.sum() - K)
        M = sum((n[k] - 1) * (torch.logdet(pooled) - torch.logdet(covs[k])) for k in range(K))
        inverse = float((1 / (n - 1)).sum()) - 1 / (N - K)
        c = 1 - (2 * d * d + 3 * d - 1) / (6 * (d + 1) * (K - 1)) * inverse
        if c <= 0:
            return True
        lam = d * (d + 1) * (K - 1) * (K + 1) / (6 * (N - K - (K - 1)))
        d1 = d * (d + 1) * (K - 1) / 2
        d2 = (d1 + 2) / (lam + 1e-8)
        M_star = float(M) / c
        F = M_star / (d1 * (1 + M_star / d2))
        critical = f_distribution.ppf(0.95, d1, d2)
        self.test = {"statistic": F, "critical": critical, "df1": d1, "df2": d2}
        return critical >= F

    def score(self, z):
        """(25): the discriminants of the current parameters, sample by sample."""
        D_ik = z.new_empty(len(z), len(self.text))
        for k in range(len(self.text)):
            if k == 0 or self.structure == "per-class":
                u, s, vt = torch.linalg.svd(self.sigma[k])
                kept = s > self.rtol * s.max()
                inverse = (vt[kept].T / s[kept]) @ u[:, kept].T
                half = 0.5 * torch.linalg.slogdet(self.sigma[k])[1]
            for i in range(len(z)):
                v = z[i] - self.mean[k]
                D_ik[i, k] = self.pi[k].log() - 0.5 * v @ inverse @ v - half
        return D_ik

    def step(self, x):
        K = len(self.text)
        z, cos = sketch(self.visual, self.text, x, 1.0)  # (6)
        z, l_sketch, N = z.detach(), cos.detach(), len(x)
        if self.structure is None:
            per_class = not self.homogeneous(z, (self.scale * l_sketch).softmax(1))
            self.structure = "per-class" if per_class else "shared"
        log_gamma = self.score(z)  # (18): log pi + log N, whose constant cancels
        gamma = (log_gamma - log_gamma.logsumexp(1, keepdim=True)).exp()
        before, self.s = self.s, self.s + gamma.sum(0)  # (19)
        for k in range(K):  # (20)
            total = sum(gamma[i, k] * z[i] for i in range(N))
            self.mean[k] = (before[k] * self.mean[k] + total) / self.s[k]
        scatter = [
            sum(gamma[i, k] * outer(z[i] - self.mean[k]) for i in range(N)) for k in range(K)
        ]
        if self.structure == "shared":  # (21)
            s = before.sum()
            shared = (s * self.sigma[0] + sum(scatter)) / (s + N)
            self.sigma = [shared.clone() for _ in range(K)]
        else:  # (22)
            for k in range(K):
                self.sigma[k] = (before[k] * self.sigma[k] + scatter[k]) / self.s[k]
        eye = torch.eye(z.shape[1], dtype=z.dtype)
        self.sigma = [(1 - 1e-4) * sigma + 1e-4 * 0.1 * eye for sigma in self.sigma]  # (23)
        self.pi = self.s / self.s.sum()  # (24)
        l_adapt = l_sketch + self.alpha * self.score(z)  # (27)
        loss = -(l_adapt.softmax(1) * cos.log_softmax(1)).sum() / N  # (29), over the batch
        self.update(torch.autograd.grad(loss, self.tuned))
        return l_adapt

    @torch.no_grad()
    def update(self, gradients):
        """Adam by hand, then (30), written back."""
        self.t += 1
        for j, (p, g) in enumerate(zip(self.tuned, gradients, strict=True)):
            self.first[j] = 0.9 * self.first[j] + 0.1 * g
            self.second[j] = 0.999 * self.second[j] + 0.001 * g * g
            m, v = self.first[j] / (1 - 0.9**self.t), self.second[j] / (1 - 0.999**self.t)
            theta = p - self.lr * m / (v.sqrt() + 1e-8)
            p.copy_(self.beta * p + (1 - self.beta) * theta)
