"""LoRA by peft on a Hugging Face ViT, recorded: from the first step to a served adapter after two requests.

python examples/peft_lora.py FOLDER    (a new folder to work in)"""

import sys
from pathlib import Path

import torch

import fastntk
from fastntk.models.torchvision_ops import ensure_operators

ensure_operators()  # does nothing, unless the torchvision installed was built for another torch
from peft import LoraConfig, PeftModel, get_peft_model  # noqa: E402
from transformers import ViTConfig, ViTForImageClassification  # noqa: E402


def base_model(pretrained: Path) -> ViTForImageClassification:
    return ViTForImageClassification.from_pretrained(pretrained, attn_implementation="sdpa")


def main(work: Path) -> None:
    torch.manual_seed(0)
    spec = fastntk.InputSpec(32, mean=(0.5,) * 3, std=(0.5,) * 3)
    samples = fastntk.load_source("digits@train", spec=spec, images_per_class=20)
    tiny = {"hidden_size": 48, "num_attention_heads": 3, "num_hidden_layers": 3, "intermediate_size": 96}
    config = ViTConfig(**tiny, image_size=32, patch_size=8, num_labels=10, initializer_range=0.2)
    ViTForImageClassification(config).save_pretrained(work / "pretrained")  # yours: a published ViT
    base = base_model(work / "pretrained")
    layers = [name for name, _ in base.named_modules() if name.endswith(("query", "value", "q_proj", "v_proj"))]
    model = get_peft_model(base, LoraConfig(r=4, lora_dropout=0.05, target_modules=layers, modules_to_save=["classifier"]))
    subset = fastntk.tune(model, "lora+head")  # added: what peft trains, by name
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    recorder = fastntk.record(model, subset, optimizer, loss=torch.nn.functional.cross_entropy)  # added
    for _ in range(15):
        for batch in torch.randperm(len(samples)).split(32):
            images, targets, ids = samples.inputs[batch], samples.labels[batch], [samples.ids[k] for k in batch]
            with recorder.batch(ids, targets):  # added
                optimizer.zero_grad()
                model.train()(pixel_values=images, labels=targets).loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
    run = recorder.finish(samples)  # added
    first = fastntk.unlearn(run, classes=[0])
    later = fastntk.unlearn(first.as_run(), ids=first.retained.ids[:5])
    later.model.save_pretrained(work / "unlearned")  # an adapter in peft's own format
    served = PeftModel.from_pretrained(base_model(work / "pretrained"), work / "unlearned").eval()  # your serving code, as it is
    for part, group in (("forgotten", first.forgotten), ("retained", later.retained)):
        accuracy = [(fastntk.predict(m, group.inputs).argmax(1) == group.labels).float().mean() for m in (model.eval(), served)]
        print(f"  {part}: {len(group)} images, accuracy before {accuracy[0]:.0%}, now {accuracy[1]:.0%}")


if __name__ == "__main__":
    main(Path(sys.argv[1])) if len(sys.argv) == 2 else sys.exit(__doc__)
