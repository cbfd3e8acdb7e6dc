"""A Hugging Face ViT, fine-tuned and saved by save_pretrained: from its folder to an unlearned folder of the same kind.

python examples/huggingface_folder.py FOLDER    (a new folder to work in)"""

import sys
from pathlib import Path

import torch
from digit_folder import digit_folder

import fastntk
from fastntk.models.card import attach_card
from fastntk.models.torchvision_ops import ensure_operators

ensure_operators()  # does nothing, unless the torchvision installed was built for another torch
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor  # noqa: E402


def my_own_finetuning(pretrained: Path, finetuned: Path, samples: fastntk.Samples) -> None:
    """Stands for what you did already: all LayerNorms and a head that starts at zero, by any trainer."""
    names = dict(enumerate(samples.classes or ()))
    model = ViTForImageClassification.from_pretrained(pretrained, id2label=names, ignore_mismatched_sizes=True).eval()
    torch.nn.init.zeros_(model.classifier.weight)
    optimizer = torch.optim.Adam([p for name, p in model.named_parameters() if "norm" in name or "classifier" in name], lr=3e-3)
    for _ in range(10):
        for batch in torch.randperm(len(samples)).split(32):
            model(pixel_values=samples.inputs[batch], labels=samples.labels[batch]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(finetuned)


def main(work: Path) -> None:
    torch.manual_seed(0)
    pretrained, finetuned, unlearned = work / "pretrained", work / "finetuned", work / "unlearned"
    tiny = {"hidden_size": 48, "num_attention_heads": 3, "num_hidden_layers": 3, "intermediate_size": 96}
    config = ViTConfig(**tiny, image_size=32, patch_size=8, initializer_range=0.2)
    ViTForImageClassification(config).save_pretrained(pretrained)  # yours: a published ViT
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(pretrained)
    # What it was before: pre-trained weights, zero head. Its card knows the preprocessor's numbers and every frozen weight.
    before = fastntk.build_model(f"hf:{pretrained}", num_classes=10, weights="pretrained")
    samples = fastntk.load_source(digit_folder(work / "images", per_class=12), spec=fastntk.input_spec(before))
    my_own_finetuning(pretrained, finetuned, samples)
    model = ViTForImageClassification.from_pretrained(finetuned, attn_implementation="sdpa").eval()
    attach_card(model, before.fastntk_card)  # optional: lets the result say whether the frozen weights are the pre-trained ones
    subset = fastntk.tune(model, "norm+head")
    run = fastntk.Run(model, subset, subset.on(before).get(), samples)  # a head drawn at random: its values, if you kept them
    result = fastntk.unlearn(run, classes=["digit-0"])
    print(f"fast-ntk: {result.details['validity']['verdict']}. {result.details['outside_subset']['message']}")
    result.model.save_pretrained(unlearned)
    served = ViTForImageClassification.from_pretrained(unlearned).eval()  # your serving code, as it is
    for part, group in (("forgotten", result.forgotten), ("retained", result.retained)):
        accuracy = [(fastntk.predict(m, group.inputs).argmax(1) == group.labels).float().mean() for m in (model, served)]
        print(f"  {part}: {len(group)} images, accuracy before {accuracy[0]:.0%}, now {accuracy[1]:.0%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
