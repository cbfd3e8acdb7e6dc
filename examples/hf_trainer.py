"""A Hugging Face Trainer, recorded: from its first step to a served folder after two requests, without stating a recipe.

python examples/hf_trainer.py FOLDER    (a new folder to work in)"""

import sys
from pathlib import Path

import torch

import fastntk
from fastntk.models.torchvision_ops import ensure_operators

ensure_operators()  # does nothing, unless the torchvision installed was built for another torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification  # noqa: E402

from fastntk.integrations.huggingface import RecordCallback  # noqa: E402


def dataset(samples: fastntk.Samples) -> list[dict[str, object]]:
    """Yours: a data set of the package datasets, or any other whose items are dicts. It needs a column of ids."""
    columns = zip(samples.inputs, samples.labels.tolist(), samples.ids)
    return [{"pixel_values": image, "label": label, "id": key} for image, label, key in columns]


def main(work: Path) -> None:
    torch.manual_seed(0)
    spec = fastntk.InputSpec(32, mean=(0.5,) * 3, std=(0.5,) * 3)
    samples = fastntk.load_source("digits@train", spec=spec, images_per_class=20)
    tiny = {"hidden_size": 48, "num_attention_heads": 3, "num_hidden_layers": 3, "intermediate_size": 96}
    config = ViTConfig(**tiny, image_size=32, patch_size=8, num_labels=10, initializer_range=0.2, hidden_dropout_prob=0.05)
    model = ViTForImageClassification(config)  # yours: ViTForImageClassification.from_pretrained(...)
    options = {"num_train_epochs": 15, "per_device_train_batch_size": 16, "gradient_accumulation_steps": 2, "use_cpu": True}
    options |= {"learning_rate": 2e-2, "warmup_steps": 10, "weight_decay": 0.01, "label_smoothing_factor": 0.1}
    quiet = {"report_to": [], "disable_tqdm": True, "save_strategy": "no", "logging_strategy": "no"}
    arguments = TrainingArguments(str(work / "trainer"), **options, **quiet)
    recorded = RecordCallback("norm+head", samples=samples)  # added
    Trainer(model, arguments, train_dataset=dataset(samples), callbacks=[recorded]).train()  # changed: callbacks
    first = fastntk.unlearn(recorded.run, classes=[0])
    later = fastntk.unlearn(first.as_run(), ids=first.retained.ids[:5])
    later.model.save_pretrained(work / "unlearned")
    served = ViTForImageClassification.from_pretrained(work / "unlearned").eval()  # your serving code, as it is
    for part, group in (("forgotten", first.forgotten), ("retained", later.retained)):
        accuracy = [(fastntk.predict(m, group.inputs).argmax(1) == group.labels).float().mean() for m in (model.eval(), served)]
        print(f"  {part}: {len(group)} images, accuracy before {accuracy[0]:.0%}, now {accuracy[1]:.0%}")


if __name__ == "__main__":
    main(Path(sys.argv[1])) if len(sys.argv) == 2 else sys.exit(__doc__)
