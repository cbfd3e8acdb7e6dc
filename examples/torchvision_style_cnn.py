"""A plain CNN with BatchNorm in torchvision's style: from torch.save(state_dict) to an unlearned file of the same kind.

python examples/torchvision_style_cnn.py FOLDER    (a new folder to work in)"""

import sys
from pathlib import Path

import torch
from digit_folder import digit_folder
from torch import nn

import fastntk


def small_net() -> nn.Module:
    """Yours: torchvision.models.resnet18, say. Any module that turns (n, 3, H, W) into logits (n, classes) will do."""
    layers: list[nn.Module] = []
    for inside, outside in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def my_own_finetuning(work: Path, samples: fastntk.Samples) -> None:
    """Stands for what you did already: BatchNorm and head are tuned in train mode, so BN's running statistics move too."""
    model = small_net()
    torch.save(model.state_dict(), work / "start.pt")  # before the first step: the anchor
    optimizer = torch.optim.Adam(fastntk.tune(model, "norm+head").parameters.values(), lr=3e-3)
    for _ in range(20):
        for batch in torch.randperm(len(samples)).split(32):
            nn.functional.cross_entropy(model.train()(samples.inputs[batch]), samples.labels[batch]).backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.save(model.state_dict(), work / "finetuned.pt")


def main(work: Path) -> None:
    torch.manual_seed(0)
    spec = fastntk.InputSpec(32, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))  # what your transforms do
    samples = fastntk.load_source(digit_folder(work / "images", per_class=12), spec=spec)
    my_own_finetuning(work, samples)
    model = small_net().eval()
    subset = fastntk.tune(model, "norm+head")
    model.load_state_dict(torch.load(work / "start.pt", weights_only=True))
    anchor = subset.get()
    model.load_state_dict(torch.load(work / "finetuned.pt", weights_only=True))
    # bn_stats="update" says that the statistics saw the data: they are then estimated anew, without the forgotten images.
    recipe = fastntk.Recipe(epochs=20, lr=3e-3, batch_size=32, schedule="constant", weight_decay=0, bn_stats="update")
    result = fastntk.unlearn(fastntk.Run(model, subset, anchor, samples, recipe=recipe), classes=["digit-0"])
    print(f"fast-ntk: {result.details['validity']['verdict']}; BN statistics {result.details['batch_norm_statistics']}")
    torch.save(result.model.state_dict(), work / "unlearned.pt")
    served = small_net().eval()  # your serving code, as it is
    served.load_state_dict(torch.load(work / "unlearned.pt", weights_only=True))
    for part, group in (("forgotten", result.forgotten), ("retained", result.retained)):
        accuracy = [(fastntk.predict(m, group.inputs).argmax(1) == group.labels).float().mean() for m in (model, served)]
        print(f"  {part}: {len(group)} images, accuracy before {accuracy[0]:.0%}, now {accuracy[1]:.0%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
