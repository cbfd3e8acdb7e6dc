"""Prompts on a stock ViT: unlearn, keep what is tuned as one small file, and serve it with one call.

python examples/prompts_serving.py FOLDER    (a new folder to work in)
"""

import sys
from pathlib import Path

import torch
from digit_folder import digit_folder

import fastntk
from fastntk.models.torchvision_ops import ensure_operators

ensure_operators()  # does nothing, unless the torchvision installed was built for another torch
import timm  # noqa: E402

NAME, SIZE, CLASSES = "test_vit", 32, 10


def main(work: Path) -> None:
    torch.manual_seed(0)
    backbone = work / "backbone.pt"
    images = digit_folder(work / "images", per_class=12)
    torch.save(timm.create_model(NAME, img_size=SIZE).state_dict(), backbone)  # yours: the publisher's file

    # Fine-tune prompts and head; a stock ViT has no prompts, so this package attaches them.
    model = fastntk.build_model(f"timm:{NAME}", num_classes=CLASSES, weights=backbone, image_size=SIZE)
    subset = fastntk.tune(model, "prompts+head", prompt_length=10, prompt_blocks=2)
    samples = fastntk.load_source(images, spec=fastntk.input_spec(model))
    run = fastntk.fit(model, subset, samples, fastntk.Recipe(epochs=15, lr=1e-2))
    result = fastntk.unlearn(run, classes=["digit-0"], method="tangent-replay")
    file = fastntk.save_tuned(result.subset, work / "unlearned.safetensors")
    print(f"tangent-replay: {result.details['validity']['verdict']}; {file.name} has {file.stat().st_size:,} bytes")

    # Serving: the same backbone as ever, then one call that attaches the prompts and writes prompts and head.
    served = timm.create_model(NAME, num_classes=CLASSES, img_size=SIZE).eval()
    frozen = {name: value for name, value in torch.load(backbone, weights_only=True).items() if not name.startswith("head.")}
    served.load_state_dict(frozen, strict=False)
    fastntk.load_tuned(served, file)
    for part, group in (("forgotten", result.forgotten), ("retained", result.retained)):
        accuracy = [(fastntk.predict(m, group.inputs).argmax(1) == group.labels).float().mean() for m in (run.model, served)]
        print(f"  {part}: {len(group)} images, accuracy before {accuracy[0]:.0%}, now {accuracy[1]:.0%}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
