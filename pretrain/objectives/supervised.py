"""The supervised control: a linear classifier on the encoder's features, trained with cross-entropy."""

from torch import Tensor, nn

from pretrain.objectives.objective import Objective


class Supervised(Objective):
    """`dim` features, not normalised, `classes` classes."""

    embeddings = ("image",)
    needs = ("labels",)

    def __init__(self, classes: int, dim: int = 512, temperature: float = 1.0) -> None:
        super().__init__(temperature)
        self.classifier = nn.Linear(dim, classes)

    def forward(self, features: Tensor, *, labels: Tensor) -> Tensor:
        """Features (b, dim) and labels (b,) -> the mean cross-entropy."""
        logits = self.classifier(features.to(self.classifier.weight.dtype)) / self.temperature
        return nn.functional.cross_entropy(logits, labels)
