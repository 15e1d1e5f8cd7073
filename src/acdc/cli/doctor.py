"""acdc doctor: report what this machine has and lacks, and how to fix it. Exit code 0 if the default run works."""

import argparse
import importlib.metadata
import os
import platform
import shutil
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from acdc import data
from acdc._version import __version__
from acdc.data import cifar, folders
from acdc.runs import folder
from acdc.train import execution, hardware

NEEDED = {"torch": "2.11", "safetensors": "0.7", "rich": "13.7"}
# The extra that installs them, what they are for, and packages by import name and by install name.
OPTIONAL = (
    ("digits", "the default run's data", {"sklearn": "scikit-learn"}),
    ("imagenet", "folders of images", {"simplejpeg": "simplejpeg", "PIL": "Pillow", "numpy": "numpy"}),
    ("plot", "figures", {"matplotlib": "matplotlib"}),
    ("report", "acdc report", {"jinja2": "Jinja2", "matplotlib": "matplotlib"}),
    ("onnx", "acdc export --to onnx", {"onnx": "onnx", "onnxscript": "onnxscript", "onnxruntime": "onnxruntime"}),
    ("bench", "acdc bench, of one engine more", {"onnxruntime": "onnxruntime", "openvino": "openvino"}),
    (
        "integrations",
        "other trainers",
        {"transformers": "transformers", "lightning": "lightning", "accelerate": "accelerate", "peft": "peft"},
    ),
    ("text", 'text with tokens = "bpe"', {"tokenizers": "tokenizers"}),
    ("theory", "acdc.theory and acdc analyze", {"sklearn": "scikit-learn", "scipy": "scipy"}),
    ("tensorboard", "acdc train --log tensorboard", {"tensorboard": "tensorboard"}),
    ("wandb", "acdc train --log wandb", {"wandb": "wandb"}),
    ("trackio", "acdc train --log trackio", {"trackio": "trackio"}),
)
_IMAGENET = {"train": 1_281_167, "val": 50_000}


def add_to(verbs: Any) -> None:
    parser = verbs.add_parser(
        "doctor",
        description="Check versions, the device, optional packages, data sets and the runs folder, and say how to "
        "install what is missing. Exit code 0 if the default run works here.",
        allow_abbrev=False,
    )
    parser.add_argument("--data", metavar="DIR", help="folder of the data sets (default $ACDC_DATA, or ./data)")
    parser.add_argument("--full", action="store_true", help="read the data sets and check that they are complete")
    parser.set_defaults(verb=run)


@dataclass(frozen=True)
class Finding:
    state: str  # "ok", "no" (only some things need it) or "BAD" (the default run needs it)
    text: str
    fix: str = ""


def run(args: argparse.Namespace) -> int:
    bad = 0
    for title, findings in (
        ("Versions", _versions()),
        ("Device", _device()),
        ("torch.compile", _compiler()),
        ("Optional packages", _packages()),
        (f"Data sets in {data.find_root(args.data)}", _data(args.data, args.full)),
        ("Runs", _runs()),
    ):
        print(title)
        for finding in findings:
            bad += finding.state == "BAD"
            print(f"  {finding.state:<4}{finding.text}")
            if finding.fix:
                print(f"      {finding.fix}")
    if bad:
        print(f"\nthe default run does not work here: fix what is marked BAD ({bad})")
        return 1
    print("\nthe default run works here; run: acdc train")
    return 0


def _versions() -> Iterator[Finding]:
    system = f"{platform.system()} {platform.machine()}"
    yield Finding("ok", f"Python {platform.python_version()}, acdc {__version__}, {system}")
    for name, least in NEEDED.items():
        version = installed_version(name)
        if version is None or _numbers(version) < _numbers(least):
            had = f"{name} {version}" if version else f"{name} is not installed"
            yield Finding("BAD", f"{had}: acdc needs {least} or newer", f'run: pip install "{name}>={least}"')
        else:
            yield Finding("ok", f"{name} {version}")


def _device() -> Iterator[Finding]:
    machine = hardware.describe(torch.device("cpu"))["hardware"]
    limit = os.environ.get("OMP_NUM_THREADS")
    threads = f"{torch.get_num_threads()} for torch{f', by OMP_NUM_THREADS={limit}' if limit else ''}"
    yield Finding("ok", f"CPU: {machine['cpu']}, {hardware.cores()} cores, {threads}")
    yield _bf16_on_cpu()
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        reason = (
            f"torch is built for {built} but sees none" if built else f"torch {torch.__version__} is a CPU-only build"
        )
        fix = "check nvidia-smi: the driver may be too old" if built else "install another build from pytorch.org"
        yield Finding("no", f"GPU: {reason}; the default run does not need one", f"if this machine has a GPU: {fix}")
        return
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name, capability = torch.cuda.get_device_name(index), "{}.{}".format(*torch.cuda.get_device_capability(index))
        memory = f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
        yield Finding("ok", f"GPU {index}: {name}, compute capability {capability}, {memory}")
        if free < total / 2:
            yield Finding("no", "less than half of its memory is free", "nvidia-smi lists the processes that use it")
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        yield Finding(
            "no", "bf16: not supported by this GPU", 'for recipes in bf16 add --set train.precision=fp16, or "fp32"'
        )


def _bf16_on_cpu() -> Finding:
    if (crash := hardware.bf16_crash()) is None:
        return Finding("ok", "bf16 on the CPU: torch's kernels run (tried in a separate process)")
    name, value = hardware.BF16_REMEDY
    cure = f"set {name}={value} in the environment" if hardware.bf16_remedy_works() else "use fp32"
    return Finding("no", f"bf16 on the CPU: torch's kernels crash ({crash})", f"for recipes in bf16 {cure}")


def _compiler() -> Iterator[Finding]:
    """Look for what torch.compile needs. acdc trains without it, though more slowly on a GPU."""
    if compiler := execution.compiler():
        yield Finding("ok", f"compiler {compiler}")
    else:
        yield Finding("no", "no C++ compiler: torch.compile stays off", "on Debian or Ubuntu run: apt install g++")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.is_file():
        yield Finding("no", f"{header} does not exist", "on Debian or Ubuntu run: apt install python3-dev")
    if torch.cuda.is_available():
        version = installed_version("triton")
        yield Finding("ok", f"triton {version}") if version else Finding("no", "no triton", "run: pip install triton")


def _packages() -> Iterator[Finding]:
    for extra, use, packages in OPTIONAL:
        missing = [name for module, name in packages.items() if find_spec(module) is None]
        if not missing:
            there = ", ".join(f"{name} {installed_version(name) or ''}".rstrip() for name in packages.values())
            yield Finding("ok", f"{there}, for {use}")
        else:
            state = "BAD" if extra == "digits" else "no"
            fix = f'run: pip install "acdc-torch[{extra}]" (in a checkout: ".[{extra}]")'
            yield Finding(state, f"no {', '.join(missing)}, for {use}", fix)


def _data(root: str | None, full: bool) -> Iterator[Finding]:
    place = data.find_root(root)
    for collection in (cifar.CIFAR10, cifar.CIFAR100):
        yield _cifar(collection, place, full)
    yield _imagenet(place, full)


def _cifar(collection: cifar.Collection, place: Path, full: bool) -> Finding:
    fix = f"download {collection.archive} from {cifar.PAGE} into {place}, or say where it is: --data DIR or ACDC_DATA"
    where = next(
        (f for f in (place / collection.folder, place) if any((f / name).is_file() for name in collection.md5)), None
    )
    if where is None and not (place / collection.archive).is_file():
        return Finding("no", f"{collection.name}: not found", fix)
    missing = [name for name in collection.md5 if not (where / name).is_file()] if where else []
    if missing:
        return Finding("no", f"{collection.name}: {where} lacks {', '.join(missing)}", fix)
    if not full:
        return Finding(
            "ok", f"{collection.name}: {where or place / collection.archive} (acdc doctor --full verifies it)"
        )
    try:
        data.load(collection.name, root=place)
    except (ValueError, OSError) as error:
        return Finding("no", str(error))
    return Finding("ok", f"{collection.name}: {where or place / collection.archive}, all md5s are the official ones")


def _imagenet(place: Path, full: bool) -> Finding:
    fix = "say which folder holds train and val: --data DIR or ACDC_DATA"
    if not any((place / split).is_dir() for split in folders.SPLITS):
        return Finding("no", "imagenet: not found", fix)
    try:
        classes = folders.list_classes(place, None)
        if not full:
            return Finding("ok", f"imagenet: {len(classes):,} classes (acdc doctor --full counts the images)")
        counts = {split: len(folders.list_files(place, split, classes)[0]) for split in folders.SPLITS}
    except (ValueError, OSError) as error:
        return Finding("no", f"imagenet: {error}")
    images = ", ".join(f"{count:,} images in {split}" for split, count in counts.items())
    whole = len(classes) == 1000 and counts == _IMAGENET
    return Finding("ok", f"imagenet: {len(classes):,} classes, {images}{', as published' if whole else ''}")


def _runs() -> Iterator[Finding]:
    runs = Path("runs").absolute()
    reason = folder.why_not(runs / "probe")
    if reason:
        yield Finding("BAD", f"{runs}: {reason}", "change to a writable folder, or use acdc train --out DIR")
        return
    nearest = next(path for path in (runs, *runs.parents) if path.exists())
    free = shutil.disk_usage(nearest).free
    yield Finding("ok" if free > 2**30 else "no", f"{runs} is writable; {free / 2**30:.1f} GiB free")


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.partition("+")[0].split(".")[:2] if part.isdigit())
