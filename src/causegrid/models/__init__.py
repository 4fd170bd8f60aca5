"""What answers: five families of our own and any Hugging Face causal language model.

model("mamba", task=task("s3"))     fresh weights, ready to train
model("EleutherAI/pythia-160m")     Hugging Face id, local folder, or bundled model
"""

from causegrid.models.forward import check_finite, fingerprint, last_logits, logits, noise_floor
from causegrid.models.pretrained import require_tokenizer, wrap
from causegrid.models.record import Model, models
from causegrid.models.resolve import model, untrained
from causegrid.models.saved import load, save

__all__ = [
    "Model",
    "check_finite",
    "fingerprint",
    "last_logits",
    "load",
    "logits",
    "model",
    "models",
    "noise_floor",
    "require_tokenizer",
    "save",
    "untrained",
    "wrap",
]
