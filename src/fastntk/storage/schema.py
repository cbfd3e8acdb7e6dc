"""What a manifest says, as types: every field of a run's or a result's folder that is read again (:mod:`fastntk.base.schema`).

The data, the recipe and the card of the model are typed where they live; here is how they are laid out in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from fastntk.base.errors import InputError
from fastntk.base.schema import AtLeastZero, Count, Fraction, JsonObject, Moment, Positive, Sha256, Word, check_moment, parse
from fastntk.models.card import card_from_dict
from fastntk.training.recipe import Recipe
from fastntk.training.series import Dtype
from fastntk.unlearning.details import Details


class FileEntry(TypedDict):
    """Size and digest of a file."""

    bytes: Count
    sha256: Sha256


Model = TypedDict("Model", {"class": Word, "card": JsonObject | None, "config": JsonObject | None})
"""The architecture: its class, and what ``build_model`` or its own configuration says of it."""


class Prompts(TypedDict):
    """Prompts that were attached."""

    length: Positive
    blocks: Positive


class Adapters(TypedDict):
    """Adapters of peft."""

    wrapped: bool
    active: Word
    configs: Annotated[dict[str, JsonObject], Meta(min_length=1)]


class Epoch(TypedDict, total=False):
    """What is known of a pass over the data."""

    epoch: Count
    loss: float
    accuracy: Fraction
    seconds: AtLeastZero


class Data(TypedDict):
    """What is known of the data; ``shape`` and ``digest`` are null where nobody saw it."""

    count: Count
    shape: list[Count] | None
    classes: list[str] | None
    num_classes: Count
    digest: Sha256 | None
    ids_digest: Sha256
    key: NotRequired[Word | None]
    per_class: NotRequired[list[Count]]


class Forgotten(TypedDict):
    """Digests of ids that an earlier request forgot, and what they are salted with."""

    data: NotRequired[Sha256]
    key: NotRequired[Word]
    ids: list[Sha256]


class Source(TypedDict):
    """Where the data can be loaded again."""

    data: Word
    images_per_class: NotRequired[Positive | None]
    only_classes: NotRequired[int | str | list[int | str] | None]
    without: NotRequired[list[Forgotten]]
    class_names: NotRequired[Word]


class TraceSummary(TypedDict):
    """The digest of ``trace.json``, and what the trace says of itself."""

    sha256: Sha256
    epochs: Count
    steps: Count
    visits: Count
    samples: Count
    nbytes: Count
    bytes: dict[str, Count]
    feature_dtype: Dtype
    body_gradients: bool
    left: list[str]
    requests: Count


class Versions(TypedDict):
    """What made a folder."""

    fastntk: str
    torch: str
    python: str
    platform: str


class Manifest(TypedDict):
    """The file ``manifest.json``."""

    format: Literal["fastntk"]
    version: Literal[1]
    kind: Word
    model: Model
    subset: Annotated[list[Word], Meta(min_length=1)]
    tuned: Positive
    ratio: Fraction
    prompts: Prompts | None
    adapters: NotRequired[Adapters | None]
    recipe: JsonObject | None
    bn_stats: Literal["frozen", "update", "unknown"]
    history: list[Epoch]
    pretrained: NotRequired[dict[Word, Sha256] | None]
    data: Data
    source: JsonObject | None
    extra: JsonObject
    adapter: NotRequired[Literal["adapter"] | None]
    trace: NotRequired[TraceSummary | None]
    versions: Versions
    created: Moment
    files: dict[Word, FileEntry]
    manifest_sha256: Sha256


class Request(TypedDict):
    """How many samples were forgotten and retained, and digests of the forgotten ids."""

    forget: Count
    retain: Count
    forgotten: list[Sha256]
    key: NotRequired[Word | None]


class Origin(TypedDict):
    """Digests of the run that a result was made from; that of data nobody saw is null."""

    data: Sha256 | None
    tuned: Sha256
    anchor: Sha256


class ResultExtra(TypedDict):
    """What the manifest of a result says besides."""

    method: Word
    seconds: AtLeastZero
    request: Request
    origin: Origin
    details: Details


def check_manifest(manifest: Any) -> None:
    """Refuse a manifest one of whose fields is missing or not what it should be, or that contradicts itself."""
    fields = parse(manifest, Manifest, what="the manifest")
    check_moment(fields["created"])
    recipe = None if fields["recipe"] is None else Recipe.from_dict(fields["recipe"])
    statistics = "unknown" if recipe is None else recipe.bn_stats
    pool = None if recipe is None else recipe.drawn_from
    if pool is not None and pool < fields["data"]["count"]:
        raise InputError(f"recipe.drawn_from: expected at least the {fields['data']['count']} samples of the data, found {pool}")
    if fields["bn_stats"] != statistics:
        raise InputError(f"bn_stats: expected {statistics!r}, as the recipe says, found {fields['bn_stats']!r}")
    if fields["model"]["card"] is not None:
        card_from_dict(fields["model"]["card"])
    names, count = fields["data"]["classes"], fields["data"]["num_classes"]
    if names is not None and len(names) != count:
        raise InputError(f"data.num_classes: expected {len(names)} for so many class names, found {count}")
    each = fields["data"].get("per_class")
    if each is not None and (len(each) != count or sum(each) != fields["data"]["count"]):
        raise InputError(f"data.per_class: expected {count} numbers that add up to {fields['data']['count']}, found {each}")
    if len(set(fields["subset"])) != len(fields["subset"]):
        raise InputError("subset: a name occurs twice")


def source_of(manifest: Mapping[str, Any]) -> Source | None:
    """Where the manifest says that the data is."""
    return None if manifest["source"] is None else parse(manifest["source"], Source, what="source")


def result_of(manifest: Mapping[str, Any]) -> ResultExtra:
    """What the manifest of a result says of the request and of the run it was made from."""
    extra = parse(manifest["extra"], ResultExtra, what="extra")
    request = extra["request"]
    if request["forget"] != len(set(request["forgotten"])) or request["retain"] != manifest["data"]["count"]:
        raise InputError(
            f"extra.request: {request['forget']} forgotten and {request['retain']} retained samples do not fit "
            f"{len(set(request['forgotten']))} digests and {manifest['data']['count']} samples"
        )
    return extra
