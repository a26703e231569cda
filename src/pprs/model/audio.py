"""Audio classifiers of Hugging Face transformers, with their feature extractors inside the base classifier."""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from pprs.errors import PprsError
from pprs.model.base import Model


def is_audio_classifier(config: Any) -> bool:
    """Return whether a checkpoint is one of audio classification, by its configuration."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES as known

    return known.get(config.model_type) in (getattr(config, "architectures", None) or ())


def load_audio_classifier(name: str, spec: str, config: Any) -> tuple[Model, dict[str, Any]]:
    """Load a checkpoint, and return it with what transformers reports about its weights."""
    import transformers

    extractor = transformers.AutoFeatureExtractor.from_pretrained(name, trust_remote_code=False)
    net, loading = transformers.AutoModelForAudioClassification.from_pretrained(
        name, trust_remote_code=False, output_loading_info=True
    )
    names = tuple(str(config.id2label[i]) for i in range(config.num_labels))
    digest = hashlib.sha256(extractor.to_json_string().encode()).hexdigest()[:16]
    model = Model(
        AudioInput(net, extractor), spec, config.num_labels, names, parts=(("feature extractor", digest),),
        task="classify", sample_rate=int(extractor.sampling_rate),
    )  # fmt: skip
    return model, loading


class AudioInput(torch.nn.Module):
    """A network behind its feature extractor, which maps noisy signals [B, 1, T] to scores.

    The extractor often standardises each signal by itself. This happens behind the noise, so the radius is about the
    signal as it was recorded.
    """

    preserves_input = True

    def __init__(self, net: torch.nn.Module, extractor: Any) -> None:
        super().__init__()
        self.net, self.extractor = net, extractor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.ndim != 3 or x.shape[1] != 1:
            raise PprsError(f"it takes audio of one channel (mono), not of shape {tuple(x.shape[1:])}")
        signals = list(x[:, 0].detach().cpu().numpy())
        inputs = self.extractor(signals, sampling_rate=self.extractor.sampling_rate, return_tensors="pt", padding=True)
        scores: torch.Tensor = self.net(**inputs.to(x.device)).logits
        return scores
