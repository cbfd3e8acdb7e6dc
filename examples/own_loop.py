"""A training loop of one's own, recorded: from the first step to a served file after two requests, without stating a recipe.

python examples/own_loop.py FOLDER    (a new folder to work in)"""

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import fastntk


def small_net() -> nn.Module:
    """Yours: any module that turns images into logits (n, classes)."""
    layers: list[nn.Module] = []
    for inside, outside in ((3, 16), (16, 32)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.GroupNorm(4, outside), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.1), nn.Linear(128, 10))


def shifted(images: Tensor) -> Tensor:
    """Augmentation: all images of a batch by up to two pixels."""
    return images.roll(torch.randint(-2, 3, (2,)).tolist(), dims=(2, 3))


def main(work: Path) -> None:
    torch.manual_seed(0)
    spec = fastntk.InputSpec(16, mean=(0.5,) * 3, std=(0.5,) * 3)
    samples = fastntk.load_source("digits@train", spec=spec, images_per_class=20)
    model = small_net()
    subset = fastntk.tune(model, "norm+head")
    optimizer = torch.optim.AdamW(subset.parameters.values(), lr=1e-2, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 20))  # warm-up
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    recorder = fastntk.record(model, subset, optimizer, loss=loss)  # added
    for _ in range(15):
        for batch in torch.randperm(len(samples)).split(32):
            images, targets, ids = samples.inputs[batch], samples.labels[batch], [samples.ids[k] for k in batch]
            with recorder.batch(ids, targets):  # added
                optimizer.zero_grad()
                loss(model.train()(shifted(images)), targets).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            scheduler.step()
    run = recorder.finish(samples)  # added
    first = fastntk.unlearn(run, classes=[0])
    later = fastntk.unlearn(first.as_run(), ids=first.retained.ids[:5])
    work.mkdir(parents=True, exist_ok=True)
    torch.save(later.model.state_dict(), work / "unlearned.pt")
    served = small_net().eval()  # your serving code, as it is
    served.load_state_dict(torch.load(work / "unlearned.pt", weights_only=True))
    for part, group in (("forgotten", first.forgotten), ("retained", later.retained)):
        accuracy = [(fastntk.predict(m, group.inputs).argmax(1) == group.labels).float().mean() for m in (model.eval(), served)]
        print(f"  {part}: {len(group)} images, accuracy before {accuracy[0]:.0%}, now {accuracy[1]:.0%}")


if __name__ == "__main__":
    main(Path(sys.argv[1])) if len(sys.argv) == 2 else sys.exit(__doc__)
