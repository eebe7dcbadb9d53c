"""What is made once, before the runs of a study: decoded images, pretrained weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from codauc._internal.progress import Progress, note
from codauc.data.decoded_images import decode, is_decoded
from codauc.data.image_sources import holds
from codauc.reproduce.pretraining import Pretraining, pretrain
from codauc.reproduce.study import DATA, Study

WEIGHTS = "pretrained.safetensors"
_DECODED = "decoded"  # the directory of it
_EPOCHS = {"tiny": 1, "small": 20, "paper": 20}


def kind_of(path: str, option: str) -> str:
    """Which data set a path holds."""
    found = next((name for name in DATA if holds(Path(path), name)), None)
    if found is None:
        titles = ", ".join(each.title for each in DATA.values())
        raise ValueError(f"{option} {path}: expected images of one of {titles}; correct the path.")
    return found


def placed(study: Study, out: Path, pretrain_on: str | None, *, keep_files: bool = False) -> Study:
    """The study with the places of what `prepare` makes of its images and of other images.

    With `keep_files` folders of images are read as they are, whatever the scale.
    """
    folders = DATA[study.data].folders
    as_they_are = study.scale == "paper" or keep_files
    if folders and not (as_they_are and Path(study.source).is_dir()):
        study = replace(study, decoded=str(_decoded(out, study.source, study)))
    if pretrain_on is None:
        return study
    kind = kind_of(pretrain_on, "--pretrain")
    if kind == study.data:
        raise ValueError(
            f"--pretrain {pretrain_on} holds {DATA[kind].title}, the study's own data: expected "
            "another data set, whose images and classes say nothing of this one's."
        )
    mine, theirs = (DATA[name].side(study.scale) for name in (study.data, kind))
    if not DATA[kind].folders and mine != theirs:
        raise ValueError(
            f"--pretrain {pretrain_on}: images of {theirs} pixels for a study of {mine}; expected "
            "images of folders, which take any size."
        )
    study = replace(study, pretraining=kind)
    return replace(study, pretrained=str((out / study.folder / WEIGHTS).absolute()))


def prepare(study: Study, out: Path, pretrain_on: str | None, *, quiet: bool) -> None:
    """Decode and pretrain what is not there yet."""
    if study.decoded:
        _decode_once(study.source, Path(study.decoded), study, quiet=quiet)
    weights = Path(study.pretrained or "")
    if pretrain_on is None or weights.exists():
        return
    source = str(Path(pretrain_on).absolute())
    if DATA[study.pretraining].folders:
        folder = _decoded(out, source, study)
        _decode_once(source, folder, study, quiet=quiet)
        source = str(folder)
    weights.parent.mkdir(parents=True, exist_ok=True)
    plan = Pretraining(source, study.network, _EPOCHS[study.scale], weights)
    plan = plan._replace(network=replace(study.network, pretrained=None))
    with Progress(0, label="pretrain") as progress:
        pretrain(plan, _shown(progress, f"on {DATA[study.pretraining].title}", quiet=quiet))


def _decode_once(source: str, folder: Path, study: Study, *, quiet: bool) -> None:
    if is_decoded(folder):
        return
    side = DATA[study.data].side(study.scale)
    if not quiet:
        note(f"Images of {source} are decoded once, at {side} pixels, into {folder}.")
    with Progress(0, label="decode") as progress:
        decode(Path(source), side, folder, _shown(progress, "images", quiet=quiet))


def _decoded(out: Path, source: str, study: Study) -> Path:
    """Where images are decoded: beside the studies, so that they share them."""
    mark = hashlib.blake2b(str(Path(source).absolute()).encode(), digest_size=4).hexdigest()
    side = DATA[study.data].side(study.scale)
    return (out / _DECODED / f"imagenet-{side}-{mark}").absolute()


def _shown(progress: Progress, what: str, *, quiet: bool) -> Callable[[int, int], None]:
    def show(done: int, of: int) -> None:
        if not quiet:
            progress.total = of
            progress.update(done, what)

    return show
