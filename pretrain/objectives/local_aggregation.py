"""LA: an image moves towards its cluster-mates among its neighbours.

Zhuang et al. 2019, "Local Aggregation for Unsupervised Learning of Visual Embeddings" (arXiv 1903.12355). With P_j
proportional to exp(s(z_i, v_j) / tau) over the memory bank,

    L_i = -log( sum_{j in B_i and C_i} P_j / sum_{j in B_i} P_j )

The background neighbours B_i are the entries most similar to z_i, the close neighbours C_i those that share a cluster with
image i in any of several k-means runs. Image i itself is in both.
"""

import importlib.util
import logging
import math

import torch
import torch.distributed as dist
from torch import Tensor

from pretrain.distributed import rank, world
from pretrain.negatives import order_statistics_
from pretrain.objectives.instance_discrimination import InstanceDiscrimination
from pretrain.objectives.objective import Objective
from pretrain.similarity import unit
from ringbench.errors import RingbenchError, UsageError
from ringbench.spec import Count

log = logging.getLogger(__name__)

IMAGES_PER_CLUSTER = 1_281_167 / 30_000  # the authors': 30,000 clusters for ImageNet


class LocalAggregation(Objective):
    """`n` training images, `background` neighbours, `runs` of k-means with `clusters` each (by default n / 43).

    `cluster` must be called before the first loss and then at the start of every epoch. With `warm_start`, the loss until the
    first call is that of instance discrimination, which the authors train for 10 epochs first; the bank is the same.
    """

    embeddings = ("image",)
    needs = ("index", "generator")

    def __init__(
        self,
        n: int,
        dim: int = 128,
        background: Count = 4096,
        runs: Count = 10,
        clusters: Count | None = None,
        temperature: float = 0.07,
        momentum: float = 0.5,
        warm_start: bool = True,
        k: Count = 4096,
    ) -> None:
        super().__init__(temperature)
        self.clusters = clusters or max(2, round(n / IMAGES_PER_CLUSTER))
        if not 1 < self.clusters <= n:
            raise UsageError(f"local aggregation needs 2 to n={n} clusters, found {self.clusters}")
        self.background = min(background, n)
        self.warm_start = warm_start
        self.ir = InstanceDiscrimination(n, dim, k, temperature, momentum)
        self.register_buffer("assignment", torch.full((runs, n), -1, dtype=torch.int32))

    @torch.no_grad()
    def cluster(self, seed: int) -> None:
        """Refits all k-means runs on the bank: rank 0 does, every rank has the result."""
        if rank() == 0:
            for run, assignment in enumerate(self.assignment):
                assignment.copy_(kmeans(self.ir.bank.vectors, self.clusters, seed * len(self.assignment) + run))
        if world() > 1:
            dist.broadcast(self.assignment, src=0)

    def forward(self, z: Tensor, *, index: Tensor, generator: torch.Generator) -> Tensor:
        """Embeddings z (b, d) of the images `index` (b,) -> the mean loss."""
        if self.assignment[0, 0] < 0:
            if self.warm_start:
                return self.ir(z, index=index, generator=generator)
            raise RingbenchError("local aggregation has no clusters yet; call cluster() first, or set warm_start")
        s = unit(z) @ self.ir.bank.vectors.T  # (b, n)
        n = s.shape[1]
        own = torch.arange(n, device=s.device) == index[:, None]  # (b, n)
        least, _ = order_statistics_(s.detach().clone(), n - self.background, n - 1)
        background = (s >= least) | own
        close = torch.zeros_like(background)
        for assignment in self.assignment:
            close |= assignment == assignment[index][:, None]
        logits = s / self.temperature
        among = (logits.masked_fill(~mask, -math.inf).logsumexp(dim=1) for mask in (background, background & close))
        return (next(among) - next(among)).mean()

    def remember(self, z: Tensor, *, index: Tensor, generator: torch.Generator | None = None) -> None:
        self.ir.bank.update(z, index)


def kmeans(vectors: Tensor, clusters: int, seed: int) -> Tensor:
    """Vectors (n, d) -> the cluster of each, (n,) int32 on the CPU. faiss where installed, else scikit-learn's mini-batches."""
    x = vectors.float().cpu().numpy()
    if importlib.util.find_spec("faiss"):
        import faiss

        log.info("k-means by faiss: %d vectors, %d clusters, seed %d", len(x), clusters, seed)
        model = faiss.Kmeans(x.shape[1], clusters, niter=20, seed=seed, min_points_per_centroid=1)
        model.train(x)
        labels = model.index.search(x, 1)[1][:, 0]
    else:
        from sklearn.cluster import MiniBatchKMeans

        log.info("k-means by scikit-learn's MiniBatchKMeans: %d vectors, %d clusters, seed %d", len(x), clusters, seed)
        labels = MiniBatchKMeans(clusters, batch_size=max(1024, 2 * clusters), n_init=1, random_state=seed).fit_predict(x)
    return torch.from_numpy(labels.astype("int32"))
