"""A timm model that your own loop fine-tuned: from its state_dict to an unlearned state_dict with the same keys.

python examples/timm_finetuned_elsewhere.py FOLDER    (a new folder to work in)"""

import sys
from pathlib import Path

import torch
from digit_folder import digit_folder

import fastntk
from fastntk.models.torchvision_ops import ensure_operators

ensure_operators()  # does nothing, unless the torchvision installed was built for another torch
import timm  # noqa: E402

NAME, SIZE, CLASSES, EPOCHS, LR, BATCH = "test_vit", 32, 10, 10, 3e-3, 32


def my_own_finetuning(work: Path, samples: fastntk.Samples) -> None:
    """Stands for what you did already: tune norm layers and head. start.pt is the model before the first step."""
    model = timm.create_model(NAME, num_classes=CLASSES, img_size=SIZE).eval()  # yours: pretrained=True
    torch.save(model.state_dict(), work / "start.pt")
    optimizer = torch.optim.Adam([p for name, p in model.named_parameters() if "norm" in name or name.startswith("head.")], lr=LR)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(samples)).split(BATCH):
            torch.nn.functional.cross_entropy(model(samples.inputs[batch]), samples.labels[batch]).backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.save(model.state_dict(), work / "finetuned.pt")


def main(work: Path) -> None:
    torch.manual_seed(0)
    spec = fastntk.InputSpec(SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)  # what your transforms do
    samples = fastntk.load_source(digit_folder(work / "images", per_class=12), spec=spec)
    my_own_finetuning(work, samples)
    # The anchor: tuned values before fine-tuning. No start.pt? Take the publisher's weights; build_model starts the head at zero.
    model = fastntk.build_model(f"timm:{NAME}", num_classes=CLASSES, weights=work / "start.pt", image_size=SIZE)
    model.load_state_dict(torch.load(work / "start.pt", weights_only=True))
    subset = fastntk.tune(model, "norm+head")
    anchor = subset.get()
    model.load_state_dict(torch.load(work / "finetuned.pt", weights_only=True))
    # fast-ntk needs no recipe. Where you can state your loop's, tangent-replay is usually nearer to retraining.
    recipe = fastntk.Recipe(epochs=EPOCHS, lr=LR, batch_size=BATCH, schedule="constant", weight_decay=0)
    run = fastntk.Run(model, subset, anchor, samples, recipe=recipe)  # or recipe=None, and fast-ntk alone
    for method in ("fast-ntk", "tangent-replay"):
        result = fastntk.unlearn(run, classes=["digit-0"], ids=["digit-3/000.png", "digit-3/001.png"], method=method)
        torch.save(result.model.state_dict(), work / f"{method}.pt")
        served = timm.create_model(NAME, num_classes=CLASSES, img_size=SIZE).eval()  # your serving code, as it is
        served.load_state_dict(torch.load(work / f"{method}.pt", weights_only=True))
        print(f"{method}: {result.details['validity']['verdict']}. {result.details['outside_subset']['message']}")
        for part, group in (("forgotten", result.forgotten), ("retained", result.retained)):
            accuracy = [(fastntk.predict(m, group.inputs).argmax(1) == group.labels).float().mean() for m in (model, served)]
            print(f"  {part}: {len(group)} images, accuracy before {accuracy[0]:.0%}, now {accuracy[1]:.0%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
