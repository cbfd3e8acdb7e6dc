"""Build an image classifier of Hugging Face transformers, by hub name or from a folder saved by ``save_pretrained``.

Weights go through transformers' own loader, which renames the keys of old checkpoints; what it reports as missing,
superfluous or of another shape is an error here, except for the old head. Another image size means a new
configuration and resampled positions. Attention is "sdpa", which prompts need. Code that a model brings along is never run. Needs
the extra ``hf``.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fastntk.base.digest import file_digest
from fastntk.base.errors import InputError, listing
from fastntk.models.card import InputSpec
from fastntk.models.foreign_code import refuse_code
from fastntk.models.hf_processor import interpolation, keeps_proportions, normalisation, output_side, read_settings, scaled
from fastntk.models.loading import HEAD_NAMES, head_names, load_backbone, output_layers, zero_head
from fastntk.models.parts import Built
from fastntk.models.positions import resample_positions
from fastntk.models.torchvision_ops import import_optional
from fastntk.models.weights import read_weights, weights_file


def build_hf(name: str, *, num_classes: int, weights: str | Path | None, image_size: int | None) -> Built:
    """Build ``hf:<name or folder>``: random, the publisher's (or the folder's) weights, or a file; the head is zero."""
    transformers = import_optional("transformers", extra="hf")
    with _quiet(transformers):
        config = _config(transformers, name, num_classes=num_classes)
        target_config = _config_for(config, image_size=image_size, name=name)
        if weights is None:
            model, notes = _create(transformers, target_config)
            sha256 = None
        else:
            state, sha256 = _weights(name, weights)
            model, notes = _load(transformers, name, config=config, state=state)
        heads = _heads(model, name=name, num_classes=num_classes)
        if weights is not None and _side(target_config) != _side(config):
            model, more = _resized(transformers, model, config=target_config, heads=heads)
            notes += more
        zero_head(model, heads=heads)
        spec, more = _input_spec(transformers, name, model=model, config=config, image_size=image_size)
    return Built(model, spec=spec, weights_sha256=sha256, notes=(*notes, *more))


@contextlib.contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Silence the loader's report and bar: what matters of it becomes an error or a note of the card."""
    logging = transformers.utils.logging
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _config(transformers: Any, name: str, *, num_classes: int) -> Any:
    if name.startswith(("/", ".", "~")) and not Path(name).expanduser().is_dir():
        raise InputError(f"hf:{name} looks like a folder, but there is none: expected one saved by save_pretrained")
    try:
        settings = transformers.PretrainedConfig.get_config_dict(_location(name))[0]
        refuse_code(settings, where=f"the configuration of hf:{name}")
        config = transformers.AutoConfig.from_pretrained(_location(name), trust_remote_code=False)
    except InputError:
        raise
    except (OSError, ValueError) as error:
        reason = (str(error).splitlines() or ["unknown reason"])[0]
        raise InputError(
            f"hf:{name} is neither a folder saved by save_pretrained nor a model of the Hugging Face hub that can be "
            f"reached from here: {reason}"
        ) from error
    config.num_labels = num_classes
    return config


def _location(name: str) -> str:
    folder = Path(name).expanduser()
    return str(folder) if folder.is_dir() else name


def _side(config: Any) -> int | None:
    size = getattr(config, "image_size", None)
    return int(size[0]) if isinstance(size, list | tuple) else int(size) if size is not None else None


def _patch(config: Any) -> int | None:
    patch = getattr(config, "patch_size", None)
    patch = patch[0] if isinstance(patch, list | tuple) else patch
    return patch if isinstance(patch, int) else None


def _config_for(config: Any, *, image_size: int | None, name: str) -> Any:
    """Return the configuration at another image size (unchanged where the architecture knows no size)."""
    if image_size is None or _side(config) in (None, image_size):
        return config
    patch = _patch(config)
    if patch and image_size % patch:
        near = [side for side in (image_size // patch * patch, (image_size // patch + 1) * patch) if side]
        raise InputError(
            f"image_size={image_size} does not fit hf:{name}: its patches are {patch} pixels wide, so the size must "
            f"be a multiple of {patch}, such as {' or '.join(map(str, near))}"
        )
    variant = copy.deepcopy(config)
    variant.image_size = [image_size] * 2 if isinstance(config.image_size, list | tuple) else image_size
    return variant


def _create(transformers: Any, config: Any) -> tuple[nn.Module, tuple[str, ...]]:
    def make(**arguments: Any) -> nn.Module:
        model = auto.from_config(copy.deepcopy(config), dtype=torch.float32, trust_remote_code=False, **arguments)
        assert isinstance(model, nn.Module)
        return model

    auto = transformers.AutoModelForImageClassification
    return _with_sdpa(make)


def _with_sdpa(make: Any) -> tuple[Any, tuple[str, ...]]:
    try:
        return make(attn_implementation="sdpa"), ()
    except ValueError as error:
        text = str(error)
        if "scaled_dot_product_attention" in text:
            return make(), ("the architecture has no sdpa attention: prompts cannot be attached",)
        if "Unrecognized configuration class" in text:
            raise InputError(f"not an image classifier of transformers: {text.splitlines()[0]}") from error
        raise


def _weights(name: str, weights: str | Path) -> tuple[dict[str, Tensor] | None, str | None]:
    """Return the tensors of a file, or None for the publisher's own, and the digest where there is one file."""
    if weights == "pretrained":
        single = Path(_location(name)) / "model.safetensors"
        return None, file_digest(single) if single.is_file() else None
    path = weights_file(weights, model=f"hf:{name}", known=["pretrained"])
    return read_weights(path, prefixes=("module.",)), file_digest(path)  # "model." may be a part of such a model


def _load(transformers: Any, name: str, *, config: Any, state: dict[str, Tensor] | None) -> tuple[nn.Module, tuple[str, ...]]:
    # Auto classes insist on a name, a concrete class also takes tensors alone.
    auto = transformers.AutoModelForImageClassification
    loader: Any = auto if state is None else type(_create(transformers, config)[0])

    def make(**arguments: Any) -> Any:
        return loader.from_pretrained(
            _location(name) if state is None else None,
            config=copy.deepcopy(config),
            state_dict=state,
            dtype=torch.float32,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            trust_remote_code=False,
            **arguments,
        )

    try:
        (model, info), notes = _with_sdpa(make)
    except OSError as error:
        reason = (str(error).splitlines() or ["unknown reason"])[0]
        raise InputError(f"hf:{name}: its weights cannot be read: {reason}") from error
    _check_report(model, info, source=f"hf:{name}" if state is None else "the weights file")
    return model, notes


def _check_report(model: nn.Module, info: dict[str, Any], *, source: str) -> None:
    def backbone(names: Any) -> list[str]:
        return sorted(name for name in names if name.partition(".")[0] not in HEAD_NAMES)

    shapes = {entry[0]: f"{tuple(entry[1])} (expected {tuple(entry[2])})" for entry in info["mismatched_keys"]}
    problems = [
        f"{label}: {listing(names)}"
        for label, names in (
            ("missing", backbone(info["missing_keys"])),
            ("unexpected", backbone(info["unexpected_keys"])),
            ("wrong shape", [f"{key} {shapes[key]}" for key in backbone(shapes)]),
        )
        if names
    ]
    if problems:
        raise InputError(
            f"{source} does not fit {type(model).__name__}; {'; '.join(problems)}. Give weights of this very "
            "architecture and size"
        )


def _heads(model: nn.Module, *, name: str, num_classes: int) -> tuple[str, ...]:
    base = getattr(model, "base_model_prefix", "")
    outside = [module for path, module in model.named_modules() if not (base and (path == base or path.startswith(base + ".")))]
    heads = head_names(model, output_layers(outside, num_classes=num_classes))
    if not heads:
        raise InputError(
            f"hf:{name} ({type(model).__name__}) has no linear classifier with {num_classes} outputs outside its "
            "backbone: choose an image-classification model"
        )
    return heads


def _resized(transformers: Any, model: nn.Module, *, config: Any, heads: tuple[str, ...]) -> tuple[nn.Module, tuple[str, ...]]:
    """Move the weights into a model for another image size, resampling the positions."""
    target, notes = _create(transformers, config)
    expected, state = target.state_dict(), dict(model.state_dict())
    side, patch = _side(config), _patch(config)
    for name, value in model.state_dict().items():
        if name not in expected or value.shape == expected[name].shape or "position_embed" not in name:
            continue
        if side is None or patch is None:
            raise InputError(f"{type(model).__name__} does not tell its patch size: keep image_size at its default")
        state[name] = resample_positions(value, tokens=expected[name].shape[1], grid=side // patch)
        notes += (f"resampled {name} from {tuple(value.shape)} to {tuple(state[name].shape)}",)
    load_backbone(target, state, heads=heads, source=f"{type(model).__name__} at another image size")
    return target, notes


def _input_spec(
    transformers: Any, name: str, *, model: nn.Module, config: Any, image_size: int | None
) -> tuple[InputSpec, tuple[str, ...]]:
    """What the saved image processor does, at the size asked for; without one, 0.5/0.5 and a note that says so."""
    settings = read_settings(transformers, _location(name), name=f"hf:{name}")
    if settings is None:
        default, source = (0.5, 0.5, 0.5), "default of ViT (no preprocessor_config.json)"
        note = f"hf:{name} has no preprocessor_config.json: mean and std of 0.5 are assumed, and a crop of the centre"
        return InputSpec(image_size or _side(config) or 224, mean=default, std=default, source=source), (note,)
    notes: list[str] = []
    own = output_side(settings)
    size = image_size or _usable(model, own) or _side(config) or own or 224
    if own is None:
        notes.append(f"its image processor sets no size: only pictures that become {size} × {size} can be loaded")
    elif own != size:
        settings = scaled(settings, by=(size, own))
        if output_side(settings) != size:
            raise InputError(
                f"hf:{name}: its image processor makes pictures of {own} × {own} and cannot be set to {size}: keep image_size at "
                f"{own}, or give its preprocessor_config.json sizes in that proportion"
            )
        notes.append(f"its image processor, made for {own} × {own}, is set to {size} × {size} in proportion")
    if keeps_proportions(settings):
        notes.append("its image processor does not make pictures square: only those that are can be loaded")
    mean, std = normalisation(settings)
    kind = settings["image_processor_type"]
    spec = InputSpec(size, mean, std, interpolation=interpolation(settings), source=kind, processor=settings)
    return spec, tuple(notes)


@torch.no_grad()
def _usable(model: nn.Module, side: int | None) -> int | None:
    """The side that the processor makes, if the model takes it; some resample their positions by themselves, some refuse."""
    if side is None or side == _side(getattr(model, "config", None)):
        return side
    try:
        model.eval()(torch.zeros(1, 3, side, side))
    except (ValueError, RuntimeError):
        return None
    return side
