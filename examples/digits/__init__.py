"""Five small models that learn scikit-learn's handwritten digits in seconds on two cores."""

from examples.digits.data import Digits
from examples.digits.models import Cnn, DigitModel, Lstm, ResNetNarrow, ResNetWide, VisionTransformer

MODELS: dict[str, type[DigitModel]] = {
    "vit": VisionTransformer,
    "lstm": Lstm,
    "cnn": Cnn,
    "resnet_narrow": ResNetNarrow,
    "resnet_wide": ResNetWide,
}

__all__ = ["MODELS", "Cnn", "DigitModel", "Digits", "Lstm", "ResNetNarrow", "ResNetWide", "VisionTransformer"]
